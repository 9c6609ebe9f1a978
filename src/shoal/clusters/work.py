"""The names of pods that wait to be seen to: each once, never two of the same at a time, some later than others."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from shoal.kube.resources import Key

#: Timers closer together than this are one.
_SOON: Final = 0.001


class WorkQueue:
    """First in, first out, the urgent ones before the others. What is added while it is worked on comes once more."""

    def __init__(self) -> None:
        self._order: deque[Key] = deque()
        self._urgent: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._taken: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Semaphore(0)

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """See to it as soon as it is its turn."""
        if key in self._taken:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            (self._urgent if urgent else self._order).append(key)
            self._wake.release()

    def add_after(self, key: Key, seconds: float) -> None:
        """See to it after so long, unless it is due before that anyway."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds + _SOON:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: Key) -> None:
        del self._timers[key]
        self.add(key)

    async def take(self) -> Key:
        """The next one; `done` must follow."""
        await self._wake.acquire()
        key = (self._urgent or self._order).popleft()
        self._queued.discard(key)
        self._taken.add(key)
        return key

    def done(self, key: Key) -> None:
        """It was seen to."""
        self._taken.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Forget what was to come later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
