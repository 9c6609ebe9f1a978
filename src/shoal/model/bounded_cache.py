"""A dictionary of bounded size: the one cache for answers that can be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values of the keys used last. Beyond `size` the key unused for longest is dropped; None is no value.

    `dropped` is told of what is dropped for want of room. With `weigh` the size is that of all values together; what a
    value weighs must not change.
    """

    __slots__ = ("_dropped", "_size", "_values", "_weigh", "_weight")

    def __init__(
        self, size: int, *, dropped: Callable[[V], None] | None = None, weigh: Callable[[V], int] | None = None
    ) -> None:
        self._size = size
        self._dropped = dropped
        self._weigh = weigh
        self._weight = 0
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        """The keys, the one unused for longest first."""
        return iter(self._values)

    def values(self) -> Iterator[V]:
        """The values in the order of their keys."""
        return iter(self._values.values())

    def get(self, key: K) -> V | None:
        """The value of a key, which is used by that; None when it is not there."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value."""
        self.pop(key)
        self._make_room(value)
        self._values[key] = value

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made now if it is not there."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
            self._make_room(value)
        self._values[key] = value
        return value

    def pop(self, key: K) -> V | None:
        """Drop a key; its value, None when it is not there."""
        value = self._values.pop(key, None)
        if value is not None and self._weigh is not None:
            self._weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        """Drop all keys."""
        self._values.clear()
        self._weight = 0

    def _make_room(self, for_value: V) -> None:
        if self._weigh is not None:
            self._weight += self._weigh(for_value)
        while self._values and (len(self._values) >= self._size or self._weight > self._size):
            value = self._values.pop(next(iter(self._values)))
            if self._weigh is not None:
                self._weight -= self._weigh(value)
            if self._dropped is not None:
                self._dropped(value)
