"""Finds the audiences a pod belongs to without asking each of them.

Nearly every selector wants some label to have one of a few values: it is filed under these. The rest is asked one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from shoal.scheduler.feasibility.wish.selectors import Labels, Selector

T = TypeVar("T")


class SelectorIndex(Generic[T]):
    """Things filed by the labels that a pod must have to concern them. What is found may still not match."""

    def __init__(self) -> None:
        self._filed: dict[tuple[str, str], dict[T, None]] = {}
        self._rest: dict[T, None] = {}

    def add(self, thing: T, selector: Selector) -> None:
        for drawer in _drawers(selector):
            self._filed.setdefault(drawer, {})[thing] = None
        if not _drawers(selector):
            self._rest[thing] = None

    def remove(self, thing: T, selector: Selector) -> None:
        self._rest.pop(thing, None)
        for drawer in _drawers(selector):
            filed = self._filed.get(drawer, {})
            filed.pop(thing, None)
            if not filed:
                self._filed.pop(drawer, None)

    def candidates(self, labels: Labels) -> Iterator[T]:
        """Each thing once whose selector could match these labels."""
        yield from self._rest
        if self._filed:
            for item in labels.items():
                yield from self._filed.get(item, ())


def _drawers(selector: Selector) -> list[tuple[str, str]]:
    for requirement in selector.requirements or ():
        if requirement.operator == "In":
            return [(requirement.key, value) for value in requirement.values]
    return []
