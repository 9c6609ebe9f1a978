"""Pod affinity, node affinity and topology spread: as a manifest has them, and as the filters read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.kube.objects.meta import Base
from shoal.kube.selectors import (
    MATCHES_NOTHING,
    Labels,
    LabelSelector,
    RawLabelSelector,
    RawNodeSelector,
    RawNodeSelectorTerm,
    label_selector,
)


class RawPodAffinityTerm(Base, frozen=True, kw_only=True):
    """A pod affinity term."""

    label_selector: RawLabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: RawLabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class RawWeightedPodAffinityTerm(Base, frozen=True, kw_only=True):
    """A pod affinity term that is only preferred."""

    weight: int = 0
    pod_affinity_term: RawPodAffinityTerm = RawPodAffinityTerm()


class RawPodAffinity(Base, frozen=True, kw_only=True):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: tuple[RawPodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[RawWeightedPodAffinityTerm, ...] | None = None


class RawPreferredNodeTerm(Base, frozen=True, kw_only=True):
    """A preferred node affinity term."""

    weight: int = 0
    preference: RawNodeSelectorTerm = RawNodeSelectorTerm()


class RawNodeAffinity(Base, frozen=True, kw_only=True):
    """Node affinity."""

    required_during_scheduling_ignored_during_execution: RawNodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[RawPreferredNodeTerm, ...] | None = None


class RawAffinity(Base, frozen=True, kw_only=True):
    """The affinity of a pod, but for that to nodes."""

    pod_affinity: RawPodAffinity | None = None
    pod_anti_affinity: RawPodAffinity | None = None


class RawTopologySpreadConstraint(Base, frozen=True, kw_only=True):
    """A topology spread constraint."""

    max_skew: int = 1
    min_domains: int | None = None
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: RawLabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods by their labels and the namespaces they are in."""

    namespaces: frozenset[str]
    namespace_selector: LabelSelector
    label_selector: LabelSelector

    def matches(self, namespace: str, namespace_labels: Labels, labels: Labels) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.label_selector.matches(labels)


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """The pods that a pod wants in its topology domain, or wants to be kept out of it."""

    pod_selector: PodSelector
    topology_key: str


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred term and its weight, which is negative for anti-affinity and 0 for required anti-affinity."""

    term: PodAffinityTerm
    weight: int


@dataclass(frozen=True, slots=True)
class TopologySpreadConstraint:
    """A topology spread constraint as the filter reads it."""

    topology_key: str
    max_skew: int
    min_domains: int
    selector: LabelSelector
    honour_affinity: bool
    honour_taints: bool

    def pod_selector(self, namespace: str) -> PodSelector:
        """The pods that count, for a pod of this namespace."""
        # Kubernetes counts no pods for a selector that selects all.
        selector = MATCHES_NOTHING if self.selector.everything else self.selector
        return PodSelector(frozenset((namespace,)), MATCHES_NOTHING, selector)


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """Pod affinity and anti-affinity of one pod, terms it requires and terms it prefers."""

    required: tuple[PodAffinityTerm, ...] = ()
    anti: tuple[PodAffinityTerm, ...] = ()
    preferred: tuple[WeightedPodAffinityTerm, ...] = ()


def pod_affinity(raw: RawAffinity, namespace: str, labels: Labels) -> PodAffinity:
    """Affinity and anti-affinity of a pod of this namespace with these labels."""
    affinity, anti = raw.pod_affinity or RawPodAffinity(), raw.pod_anti_affinity or RawPodAffinity()

    def terms(found: Iterable[RawPodAffinityTerm] | None) -> tuple[PodAffinityTerm, ...]:
        return tuple(_term(term, namespace, labels) for term in found or ())

    def weighted(found: Iterable[RawWeightedPodAffinityTerm] | None, sign: int) -> tuple[WeightedPodAffinityTerm, ...]:
        return tuple(
            WeightedPodAffinityTerm(_term(item.pod_affinity_term, namespace, labels), sign * item.weight)
            for item in found or ()
        )

    return PodAffinity(
        required=terms(affinity.required_during_scheduling_ignored_during_execution),
        anti=terms(anti.required_during_scheduling_ignored_during_execution),
        preferred=(
            *weighted(affinity.preferred_during_scheduling_ignored_during_execution, 1),
            *weighted(anti.preferred_during_scheduling_ignored_during_execution, -1),
        ),
    )


def _term(raw: RawPodAffinityTerm, namespace: str, labels: Labels) -> PodAffinityTerm:
    own = not raw.namespaces and raw.namespace_selector is None
    names = frozenset((namespace,)) if own else frozenset(raw.namespaces or ())
    selector = label_selector(raw.label_selector)
    # The API server writes these into the selector when the pod is made; what is there already stays.
    known = {requirement.key for requirement in selector.requirements or ()}
    selector = selector.narrowed(
        _values(raw.match_label_keys, labels, known), _values(raw.mismatch_label_keys, labels, known)
    )
    return PodAffinityTerm(PodSelector(names, label_selector(raw.namespace_selector), selector), raw.topology_key)


def _values(keys: tuple[str, ...] | None, labels: Labels, known: Iterable[str] = ()) -> dict[str, str]:
    return {key: labels[key] for key in keys or () if key in labels and key not in known}


def spread_constraint(raw: RawTopologySpreadConstraint, labels: Labels) -> TopologySpreadConstraint:
    """The constraint of a pod with these labels."""
    selector = label_selector(raw.label_selector).narrowed(_values(raw.match_label_keys, labels), {})
    return TopologySpreadConstraint(
        topology_key=raw.topology_key,
        max_skew=raw.max_skew,
        min_domains=1 if raw.min_domains is None else raw.min_domains,
        selector=selector,
        honour_affinity=raw.node_affinity_policy in (None, "Honor"),
        honour_taints=raw.node_taints_policy == "Honor",
    )
