"""Time for the simulated nodes: what time it is, and waiting for a moment or for a word, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

#: asyncio cannot wait for ages, and nobody needs to.
_LONGEST_SECONDS = 3600.0


class Clock(Protocol):
    """Whose time the nodes live in."""

    def now(self) -> datetime:
        """This moment, with a time zone."""

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Until `wake` is set or the moment has come; it may be sooner. `wake` is cleared."""


class WallClock:
    """Real time, read from the clock that the API server reads."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Until `wake` is set or the moment has come."""
        seconds = _LONGEST_SECONDS if until is None else (until - self.now()).total_seconds()
        try:
            async with asyncio.timeout(min(max(0.0, seconds), _LONGEST_SECONDS)):
                await wake.wait()
        except TimeoutError:
            pass  # the moment has come
        wake.clear()
