"""Topology spread: pods of a kind evenly over domains, as a must and as a preference.

For a must, with n(d) matching pods in domain d and the smallest such count m over the domains that count, a domain is
refused where n(d) + self - m > maxSkew. m is 0 while there are fewer than minDomains domains. Nodes that lack a key of
any constraint, or that the inclusion policies leave out, count in no domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.model.contract import kubernetes
from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.filters.fixed import wanted_nodes
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.state.columns import Column, SmallArray
from shoal.scheduler.feasibility.state.nodes import NodeTable
from shoal.scheduler.feasibility.state.pods import Held, Tally
from shoal.scheduler.feasibility.wish.terms import Spread
from shoal.scheduler.feasibility.wish.wish import Wish

_FILTER = "PodTopologySpread"
_SKEW = "node(s) didn't match pod topology spread constraints"
_NO_LABEL = f"{_SKEW} (missing required label)"
_BEST = 100


@dataclass(frozen=True, slots=True)
class Domains:
    """The nodes that count for one constraint, and their domains; nothing of it depends on pods."""

    spread: Spread
    column: Column[str]
    missing: BoolArray
    rows: IntArray
    #: The domain of each of these rows.
    ids: IntArray
    #: By domain: whether a node that counts is in it.
    there: BoolArray

    def pods(self, counts: SmallArray) -> FloatArray:
        """Pods by domain."""
        return np.bincount(self.ids, counts[self.rows], len(self.there)).astype(np.float64, copy=False)


def domains_of(nodes: NodeTable, wish: Wish, spreads: tuple[Spread, ...]) -> tuple[Domains, ...]:
    """The domains of each constraint."""
    having_all = nodes.has_labels(spread.key for spread in spreads)
    return tuple(_domains(nodes, wish, spread, having_all) for spread in spreads)


def _domains(nodes: NodeTable, wish: Wish, spread: Spread, having_all: BoolArray) -> Domains:
    counted = having_all
    if spread.honour_affinity:
        wanted = wanted_nodes(nodes, wish.node)
        counted = counted if wanted is None else counted & wanted
    if spread.honour_taints:
        counted = counted & nodes.tolerated(wish.tolerations)
    column = nodes.label(spread.key)
    rows = np.flatnonzero(counted)
    ids = column.ids[rows]
    there = np.zeros(column.values, np.bool_)
    there[ids] = True
    return Domains(spread, column, column.ids < 0, rows, ids, there)


def tallies_of(cluster: Cluster, wish: Wish, spreads: tuple[Spread, ...]) -> tuple[Tally, ...]:
    """The pods that each constraint counts."""
    pods = cluster.pods
    return tuple(pods.tally((spread.audience(wish.namespace),), leaving=False) for spread in spreads)


def spread_objections(
    cluster: Cluster,
    domains: tuple[Domains, ...],
    tallies: tuple[Tally, ...],
    selves: tuple[bool, ...],
    gone: tuple[Held, ...] = (),
) -> Objections:
    """Where the pod would make the spread too uneven. `selves` says which constraints the pod itself counts for."""
    size = cluster.nodes.size
    open_, missing, skewed = np.ones(size, np.bool_), np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for domain, tally, itself in zip(domains, tallies, selves, strict=True):
        spread = domain.spread
        missing |= open_ & domain.missing
        pods = domain.pods(tally.without(gone))
        enough = np.count_nonzero(domain.there) >= max(spread.min_domains, 1)
        least = pods[domain.there].min() if enough else 0
        uneven = domain.column.spread(pods + itself - least > spread.max_skew)
        skewed |= open_ & uneven
        open_ &= ~(domain.missing | uneven)
    return (Objection(_FILTER, _NO_LABEL, missing, False), Objection(_FILTER, _SKEW, skewed, True))


def spread_favour(domains: tuple[Domains, ...], tallies: tuple[Tally, ...], allowed: BoolArray) -> FloatArray:
    """0 to 100 by row, the more the fewer such pods there are, as kube-scheduler scores soft constraints."""
    judged = allowed.copy()
    for domain in domains:
        judged &= ~domain.missing
    rows = np.flatnonzero(judged)
    favour = np.zeros(len(allowed))
    if not len(rows):
        return favour
    cost = np.zeros(len(rows))
    for domain, tally in zip(domains, tallies, strict=True):
        ids = domain.column.ids[rows]
        if domain.spread.key == kubernetes.LABEL_HOSTNAME:
            size, pods = len(rows), tally.counts[rows].astype(np.float64)
        else:
            size, pods = int(np.count_nonzero(np.bincount(ids))), domain.pods(tally.counts)[ids]
        cost += pods * math.log(size + 2) + (domain.spread.max_skew - 1)
    cost = np.floor(cost + 0.5)
    most = cost.max()
    favour[rows] = _BEST if most == 0 else np.floor(_BEST * (most + cost.min() - cost) / most)
    return favour
