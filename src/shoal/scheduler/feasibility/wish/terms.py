"""Pod affinity and topology spread as a manifest has them, and as the filters read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.kube.objects.meta import Base
from shoal.scheduler.feasibility.wish.selectors import (
    NOTHING,
    Labels,
    RawNodeTerm,
    RawSelector,
    Selector,
    label_selector,
)


class RawPodTerm(Base, frozen=True, kw_only=True):
    """A pod affinity term."""

    label_selector: RawSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: RawSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class RawWeightedPodTerm(Base, frozen=True, kw_only=True):
    """A pod affinity term that is only preferred."""

    weight: int = 0
    pod_affinity_term: RawPodTerm = RawPodTerm()


class RawPodAffinity(Base, frozen=True, kw_only=True):
    """Pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: tuple[RawPodTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[RawWeightedPodTerm, ...] | None = None


class RawNodeSelector(Base, frozen=True, kw_only=True):
    """Required node affinity."""

    node_selector_terms: tuple[RawNodeTerm, ...] | None = None


class RawWeightedNodeTerm(Base, frozen=True, kw_only=True):
    """A preferred node affinity term."""

    weight: int = 0
    preference: RawNodeTerm = RawNodeTerm()


class RawNodeAffinity(Base, frozen=True, kw_only=True):
    """Node affinity."""

    required_during_scheduling_ignored_during_execution: RawNodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[RawWeightedNodeTerm, ...] | None = None


class RawPodAffinities(Base, frozen=True, kw_only=True):
    """What a pod wants of other pods."""

    pod_affinity: RawPodAffinity | None = None
    pod_anti_affinity: RawPodAffinity | None = None


class RawSpread(Base, frozen=True, kw_only=True):
    """A topology spread constraint."""

    max_skew: int = 1
    min_domains: int | None = None
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: RawSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


@dataclass(frozen=True, slots=True)
class Audience:
    """Pods by their labels and the namespaces they are in."""

    namespaces: frozenset[str]
    in_namespaces: Selector
    selector: Selector

    def matches(self, namespace: str, namespace_labels: Labels, labels: Labels) -> bool:
        if namespace not in self.namespaces and not self.in_namespaces.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


@dataclass(frozen=True, slots=True)
class Term:
    """Pods near which, or away from which, a pod shall be: in one domain of the key."""

    audience: Audience
    key: str


@dataclass(frozen=True, slots=True)
class Weighted:
    """A term and what it is worth; less than nothing for one that keeps away."""

    term: Term
    weight: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint."""

    key: str
    max_skew: int
    min_domains: int
    selector: Selector
    honour_affinity: bool
    honour_taints: bool

    def audience(self, namespace: str) -> Audience:
        # Kubernetes counts no pods for a selector that selects all.
        selector = NOTHING if self.selector.everything else self.selector
        return Audience(frozenset((namespace,)), NOTHING, selector)


@dataclass(frozen=True, slots=True)
class Company:
    """What a pod wants of other pods."""

    near: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    preferred: tuple[Weighted, ...] = ()


def company(raw: RawPodAffinities, namespace: str, labels: Labels) -> Company:
    """Affinity and anti-affinity of a pod of this namespace with these labels."""
    near, apart = raw.pod_affinity or RawPodAffinity(), raw.pod_anti_affinity or RawPodAffinity()

    def terms(found: Iterable[RawPodTerm] | None) -> tuple[Term, ...]:
        return tuple(_term(term, namespace, labels) for term in found or ())

    def weighted(found: Iterable[RawWeightedPodTerm] | None, sign: int) -> tuple[Weighted, ...]:
        return tuple(
            Weighted(_term(item.pod_affinity_term, namespace, labels), sign * item.weight) for item in found or ()
        )

    return Company(
        near=terms(near.required_during_scheduling_ignored_during_execution),
        apart=terms(apart.required_during_scheduling_ignored_during_execution),
        preferred=(
            *weighted(near.preferred_during_scheduling_ignored_during_execution, 1),
            *weighted(apart.preferred_during_scheduling_ignored_during_execution, -1),
        ),
    )


def _term(raw: RawPodTerm, namespace: str, labels: Labels) -> Term:
    own = not raw.namespaces and raw.namespace_selector is None
    names = frozenset((namespace,)) if own else frozenset(raw.namespaces or ())
    selector = label_selector(raw.label_selector)
    # The API server writes these into the selector when the pod is made; what is there already stays.
    known = {requirement.key for requirement in selector.requirements or ()}
    selector = selector.narrowed(
        _values(raw.match_label_keys, labels, known), _values(raw.mismatch_label_keys, labels, known)
    )
    return Term(Audience(names, label_selector(raw.namespace_selector), selector), raw.topology_key)


def _values(keys: tuple[str, ...] | None, labels: Labels, known: Iterable[str] = ()) -> dict[str, str]:
    return {key: labels[key] for key in keys or () if key in labels and key not in known}


def spread(raw: RawSpread, labels: Labels) -> Spread:
    """The constraint of a pod with these labels."""
    selector = label_selector(raw.label_selector).narrowed(_values(raw.match_label_keys, labels), {})
    return Spread(
        key=raw.topology_key,
        max_skew=raw.max_skew,
        min_domains=1 if raw.min_domains is None else raw.min_domains,
        selector=selector,
        honour_affinity=raw.node_affinity_policy in (None, "Honor"),
        honour_taints=raw.node_taints_policy == "Honor",
    )
