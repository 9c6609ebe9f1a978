"""`shoal snapshot`: the cluster's nodes, pods and policy in one file, without what is nobody else's business."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from shoal.cli.ask.connection import Connection, connected
from shoal.cli.ask.source import Source


@click.command(short_help="Write nodes, pods and policy into a file, for what-if, why and policy.")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to; compressed if it ends in .gz. Default: shoal-snapshot-<time>.json.gz.",
)
@connected
def snapshot(path: Path | None, connection: Connection) -> None:
    """Write what decisions depend on into one file: nodes, pods, volumes' claims, budgets, policy.

    \b
    shoal snapshot                          shoal-snapshot-<time>.json.gz, here
    shoal snapshot -o before.json           readable JSON
    shoal what-if --snapshot before.json --policy binpack
    shoal why trainer-0 --snapshot before.json

    Left out are env, arguments, commands, images, addresses, and annotations that decide nothing. Names, labels and
    affinity are kept: look through the file before you give it to others.
    """
    from shoal import __version__
    from shoal.cli.ask.answers.words import counted
    from shoal.cli.ask.picture.archive import SnapshotError, save
    from shoal.cli.ask.tables import say_missing

    taken = datetime.datetime.now(datetime.UTC)
    facts = Source(connection).read().facts
    target = path or Path(f"shoal-snapshot-{taken:%Y%m%d-%H%M%S}.json.gz")
    try:
        size = save(facts, target, taken=f"{taken:%Y-%m-%dT%H:%M:%SZ}", shoal=__version__)
    except SnapshotError as error:
        raise click.ClickException(str(error)) from error
    what = f"{counted(len(facts.nodes), 'node')} and {counted(len(facts.pods), 'pod')}"
    click.echo(f"{target}: {what}, {size} bytes", err=True)
    say_missing(facts.missing)
