"""A clock that stands still until a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Time for simulated nodes in tests."""

    def __init__(self) -> None:
        self._now = START
        self._moved: set[asyncio.Event] = set()

    def now(self) -> datetime:
        """Where it stands."""
        return self._now

    async def wait(self, wake: asyncio.Event, until: datetime | None) -> None:
        """Until `wake` is set or the clock is moved past the moment."""
        while not wake.is_set() and (until is None or self._now < until):
            moved = asyncio.Event()
            self._moved.add(moved)
            waits = {asyncio.create_task(event.wait()) for event in (moved, wake)}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._moved.discard(moved)
                for task in waits:
                    task.cancel()
        wake.clear()

    async def advance(self, seconds: float) -> None:
        """Move on second by second, and let everybody do what is due."""
        end = self._now + timedelta(seconds=seconds)
        while self._now < end:
            self._now = min(end, self._now + timedelta(seconds=1))
            for moved in tuple(self._moved):
                moved.set()
            await self.settle()

    async def settle(self) -> None:
        """Let everybody run who can."""
        for _ in range(30):
            await asyncio.sleep(0)
