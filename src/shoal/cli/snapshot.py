"""`shoal snapshot`: the cluster's nodes, pods and policy in one file, without what decides nothing."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.connection import ClusterConnection, SnapshotSource, connected

if TYPE_CHECKING:
    from shoal.analysis.snapshot import ClusterSnapshot


#: What `-o` calls standard output. A file of such a name is `./json`.
_PRINTED = ("-", "json")


@click.command(short_help="Write nodes, pods and policy into a file, for what-if, why and policy.")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(),
    metavar="FILE",
    help="Where to, - for standard output; compressed if it ends in .gz. Default: shoal-snapshot-<time>.json.gz.",
)
@connected
def snapshot(path: str | None, connection: ClusterConnection) -> None:
    """Write what decisions depend on into one file: nodes, pods, volumes' claims, budgets, policy.

    \b
    shoal snapshot                          shoal-snapshot-<time>.json.gz, here
    shoal snapshot -o before.json           readable JSON
    shoal snapshot -o - | jq .facts.nodes   to another program; -o json is the same
    shoal what-if --snapshot before.json --policy binpack
    shoal why trainer-0 --snapshot before.json

    Left out are env, arguments, commands, images, addresses, and annotations that decide nothing. Names, labels and
    affinity are kept: look through the file before you give it to others.
    """
    from shoal.analysis.errors import SnapshotError
    from shoal.analysis.words import counted
    from shoal.cli.answers import say_missing

    if path == "yaml":
        raise click.UsageError("a snapshot is JSON: write -o json, or -o ./yaml for a file of that name")
    taken = datetime.datetime.now(datetime.UTC)
    cluster = SnapshotSource(connection).read().snapshot
    try:
        target, size = _write(cluster, path, taken)
    except SnapshotError as error:
        raise click.ClickException(str(error)) from error
    what = f"{counted(len(cluster.nodes), 'node')} and {counted(len(cluster.pods), 'pod')}"
    click.echo(f"{target}: {what}, {size} bytes", err=True)
    say_missing(cluster.missing)


def _write(cluster: ClusterSnapshot, path: str | None, taken: datetime.datetime) -> tuple[str, int]:
    """Write the snapshot: where it is, and how many bytes it has. Raises SnapshotError."""
    from shoal import __version__
    from shoal.analysis.snapshot_file import content_of, save

    moment = f"{taken:%Y-%m-%dT%H:%M:%SZ}"
    if path in _PRINTED:
        content = content_of(cluster, taken=moment, shoal=__version__)
        click.echo(content)
        return "standard output", len(content)
    target = Path(path or f"shoal-snapshot-{taken:%Y%m%d-%H%M%S}.json.gz")
    return str(target), save(cluster, target, taken=moment, shoal=__version__)
