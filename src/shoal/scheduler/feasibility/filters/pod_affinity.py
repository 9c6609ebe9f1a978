"""Pod affinity and anti-affinity: near some pods, away from others, in one domain of a label.

Required: a node is rejected where its domain has a pod that the pod's own anti-affinity matches, or a pod whose
anti-affinity matches this one; and where its domains have no pod that all terms of the pod's own affinity match, unless
there is no such pod anywhere and the terms match the pod itself. Preferred: the sum of the weights of the terms that
match, those of other pods included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shoal.kube.selectors import Labels
from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.affinity import PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from shoal.scheduler.feasibility.columns import ValueColumn
from shoal.scheduler.feasibility.filters import Rejection, Rejections
from shoal.scheduler.feasibility.node_table import NodeTable
from shoal.scheduler.feasibility.pod_spec import PodConstraints
from shoal.scheduler.feasibility.pod_table import ExistingTerm, MatchingPods, PlacedPod
from shoal.scheduler.feasibility.tables import ClusterTables

_FILTER = "InterPodAffinity"
_BEST = 100


class AffinityPreference(NamedTuple):
    """A preferred term and the pods it is counted by: those it matches, or those on nodes that have it."""

    term: PodAffinityTerm
    weight: int
    pods: MatchingPods | ExistingTerm


def matches_itself(tables: ClusterTables, constraints: PodConstraints, labels: Labels) -> bool:
    """Whether all required affinity terms of the pod match the pod itself."""
    around = tables.pods.namespace(constraints.namespace)
    return all(
        term.pod_selector.matches(constraints.namespace, around, labels) for term in constraints.info.affinity.required
    )


def affinity_pods_of(
    tables: ClusterTables, affinity: PodAffinity
) -> tuple[MatchingPods | None, tuple[MatchingPods, ...]]:
    """The pods that all required affinity terms match together, and those of each anti-affinity term."""
    pods = tables.pods
    required = (
        pods.matching(tuple(term.pod_selector for term in affinity.required), terminating=True)
        if affinity.required
        else None
    )
    return required, tuple(pods.matching((term.pod_selector,), terminating=True) for term in affinity.anti)


def affinity_rejections(
    tables: ClusterTables,
    affinity: PodAffinity,
    existing_terms: tuple[ExistingTerm, ...],
    *,
    itself: bool,
    gone: tuple[PlacedPod, ...] = (),
) -> Rejections:
    """The nodes rejected by the pod's own terms, and by `existing_terms`: those of pods on nodes that match it."""
    required, anti = affinity_pods_of(tables, affinity)
    found = []
    unmet = np.zeros(tables.nodes.size, np.bool_)
    if required is not None:
        unmet = ~_near_required(tables, affinity.required, required.counts_by_row(gone)[0], itself)
        found.append(Rejection(_FILTER, "node(s) didn't match pod affinity rules", unmet, False))
    own = [(term, matching.counts_by_row(gone)[0]) for term, matching in zip(affinity.anti, anti, strict=True)]
    mine = _in_domains(tables, own) & ~unmet
    if own:
        found.append(Rejection(_FILTER, "node(s) didn't match pod anti-affinity rules", mine, True))
    others = [(existing.term, existing.counts_by_row(gone)[0]) for existing in existing_terms if not existing.weight]
    if others:
        theirs = _in_domains(tables, others) & ~unmet & ~mine
        found.append(Rejection(_FILTER, "node(s) didn't satisfy existing pods anti-affinity rules", theirs, True))
    return tuple(found)


def _near_required(
    tables: ClusterTables, terms: tuple[PodAffinityTerm, ...], rows: IntArray, itself: bool
) -> BoolArray:
    keys = dict.fromkeys(term.topology_key for term in terms)
    columns = [tables.nodes.label(key) for key in keys]
    if itself and not any((column.ids[rows] >= 0).any() for column in columns):
        return tables.nodes.has_labels(keys)
    mask = tables.nodes.alive.copy()
    for column in columns:
        mask &= _in_domain(column, rows)
    return mask


def _in_domains(tables: ClusterTables, terms: Iterable[tuple[PodAffinityTerm, IntArray]]) -> BoolArray:
    mask = np.zeros(tables.nodes.size, np.bool_)
    for term, rows in terms:
        mask |= _in_domain(tables.nodes.label(term.topology_key), rows)
    return mask


def _in_domain(column: ValueColumn[str], rows: IntArray) -> BoolArray:
    """The rows that are in a domain with one of these."""
    table = np.zeros(column.values + 1, np.bool_)
    table[column.ids[rows]] = True
    table[-1] = False
    result: BoolArray = table[column.ids]
    return result


def preferences_of(
    tables: ClusterTables, preferred: tuple[WeightedPodAffinityTerm, ...], existing_terms: tuple[ExistingTerm, ...]
) -> tuple[AffinityPreference, ...]:
    """The preferred terms of the pod, and those of pods on nodes that match it."""
    pods = tables.pods
    own = (
        AffinityPreference(item.term, item.weight, pods.matching((item.term.pod_selector,), terminating=True))
        for item in preferred
    )
    return (
        *own,
        *(
            AffinityPreference(existing.term, existing.weight, existing)
            for existing in existing_terms
            if existing.weight
        ),
    )


def affinity_favour(nodes: NodeTable, found: tuple[AffinityPreference, ...], allowed: BoolArray) -> FloatArray | None:
    """0 to 100 by row, as kube-scheduler scores preferred terms; None when no term matches a pod."""
    total = np.zeros(nodes.size)
    matched = False
    for term, weight, pods in found:
        column = nodes.label(term.topology_key)
        rows, counts = pods.counts_by_row()
        ids = column.ids[rows]
        there = ids >= 0
        if np.count_nonzero(there):
            table = np.zeros(column.values + 1)
            table[:-1] = np.bincount(ids[there], counts[there], column.values) * weight
            total += table[column.ids]
            matched = True
    if not matched:
        return None
    scores = total[allowed]
    least, most = scores.min(), scores.max()
    if most == least:
        return np.zeros(len(allowed))
    favour: FloatArray = np.where(allowed, np.trunc(_BEST * ((total - least) / (most - least))), 0.0)
    return favour
