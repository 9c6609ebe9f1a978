"""Pod affinity and anti-affinity: near some pods, away from others, in one domain of a label.

As a must: a node is refused where a pod that the own anti-affinity means is in its domain, or a pod whose anti-affinity
means this one; and where no pod that all the own affinity terms mean is in its domains, unless there is no such pod
anywhere and the pod means itself. As a preference: weights of the terms that hold, the others' terms included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shoal.placement.columns import BoolArray, FloatArray, IntArray
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.state.columns import Column
from shoal.scheduler.feasibility.state.nodes import NodeTable
from shoal.scheduler.feasibility.state.pods import Burden, Held, Tally
from shoal.scheduler.feasibility.wish.selectors import Labels
from shoal.scheduler.feasibility.wish.terms import Company, Term, Weighted
from shoal.scheduler.feasibility.wish.wish import Wish

_FILTER = "InterPodAffinity"
_BEST = 100


class Met(NamedTuple):
    """A preference and the pods it is about: those it means, or those that have it."""

    term: Term
    weight: int
    pods: Tally | Burden


def means_itself(cluster: Cluster, wish: Wish, labels: Labels) -> bool:
    """Whether all affinity terms of the pod mean the pod itself."""
    around = cluster.pods.namespace(wish.namespace)
    return all(term.audience.matches(wish.namespace, around, labels) for term in wish.traits.company.near)


def tallies_of(cluster: Cluster, company: Company) -> tuple[Tally | None, tuple[Tally, ...]]:
    """Pods that all affinity terms mean, and by anti-affinity term those it means."""
    pods = cluster.pods
    near = pods.tally(tuple(term.audience for term in company.near), leaving=True) if company.near else None
    return near, tuple(pods.tally((term.audience,), leaving=True) for term in company.apart)


def affinity_objections(
    cluster: Cluster,
    company: Company,
    burdens: tuple[Burden, ...],
    *,
    itself: bool,
    gone: tuple[Held, ...] = (),
) -> Objections:
    """Where the pod must not be for the company it would keep; `burdens` are the terms of others that mean it."""
    near, apart = tallies_of(cluster, company)
    found = []
    lonely = np.zeros(cluster.nodes.size, np.bool_)
    if near is not None:
        lonely = ~_near(cluster, company.near, near.places(gone)[0], itself)
        found.append(Objection(_FILTER, "node(s) didn't match pod affinity rules", lonely, False))
    own = [(term, tally.places(gone)[0]) for term, tally in zip(company.apart, apart, strict=True)]
    mine = _together(cluster, own) & ~lonely
    if own:
        found.append(Objection(_FILTER, "node(s) didn't match pod anti-affinity rules", mine, True))
    others = [(burden.term, burden.places(gone)[0]) for burden in burdens if not burden.weight]
    if others:
        theirs = _together(cluster, others) & ~lonely & ~mine
        found.append(Objection(_FILTER, "node(s) didn't satisfy existing pods anti-affinity rules", theirs, True))
    return tuple(found)


def _near(cluster: Cluster, terms: tuple[Term, ...], rows: IntArray, itself: bool) -> BoolArray:
    keys = dict.fromkeys(term.key for term in terms)
    columns = [cluster.nodes.label(key) for key in keys]
    if itself and not any((column.ids[rows] >= 0).any() for column in columns):
        return cluster.nodes.has_labels(keys)
    mask = cluster.nodes.alive.copy()
    for column in columns:
        mask &= _in_domain(column, rows)
    return mask


def _together(cluster: Cluster, terms: Iterable[tuple[Term, IntArray]]) -> BoolArray:
    mask = np.zeros(cluster.nodes.size, np.bool_)
    for term, rows in terms:
        mask |= _in_domain(cluster.nodes.label(term.key), rows)
    return mask


def _in_domain(column: Column[str], rows: IntArray) -> BoolArray:
    """The rows that are in a domain with one of these."""
    table = np.zeros(column.values + 1, np.bool_)
    table[column.ids[rows]] = True
    table[-1] = False
    result: BoolArray = table[column.ids]
    return result


def met(cluster: Cluster, preferred: tuple[Weighted, ...], burdens: tuple[Burden, ...]) -> tuple[Met, ...]:
    """The preferences of the pod and of others for it, and the pods they are about."""
    pods = cluster.pods
    own = (Met(item.term, item.weight, pods.tally((item.term.audience,), leaving=True)) for item in preferred)
    return (*own, *(Met(burden.term, burden.weight, burden) for burden in burdens if burden.weight))


def affinity_favour(nodes: NodeTable, found: tuple[Met, ...], allowed: BoolArray) -> FloatArray | None:
    """0 to 100 by row, as kube-scheduler scores preferred terms; None when no pod is meant by any."""
    total = np.zeros(nodes.size)
    meant = False
    for term, weight, pods in found:
        column = nodes.label(term.key)
        rows, counts = pods.places()
        ids = column.ids[rows]
        there = ids >= 0
        if np.count_nonzero(there):
            table = np.zeros(column.values + 1)
            table[:-1] = np.bincount(ids[there], counts[there], column.values) * weight
            total += table[column.ids]
            meant = True
    if not meant:
        return None
    scores = total[allowed]
    least, most = scores.min(), scores.max()
    if most == least:
        return np.zeros(len(allowed))
    favour: FloatArray = np.where(allowed, np.trunc(_BEST * ((total - least) / (most - least))), 0.0)
    return favour
