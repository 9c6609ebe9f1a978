"""`shoal top`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from shoal.cli.ask.connection import Connection, ask, connected

if TYPE_CHECKING:
    from shoal.cli.inspect.use import ClusterUse
    from shoal.cli.top.view import Subject
    from shoal.kube.client import Client
    from shoal.model.contract.gpushare import MemoryUnit

_UNITS = ("GiB", "MiB")


@click.command(short_help="Watch nodes, cards and pods in the terminal.")
@click.option("--once", is_flag=True, help="Print one picture and end; needs no terminal.")
@click.option(
    "--show",
    "subject",
    type=click.Choice(["nodes", "cards", "pods"]),
    default="cards",
    show_default=True,
    help="With --once: what to print a line for.",
)
@click.option("--memory-unit", type=click.Choice(_UNITS), help="What 1 of aliyun.com/gpu-mem means; else found out.")
@connected
def top(once: bool, subject: str, memory_unit: str | None, connection: Connection) -> None:
    """Watch nodes, cards and pods in the terminal.

    Keys: q ends it, 1, 2 and 3 show nodes, cards and pods, s sorts by the next column, / filters by letters (Enter
    keeps the filter, Esc drops it), arrows and PgUp, PgDn scroll. With NO_COLOR set there is no colour.

    \b
    shoal top
    shoal top --once --show pods
    """
    from shoal.cli.inspect.live import watching
    from shoal.cli.top.session import session
    from shoal.cli.top.view import Subject
    from shoal.kube.errors import KubeError
    from shoal.model.contract.gpushare import MemoryUnit

    unit = MemoryUnit(memory_unit) if memory_unit else None
    if once:
        _print(connection, Subject(subject), unit)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("shoal top draws on a terminal, and this is none: use --once for one picture")
    try:
        watching(connection, lambda client: session(client, unit=unit, colour=_colour()))
    except KubeError as error:
        raise click.ClickException(str(error)) from error


def _print(connection: Connection, subject: Subject, unit: MemoryUnit | None) -> None:
    from shoal.cli.inspect.read import read_cluster
    from shoal.cli.top.frame import Size, frame
    from shoal.cli.top.view import View

    async def question(client: Client, _: str) -> ClusterUse:
        return await read_cluster(client, unit=unit)

    cluster = ask(connection, question, reading="nodes and pods")
    width = shutil.get_terminal_size((160, 24)).columns
    for line in frame(cluster, View(subject), Size(width), colour=_colour() and sys.stdout.isatty()):
        click.echo(line)


def _colour() -> bool:
    """As no-color.org has it: any value that is not empty switches colour off."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
