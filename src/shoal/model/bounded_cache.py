"""A dictionary of bounded size: the one cache for answers that can be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values of the keys used last. Beyond `size` the key unused for longest is dropped; None is no value.

    `dropped` is told of what is dropped for want of room.
    """

    __slots__ = ("_dropped", "_size", "_values")

    def __init__(self, size: int, *, dropped: Callable[[V], None] | None = None) -> None:
        self._size = size
        self._dropped = dropped
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
        self._values.pop(key, None)
        self._make_room()
        self._values[key] = value

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made now if it is not there."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
            self._make_room()
        self._values[key] = value
        return value

    def pop(self, key: K) -> V | None:
        """Drop a key; its value, None when it is not there."""
        return self._values.pop(key, None)

    def clear(self) -> None:
        """Drop all keys."""
        self._values.clear()

    def _make_room(self) -> None:
        while len(self._values) >= self._size:
            value = self._values.pop(next(iter(self._values)))
            if self._dropped is not None:
                self._dropped(value)
