"""Arrays with the ledger's rows: values of a label as small numbers, and free amounts of resources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.pod_spec import MOST, ResourceRequests

SmallArray = npt.NDArray[np.int32]

V = TypeVar("V", bound=Hashable)
S = TypeVar("S", bound=np.generic)

#: The number of a row without a value. As an index it means the last entry of a table, which is kept for it.
NONE: Final = -1
#: Values no row has any more are kept up to this number beyond those in use.
_SLACK: Final = 1024


def grown(array: npt.NDArray[S], size: int, fill: object = 0) -> npt.NDArray[S]:
    """The array with more rows."""
    larger = np.full(size, fill, array.dtype)
    larger[: len(array)] = array
    return larger


class ValueColumn(Generic[V]):
    """The value of each row, as a small number. Rows without a value have `NONE`."""

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
        """The number of a value; `NONE` when no row has had it."""
        return self._known.get(value, NONE)

    def where(self, test: Callable[[V], bool], *, absent: bool = False) -> BoolArray:
        """The rows whose value passes the test; `absent` is the answer for rows without a value."""
        table = np.fromiter((test(value) for value in self._known), np.bool_, len(self._known))
        return self.spread(table, absent=absent)

    def where_one_of(self, values: Iterable[V]) -> BoolArray:
        """The rows that have one of these values."""
        table = np.zeros(len(self._known), np.bool_)
        table[[number for value in values if (number := self.number(value)) != NONE]] = True
        return self.spread(table)

    def spread(self, table: BoolArray, *, absent: bool = False) -> BoolArray:
        """A table by value as an array by row."""
        full = np.empty(len(self._known) + 1, np.bool_)
        full[:-1] = table
        full[-1] = absent
        result: BoolArray = full[self.ids]
        return result

    def counts(self, test: Callable[[V], int]) -> FloatArray:
        """What `test` gives for each row's value; 0 for rows without a value."""
        table = np.zeros(len(self._known) + 1)
        table[:-1] = [test(value) for value in self._known]
        result: FloatArray = table[self.ids]
        return result

    @property
    def cluttered(self) -> bool:
        """Whether most of the values are those of no row any more."""
        return len(self._known) > 2 * len(self.ids) + _SLACK

    def _id(self, value: V | None) -> int:
        return NONE if value is None else self._known.setdefault(value, len(self._known))


class FreeResources:
    """What is free of each resource, by row; places for pods are one of them. Negative where a node is over-filled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.amounts: dict[str, IntArray] = {kubernetes.RESOURCE_PODS: np.zeros(size, np.int64)}

    def grow(self, size: int) -> None:
        self._size = size
        self.amounts = {name: grown(array, size) for name, array in self.amounts.items()}

    def of(self, resource: str) -> IntArray:
        """The free amounts of one resource."""
        array = self.amounts.get(resource)
        if array is None:
            array = self.amounts[resource] = np.zeros(self._size, np.int64)
        return array

    def change(self, row: int, more: Mapping[str, int]) -> None:
        """Add to what is free on a row; negative amounts take away."""
        for name, amount in more.items():
            self.of(name)[row] += amount

    def take(self, row: int, requests: ResourceRequests, pods: int) -> None:
        """Take the requests of so many pods from what is free on a row; a negative number gives back."""
        self.amounts[kubernetes.RESOURCE_PODS][row] -= pods
        for name, amount in requests:
            self.of(name)[row] -= pods * min(amount, MOST)
