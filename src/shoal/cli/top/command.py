"""`shoal top`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.connection import ClusterConnection, across_namespaces, ask, connected, counted_in_unit, watching
from shoal.cli.output import emit, may_colour, output

if TYPE_CHECKING:
    from shoal.analysis.inspect.use import ClusterUse
    from shoal.kube.client import Client
    from shoal.model.contract.gpushare import MemoryUnit

#: Wider than any line: where there is no terminal, nothing is cut.
_WHOLE_LINES = 100_000


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
@connected
def top(
    once: bool,
    subject: str,
    unit: MemoryUnit | None,
    namespace: str,
    form: str | None,
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

    Bars and amounts are those of the pods of all namespaces: -n chooses the pods that are named and numbered.
    """
    if form is not None:
        from shoal.analysis.inspect.document import document

        emit(document(_read(connection, unit, namespace)), form)
    elif once:
        _print(_read(connection, unit, namespace), subject)
    elif sys.stdin.isatty() and sys.stdout.isatty():
        _live(connection, unit, namespace, subject)
    else:
        raise click.ClickException(
            "shoal top draws on a terminal, and this is none: use --once for one picture, or -o json"
        )


def _read(connection: ClusterConnection, unit: MemoryUnit | None, namespace: str) -> ClusterUse:
    from shoal.analysis.inspect.read import read_cluster
    from shoal.analysis.inspect.use import of_namespace

    async def question(client: Client, _: str) -> ClusterUse:
        return await read_cluster(client, unit=unit)

    return of_namespace(ask(connection, question, reading="nodes and pods"), namespace)


def _print(cluster: ClusterUse, subject: str) -> None:
    from shoal.cli.inspect.tables import nobody
    from shoal.cli.top.frame import ScreenSize, frame
    from shoal.cli.top.view import Subject, View

    terminal = sys.stdout.isatty()
    size = ScreenSize(shutil.get_terminal_size().columns if terminal else _WHOLE_LINES)
    for line in frame(cluster, View(Subject(subject)), size, colour=may_colour() and terminal):
        click.echo(line)
    click.echo(nobody(cluster), nl=False, err=True)


def _live(connection: ClusterConnection, unit: MemoryUnit | None, namespace: str, subject: str) -> None:
    from shoal.cli.top.session import session
    from shoal.cli.top.view import Subject, View
    from shoal.kube.errors import KubeError

    view = View(Subject(subject))
    try:
        watching(connection, lambda client: session(client, view, unit=unit, namespace=namespace, colour=may_colour()))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
