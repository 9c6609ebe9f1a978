"""Clears a node for a pod that fits nowhere: chooses who gives way, asks them to go, and keeps their place free.

Only pods of lower priority go, as few and as unimportant as will do, and against a disruption budget only when nothing
else helps (`preemption`). Until the pod is bound or gone, its node is not for less important pods.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS
from shoal.placement.columns import BoolArray
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.preemption.search import (
    DisruptionBudgets,
    PodOnNode,
    PreemptionPlan,
    candidate_limit,
    choose,
    refusal,
)
from shoal.scheduler.queue.order import Standing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A node that is being cleared for a pod."""

    node: str
    standing: Standing
    victims: frozenset[str]
    words: str


class Clearing:
    """The nodes that are being cleared, and for whom."""

    def __init__(self, context: SchedulingContext, *, budgets: DisruptionBudgets, rng: random.Random) -> None:
        self._state = context.state
        self._feasibility = context.feasibility
        self._client = context.client
        self._reporter = context.reporter
        self._may_write = context.may_write
        self._budgets = budgets
        self._rng = rng
        self._cleared: dict[str, Cleared] = {}
        self._evictions: set[asyncio.Task[None]] = set()

    def keep_clear(self, allowed: BoolArray, standing: Standing) -> BoolArray:
        """The nodes allowed to a pod of this standing: not those being cleared for a more important one."""
        return self._without(allowed, [each for each in self._cleared.values() if each.standing.is_above(standing)])

    def _without(self, allowed: BoolArray, cleared: Sequence[Cleared]) -> BoolArray:
        rows = [row for each in cleared if (row := self._state.row(each.node)) is not None]
        if not rows:
            return allowed
        kept = allowed.copy()
        kept[rows] = False
        return kept

    def forget(self, uid: str) -> None:
        """The pod is placed or gone: its node is for everyone again."""
        self._cleared.pop(uid, None)

    def clear(self, pod: Pod, standing: Standing, candidates: BoolArray) -> Cleared | None:
        """Clear a node for the pod, or go on clearing the one that was chosen; None when nobody can give way."""
        uid = pod.metadata.uid
        under_way = self._cleared.get(uid)
        if under_way is not None and any(self._state.pod(victim) is not None for victim in under_way.victims):
            return under_way
        self._cleared.pop(uid, None)
        # A node that is being cleared for a pod as important is that pod's.
        taken = [each for each in self._cleared.values() if not standing.is_above(each.standing)]
        plan = self._plan(pod, self._without(candidates, taken))
        if plan is None:
            return None
        victims = self._pods(victim.uid for victim in plan.victims)
        words = f"Clearing {plan.node}: {who_leaves(pod, victims)} must give way."
        leaving = frozenset(victim.uid for victim in plan.victims)
        cleared = self._cleared[uid] = Cleared(plan.node, standing, leaving, words)
        for victim in victims:
            task = asyncio.create_task(self._evict(victim, pod, plan.node))
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)
        return cleared

    def _plan(self, pod: Pod, candidates: BoolArray) -> PreemptionPlan | None:
        rows = np.flatnonzero(candidates)
        start = self._rng.randrange(len(rows)) if len(rows) else 0
        node_at = self._state.engine.ledger.node_at
        return self.plan(pod, (node_at(row).name for row in np.roll(rows, -start).tolist()))

    def plan(self, pod: Pod, nodes: Iterable[str]) -> PreemptionPlan | None:
        """Who would have to go from one of these nodes so that the pod fits there; None when nobody can give way."""
        level = pod.spec.priority or 0
        if refusal(pod.spec.preemption_policy, priority=level) or self._state.lowest_priority() >= level:
            return None
        cards_fit = self._state.engine.fits_without(self._state.request(pod))

        def fits(node: str, gone: frozenset[str]) -> bool:
            row = self._state.row(node)
            return row is not None and cards_fit(node, gone) and self._feasibility.fits_without(pod, row, gone)

        return choose(
            nodes,
            pods_on=self._on_node,
            fits=fits,
            priority=level,
            budgets=self._budgets.allowances(),
            limit=candidate_limit(self._state.nodes()),
        )

    def _on_node(self, node: str) -> list[PodOnNode]:
        node_ledger = self._state.engine.ledger.node(node)
        return [
            PodOnNode(
                uid=pod.metadata.uid,
                priority=pod.spec.priority or 0,
                started=pod.status.start_time,
                disruption_budgets=self._budgets.of(pod),
                giving_way=pod.metadata.deletion_timestamp is not None,
            )
            for pod in self._pods(() if node_ledger is None else node_ledger.pods)
        ]

    def _pods(self, uids: Iterable[str]) -> list[Pod]:
        return [pod for uid in uids if (pod := self._state.pod(uid)) is not None]

    async def _evict(self, victim: Pod, pod: Pod, node: str) -> None:
        meta = victim.metadata
        if not self._may_write():
            return
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.spec.scheduler_name}: preempting to accommodate a higher priority pod",
        }
        try:
            await self._client.patch(
                PODS,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}},
                namespace=meta.namespace,
                kind="strategic",
                subresource="status",
            )
            await self._client.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except (NotFoundError, ConflictError):
            return  # gone already
        except KubeError as error:
            # The pod it should make room for is tried again, and this one chosen again if it is still there.
            log.warning("preempting %s/%s: %s", meta.namespace, meta.name, error)
            self._cleared.pop(pod.metadata.uid, None)
            return
        self._reporter.note(victim, "Preempted", f"Preempted by {for_whom(victim, pod)} on node {node}")


def who_leaves(pod: Pod, victims: Collection[Pod]) -> str:
    """Those that make room for a pod, for its own message."""
    own = sorted(_name(victim) for victim in victims if _is_neighbour(victim, pod))
    others = len(victims) - len(own)
    counted = "1 pod of another namespace" if others == 1 else f"{others} pods of other namespaces"
    return ", ".join([*own, *([counted] if others else [])])


def for_whom(victim: Pod, pod: Pod) -> str:
    """The pod that room is made for, for the message of one that must leave."""
    return _name(pod) if _is_neighbour(victim, pod) else "a pod of another namespace with a higher priority"


def _is_neighbour(one: Pod, other: Pod) -> bool:
    return one.metadata.namespace == other.metadata.namespace


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
