"""Keys to look at: each once, however often it is asked for, now or at a later moment."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from shoal.embedded.store import Key
from shoal.model.backoff import Backoff

_BACKOFF: Final = Backoff(first=0.005, longest=1000.0)
#: After a look that found nothing to make or delete a key rests this many times as long as the look took, so that a
#: flood of changes is seen in batches.
_REST: Final = 3.0


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """An object that a controller shall look at."""

    controller: str
    key: Key


class Queue:
    """What is due, by a clock in seconds that the caller reads."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Item, None] = OrderedDict()
        self._later: list[tuple[float, Item]] = []
        #: The earliest moment each waiting item is due: what else the heap says of it is out of date.
        self._due: dict[Item, float] = {}
        self._rests_until: dict[Item, float] = {}
        self._refusals: dict[Item, int] = {}

    def add(self, item: Item) -> None:
        """Look at it soon."""
        self._ready[item] = None

    def add_at(self, item: Item, when: float) -> None:
        """Look at it at that time, or before if something else asks for it."""
        if self._due.get(item, when + 1) > when:
            self._due[item] = when
            heapq.heappush(self._later, (when, item))

    def retry(self, item: Item, now: float) -> None:
        """Look at it again after a refusal, ever later."""
        self._refusals[item] = self._refusals.get(item, 0) + 1
        self.add_at(item, now + _BACKOFF.after(self._refusals[item]))

    def succeeded(self, item: Item) -> None:
        """The next refusal is the first again."""
        self._refusals.pop(item, None)

    def rest(self, item: Item, began: float, ended: float) -> None:
        """Leave a key alone for a while, after a look of that length."""
        self._rests_until[item] = ended + _REST * (ended - began)

    def forget(self, item: Item) -> None:
        """The object is gone."""
        for kept in (self._refusals, self._rests_until):
            kept.pop(item, None)

    def pop(self, now: float) -> Item | None:
        """The next item that is due."""
        while self._later and self._later[0][0] <= now:
            when, item = heapq.heappop(self._later)
            if self._due.get(item) == when:
                del self._due[item]
                self._ready[item] = None
        for _ in range(len(self._ready)):
            item, _ = self._ready.popitem(last=False)
            rests = self._rests_until.get(item, 0.0)
            if rests <= now:
                return item
            self.add_at(item, rests)
        return None

    def next_due(self) -> float | None:
        """When the first of the waiting items is due."""
        return self._later[0][0] if self._later else None
