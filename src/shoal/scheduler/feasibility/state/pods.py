"""Pods on nodes, as counts by row.

Pods with the same namespace and labels are one `Crowd`. What is counted of them is what somebody asked about: a
`Tally` per selector of a waiting pod, a `Burden` per affinity term that pods on nodes carry. A plain pod touches its
crowd and the resources of its row, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.kube.objects.pod import Pod
from shoal.placement.columns import IntArray
from shoal.scheduler.feasibility.state.audiences import SelectorIndex
from shoal.scheduler.feasibility.state.columns import SmallArray, grown
from shoal.scheduler.feasibility.wish.selectors import Labels
from shoal.scheduler.feasibility.wish.terms import Audience, Term, Weighted
from shoal.scheduler.feasibility.wish.wish import NO_COMPANY, Traits, mounted

#: Selectors counted; those unused for longest are forgotten beyond it, and counted anew when asked for.
_TALLIES: Final = 512
#: What a required affinity of a pod on a node is worth to those it wants near: kube-scheduler's default.
HARD_AFFINITY_WEIGHT: Final = 1

#: Rows, and how many pods each has.
Places = tuple[IntArray, npt.NDArray[np.integer[Any]]]
Who = tuple[str, bool, tuple[tuple[str, str], ...]]


@dataclass(slots=True, eq=False)
class Crowd:
    """Pods that no selector can tell apart: namespace, whether they are being deleted, labels."""

    namespace: str
    leaving: bool
    labels: Labels
    rows: dict[int, int] = field(default_factory=dict)
    tallies: list[Tally] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Tally:
    """How many pods of each row belong to all of some audiences."""

    audiences: tuple[Audience, ...]
    #: Pods that are being deleted count for affinity, and not for spread.
    leaving: bool
    counts: SmallArray
    version: int = 0

    def without(self, gone: tuple[Held, ...]) -> SmallArray:
        """The counts, were these pods not there."""
        counted = [held.row for held in gone if self in held.crowd.tallies]
        if not counted:
            return self.counts
        counts = self.counts.copy()
        np.subtract.at(counts, counted, 1)
        return counts

    def places(self, gone: tuple[Held, ...] = ()) -> Places:
        counts = self.without(gone)
        rows = np.flatnonzero(counts)
        return rows, counts[rows]


@dataclass(slots=True, eq=False)
class Burden:
    """How many pods of each row carry a term. `weight` 0 is for those that will not have the others near them."""

    term: Term
    weight: int
    rows: dict[int, int] = field(default_factory=dict)
    version: int = 0

    def count(self, row: int, sign: int) -> None:
        self.rows[row] = self.rows.get(row, 0) + sign
        if not self.rows[row]:
            del self.rows[row]
        self.version += 1

    def places(self, gone: tuple[Held, ...] = ()) -> Places:
        rows = dict(self.rows)
        for held in gone:
            if self in held.burdens:
                rows[held.row] -= held.burdens.count(self)
        left = [(row, count) for row, count in rows.items() if count]
        found = np.array(left, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


@dataclass(slots=True, eq=False)
class Held:
    """What one pod takes and says where it is."""

    row: int
    traits: Traits
    crowd: Crowd
    burdens: tuple[Burden, ...]
    claims: tuple[str, ...]
    #: The node by its own word; empty while it is only assumed there.
    node: str
    #: How often its row had been given up when it came there.
    epoch: int


class PodTable:
    """All pods on nodes, by UID."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.held: dict[str, Held] = {}
        #: Who has a port: by protocol and number, by row, one address per pod.
        self.ports: dict[tuple[str, int], dict[int, list[str]]] = {}
        #: How many pods of a row mount a claim, by its namespace and name.
        self.claims: dict[tuple[str, str], dict[int, int]] = {}
        self._crowds: dict[Who, Crowd] = {}
        self._tallies: dict[tuple[tuple[Audience, ...], bool], Tally] = {}
        self._tallied: SelectorIndex[Tally] = SelectorIndex()
        self._burdens: dict[Weighted, Burden] = {}
        self._burdened: SelectorIndex[Burden] = SelectorIndex()
        self._namespaces: dict[str, Labels] = {}
        #: Grows when there is a new term, one less, or a namespace changes.
        self.terms_version = 0
        self.ports_version = 0

    # Changes

    def grow(self, size: int) -> None:
        self._size = size
        for tally in self._tallies.values():
            tally.counts = grown(tally.counts, size)

    def add(self, uid: str, pod: Pod, row: int, traits: Traits, epoch: int) -> Held:
        """Count a pod that is not there yet."""
        crowd = self._crowd(pod)
        burdens = () if traits.company is NO_COMPANY else tuple(self._burden(item) for item in _carried(traits))
        held = Held(row, traits, crowd, burdens, mounted(pod) if pod.spec.volumes else (), pod.spec.node_name, epoch)
        self.held[uid] = held
        self._count(held, 1)
        return held

    def remove(self, uid: str) -> Held | None:
        """Count a pod no more."""
        held = self.held.pop(uid, None)
        if held is not None:
            self._count(held, -1)
        return held

    def same(self, held: Held, pod: Pod, row: int, traits: Traits) -> bool:
        """Whether the pod says nothing new."""
        return (
            held.row == row
            and held.traits is traits
            and held.crowd.labels == pod.metadata.labels
            and held.crowd.leaving == (pod.metadata.deletion_timestamp is not None)
            and held.claims == (mounted(pod) if pod.spec.volumes else ())
        )

    def _count(self, held: Held, sign: int) -> None:
        row, crowd = held.row, held.crowd
        crowd.rows[row] = crowd.rows.get(row, 0) + sign
        if not crowd.rows[row]:
            del crowd.rows[row]
            if not crowd.rows:
                del self._crowds[_who(crowd.namespace, crowd.leaving, crowd.labels)]
        for tally in crowd.tallies:
            tally.counts[row] += sign
            tally.version += 1
        for burden in held.burdens:
            burden.count(row, sign)
            if not burden.rows:
                self._drop_burden(burden)
        for port in held.traits.ports:
            self._count_port((port.protocol, port.number), row, port.address, sign)
        for name in held.claims:
            self._count_claim((crowd.namespace, name), row, sign)

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

    # Crowds and what is counted of them

    def _crowd(self, pod: Pod) -> Crowd:
        meta = pod.metadata
        leaving = meta.deletion_timestamp is not None
        who = _who(meta.namespace, leaving, meta.labels)
        crowd = self._crowds.get(who)
        if crowd is None:
            crowd = self._crowds[who] = Crowd(meta.namespace, leaving, meta.labels)
            crowd.tallies = [tally for tally in self._tallied.candidates(meta.labels) if self._belongs(crowd, tally)]
        return crowd

    def _belongs(self, crowd: Crowd, tally: Tally) -> bool:
        if crowd.leaving and not tally.leaving:
            return False
        around = self.namespace(crowd.namespace)
        return all(audience.matches(crowd.namespace, around, crowd.labels) for audience in tally.audiences)

    def tally(self, audiences: tuple[Audience, ...], *, leaving: bool) -> Tally:
        """How many pods belong to all of the audiences, by row; counted from now on."""
        key = (audiences, leaving)
        tally = self._tallies.pop(key, None)
        if tally is None:
            tally = self._new_tally(audiences, leaving)
            if len(self._tallies) >= _TALLIES:
                self._drop_tally(next(iter(self._tallies)))
        self._tallies[key] = tally
        return tally

    def _new_tally(self, audiences: tuple[Audience, ...], leaving: bool) -> Tally:
        tally = Tally(audiences, leaving, np.zeros(self._size, np.int32))
        self._tallied.add(tally, audiences[0].selector)
        for crowd in self._crowds.values():
            if self._belongs(crowd, tally):
                crowd.tallies.append(tally)
                for row, pods in crowd.rows.items():
                    tally.counts[row] += pods
        return tally

    def _drop_tally(self, key: tuple[tuple[Audience, ...], bool]) -> None:
        tally = self._tallies.pop(key)
        self._tallied.remove(tally, tally.audiences[0].selector)
        for crowd in self._crowds.values():
            if tally in crowd.tallies:
                crowd.tallies.remove(tally)

    # Terms that pods carry

    def _burden(self, item: Weighted) -> Burden:
        burden = self._burdens.get(item)
        if burden is None:
            burden = self._burdens[item] = Burden(item.term, item.weight)
            self._burdened.add(burden, item.term.audience.selector)
            self.terms_version += 1
        return burden

    def _drop_burden(self, burden: Burden) -> None:
        del self._burdens[Weighted(burden.term, burden.weight)]
        self._burdened.remove(burden, burden.term.audience.selector)
        self.terms_version += 1

    def burdens_on(self, namespace: str, labels: Labels) -> tuple[Burden, ...]:
        """The terms carried by pods on nodes that mean a pod like this."""
        if not self._burdens:
            return ()
        around = self.namespace(namespace)
        found = self._burdened.candidates(labels)
        return tuple(burden for burden in found if burden.term.audience.matches(namespace, around, labels))

    # Namespaces

    def namespace(self, name: str) -> Labels:
        return self._namespaces.get(name, {})

    def set_namespace(self, name: str, labels: Labels | None) -> bool:
        """Whether that changes anything; None for a namespace that is gone."""
        if self._namespaces.get(name) == labels:
            return False
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self.terms_version += 1
        for key in [key for key in self._tallies if any(a.in_namespaces.requirements for a in key[0])]:
            self._drop_tally(key)
        return True

    # What if

    def on_row(self, row: int) -> Iterator[tuple[str, Held]]:
        """The pods of a row. Looks at all pods: for what happens seldom."""
        return ((uid, held) for uid, held in self.held.items() if held.row == row)

    def those(self, uids: Collection[str]) -> tuple[Held, ...]:
        """The pods among these that are on nodes."""
        return tuple(held for uid in set(uids) if (held := self.held.get(uid)) is not None)


def _who(namespace: str, leaving: bool, labels: Labels) -> Who:
    return namespace, leaving, tuple(labels.items())


def _carried(traits: Traits) -> Iterator[Weighted]:
    company = traits.company
    for term in company.apart:
        yield Weighted(term, 0)
    for term in company.near:
        yield Weighted(term, HARD_AFFINITY_WEIGHT)
    yield from (item for item in company.preferred if item.weight)
