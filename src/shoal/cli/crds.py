"""`shoal crds`: the definitions of Shoal's kinds of objects."""

from __future__ import annotations

import click

from shoal.cli.connection import ClusterConnection, ask, connected


@click.group(short_help="Print or apply the definitions of Shoal's kinds of objects.")
def crds() -> None:
    """Print or apply the definitions of Shoal's kinds of objects: the ClusterPolicy.

    helm makes them when a chart is installed and leaves them alone when it is upgraded: the chart runs
    `shoal crds apply` then.
    """


@crds.command("print", short_help="Print the definitions.")
def print_definitions() -> None:
    """Print the definitions, as the chart has them.

    \b
    shoal crds print | kubectl apply --server-side -f -
    """
    from shoal.operator.crd import text

    click.echo(text(), nl=False)


@crds.command(short_help="Apply the definitions, and wait until they are served.")
@click.option("--timeout", "patience", type=click.FloatRange(min=0.1, max=3600), default=60.0, show_default=True)
@connected
def apply(connection: ClusterConnection, patience: float) -> None:
    """Apply the definitions by server-side apply, and wait until the API server serves them. Objects stay.

    \b
    shoal crds apply
    shoal crds apply --timeout 300

    It needs the rights to get, create and patch customresourcedefinitions.
    """
    from shoal.operator.crd_apply import apply_definitions

    applied = ask(connection, lambda client, _: apply_definitions(client, patience=patience), reading="definitions")
    for name in applied:
        click.echo(f"customresourcedefinition {name} is served")
