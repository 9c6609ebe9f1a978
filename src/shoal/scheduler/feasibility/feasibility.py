"""Asks the filters in kube-scheduler's order, and weighs the preferences as it does.

Pods with the same constraints share their verdict. It is made anew when the cluster has changed; then only those
filters are asked again whose data did change. Arrays of a verdict are shared: nobody writes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.bounded_cache import BoundedCache
from shoal.placement.columns import BoolArray, FloatArray
from shoal.scheduler.feasibility.filters import Rejection, Rejections, pod_affinity, topology_spread, volumes
from shoal.scheduler.feasibility.filters import nodes as node_filters
from shoal.scheduler.feasibility.filters.volumes import VolumeDecision, VolumeView
from shoal.scheduler.feasibility.pod_spec import NO_AFFINITY, PodConstraints
from shoal.scheduler.feasibility.pod_table import ExistingTerm, MatchingPods, PlacedPod
from shoal.scheduler.feasibility.tables import ClusterTables

#: kube-scheduler's default weights of the plugins that weigh what people wrote.
_WEIGHT_TAINTS: Final = 3
_WEIGHT_NODES: Final = 2
_WEIGHT_SPREAD: Final = 2
_WEIGHT_POD_AFFINITY: Final = 2
_BEST: Final = 100
#: Pod constraints whose verdicts are kept; those unused for longest are forgotten beyond it.
_CONSTRAINTS: Final = 256
#: Verdicts kept per constraints: pods with the same differ by which terms of other pods match their labels.
_EFFECTS: Final = 16
#: Sets of labels for which it is remembered which affinity terms of other pods match them.
_LABELS: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a pod may run, which nodes it prefers, and why the others were rejected."""

    allowed: BoolArray
    #: 0 to 100, 0 where it may not run; None when nothing is preferred to anything.
    favour: FloatArray | None
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class _LabelEffects:
    """What labels change between pods with the same constraints: the terms of others and their own that match them."""

    existing_terms: tuple[ExistingTerm, ...]
    counts_itself: tuple[bool, ...]
    itself: bool


class _Findings:
    """Pod constraints, and what the filters found for them."""

    def __init__(self, constraints: PodConstraints) -> None:
        self.constraints = constraints
        self.verdicts: BoundedCache[_LabelEffects, tuple[int, Verdict]] = BoundedCache(_EFFECTS)
        #: What it was weighed from, for which rows, and the outcome.
        self.favour: tuple[tuple[object, ...], BoolArray, FloatArray | None] | None = None
        self._found: dict[str, tuple[tuple[object, ...], object]] = {}

    def once(self, what: str, key: tuple[object, ...], find: Callable[[], T]) -> T:
        """What was found under this key; found now if the key is another than last time."""
        known = self._found.get(what)
        if known is None or known[0] != key:
            known = self._found[what] = (key, find())
        return known[1]  # type: ignore[return-value]


class Feasibility:
    """The filters over one cluster."""

    def __init__(self, tables: ClusterTables) -> None:
        self._tables = tables
        self._findings: BoundedCache[PodConstraints, _Findings] = BoundedCache(_CONSTRAINTS)
        #: The terms of pods on nodes that match a namespace and labels, as of a version of the terms.
        self._terms: BoundedCache[tuple[str, tuple[tuple[str, str], ...]], tuple[ExistingTerm, ...]]
        self._terms = BoundedCache(_LABELS)
        self._terms_version = -1

    def verdict(self, pod: Pod) -> Verdict:
        """Where the pod may run. The pod itself must not be in the tables."""
        findings = self._findings_for(pod)
        effects = self._label_effects(pod, findings.constraints)
        known = findings.verdicts.get(effects)
        if known is not None and known[0] == self._tables.version:
            return known[1]
        verdict = self._judge(findings, effects)
        verdict.allowed.flags.writeable = False
        findings.verdicts.put(effects, (self._tables.version, verdict))
        return verdict

    def fits_without(self, pod: Pod, row: int, gone: Collection[str]) -> bool:
        """Whether the pod could run on this row, were these pods (UIDs) not there."""
        tables = self._tables
        if row >= tables.nodes.size or not tables.nodes.alive[row]:
            return False
        findings = self._findings_for(pod)
        constraints, effects = findings.constraints, self._label_effects(pod, findings.constraints)
        absent = tables.pods.those(gone)
        view = self._volumes(findings)
        if constraints.fault is not None or view.fault is not None:
            return False
        if not node_filters.ports_free(tables.pods, constraints.info.ports, row, absent):
            return False
        if not node_filters.fits(tables, constraints.info.requests, row, absent):
            return False
        groups = (
            *self._fixed(findings),
            volumes.exclusive_claim_rejections(tables, constraints, view.exclusive, absent),
            view.binding,
            view.zone,
            self._spread(findings, effects, absent),
            self._pod_affinity(findings, effects, absent),
        )
        return not any(rejection.rows[row] for group in groups for rejection in group)

    def short(self, pod: Pod) -> BoolArray:
        """The rows on which there is too little of some resource for the pod."""
        rows = np.zeros(self._tables.nodes.size, np.bool_)
        for rejection in node_filters.fit_rejections(self._tables, self._findings_for(pod).constraints.info.requests):
            rows |= rejection.rows
        return rows

    def prefers(self, pod: Pod) -> bool:
        """Whether the pod, a taint of a node or a pod on a node prefers some nodes for the pod to others."""
        constraints = self._findings_for(pod).constraints
        return (
            bool(constraints.preferred_nodes or constraints.preferred_spread or constraints.info.affinity.preferred)
            or self._tables.nodes.avoided(constraints.tolerations) is not None
            or any(existing.weight for existing in self._existing_terms(constraints.namespace, pod))
        )

    def volume_decisions(self, pod: Pod, node: str) -> list[VolumeDecision]:
        """What must be written for the pod's claims before it is bound to this node, which the verdict allows."""
        rows = np.flatnonzero(self._tables.nodes.named((node,)))
        view = self._volumes(self._findings_for(pod))
        return volumes.decisions(view, int(rows[0]), node) if len(rows) else []

    # What is known of a pod

    def _findings_for(self, pod: Pod) -> _Findings:
        constraints = self._tables.reader.constraints(pod)
        return self._findings.of(constraints, lambda: _Findings(constraints))

    def _label_effects(self, pod: Pod, constraints: PodConstraints) -> _LabelEffects:
        labels = pod.metadata.labels
        return _LabelEffects(
            self._existing_terms(constraints.namespace, pod),
            tuple(item.selector.matches(labels) for item in constraints.required_spread),
            bool(constraints.info.affinity.required) and pod_affinity.matches_itself(self._tables, constraints, labels),
        )

    def _existing_terms(self, namespace: str, pod: Pod) -> tuple[ExistingTerm, ...]:
        pods = self._tables.pods
        if self._terms_version != pods.terms_version:
            self._terms.clear()
            self._terms_version = pods.terms_version
        labels = pod.metadata.labels
        return self._terms.of((namespace, tuple(labels.items())), lambda: pods.existing_terms_for(namespace, labels))

    # The filters, each asked again only when what it reads has changed

    def _judge(self, findings: _Findings, effects: _LabelEffects) -> Verdict:
        constraints, nodes = findings.constraints, self._tables.nodes
        view = self._volumes(findings)
        fault = constraints.fault or view.fault
        if fault is not None:
            everywhere: Rejections = (Rejection(*fault, nodes.alive.copy(), False),)
            allowed, rejections = _sorted_out(nodes.alive, (everywhere,))
            return Verdict(allowed, None, rejections)
        by_nodes, first = findings.once(
            "sorted", (nodes.version,), lambda: _sorted_out(nodes.alive, self._fixed(findings))
        )
        allowed, rejections = _sorted_out(
            by_nodes,
            (
                self._ports(findings),
                node_filters.fit_rejections(self._tables, constraints.info.requests),
                volumes.exclusive_claim_rejections(self._tables, constraints, view.exclusive),
                view.binding,
                view.zone,
                self._spread(findings, effects),
                self._pod_affinity(findings, effects),
            ),
        )
        return Verdict(allowed, self._favour(findings, effects, allowed), first + rejections)

    def _fixed(self, findings: _Findings) -> tuple[Rejections, ...]:
        nodes = self._tables.nodes
        return findings.once(
            "fixed", (nodes.version,), lambda: node_filters.node_rejections(nodes, findings.constraints)
        )

    def _ports(self, findings: _Findings) -> Rejections:
        pods, wanted = self._tables.pods, findings.constraints.info.ports
        if not wanted:
            return ()
        size = self._tables.nodes.size
        return findings.once(
            "ports", (pods.ports_version, size), lambda: node_filters.port_rejections(pods, wanted, size)
        )

    def _volumes(self, findings: _Findings) -> VolumeView:
        tables = self._tables
        if not findings.constraints.claims:
            return _NO_VOLUMES
        key = (tables.nodes.version, tables.storage.version)
        return findings.once("volumes", key, lambda: volumes.view(tables, findings.constraints))

    def _spread(self, findings: _Findings, effects: _LabelEffects, gone: tuple[PlacedPod, ...] = ()) -> Rejections:
        tables, constraints = self._tables, findings.constraints
        if not constraints.required_spread:
            return ()
        version = tables.nodes.version
        domains = findings.once(
            "domains",
            (version,),
            lambda: topology_spread.domains_of(tables.nodes, constraints, constraints.required_spread),
        )
        matching_pods = topology_spread.spread_pods_of(tables, constraints, constraints.required_spread)
        if gone:
            return topology_spread.spread_rejections(tables, domains, matching_pods, effects.counts_itself, gone)
        key = (version, effects.counts_itself, *((matching, matching.version) for matching in matching_pods))
        return findings.once(
            "spread",
            key,
            lambda: topology_spread.spread_rejections(tables, domains, matching_pods, effects.counts_itself),
        )

    def _pod_affinity(
        self, findings: _Findings, effects: _LabelEffects, gone: tuple[PlacedPod, ...] = ()
    ) -> Rejections:
        tables, affinity = self._tables, findings.constraints.info.affinity
        if affinity is NO_AFFINITY and not effects.existing_terms:
            return ()
        if gone:
            return pod_affinity.affinity_rejections(
                tables, affinity, effects.existing_terms, itself=effects.itself, gone=gone
            )
        required, anti = pod_affinity.affinity_pods_of(tables, affinity)
        counted = (*((required,) if required else ()), *anti, *effects.existing_terms)
        key = (tables.nodes.version, effects.itself, *((item, item.version) for item in counted))
        return findings.once(
            "pod affinity",
            key,
            lambda: pod_affinity.affinity_rejections(tables, affinity, effects.existing_terms, itself=effects.itself),
        )

    # Preferences

    def _favour(self, findings: _Findings, effects: _LabelEffects, allowed: BoolArray) -> FloatArray | None:
        tables, constraints = self._tables, findings.constraints
        preferred = constraints.info.affinity.preferred
        matching_pods = topology_spread.spread_pods_of(tables, constraints, constraints.preferred_spread)
        preferences = (
            pod_affinity.preferences_of(tables, preferred, effects.existing_terms)
            if preferred or effects.existing_terms
            else ()
        )
        counted = (
            *((matching, matching.version) for matching in matching_pods),
            *((item, item.version) for _, _, item in preferences),
        )
        key = (tables.nodes.version, *counted)
        if findings.favour is None or findings.favour[0] != key or not np.array_equal(findings.favour[1], allowed):
            findings.favour = (key, allowed, self._weigh(findings, allowed, matching_pods, preferences))
        return findings.favour[2]

    def _weigh(
        self,
        findings: _Findings,
        allowed: BoolArray,
        matching_pods: tuple[MatchingPods, ...],
        preferences: tuple[pod_affinity.AffinityPreference, ...],
    ) -> FloatArray | None:
        nodes, constraints = self._tables.nodes, findings.constraints
        if not np.count_nonzero(allowed):
            return None
        parts: list[tuple[int, FloatArray]] = []
        avoided = nodes.avoided(constraints.tolerations)
        worst = 0 if avoided is None else (avoided * allowed).max()
        if avoided is not None and worst:
            parts.append((_WEIGHT_TAINTS, _BEST - np.floor(_BEST * avoided / worst)))
        if constraints.preferred_nodes:
            parts.append((_WEIGHT_NODES, self._preferred_nodes(findings, allowed)))
        if matching_pods:
            domains = findings.once(
                "soft",
                (nodes.version,),
                lambda: topology_spread.domains_of(nodes, constraints, constraints.preferred_spread),
            )
            parts.append((_WEIGHT_SPREAD, topology_spread.spread_favour(domains, matching_pods, allowed)))
        by_affinity = pod_affinity.affinity_favour(nodes, preferences, allowed)
        if by_affinity is not None:
            parts.append((_WEIGHT_POD_AFFINITY, by_affinity))
        if not parts:
            return None
        total = sum(weight for weight, _ in parts)
        favour: FloatArray = np.where(allowed, sum(weight * score for weight, score in parts) / total, 0.0)
        return favour

    def _preferred_nodes(self, findings: _Findings, allowed: BoolArray) -> FloatArray:
        nodes = self._tables.nodes

        def weights() -> FloatArray:
            total = np.zeros(nodes.size)
            for term, weight in findings.constraints.preferred_nodes:
                total += weight * nodes.matching_term(term)
            return total

        found = findings.once("preferred", (nodes.version,), weights)
        most = (found * allowed).max()
        return np.floor(_BEST * found / most) if most else np.zeros(len(allowed))


_NO_VOLUMES: Final = VolumeView()


def _sorted_out(alive: BoolArray, groups: tuple[Rejections, ...]) -> tuple[BoolArray, tuple[Rejection, ...]]:
    """The rows that no filter rejects, and for each other row the filter that rejected it first."""
    left = alive.copy()
    rejections = []
    for group in groups:
        before = left
        for rejection in group:
            rows = rejection.rows & before
            if np.count_nonzero(rows):
                left = left & ~rows
                rejections.append(Rejection(rejection.filter, rejection.reason, rows, rejection.resolvable))
    return left, tuple(rejections)
