"""What is free of each resource, by row. Less than nothing where nodes shrank or were over-filled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.model.contract import kubernetes
from shoal.placement.columns import IntArray
from shoal.scheduler.feasibility.state.columns import grown
from shoal.scheduler.feasibility.wish.requests import MOST, Needs


class Load:
    """Free amounts; places for pods are one of the resources."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.free: dict[str, IntArray] = {kubernetes.RESOURCE_PODS: np.zeros(size, np.int64)}

    def grow(self, size: int) -> None:
        self._size = size
        self.free = {name: grown(array, size) for name, array in self.free.items()}

    def of(self, resource: str) -> IntArray:
        """The free amounts of one resource."""
        array = self.free.get(resource)
        if array is None:
            array = self.free[resource] = np.zeros(self._size, np.int64)
        return array

    def change(self, row: int, more: Mapping[str, int]) -> None:
        """The node has so much more of these."""
        for name, amount in more.items():
            self.of(name)[row] += amount

    def take(self, row: int, needs: Needs, pods: int) -> None:
        """So many pods with these needs come, or leave when negative."""
        self.free[kubernetes.RESOURCE_PODS][row] -= pods
        for name, amount in needs:
            self.of(name)[row] -= pods * min(amount, MOST)
