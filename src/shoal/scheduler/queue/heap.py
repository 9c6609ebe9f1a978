"""A sorted collection of pods from which any may be taken, each in logarithmic time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

#: What a heap sorts by. Keys of one heap are alike and no two pods have the same.
Key = tuple[Any, ...]


class Heap:
    """Pods by uid, sorted by a key, the lowest first. What is taken out of the middle is passed over later."""

    __slots__ = ("_items", "_keys")

    def __init__(self) -> None:
        self._items: list[tuple[Key, str]] = []
        self._keys: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        """All of them, in order; the first one costs no sorting."""
        first = self.first()
        if first is not None:
            yield first
            yield from sorted((uid for uid in self._keys if uid != first), key=self._keys.__getitem__)

    def key(self, uid: str) -> Key:
        return self._keys[uid]

    def push(self, uid: str, key: Key) -> None:
        self._keys[uid] = key
        heappush(self._items, (key, uid))
        if len(self._items) > 2 * len(self._keys) + 64:
            self._items = [(key, uid) for uid, key in self._keys.items()]
            heapify(self._items)

    def discard(self, uid: str) -> None:
        self._keys.pop(uid, None)

    def first(self) -> str | None:
        while self._items:
            key, uid = self._items[0]
            if self._keys.get(uid) == key:
                return uid
            heappop(self._items)
        return None
