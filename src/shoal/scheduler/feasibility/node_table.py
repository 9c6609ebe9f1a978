"""Nodes by row: labels, taints, cordon and allocatable resources.

A label is turned into a column when somebody first asks about it, and kept from then on; changes of other
labels are passed over. Masks over all rows are remembered per selector and set of tolerations until a node changes in a
way that could alter them; heartbeats do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

import numpy as np

from shoal.kube.objects.node import Node, Taint
from shoal.kube.objects.pod import Toleration
from shoal.kube.selectors import NodeSelector, NodeSelectorTerm, Requirement
from shoal.kube.taints import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE, untolerated
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import kubernetes, mechanisms
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError, QuantityError
from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.columns import NONE, ValueColumn, grown
from shoal.scheduler.feasibility.pod_spec import MOST, counted, units

#: Rows to begin with.
_ROWS: Final = 64
#: Masks remembered.
_MASKS: Final = 2048

_KEEP_AWAY: Final = (NO_SCHEDULE, NO_EXECUTE)
_CORDON: Final = Taint(key=kubernetes.TAINT_UNSCHEDULABLE, effect=NO_SCHEDULE)


class NodeTable:
    """All nodes. Rows without one are False in every mask."""

    def __init__(self) -> None:
        self.nodes: list[Node | None] = [None] * _ROWS
        self.alive: BoolArray = np.zeros(_ROWS, np.bool_)
        self.cordoned: BoolArray = np.zeros(_ROWS, np.bool_)
        self.allocatable: dict[str, IntArray] = {}
        self._names: ValueColumn[str] = ValueColumn(None for _ in range(_ROWS))
        self._taints: ValueColumn[tuple[Taint, ...]] = ValueColumn(None for _ in range(_ROWS))
        self._labels: dict[str, ValueColumn[str]] = {}
        self._masks: BoundedCache[Hashable, BoolArray] = BoundedCache(_MASKS)
        #: By tolerations: how many taints ask to stay away, in a tuple that is empty when none does.
        self._avoided: BoundedCache[Hashable, tuple[FloatArray, ...]] = BoundedCache(_MASKS)
        #: Grows when labels, taints, names or the cordon of a node change.
        self.version = 0
        #: By row, the names that the node does not serve by devices.
        self.mechanisms: dict[int, dict[str, Mechanism]] = {}
        #: Whether whoever asks makes claims of names.
        self.makes_claims = False

    @property
    def size(self) -> int:
        return len(self.nodes)

    # Changes

    def grow(self, rows: int) -> None:
        """Make room for this many rows."""
        # Little more than is needed: every mask is as long as this.
        size = rows + rows // 8 + _ROWS
        self.nodes += [None] * (size - self.size)
        self.alive, self.cordoned = grown(self.alive, size), grown(self.cordoned, size)
        for column in (self._names, *self._labels.values()):
            column.grow(size)
        self._taints.grow(size)
        self.allocatable = {name: grown(array, size) for name, array in self.allocatable.items()}
        self._changed()

    def set(self, row: int, node: Node) -> tuple[bool, dict[str, int]]:
        """Set the node of a row: whether it differs from what was known, and by how much its resources do."""
        old = self.nodes[row]
        self.nodes[row] = node
        alike = old is not None and self._alike(old, node)
        if not alike:
            self._describe(row, node)
        if old is not None and old.status.allocatable == node.status.allocatable and _as_served(old, node):
            return not alike, {}
        more = self._resize(row, _amounts(node))
        return not alike or bool(more), more

    def _alike(self, old: Node, new: Node) -> bool:
        """Whether the two agree in name, taints, cordon and all labels that have a column."""
        if (old.metadata.name, old.spec.taints, old.spec.unschedulable) != (
            new.metadata.name,
            new.spec.taints,
            new.spec.unschedulable,
        ):
            return False
        if not _as_served(old, new):
            return False
        before, after = old.metadata.labels, new.metadata.labels
        return before == after or all(before.get(key) == after.get(key) for key in self._labels)

    def remove(self, row: int) -> dict[str, int]:
        """Clear a row: the change of its resources."""
        self.nodes[row] = None
        self.mechanisms.pop(row, None)
        self.alive[row] = self.cordoned[row] = False
        self._names.set(row, None)
        self._taints.set(row, None)
        for column in self._labels.values():
            column.set(row, None)
        self._changed()
        return self._resize(row, {})

    def _describe(self, row: int, node: Node) -> None:
        self.alive[row], self.cordoned[row] = True, node.spec.unschedulable
        self._names.set(row, node.metadata.name)
        # kube-scheduler does not look at when a taint was added.
        self._taints.set(row, tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in node.spec.taints))
        for key, column in self._labels.items():
            column.set(row, node.metadata.labels.get(key))
        self.mechanisms.pop(row, None)
        if served := mechanisms_of(node):
            self.mechanisms[row] = served
        self._tidy()
        self._changed()

    def make_claims(self, makes: bool) -> None:
        """Say whether claims are made of names for pods that come to nodes that serve them so."""
        self.makes_claims = makes
        self._changed()

    def _tidy(self) -> None:
        """Forget names and labels of nodes that are long gone."""
        if self._names.cluttered:
            self._names = ValueColumn(None if node is None else node.metadata.name for node in self.nodes)
        for key in [key for key, column in self._labels.items() if column.cluttered]:
            self._labels[key] = self._column(key)

    def _resize(self, row: int, amounts: dict[str, int]) -> dict[str, int]:
        more = {}
        for name in {*self.allocatable, *amounts}:
            if name not in self.allocatable:
                self.allocatable[name] = np.zeros(self.size, np.int64)
            change = amounts.get(name, 0) - int(self.allocatable[name][row])
            if change:
                self.allocatable[name][row] += change
                more[name] = change
        return more

    def _changed(self) -> None:
        self.version += 1
        self._masks.clear()
        self._avoided.clear()

    # Questions

    def label(self, key: str) -> ValueColumn[str]:
        """The label's value by row."""
        column = self._labels.get(key)
        if column is None:
            column = self._labels[key] = self._column(key)
        return column

    def _column(self, key: str) -> ValueColumn[str]:
        return ValueColumn([None if node is None else node.metadata.labels.get(key) for node in self.nodes])

    def has_labels(self, keys: Iterable[str]) -> BoolArray:
        """The nodes that have all these labels."""
        mask = self.alive.copy()
        for key in keys:
            mask &= self.label(key).ids >= 0
        return mask

    def named(self, names: Iterable[str]) -> BoolArray:
        """The nodes whose name is each of these: none when two names differ."""
        mask = self.alive.copy()
        for name in names:
            mask &= self._names.where_one_of((name,))
        return mask

    def matching(self, selector: NodeSelector) -> BoolArray:
        """The nodes that match one of the terms."""
        mask = self._masks.get(selector)
        if mask is None:
            mask = np.zeros(self.size, np.bool_)
            for term in selector.terms:
                mask |= self.matching_term(term)
            self._remember(selector, mask)
        return mask

    def matching_term(self, term: NodeSelectorTerm) -> BoolArray:
        """The nodes that match a term."""
        mask = self._masks.get(term)
        if mask is None:
            mask = self.alive.copy()
            for requirement in term.labels:
                mask &= _where(self.label(requirement.key), requirement)
            for requirement in term.names:
                mask &= _where(self._names, requirement)
            self._remember(term, mask)
        return mask

    def rows(self, selector: NodeSelector | None) -> IntArray:
        """The rows that match, in numbers; None matches all. Not cached: there are thousands of volumes' selectors."""
        if selector is None:
            return np.flatnonzero(self.alive)
        if len(selector.terms) == 1 and len(selector.terms[0].labels) == 1 and not selector.terms[0].names:
            requirement = selector.terms[0].labels[0]
            if requirement.operator == "In" and len(requirement.values) == 1:
                column = self.label(requirement.key)
                number = column.number(next(iter(requirement.values)))
                return np.flatnonzero(column.ids == number) if number != NONE else np.zeros(0, np.int64)
        return np.flatnonzero(self.matching(selector))

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> BoolArray:
        """The nodes none of whose taints keep such pods away."""
        key = ("tolerated", tolerations)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._taints.where(lambda taints: not untolerated(taints, tolerations, _KEEP_AWAY)) & self.alive
            self._remember(key, mask)
        return mask

    def avoided(self, tolerations: tuple[Toleration, ...]) -> FloatArray | None:
        """How many taints of each node ask such pods to stay away; None when no taint does."""

        def count() -> tuple[FloatArray, ...]:
            counts = self._taints.counts(lambda taints: len(untolerated(taints, tolerations, (PREFER_NO_SCHEDULE,))))
            return (counts,) if counts.any() else ()

        return next(iter(self._avoided.of(tolerations, count)), None)

    def _remember(self, key: Hashable, mask: BoolArray) -> None:
        mask.flags.writeable = False
        self._masks.put(key, mask)


def tolerates_cordon(tolerations: tuple[Toleration, ...]) -> bool:
    """Whether pods with these tolerations may go to cordoned nodes."""
    return not untolerated((_CORDON,), tolerations, _KEEP_AWAY)


def _where(column: ValueColumn[str], requirement: Requirement) -> BoolArray:
    if requirement.operator == "In":
        return column.where_one_of(requirement.values)
    if requirement.operator == "NotIn":
        return ~column.where_one_of(requirement.values)
    return column.where(requirement.holds, absent=requirement.holds(None))


def mechanisms_of(node: Node) -> dict[str, Mechanism]:
    """The names that a node does not serve by devices. Of a node that cannot be understood no name can be had."""
    try:
        return mechanisms.decode(node.metadata.annotations)
    except CodecError:
        return dict.fromkeys(mechanisms.NAMES, Mechanism.TO_DEVICES)


def _as_served(one: Node, other: Node) -> bool:
    """Whether names have the same mechanism on both."""
    found = (node.metadata.annotations.get(mechanisms.ANNOTATION_MECHANISMS) for node in (one, other))
    return next(found) == next(found)


def _amounts(node: Node) -> dict[str, int]:
    # Of what is served by claims kubelet counts nothing: the ledger alone does.
    found = {name: MOST for name, one in mechanisms_of(node).items() if one is Mechanism.CLAIMS}
    for name, value in node.status.allocatable.items():
        if name not in found and (counted(name) or name == kubernetes.RESOURCE_PODS):
            try:
                found[name] = min(max(units(name, value), 0), MOST)
            except QuantityError:
                # A node that cannot say how much it has of something has none of it; the rest of it stays usable.
                found[name] = 0
    return found
