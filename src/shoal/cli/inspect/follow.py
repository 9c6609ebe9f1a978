"""Shows a cluster again whenever it changes: over what was there on a terminal, one after another elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from shoal.analysis.inspect.use import ClusterUse
from shoal.analysis.inspect.watch import ClusterWatch
from shoal.cli.connection import watched
from shoal.kube.client import Client
from shoal.model.contract.gpushare import MemoryUnit

#: Changes within so many seconds are shown together.
_TOGETHER: Final = 0.3
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


async def follow(
    client: Client, show: Callable[[ClusterUse], None], *, names: Sequence[str], unit: MemoryUnit | None
) -> None:
    """Until Ctrl-C. What looks the same as before is not shown again."""
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with watched(client, names=names, unit=unit) as live:
        shown: ClusterUse | None = None
        told = ""
        while not over.is_set():
            live.changed.clear()
            cluster = live.cluster()
            if cluster != shown:
                if sys.stdout.isatty():
                    click.echo(_CLEAR, nl=False)
                show(cluster)
                sys.stdout.flush()
                shown = cluster
            if live.trouble != told:
                told = live.trouble
                click.echo(f"What you see may be old: {told}" if told else "Connected again.", err=True)
            await _next(live, over)


async def _next(live: ClusterWatch, over: asyncio.Event) -> None:
    """Return some time after a change, at the end, and now and then to look for trouble."""
    waits = [asyncio.ensure_future(event.wait()) for event in (live.changed, over)]
    await asyncio.wait(waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if live.changed.is_set() and not over.is_set():
        await asyncio.sleep(_TOGETHER)
