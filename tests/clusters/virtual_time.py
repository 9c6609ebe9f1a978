"""An event loop whose clock jumps to the next timer when nothing else is to be done: minutes cost milliseconds.

For code that waits by asyncio alone, and meets no socket and no other thread. What happens depends on nothing but the
code and its random numbers, so that a run can be repeated.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingLeftError(Exception):
    """Everybody waits, and nobody for a time."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._now

    def skip(self, seconds: float | None) -> None:
        """So long nothing happens."""
        if seconds is None:
            raise NothingLeftError
        self._now += seconds


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        """What the loop itself was told, at once; without that the time that would have been waited is over."""
        found = super().select(0)
        if not found and timeout != 0:
            self._loop.skip(timeout)
        return found


def run(main: Coroutine[Any, Any, T]) -> T:
    """What comes of it."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
