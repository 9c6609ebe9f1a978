"""`shoal migrate`: what others' objects become with Shoal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from shoal.cli.output import emit
from shoal.cli.settings import escaped

#: The most that is read.
_MAX_BYTES: Final = 1 << 20
#: Exit status with --strict when something was dropped.
_DROPPED: Final = 3


@click.group(short_help="Turn objects of other operators into Shoal's.")
def migrate() -> None:
    """Turn objects of other operators into Shoal's. Reads and writes files only; no cluster is asked or changed.

    \b
    kubectl get clusterpolicies.nvidia.com -o yaml | shoal migrate clusterpolicy -
    """


@migrate.command(short_help="Turn NVIDIA's ClusterPolicy into Shoal's.")
@click.argument("file", metavar="FILE")
@click.option(
    "-o", "--output", "form", type=click.Choice(["yaml", "json"]), default="yaml", help="The form; else YAML."
)
@click.option("--strict", is_flag=True, help=f"Exit with {_DROPPED} if anything was dropped.")
def clusterpolicy(file: str, form: str, strict: bool) -> None:
    """Turn NVIDIA's ClusterPolicy, YAML or JSON, in FILE or on standard input (-) into Shoal's on standard output.

    \b
    shoal migrate clusterpolicy policy.yaml > shoal-policy.yaml
    kubectl get clusterpolicies.nvidia.com -o yaml | shoal migrate clusterpolicy - | kubectl apply -f -

    What was dropped, and why, is told on standard error; only what differs from Shoal's defaults is written. Exits with
    0 for a policy, 1 when there is none in FILE, 3 with --strict when something was dropped.
    """
    from shoal.analysis.documents import documents
    from shoal.operator.migrate import MigrationError
    from shoal.operator.migrate import migrate as migrated

    try:
        found = migrated(documents(_read(file)))
    except (MigrationError, ValueError) as error:
        raise click.ClickException(f"{escaped(file)}: {escaped(str(error))}") from error
    for place, one in enumerate(found):
        if place:
            click.echo("---" if form == "yaml" else "", nl=form == "yaml")
        emit(one.policy, form)
        name = one.policy["metadata"]["name"]
        for dropped in one.dropped:
            click.echo(f"{name}: dropped {escaped(str(dropped))}", err=True)
        for note in one.notes:
            click.echo(f"{name}: note: {escaped(note)}", err=True)
    if len(found) > 1:
        click.echo(f"note: of these {len(found)} policies the oldest alone is in force: keep one", err=True)
    if strict and any(one.dropped for one in found):
        sys.exit(_DROPPED)


def _read(file: str) -> bytes:
    """The input, bounded. What cannot be read ends the command with a message."""
    try:
        if file == "-":
            text = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                text = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{escaped(file)} cannot be read: {error.strerror}: name a file, or -") from error
    if len(text) > _MAX_BYTES:
        raise click.ClickException(f"{escaped(file)} has more than {_MAX_BYTES} bytes: is it a ClusterPolicy?")
    return text
