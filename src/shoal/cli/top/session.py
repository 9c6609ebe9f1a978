"""One run on the terminal: a screen of its own, keys without Enter, and everything back in the end.

It is drawn again after a change of the cluster, a key or a new size of the window.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final

from shoal.analysis.collectors import Collectors, Measured
from shoal.analysis.errors import NotMeasuredError
from shoal.analysis.inspect.use import ClusterUse, of_namespace
from shoal.analysis.inspect.used import picture, read_trends
from shoal.analysis.inspect.watch import ClusterWatch
from shoal.cli.connection import watched
from shoal.cli.top import view
from shoal.cli.top.frame import ScreenSize, body_height, frame
from shoal.cli.top.used_columns import UsedColumns
from shoal.cli.top.view import View, after
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.model.contract.gpushare import MemoryUnit

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_KEYS: Final = {
    b"\x1b[A": view.UP,
    b"\x1bOA": view.UP,
    b"\x1b[B": view.DOWN,
    b"\x1bOB": view.DOWN,
    b"\x1b[5~": view.PAGE_UP,
    b"\x1b[6~": view.PAGE_DOWN,
    b"\x1b[H": view.HOME,
    b"\x1b[1~": view.HOME,
    b"\r": view.ENTER,
    b"\n": view.ENTER,
    b"\x7f": view.BACKSPACE,
    b"\x08": view.BACKSPACE,
    b"\x03": view.QUIT,
    b"\x04": view.QUIT,
}


class Terminal:
    """Standard input and output as a terminal. Use it in `with`, which gives it back as it was."""

    def __init__(self) -> None:
        self.keys = sys.stdin.fileno()
        self._before = termios.tcgetattr(self.keys)

    def __enter__(self) -> Terminal:
        self.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the screen."""
        tty.setcbreak(self.keys)
        self._write(_ENTER)

    def leave(self) -> None:
        """Give it back."""
        self._write(_LEAVE)
        termios.tcsetattr(self.keys, termios.TCSADRAIN, self._before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top, over what was there."""
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def pressed(self) -> list[str]:
        """The keys that have come in, at least one; the end of the input is the key to quit."""
        return list(keys_of(os.read(self.keys, 1024))) or [view.QUIT]

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def keys_of(content: bytes) -> Iterator[str]:
    """Bytes of a terminal as keys. Sequences that mean nothing here are passed over."""
    while content:
        name = next((name for name in _KEYS if content.startswith(name)), None)
        if name is not None:
            yield _KEYS[name]
            content = content[len(name) :]
        elif content[:2] in (b"\x1b[", b"\x1bO"):
            end = next((place for place in range(2, len(content)) if 0x40 <= content[place] <= 0x7E), len(content))
            content = content[end + 1 :]
        elif content[0] == 0x1B:
            yield view.ESCAPE
            content = content[1:]
        else:
            if 0x20 <= content[0] < 0x7F:
                yield chr(content[0])
            content = content[1:]


#: Changes of the cluster within so many seconds are drawn together; keys are answered at once.
_TOGETHER: Final = 0.5
#: Seconds after which the screen is drawn anyway, to show trouble.
_IDLE: Final = 2.0


#: Seconds between two rounds to the collectors, longer where a round takes long; and while nobody answers.
_MEASURE: Final = 5.0
_UNMEASURED: Final = 30.0
_TRENDS: Final = 30.0


async def session(
    client: Client,
    view: View,
    *,
    unit: MemoryUnit | None,
    namespace: str,
    colour: bool,
    collectors: Collectors,
    marks: str,
) -> None:
    """Until a key or a signal ends it. Raises KubeError when the cluster cannot be read at the start."""
    async with watched(client, unit=unit) as live:
        with Terminal() as terminal:
            shown = _Session(live, terminal, view, namespace=namespace, colour=colour, marks=marks)
            measuring = asyncio.create_task(shown.measure(collectors))
            try:
                await shown.run()
            finally:
                measuring.cancel()
                await asyncio.wait({measuring})


class _Session:
    def __init__(
        self, live: ClusterWatch, terminal: Terminal, view: View, *, namespace: str, colour: bool, marks: str
    ) -> None:
        self._live = live
        self._marks = marks
        self._measured: Measured | None = None
        self._trends: Mapping[str, Sequence[float | None]] = {}
        self._why = ""
        self._terminal = terminal
        self._namespace = namespace
        self._colour = colour
        self._view = view
        self._cluster: ClusterUse = of_namespace(live.cluster(), namespace)
        #: A key, a signal: something to draw at once.
        self._touched = asyncio.Event()

    async def measure(self, collectors: Collectors) -> None:
        """Ask the collectors again and again, until cancelled; the screen does not wait for them."""
        clock = asyncio.get_running_loop().time
        looked_back = float("-inf")
        while True:
            began = clock()
            nodes = [use.node.name for use in self._cluster.nodes]
            try:
                self._measured = await collectors.snapshots(nodes) if nodes else None
                if nodes and began - looked_back > _TRENDS:
                    self._trends = await read_trends(collectors, nodes)
                    looked_back = began
                self._why = ""
            except (NotMeasuredError, KubeError) as error:
                self._measured, self._why = None, str(error)
            self._touched.set()
            await asyncio.sleep(_UNMEASURED if self._why else max(_MEASURE, 4 * (clock() - began)))

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
        seen = None if self._measured is None else picture(self._cluster, self._measured, self._trends)
        used = UsedColumns(seen, self._why, self._marks)
        trouble = self._live.trouble
        lines = frame(self._cluster, self._view, self._size(), colour=self._colour, trouble=trouble, used=used)
        self._terminal.draw(lines)

    def _size(self) -> ScreenSize:
        columns, lines = self._terminal.size
        return ScreenSize(columns, lines)

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
