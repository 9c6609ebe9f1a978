"""Topology spread constraints: matching pods evenly over domains, required or preferred.

Required: with n(d) matching pods in domain d and the smallest such count m over the domains that count, a domain is
rejected where n(d) + self - m > maxSkew. m is 0 while there are fewer than minDomains domains. Nodes that lack a key of
any constraint, or that the inclusion policies leave out, count in no domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.affinity import TopologySpreadConstraint
from shoal.scheduler.feasibility.columns import SmallArray, ValueColumn
from shoal.scheduler.feasibility.filters import Rejection, Rejections
from shoal.scheduler.feasibility.filters.nodes import matching_nodes
from shoal.scheduler.feasibility.node_table import NodeTable
from shoal.scheduler.feasibility.pod_spec import PodConstraints
from shoal.scheduler.feasibility.pod_table import MatchingPods, PlacedPod
from shoal.scheduler.feasibility.tables import ClusterTables

_FILTER = "PodTopologySpread"
_SKEW = "node(s) didn't match pod topology spread constraints"
_NO_LABEL = f"{_SKEW} (missing required label)"
_BEST = 100


@dataclass(frozen=True, slots=True)
class TopologyDomains:
    """The nodes that count for one constraint, and their domains; nothing of it depends on pods."""

    spread: TopologySpreadConstraint
    column: ValueColumn[str]
    missing: BoolArray
    rows: IntArray
    #: The domain of each of these rows.
    ids: IntArray
    #: By domain: whether a node that counts is in it.
    there: BoolArray

    def pods(self, counts: SmallArray) -> FloatArray:
        """Pods by domain."""
        return np.bincount(self.ids, counts[self.rows], len(self.there)).astype(np.float64, copy=False)


def domains_of(
    nodes: NodeTable, constraints: PodConstraints, spreads: tuple[TopologySpreadConstraint, ...]
) -> tuple[TopologyDomains, ...]:
    """The domains of each constraint."""
    having_all = nodes.has_labels(spread.topology_key for spread in spreads)
    return tuple(_domains(nodes, constraints, spread, having_all) for spread in spreads)


def _domains(
    nodes: NodeTable, constraints: PodConstraints, spread: TopologySpreadConstraint, having_all: BoolArray
) -> TopologyDomains:
    counted = having_all
    if spread.honour_affinity:
        wanted = matching_nodes(nodes, constraints.node_affinity)
        counted = counted if wanted is None else counted & wanted
    if spread.honour_taints:
        counted = counted & nodes.tolerated(constraints.tolerations)
    column = nodes.label(spread.topology_key)
    rows = np.flatnonzero(counted)
    ids = column.ids[rows]
    there = np.zeros(column.values, np.bool_)
    there[ids] = True
    return TopologyDomains(spread, column, column.ids < 0, rows, ids, there)


def spread_pods_of(
    tables: ClusterTables, constraints: PodConstraints, spreads: tuple[TopologySpreadConstraint, ...]
) -> tuple[MatchingPods, ...]:
    """The pods that each constraint counts."""
    pods = tables.pods
    return tuple(pods.matching((spread.pod_selector(constraints.namespace),), terminating=False) for spread in spreads)


def spread_rejections(
    tables: ClusterTables,
    domains: tuple[TopologyDomains, ...],
    matching_pods: tuple[MatchingPods, ...],
    counts_itself: tuple[bool, ...],
    gone: tuple[PlacedPod, ...] = (),
) -> Rejections:
    """The nodes where the skew would be too large. `counts_itself`: by constraint, whether it counts the pod itself."""
    size = tables.nodes.size
    open_, missing, skewed = np.ones(size, np.bool_), np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for domain, matching, itself in zip(domains, matching_pods, counts_itself, strict=True):
        spread = domain.spread
        missing |= open_ & domain.missing
        pods = domain.pods(matching.without(gone))
        enough = np.count_nonzero(domain.there) >= max(spread.min_domains, 1)
        least = pods[domain.there].min() if enough else 0
        uneven = domain.column.spread(pods + itself - least > spread.max_skew)
        skewed |= open_ & uneven
        open_ &= ~(domain.missing | uneven)
    return (Rejection(_FILTER, _NO_LABEL, missing, False), Rejection(_FILTER, _SKEW, skewed, True))


def spread_favour(
    domains: tuple[TopologyDomains, ...], matching_pods: tuple[MatchingPods, ...], allowed: BoolArray
) -> FloatArray:
    """0 to 100 by row, the more the fewer such pods there are, as kube-scheduler scores soft constraints."""
    judged = allowed.copy()
    for domain in domains:
        judged &= ~domain.missing
    rows = np.flatnonzero(judged)
    favour = np.zeros(len(allowed))
    if not len(rows):
        return favour
    cost = np.zeros(len(rows))
    for domain, matching in zip(domains, matching_pods, strict=True):
        ids = domain.column.ids[rows]
        if domain.spread.topology_key == kubernetes.LABEL_HOSTNAME:
            size, pods = len(rows), matching.counts[rows].astype(np.float64)
        else:
            size, pods = int(np.count_nonzero(np.bincount(ids))), domain.pods(matching.counts)[ids]
        cost += pods * math.log(size + 2) + (domain.spread.max_skew - 1)
    cost = np.floor(cost + 0.5)
    most = cost.max()
    favour[rows] = _BEST if most == 0 else np.floor(_BEST * (most + cost.min() - cost) / most)
    return favour
