"""Arrays by row that grow, and what rows say as small numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.placement.columns import BoolArray, FloatArray, IntArray

SmallArray = npt.NDArray[np.int32]

V = TypeVar("V", bound=Hashable)
S = TypeVar("S", bound=np.generic)

#: A row that says nothing. As an index it means the last entry of a table, which is kept for it.
NONE: Final = -1
#: Values no row has any more are kept up to this number beyond those in use.
_SLACK: Final = 1024


def grown(array: npt.NDArray[S], size: int, fill: object = 0) -> npt.NDArray[S]:
    """The array with more rows."""
    larger = np.full(size, fill, array.dtype)
    larger[: len(array)] = array
    return larger


class Column(Generic[V]):
    """What each row says of one thing."""

    def __init__(self, values: Iterable[V | None]) -> None:
        known: dict[V, int] = {}
        number = known.setdefault
        self._known = known
        self.ids: IntArray = np.array(
            [NONE if value is None else number(value, len(known)) for value in values], np.int64
        )

    @property
    def values(self) -> int:
        """How many values there are or were."""
        return len(self._known)

    def set(self, row: int, value: V | None) -> None:
        self.ids[row] = self._id(value)

    def grow(self, size: int) -> None:
        self.ids = grown(self.ids, size, NONE)

    def number(self, value: V) -> int:
        """The number of a value; that of none when no row has said it."""
        return self._known.get(value, NONE)

    def where(self, test: Callable[[V], bool], *, absent: bool = False) -> BoolArray:
        """The rows whose value passes; `absent` is for those without."""
        table = np.fromiter((test(value) for value in self._known), np.bool_, len(self._known))
        return self.spread(table, absent=absent)

    def where_one_of(self, values: Iterable[V]) -> BoolArray:
        """The rows that have one of these values."""
        table = np.zeros(len(self._known), np.bool_)
        table[[number for value in values if (number := self.number(value)) != NONE]] = True
        return self.spread(table)

    def spread(self, table: BoolArray, *, absent: bool = False) -> BoolArray:
        """What a table by value says, by row."""
        full = np.empty(len(self._known) + 1, np.bool_)
        full[:-1] = table
        full[-1] = absent
        result: BoolArray = full[self.ids]
        return result

    def counts(self, test: Callable[[V], int]) -> FloatArray:
        """A number of each row's value; 0 for those without."""
        table = np.zeros(len(self._known) + 1)
        table[:-1] = [test(value) for value in self._known]
        result: FloatArray = table[self.ids]
        return result

    @property
    def cluttered(self) -> bool:
        """Most of the values are of the past."""
        return len(self._known) > 2 * len(self.ids) + _SLACK

    def _id(self, value: V | None) -> int:
        return NONE if value is None else self._known.setdefault(value, len(self._known))
