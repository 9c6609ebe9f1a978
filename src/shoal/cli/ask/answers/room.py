"""Who would have to go so that a pod fits: by the scheduler's rules, and if priorities counted for nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.cli.ask.answers.nodes import Answer
from shoal.cli.ask.picture.picture import Picture, full_name
from shoal.kube.objects.pod import Pod
from shoal.placement.books.columns import BoolArray
from shoal.scheduler.preemption.search import EngineFit, PodOnNode, candidate_limit, choose, refusal

Fits = Callable[[str, frozenset[str]], bool]


class Room(Answer, frozen=True):
    """A node and the pods that would have to leave it."""

    node: str
    pods: tuple[str, ...]
    #: How many of them break a disruption budget.
    breaks_budgets: int = 0


def preempts(picture: Picture, pod: Pod, candidates: BoolArray) -> Room | None:
    """Whom the scheduler would make give way; of equal nodes it may take another. None when nobody may or can."""
    level = pod.spec.priority or 0
    if refusal(pod.spec.preemption_policy, priority=level) or picture.books.lowest_priority() >= level:
        return None
    plan = choose(
        _names(picture, candidates),
        pods_on=lambda node: _on_node(picture, node),
        fits=_fits(picture, pod),
        priority=level,
        budgets=picture.budgets.allowances(),
        limit=candidate_limit(picture.books.nodes()),
    )
    if plan is None:
        return None
    return Room(plan.node, _named(picture, [victim.uid for victim in plan.victims]), plan.violations)


def least_clearing(picture: Picture, pod: Pod, candidates: BoolArray) -> Room | None:
    """The fewest pods whose leaving makes room, whatever their priority: of one node those that hold the most.

    As many nodes are looked at as the scheduler looks at for victims, those with the most free first.
    """
    fits, ledger = _fits(picture, pod), picture.engine.ledger
    limit = candidate_limit(picture.books.nodes())
    best: list[str] | None = None
    where = ""
    for name in _names(picture, candidates)[:limit]:
        node = ledger.node(name)
        if node is None:
            continue
        # The smallest are let off first, so that few large ones are left.
        pods = sorted(node.pods, key=lambda uid: _size(picture, uid))
        away = set(pods)
        if not away or not fits(name, frozenset(away)):
            continue
        for uid in pods:
            if fits(name, frozenset(away - {uid})):
                away.remove(uid)
        if best is None or len(away) < len(best):
            best, where = [uid for uid in pods if uid in away], name
    return None if best is None else Room(where, _named(picture, best))


def _fits(picture: Picture, pod: Pod) -> Fits:
    cards_fit = EngineFit(picture.engine.ledger, picture.engine.class_of(picture.check(pod)))

    def fits(node: str, gone: frozenset[str]) -> bool:
        row = picture.books.row(node)
        return row is not None and cards_fit(node, gone) and picture.feasibility.fits_without(pod, row, gone)

    return fits


def _names(picture: Picture, candidates: BoolArray) -> list[str]:
    columns = picture.engine.ledger.columns
    rows = np.flatnonzero(candidates[: columns.rows])
    free = columns.memory_free[rows].max(axis=1) if len(rows) else rows
    order = rows[np.argsort(-free, kind="stable")]
    return [picture.engine.ledger.node_at(int(row)).name for row in order]


def _on_node(picture: Picture, name: str) -> list[PodOnNode]:
    node = picture.engine.ledger.node(name)
    return [
        PodOnNode(
            uid=uid,
            priority=pod.spec.priority or 0,
            started=pod.status.start_time,
            disruption_budgets=picture.budgets.of(pod),
            giving_way=pod.metadata.deletion_timestamp is not None,
        )
        for uid in (() if node is None else node.pods)
        if (pod := picture.books.pod(uid)) is not None
    ]


def _size(picture: Picture, uid: str) -> tuple[int, int, int, str]:
    """How much a pod holds: cards taken whole, memory of cards, CPU."""
    booking = picture.engine.ledger.booking(uid)
    assert booking is not None
    shares = booking.allocation.held().values()
    return sum(s.exclusive for s in shares), sum(s.memory_mib for s in shares), booking.cpu_milli, uid


def _named(picture: Picture, uids: list[str]) -> tuple[str, ...]:
    pods = (picture.books.pod(uid) for uid in uids)
    return tuple(sorted(full_name(pod) for pod in pods if pod is not None))
