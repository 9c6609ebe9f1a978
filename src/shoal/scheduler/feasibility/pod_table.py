"""Pods on nodes, as counts by row.

Pods with the same namespace and labels are one `AlikePods`. They are counted only for what is asked about: one
`MatchingPods` per selector of a waiting pod, one `ExistingTerm` per affinity term that pods on nodes have. A plain pod
changes its `AlikePods` and the free resources of its row, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.kube.objects.pod import Pod
from shoal.kube.selectors import Labels, LabelSelector
from shoal.model.bounded_cache import BoundedCache
from shoal.placement.columns import IntArray
from shoal.scheduler.feasibility.affinity import PodAffinityTerm, PodSelector, WeightedPodAffinityTerm
from shoal.scheduler.feasibility.columns import SmallArray, grown
from shoal.scheduler.feasibility.pod_spec import NO_AFFINITY, PodInfo, mounted

#: Selectors counted; those unused for longest are forgotten beyond it, and counted anew when asked for.
_SELECTORS: Final = 512
#: The weight of a required affinity term of a pod on a node for a pod that it matches: kube-scheduler's default.
HARD_AFFINITY_WEIGHT: Final = 1

#: Rows, and how many pods each has.
PodCounts = tuple[IntArray, npt.NDArray[np.integer[Any]]]
_LabelKey = tuple[str, bool, tuple[tuple[str, str], ...]]

T = TypeVar("T")


class SelectorIndex(Generic[T]):
    """Finds the selectors that may match a pod without asking each of them.

    Nearly every selector wants some label to have one of a few values, and is filed under these; the rest is always
    found. What is found may still not match.
    """

    def __init__(self) -> None:
        self._filed: dict[tuple[str, str], dict[T, None]] = {}
        self._rest: dict[T, None] = {}

    def add(self, thing: T, selector: LabelSelector) -> None:
        for pair in _label_pairs(selector):
            self._filed.setdefault(pair, {})[thing] = None
        if not _label_pairs(selector):
            self._rest[thing] = None

    def remove(self, thing: T, selector: LabelSelector) -> None:
        self._rest.pop(thing, None)
        for pair in _label_pairs(selector):
            filed = self._filed.get(pair, {})
            filed.pop(thing, None)
            if not filed:
                self._filed.pop(pair, None)

    def candidates(self, labels: Labels) -> Iterator[T]:
        """What was added with a selector that may match these labels, each once."""
        yield from self._rest
        if self._filed:
            for item in labels.items():
                yield from self._filed.get(item, ())


def _label_pairs(selector: LabelSelector) -> list[tuple[str, str]]:
    for requirement in selector.requirements or ():
        if requirement.operator == "In":
            return [(requirement.key, value) for value in requirement.values]
    return []


@dataclass(slots=True, eq=False)
class AlikePods:
    """Pods that no selector can tell apart: namespace, whether they are being deleted, labels."""

    namespace: str
    terminating: bool
    labels: Labels
    rows: dict[int, int] = field(default_factory=dict)
    matching_pods: list[MatchingPods] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MatchingPods:
    """How many pods of each row all of some selectors match."""

    pod_selectors: tuple[PodSelector, ...]
    #: Pods that are being deleted count for affinity, and not for spread.
    terminating: bool
    counts: SmallArray
    version: int = 0

    def without(self, gone: tuple[PlacedPod, ...]) -> SmallArray:
        """The counts, were these pods not there."""
        counted = [placed.row for placed in gone if self in placed.alike.matching_pods]
        if not counted:
            return self.counts
        counts = self.counts.copy()
        np.subtract.at(counts, counted, 1)
        return counts

    def counts_by_row(self, gone: tuple[PlacedPod, ...] = ()) -> PodCounts:
        counts = self.without(gone)
        rows = np.flatnonzero(counts)
        return rows, counts[rows]


@dataclass(slots=True, eq=False)
class ExistingTerm:
    """A pod affinity term, and how many pods of each row have it. `weight` 0 is for required anti-affinity."""

    term: PodAffinityTerm
    weight: int
    rows: dict[int, int] = field(default_factory=dict)
    version: int = 0

    def count(self, row: int, sign: int) -> None:
        self.rows[row] = self.rows.get(row, 0) + sign
        if not self.rows[row]:
            del self.rows[row]
        self.version += 1

    def counts_by_row(self, gone: tuple[PlacedPod, ...] = ()) -> PodCounts:
        rows = dict(self.rows)
        for placed in gone:
            if self in placed.existing_terms:
                rows[placed.row] -= placed.existing_terms.count(self)
        left = [(row, count) for row, count in rows.items() if count]
        found = np.array(left, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(slots=True, eq=False)
class PlacedPod:
    """A pod on a row, and all that is counted of it there."""

    row: int
    info: PodInfo
    alike: AlikePods
    existing_terms: tuple[ExistingTerm, ...]
    claims: tuple[str, ...]
    #: Its `spec.nodeName`; empty while it is only assumed there.
    node: str
    #: How often its row had been given up when it came there.
    epoch: int


class PodTable:
    """All pods on nodes, by UID."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.placed: dict[str, PlacedPod] = {}
        #: Who has a port: by protocol and number, by row, one address per pod.
        self.ports: dict[tuple[str, int], dict[int, list[str]]] = {}
        #: How many pods of a row mount a claim, by its namespace and name.
        self.claims: dict[tuple[str, str], dict[int, int]] = {}
        self._alike_pods: dict[_LabelKey, AlikePods] = {}
        self._matching_pods: BoundedCache[tuple[tuple[PodSelector, ...], bool], MatchingPods]
        self._matching_pods = BoundedCache(_SELECTORS, dropped=self._count_no_more)
        self._matching_index: SelectorIndex[MatchingPods] = SelectorIndex()
        self._existing_terms: dict[WeightedPodAffinityTerm, ExistingTerm] = {}
        self._term_index: SelectorIndex[ExistingTerm] = SelectorIndex()
        self._namespaces: dict[str, Labels] = {}
        #: Grows when there is a new term, one less, or a namespace changes.
        self.terms_version = 0
        self.ports_version = 0

    # Changes

    def grow(self, size: int) -> None:
        self._size = size
        for matching in self._matching_pods.values():
            matching.counts = grown(matching.counts, size)

    def add(self, uid: str, pod: Pod, row: int, info: PodInfo, epoch: int) -> PlacedPod:
        """Count a pod that is not there yet."""
        alike = self._alike_to(pod)
        existing_terms = (
            () if info.affinity is NO_AFFINITY else tuple(self._existing_term(item) for item in _carried(info))
        )
        placed = PlacedPod(
            row, info, alike, existing_terms, mounted(pod) if pod.spec.volumes else (), pod.spec.node_name, epoch
        )
        self.placed[uid] = placed
        self._count(placed, 1)
        return placed

    def remove(self, uid: str) -> PlacedPod | None:
        """Take a pod out of all counts."""
        placed = self.placed.pop(uid, None)
        if placed is not None:
            self._count(placed, -1)
        return placed

    def same(self, placed: PlacedPod, pod: Pod, row: int, info: PodInfo) -> bool:
        """Whether a pod is counted as it is now."""
        return (
            placed.row == row
            and placed.info is info
            and placed.alike.labels == pod.metadata.labels
            and placed.alike.terminating == (pod.metadata.deletion_timestamp is not None)
            and placed.claims == (mounted(pod) if pod.spec.volumes else ())
        )

    def _count(self, placed: PlacedPod, sign: int) -> None:
        row, alike = placed.row, placed.alike
        alike.rows[row] = alike.rows.get(row, 0) + sign
        if not alike.rows[row]:
            del alike.rows[row]
            if not alike.rows:
                del self._alike_pods[_label_key(alike.namespace, alike.terminating, alike.labels)]
        for matching in alike.matching_pods:
            matching.counts[row] += sign
            matching.version += 1
        for existing in placed.existing_terms:
            existing.count(row, sign)
            if not existing.rows:
                self._drop_term(existing)
        for port in placed.info.ports:
            self._count_port((port.protocol, port.number), row, port.address, sign)
        for name in placed.claims:
            self._count_claim((alike.namespace, name), row, sign)

    def _count_port(self, port: tuple[str, int], row: int, address: str, sign: int) -> None:
        self.ports_version += 1
        rows = self.ports.setdefault(port, {})
        if sign > 0:
            rows.setdefault(row, []).append(address)
            return
        rows[row].remove(address)
        if not rows[row]:
            del rows[row]
        if not rows:
            del self.ports[port]

    def _count_claim(self, claim: tuple[str, str], row: int, sign: int) -> None:
        rows = self.claims.setdefault(claim, {})
        rows[row] = rows.get(row, 0) + sign
        if not rows[row]:
            del rows[row]
        if not rows:
            del self.claims[claim]

    # Alike pods, and the selectors that match them

    def _alike_to(self, pod: Pod) -> AlikePods:
        meta = pod.metadata
        terminating = meta.deletion_timestamp is not None
        key = _label_key(meta.namespace, terminating, meta.labels)
        alike = self._alike_pods.get(key)
        if alike is None:
            alike = self._alike_pods[key] = AlikePods(meta.namespace, terminating, meta.labels)
            alike.matching_pods = [
                matching for matching in self._matching_index.candidates(meta.labels) if self._belongs(alike, matching)
            ]
        return alike

    def _belongs(self, alike: AlikePods, matching: MatchingPods) -> bool:
        if alike.terminating and not matching.terminating:
            return False
        around = self.namespace(alike.namespace)
        return all(
            pod_selector.matches(alike.namespace, around, alike.labels) for pod_selector in matching.pod_selectors
        )

    def matching(self, pod_selectors: tuple[PodSelector, ...], *, terminating: bool) -> MatchingPods:
        """How many pods all of these selectors match, by row; counted from now on."""
        return self._matching_pods.of(
            (pod_selectors, terminating), lambda: self._new_matching(pod_selectors, terminating)
        )

    def _new_matching(self, pod_selectors: tuple[PodSelector, ...], terminating: bool) -> MatchingPods:
        matching = MatchingPods(pod_selectors, terminating, np.zeros(self._size, np.int32))
        self._matching_index.add(matching, pod_selectors[0].label_selector)
        for alike in self._alike_pods.values():
            if self._belongs(alike, matching):
                alike.matching_pods.append(matching)
                for row, pods in alike.rows.items():
                    matching.counts[row] += pods
        return matching

    def _count_no_more(self, matching: MatchingPods) -> None:
        self._matching_index.remove(matching, matching.pod_selectors[0].label_selector)
        for alike in self._alike_pods.values():
            if matching in alike.matching_pods:
                alike.matching_pods.remove(matching)

    # Affinity terms of pods on nodes

    def _existing_term(self, item: WeightedPodAffinityTerm) -> ExistingTerm:
        existing = self._existing_terms.get(item)
        if existing is None:
            existing = self._existing_terms[item] = ExistingTerm(item.term, item.weight)
            self._term_index.add(existing, item.term.pod_selector.label_selector)
            self.terms_version += 1
        return existing

    def _drop_term(self, existing: ExistingTerm) -> None:
        del self._existing_terms[WeightedPodAffinityTerm(existing.term, existing.weight)]
        self._term_index.remove(existing, existing.term.pod_selector.label_selector)
        self.terms_version += 1

    def existing_terms_for(self, namespace: str, labels: Labels) -> tuple[ExistingTerm, ...]:
        """The affinity terms of pods on nodes that match a pod with these labels."""
        if not self._existing_terms:
            return ()
        around = self.namespace(namespace)
        found = self._term_index.candidates(labels)
        return tuple(existing for existing in found if existing.term.pod_selector.matches(namespace, around, labels))

    # Namespaces

    def namespace(self, name: str) -> Labels:
        return self._namespaces.get(name, {})

    def set_namespace(self, name: str, labels: Labels | None) -> bool:
        """Set the labels of a namespace, None when it is gone; whether that changes anything."""
        if self._namespaces.get(name) == labels:
            return False
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self.terms_version += 1
        for key in list(self._matching_pods):
            if any(each.namespace_selector.requirements for each in key[0]):
                matching = self._matching_pods.pop(key)
                assert matching is not None
                self._count_no_more(matching)
        return True

    # What if

    def on_row(self, row: int) -> Iterator[tuple[str, PlacedPod]]:
        """The pods of a row. Looks at all pods: for what happens seldom."""
        return ((uid, placed) for uid, placed in self.placed.items() if placed.row == row)

    def those(self, uids: Collection[str]) -> tuple[PlacedPod, ...]:
        """The pods among these that are on nodes."""
        return tuple(placed for uid in set(uids) if (placed := self.placed.get(uid)) is not None)


def _label_key(namespace: str, terminating: bool, labels: Labels) -> _LabelKey:
    return namespace, terminating, tuple(labels.items())


def _carried(info: PodInfo) -> Iterator[WeightedPodAffinityTerm]:
    affinity = info.affinity
    for term in affinity.anti:
        yield WeightedPodAffinityTerm(term, 0)
    for term in affinity.required:
        yield WeightedPodAffinityTerm(term, HARD_AFFINITY_WEIGHT)
    yield from (item for item in affinity.preferred if item.weight)
