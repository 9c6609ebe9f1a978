"""One run of the picture: it is drawn again after a change of the cluster, a key or a new size of the window."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from shoal.cli.inspect.live import Live
from shoal.cli.inspect.use import ClusterUse, of_namespace
from shoal.cli.top.frame import Size, body_height, frame
from shoal.cli.top.terminal import Terminal
from shoal.cli.top.view import View, after
from shoal.kube.client import Client
from shoal.model.contract.gpushare import MemoryUnit

#: Changes of the cluster within so many seconds are drawn together; keys are answered at once.
_TOGETHER: Final = 0.5
#: Seconds after which the picture is drawn anyway, to show trouble.
_IDLE: Final = 2.0


async def session(client: Client, view: View, *, unit: MemoryUnit | None, namespace: str, colour: bool) -> None:
    """Until a key or a signal ends it. Raises KubeError when the cluster cannot be read at the start."""
    async with Live(client, unit=unit) as live:
        with Terminal() as terminal:
            await _Session(live, terminal, view, namespace=namespace, colour=colour).run()


class _Session:
    def __init__(self, live: Live, terminal: Terminal, view: View, *, namespace: str, colour: bool) -> None:
        self._live = live
        self._terminal = terminal
        self._namespace = namespace
        self._colour = colour
        self._view = view
        self._cluster: ClusterUse = of_namespace(live.cluster(), namespace)
        #: A key, a signal: something to draw at once.
        self._touched = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._terminal.keys, self._on_keys)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGWINCH, self._touched.set)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        try:
            while not self._view.over:
                self._draw()
                await self._next()
        finally:
            loop.remove_reader(self._terminal.keys)

    async def _next(self) -> None:
        """Return at once after a key, some time after a change, and now and then."""
        if not await _any(self._touched, self._live.changed, seconds=_IDLE):
            return
        if not self._touched.is_set():
            await _any(self._touched, seconds=_TOGETHER)
        self._touched.clear()
        if self._live.changed.is_set():
            self._live.changed.clear()
            self._cluster = of_namespace(self._live.cluster(), self._namespace)

    def _draw(self) -> None:
        lines = frame(self._cluster, self._view, self._size(), colour=self._colour, trouble=self._live.trouble)
        self._terminal.draw(lines)

    def _size(self) -> Size:
        columns, lines = self._terminal.size
        return Size(columns, lines)

    def _on_keys(self) -> None:
        for key in self._terminal.pressed():
            self._view = after(self._view, key, page=body_height(self._size()))
        self._touched.set()

    def _end(self) -> None:
        self._view = View(over=True)
        self._touched.set()

    def _stop(self) -> None:
        """Ctrl-Z: the shell gets its own screen until the command goes on."""
        self._terminal.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._terminal.enter()
        self._touched.set()


async def _any(*events: asyncio.Event, seconds: float) -> bool:
    """Whether one of the events is set within so many seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return bool(done)
