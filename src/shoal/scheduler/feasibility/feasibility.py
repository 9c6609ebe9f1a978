"""Asks the filters in kube-scheduler's order, and weighs the preferences as it does.

A verdict is kept for every wish and made anew when the cluster has changed; then only those filters are asked again
whose data did change. Arrays of a verdict are shared: nobody writes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.placement.columns import BoolArray, FloatArray
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.filters import affinity, fixed, load, spread, volumes
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.filters.volumes import VolumeDecision, VolumeView
from shoal.scheduler.feasibility.state.pods import Burden, Held, Tally
from shoal.scheduler.feasibility.wish.wish import NO_COMPANY, Wish

#: kube-scheduler's default weights of the plugins that weigh what people wrote.
_WEIGHT_TAINTS: Final = 3
_WEIGHT_NODES: Final = 2
_WEIGHT_SPREAD: Final = 2
_WEIGHT_COMPANY: Final = 2
_BEST: Final = 100
#: Wishes kept; those unused for longest are forgotten beyond it.
_WISHES: Final = 256
#: Verdicts kept per wish: pods of one wish differ by what others think of their labels.
_LOOKS: Final = 16
#: Labels for which it is remembered which terms of other pods mean them.
_LABELS: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that were refused first by one filter, for one reason. Short resources of one node are told each."""

    filter: str
    reason: str
    rows: BoolArray
    #: Could preemption help there?
    resolvable: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a pod may run, and where it would rather."""

    allowed: BoolArray
    #: 0 to 100, 0 where it may not run; None when nothing is preferred to anything.
    favour: FloatArray | None
    refusals: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """What sets pods of one wish apart: the terms that mean them, and which of their own do."""

    burdens: tuple[Burden, ...]
    selves: tuple[bool, ...]
    itself: bool


class _Trial:
    """A wish and what was found out for it."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.verdicts: dict[_Look, tuple[int, Verdict]] = {}
        #: What it was weighed from, for which rows, and the outcome.
        self.favour: tuple[tuple[object, ...], BoolArray, FloatArray | None] | None = None
        self._found: dict[str, tuple[tuple[object, ...], object]] = {}

    def once(self, what: str, key: tuple[object, ...], find: Callable[[], T]) -> T:
        """What was found under this key, found now if it was not."""
        known = self._found.get(what)
        if known is None or known[0] != key:
            known = self._found[what] = (key, find())
        return known[1]  # type: ignore[return-value]


class Feasibility:
    """The filters over one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._trials: dict[Wish, _Trial] = {}
        self._meant: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Burden, ...]] = {}
        self._meant_version = -1

    def verdict(self, pod: Pod) -> Verdict:
        """Where the pod may run. The pod itself must not be among the cluster's."""
        trial = self._trial(pod)
        look = self._look(pod, trial.wish)
        known = trial.verdicts.get(look)
        if known is not None and known[0] == self._cluster.version:
            return known[1]
        verdict = self._judge(trial, look)
        verdict.allowed.flags.writeable = False
        if len(trial.verdicts) >= _LOOKS:
            trial.verdicts.clear()
        trial.verdicts[look] = (self._cluster.version, verdict)
        return verdict

    def fits_without(self, pod: Pod, row: int, gone: Collection[str]) -> bool:
        """Whether the pod could run on this row, were these pods (UIDs) not there."""
        cluster = self._cluster
        if row >= cluster.nodes.size or not cluster.nodes.alive[row]:
            return False
        trial = self._trial(pod)
        wish, look = trial.wish, self._look(pod, trial.wish)
        absent = cluster.pods.those(gone)
        view = self._volumes(trial)
        if wish.fault is not None or view.fault is not None:
            return False
        if not load.ports_free(cluster.pods, wish.traits.ports, row, absent):
            return False
        if not load.fits(cluster, wish.traits.needs, row, absent):
            return False
        groups = (
            *self._fixed(trial),
            volumes.alone_objections(cluster, wish, view.alone, absent),
            view.binding,
            view.zone,
            self._spread(trial, look, absent),
            self._company(trial, look, absent),
        )
        return not any(objection.rows[row] for group in groups for objection in group)

    def short(self, pod: Pod) -> BoolArray:
        """The rows on which there is too little of some resource for the pod."""
        rows = np.zeros(self._cluster.nodes.size, np.bool_)
        for objection in load.fit_objections(self._cluster, self._trial(pod).wish.traits.needs):
            rows |= objection.rows
        return rows

    def prefers(self, pod: Pod) -> bool:
        """Whether anybody would rather have the pod on one node than on another: the pod, a node or another pod."""
        wish = self._trial(pod).wish
        return (
            bool(wish.preferred_nodes or wish.may_spread or wish.traits.company.preferred)
            or self._cluster.nodes.avoided(wish.tolerations) is not None
            or any(burden.weight for burden in self._burdens(wish.namespace, pod))
        )

    def volume_decisions(self, pod: Pod, node: str) -> list[VolumeDecision]:
        """What must be written for the pod's claims before it is bound to this node, which the verdict allows."""
        rows = np.flatnonzero(self._cluster.nodes.named((node,)))
        view = self._volumes(self._trial(pod))
        return volumes.decisions(view, int(rows[0]), node) if len(rows) else []

    # What is known of a pod

    def _trial(self, pod: Pod) -> _Trial:
        wish = self._cluster.wishes.wish(pod)
        trial = self._trials.pop(wish, None)
        if trial is None:
            trial = _Trial(wish)
            if len(self._trials) >= _WISHES:
                del self._trials[next(iter(self._trials))]
        self._trials[wish] = trial
        return trial

    def _look(self, pod: Pod, wish: Wish) -> _Look:
        labels = pod.metadata.labels
        return _Look(
            self._burdens(wish.namespace, pod),
            tuple(item.selector.matches(labels) for item in wish.must_spread),
            bool(wish.traits.company.near) and affinity.means_itself(self._cluster, wish, labels),
        )

    def _burdens(self, namespace: str, pod: Pod) -> tuple[Burden, ...]:
        pods = self._cluster.pods
        if self._meant_version != pods.terms_version or len(self._meant) >= _LABELS:
            self._meant.clear()
            self._meant_version = pods.terms_version
        key = (namespace, tuple(pod.metadata.labels.items()))
        found = self._meant.get(key)
        if found is None:
            found = self._meant[key] = pods.burdens_on(namespace, pod.metadata.labels)
        return found

    # The filters, each asked again only when what it reads has changed

    def _judge(self, trial: _Trial, look: _Look) -> Verdict:
        wish, nodes = trial.wish, self._cluster.nodes
        view = self._volumes(trial)
        fault = wish.fault or view.fault
        if fault is not None:
            everywhere: Objections = (Objection(*fault, nodes.alive.copy(), False),)
            allowed, refusals = _sorted_out(nodes.alive, (everywhere,))
            return Verdict(allowed, None, refusals)
        by_nodes, first = trial.once("sorted", (nodes.version,), lambda: _sorted_out(nodes.alive, self._fixed(trial)))
        allowed, refusals = _sorted_out(
            by_nodes,
            (
                self._ports(trial),
                load.fit_objections(self._cluster, wish.traits.needs),
                volumes.alone_objections(self._cluster, wish, view.alone),
                view.binding,
                view.zone,
                self._spread(trial, look),
                self._company(trial, look),
            ),
        )
        return Verdict(allowed, self._favour(trial, look, allowed), first + refusals)

    def _fixed(self, trial: _Trial) -> tuple[Objections, ...]:
        nodes = self._cluster.nodes
        return trial.once("fixed", (nodes.version,), lambda: fixed.fixed_objections(nodes, trial.wish))

    def _ports(self, trial: _Trial) -> Objections:
        pods, wanted = self._cluster.pods, trial.wish.traits.ports
        if not wanted:
            return ()
        size = self._cluster.nodes.size
        return trial.once("ports", (pods.ports_version, size), lambda: load.port_objections(pods, wanted, size))

    def _volumes(self, trial: _Trial) -> VolumeView:
        cluster = self._cluster
        if not trial.wish.claims:
            return _NO_VOLUMES
        key = (cluster.nodes.version, cluster.storage.version)
        return trial.once("volumes", key, lambda: volumes.view(cluster, trial.wish))

    def _spread(self, trial: _Trial, look: _Look, gone: tuple[Held, ...] = ()) -> Objections:
        cluster, wish = self._cluster, trial.wish
        if not wish.must_spread:
            return ()
        version = cluster.nodes.version
        domains = trial.once("domains", (version,), lambda: spread.domains_of(cluster.nodes, wish, wish.must_spread))
        tallies = spread.tallies_of(cluster, wish, wish.must_spread)
        if gone:
            return spread.spread_objections(cluster, domains, tallies, look.selves, gone)
        key = (version, look.selves, *((tally, tally.version) for tally in tallies))
        return trial.once("spread", key, lambda: spread.spread_objections(cluster, domains, tallies, look.selves))

    def _company(self, trial: _Trial, look: _Look, gone: tuple[Held, ...] = ()) -> Objections:
        cluster, company = self._cluster, trial.wish.traits.company
        if company is NO_COMPANY and not look.burdens:
            return ()
        if gone:
            return affinity.affinity_objections(cluster, company, look.burdens, itself=look.itself, gone=gone)
        near, apart = affinity.tallies_of(cluster, company)
        counted = (*((near,) if near else ()), *apart, *look.burdens)
        key = (cluster.nodes.version, look.itself, *((item, item.version) for item in counted))
        return trial.once(
            "company", key, lambda: affinity.affinity_objections(cluster, company, look.burdens, itself=look.itself)
        )

    # Preferences

    def _favour(self, trial: _Trial, look: _Look, allowed: BoolArray) -> FloatArray | None:
        cluster, wish = self._cluster, trial.wish
        preferred = wish.traits.company.preferred
        tallies = spread.tallies_of(cluster, wish, wish.may_spread)
        met = affinity.met(cluster, preferred, look.burdens) if preferred or look.burdens else ()
        counted = (*((tally, tally.version) for tally in tallies), *((item, item.version) for _, _, item in met))
        key = (cluster.nodes.version, *counted)
        if trial.favour is None or trial.favour[0] != key or not np.array_equal(trial.favour[1], allowed):
            trial.favour = (key, allowed, self._weigh(trial, allowed, tallies, met))
        return trial.favour[2]

    def _weigh(
        self, trial: _Trial, allowed: BoolArray, tallies: tuple[Tally, ...], met: tuple[affinity.Met, ...]
    ) -> FloatArray | None:
        nodes, wish = self._cluster.nodes, trial.wish
        if not np.count_nonzero(allowed):
            return None
        parts: list[tuple[int, FloatArray]] = []
        avoided = nodes.avoided(wish.tolerations)
        worst = 0 if avoided is None else (avoided * allowed).max()
        if avoided is not None and worst:
            parts.append((_WEIGHT_TAINTS, _BEST - np.floor(_BEST * avoided / worst)))
        if wish.preferred_nodes:
            parts.append((_WEIGHT_NODES, self._preferred_nodes(trial, allowed)))
        if tallies:
            domains = trial.once("soft", (nodes.version,), lambda: spread.domains_of(nodes, wish, wish.may_spread))
            parts.append((_WEIGHT_SPREAD, spread.spread_favour(domains, tallies, allowed)))
        near = affinity.affinity_favour(nodes, met, allowed)
        if near is not None:
            parts.append((_WEIGHT_COMPANY, near))
        if not parts:
            return None
        total = sum(weight for weight, _ in parts)
        favour: FloatArray = np.where(allowed, sum(weight * score for weight, score in parts) / total, 0.0)
        return favour

    def _preferred_nodes(self, trial: _Trial, allowed: BoolArray) -> FloatArray:
        nodes = self._cluster.nodes

        def weights() -> FloatArray:
            total = np.zeros(nodes.size)
            for term, weight in trial.wish.preferred_nodes:
                total += weight * nodes.matching_term(term)
            return total

        found = trial.once("preferred", (nodes.version,), weights)
        most = (found * allowed).max()
        return np.floor(_BEST * found / most) if most else np.zeros(len(allowed))


_NO_VOLUMES: Final = VolumeView()


def _sorted_out(alive: BoolArray, groups: tuple[Objections, ...]) -> tuple[BoolArray, tuple[Refused, ...]]:
    """What is left, and who refused first."""
    left = alive.copy()
    refusals = []
    for group in groups:
        before = left
        for objection in group:
            rows = objection.rows & before
            if np.count_nonzero(rows):
                left = left & ~rows
                refusals.append(Refused(objection.filter, objection.reason, rows, objection.resolvable))
    return left, tuple(refusals)
