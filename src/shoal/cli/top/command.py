"""`shoal top`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from shoal.cli.connection import (
    ClusterConnection,
    CollectorChoice,
    across_namespaces,
    ask,
    connected,
    counted_in_unit,
    measuring,
    watching,
)
from shoal.cli.output import emit, may_colour, output

if TYPE_CHECKING:
    from shoal.analysis.collectors import Measured
    from shoal.analysis.inspect.use import ClusterUse
    from shoal.kube.client import Client
    from shoal.model.contract.gpushare import MemoryUnit

#: Wider than any line: where there is no terminal, nothing is cut.
_WHOLE_LINES = 100_000
#: Seconds for the answer of a collector to `--once`.
_DEADLINE: Final = 5.0


@click.command(short_help="Watch nodes, cards and pods in the terminal.")
@click.option("--once", is_flag=True, help="Print one picture and end; needs no terminal.")
@click.option(
    "--show",
    "subject",
    type=click.Choice(["nodes", "cards", "pods"]),
    default="cards",
    show_default=True,
    help="What there is a line for, at first.",
)
@counted_in_unit
@across_namespaces
@output()
@measuring
@connected
def top(
    once: bool,
    subject: str,
    unit: MemoryUnit | None,
    namespace: str,
    form: str | None,
    choice: CollectorChoice,
    connection: ClusterConnection,
) -> None:
    """Watch nodes, cards and pods in the terminal.

    Keys: q ends it, 1, 2 and 3 show nodes, cards and pods, s sorts by the next column, / filters by letters (Enter
    keeps the filter, Esc drops it), arrows and PgUp, PgDn scroll. With NO_COLOR set there is no colour.

    \b
    shoal top                       live; q ends it
    shoal top --show pods -n team   begin with the pods of one namespace
    shoal top --once --show nodes   one picture, without a terminal
    shoal top -o json               everything, once, for programs

    Bars and amounts are those of the pods of all namespaces: -n chooses the pods that are named and numbered. Where
    collectors run (deploy/metrics), columns tell what is really used; "-" is not known.
    """
    if form is not None:
        _emit(_read(connection, unit, namespace, choice), form)
    elif once:
        _print(_read(connection, unit, namespace, choice), subject)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        _live(connection, unit, namespace, subject, choice)
    else:
        raise click.ClickException(
            "shoal top draws on a terminal, and this is none: use --once for one picture, or -o json"
        )


@dataclass(frozen=True, slots=True)
class _Picture:
    """The cluster, what is used of it, and why that is not known."""

    cluster: ClusterUse
    measured: Measured | None
    trends: Mapping[str, Sequence[float | None]]
    why: str


def _read(connection: ClusterConnection, unit: MemoryUnit | None, namespace: str, choice: CollectorChoice) -> _Picture:
    from shoal.analysis.errors import NotMeasuredError
    from shoal.analysis.inspect.read import read_cluster
    from shoal.analysis.inspect.use import of_namespace
    from shoal.analysis.inspect.used import read_trends
    from shoal.kube.errors import KubeError

    async def question(client: Client, _: str) -> _Picture:
        cluster = of_namespace(await read_cluster(client, unit=unit), namespace)
        collectors = choice.collectors(client, deadline=_DEADLINE)
        nodes = [use.node.name for use in cluster.nodes]
        try:
            return _Picture(cluster, await collectors.snapshots(nodes), await read_trends(collectors, nodes), "")
        except (NotMeasuredError, KubeError) as error:
            return _Picture(cluster, None, {}, str(error))

    return ask(connection, question, reading="nodes and pods")


def _emit(read: _Picture, form: str) -> None:
    from shoal.analysis.inspect.document import document
    from shoal.analysis.inspect.used import used_nodes
    from shoal.analysis.inspect.used_document import used_document

    if read.measured is None:
        emit(document(read.cluster), form)
    else:
        emit(used_document(read.cluster, used_nodes(read.cluster, read.measured)), form)


def _print(read: _Picture, subject: str) -> None:
    from shoal.analysis.inspect.used import picture
    from shoal.cli.inspect.tables import nobody
    from shoal.cli.inspect.used_tables import silent
    from shoal.cli.top.frame import ScreenSize, frame
    from shoal.cli.top.used_columns import UsedColumns
    from shoal.cli.top.view import Subject, View

    terminal = sys.stdout.isatty()
    size = ScreenSize(shutil.get_terminal_size().columns if terminal else _WHOLE_LINES)
    seen = None if read.measured is None else picture(read.cluster, read.measured, read.trends)
    used = UsedColumns(seen, marks=marks(sys.stdout.encoding))
    for line in frame(read.cluster, View(Subject(subject)), size, colour=may_colour() and terminal, used=used):
        click.echo(line)
    notes = [f"Note: what is used is not shown: {read.why}\n"] if read.why else []
    notes += [silent(list(seen.nodes.values()))] if seen is not None else []
    click.echo("".join(notes) + nobody(read.cluster), nl=False, err=True)


def marks(encoding: str | None) -> str:
    """The marks of a trend that can be written in an encoding."""
    from shoal.cli.top.used_columns import BLOCKS, LETTERS

    return BLOCKS if (encoding or "").lower().replace("-", "") == "utf8" else LETTERS


def _live(
    connection: ClusterConnection, unit: MemoryUnit | None, namespace: str, subject: str, choice: CollectorChoice
) -> None:
    from shoal.cli.top.session import session
    from shoal.cli.top.view import Subject, View
    from shoal.kube.errors import KubeError

    view = View(Subject(subject))

    async def work(client: Client) -> None:
        await session(
            client,
            view,
            unit=unit,
            namespace=namespace,
            colour=may_colour(),
            collectors=choice.collectors(client),
            marks=marks(sys.stdout.encoding),
        )

    try:
        watching(connection, work)
    except KubeError as error:
        raise click.ClickException(str(error)) from error
