"""Preemption: which pods must give way so that a more important one fits, and on which node; asks them to go.

The rules are kube-scheduler's. On a node all pods of lower priority are thought away; if the pod fits then, as many as
possible are let off again: first those whose eviction would break a disruption budget, and in both groups the most
important first. Of all nodes that one is taken where the fewest budgets break, then where the highest priority among
the victims is lowest, then the sum of their priorities, then their number, then where the victims run for the shortest.
Gangs are not evicted as a whole. Claims of devices come free with the last pod that uses them.

Until the pod is bound or gone, its node is kept clear of less important pods (`Clearing`). The owner of a pod is told
how many pods of others there are, never which: names of pods are for those who may list them, and an event is read by
all who may read its namespace.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from shoal.kube.errors import ConflictError, KubeError, NotFoundError
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.resources import PODS, key_of
from shoal.kube.selectors import RawLabelSelector, label_selector
from shoal.kube.store import Store
from shoal.placement.columns import BoolArray
from shoal.scheduler.claims.errors import PodCostError
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.queue.order import Standing
from shoal.scheduler.state.cluster_state import CardsFit

log = logging.getLogger(__name__)

#: Victims are looked for on a tenth of all nodes, but on this many at least.
MIN_CANDIDATES: Final = 100
NEVER: Final = "Never"

#: Priorities are 32 bits wide; with this added none is negative, so that one more victim never makes a sum smaller.
_ABOVE_ZERO: Final = 2**31
#: Sorts behind every time: a pod that has not started has run for the shortest.
_NOT_STARTED: Final = "~"


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A pod on a node. `started` is the time in the pod's status, which sorts as text."""

    uid: str
    priority: int
    started: str | None = None
    #: The budgets that one eviction of this pod is taken off.
    disruption_budgets: tuple[Hashable, ...] = ()

    @property
    def importance(self) -> tuple[int, str]:
        """A sort key, the most important pod first: by priority, then by how long it has run."""
        return -self.priority, self.started or _NOT_STARTED


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """Evict these, the most important first, and the pod fits on this node."""

    node: str
    victims: tuple[PodOnNode, ...]
    #: How many of them break a disruption budget.
    violations: int = 0


def candidate_limit(nodes: int) -> int:
    """On how many nodes victims are looked for before the best is taken."""
    return max(MIN_CANDIDATES, nodes // 10)


def may_preempt(policy: str | None) -> bool:
    """Whether a pod with this preemptionPolicy may make others give way."""
    return policy != NEVER


def choose(
    nodes: Iterable[str],
    *,
    pods_on: Callable[[str], Sequence[PodOnNode]],
    fits: Callable[[str, frozenset[str]], bool],
    priority: int,
    budgets: Mapping[Hashable, int],
    limit: int,
) -> PreemptionPlan | None:
    """The best plan, or None when nobody's leaving helps. Of equal nodes the first is taken.

    `fits` says whether the pod fits on a node without some of its pods; `budgets` how many evictions each allows. The
    search ends after `limit` nodes with a plan, unless every plan so far breaks a budget.
    """
    plans: list[PreemptionPlan] = []
    sparing = 0
    for node in nodes:
        plan = _plan(node, pods_on(node), fits, priority, budgets)
        if plan is not None:
            plans.append(plan)
            sparing += not plan.violations
            if sparing and len(plans) >= limit:
                break
    if not plans:
        return None
    least = min(_cost(plan) for plan in plans)
    return max((plan for plan in plans if _cost(plan) == least), key=_youth)


def _plan(
    node: str,
    pods: Iterable[PodOnNode],
    fits: Callable[[str, frozenset[str]], bool],
    priority: int,
    budgets: Mapping[Hashable, int],
) -> PreemptionPlan | None:
    lower = sorted((pod for pod in pods if pod.priority < priority), key=lambda pod: pod.importance)
    away = {pod.uid for pod in lower}
    if not lower or not fits(node, frozenset(away)):
        return None
    breaking = _breaking(lower, budgets)
    for pod in sorted(lower, key=lambda pod: pod.uid not in breaking):
        if fits(node, frozenset(away - {pod.uid})):
            away.remove(pod.uid)
    return PreemptionPlan(node, tuple(pod for pod in lower if pod.uid in away), len(away & breaking))


def _breaking(pods: Iterable[PodOnNode], budgets: Mapping[Hashable, int]) -> set[str]:
    """The pods whose eviction breaks a budget when all are evicted in this order."""
    left = dict(budgets)
    found: set[str] = set()
    for pod in pods:
        for budget in pod.disruption_budgets:
            left[budget] = left.get(budget, 0) - 1
            if left[budget] < 0:
                found.add(pod.uid)
    return found


def _cost(plan: PreemptionPlan) -> tuple[float, ...]:
    highest = max((pod.priority for pod in plan.victims), default=-_ABOVE_ZERO)
    together = sum(pod.priority + _ABOVE_ZERO for pod in plan.victims)
    return plan.violations, highest, together, len(plan.victims)


def _youth(plan: PreemptionPlan) -> str:
    """The start of the longest-running of the most important victims."""
    highest = max((pod.priority for pod in plan.victims), default=0)
    return min((pod.started or _NOT_STARTED for pod in plan.victims if pod.priority == highest), default=_NOT_STARTED)


# Disruption budgets


def allowances(budgets: Iterable[PodDisruptionBudget]) -> dict[Hashable, int]:
    """How many evictions each budget allows now."""
    return {key_of(budget): budget.status.disruptions_allowed for budget in budgets}


def budgets_of(
    pod: Pod,
    budgets: Collection[PodDisruptionBudget],
    *,
    matches: Callable[[PodDisruptionBudget, Pod], bool],
) -> tuple[Hashable, ...]:
    """The budgets that an eviction of this pod is taken off; `matches` asks a budget's selector.

    As kube-scheduler has it, pods without labels and budgets with an empty selector do not match, and an eviction that
    is under way is not counted again.
    """
    if not pod.metadata.labels:
        return ()
    return tuple(
        key_of(budget)
        for budget in budgets
        if budget.metadata.namespace == pod.metadata.namespace
        and any((budget.spec.selector or {}).values())
        and pod.metadata.name not in budget.status.disrupted_pods
        and matches(budget, pod)
    )


class DisruptionBudgets:
    """All budgets of the cluster."""

    def __init__(self, store: Store[PodDisruptionBudget]) -> None:
        self._store = store

    def of(self, pod: Pod) -> tuple[Hashable, ...]:
        """The budgets that an eviction of this pod is taken off."""
        return budgets_of(pod, list(self._store), matches=_covers) if len(self._store) else ()

    def allowances(self) -> dict[Hashable, int]:
        """How many evictions each allows now."""
        return allowances(self._store)


def _covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    try:
        selector = msgspec.convert(budget.spec.selector, RawLabelSelector | None)
    except msgspec.ValidationError:
        return True  # a budget that cannot be read may mean this pod
    return label_selector(selector).matches(pod.metadata.labels)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A node that is being cleared for a pod."""

    node: str
    standing: Standing
    victims: frozenset[str]
    words: str
    #: The keys of the claims that come free with them.
    claims: frozenset[str] = frozenset()


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

    def clear(
        self, pod: Pod, standing: Standing, candidates: BoolArray, cards_fit: CardsFit | None = None
    ) -> Cleared | None:
        """Clear a node for the pod, or go on clearing the one that was chosen; None when nobody can give way.

        `cards_fit` answers for a pod with claims of devices.
        """
        uid = pod.metadata.uid
        under_way = self._cleared.get(uid)
        if under_way is not None and self._is_under_way(under_way):
            return under_way
        self._cleared.pop(uid, None)
        # A node that is being cleared for a pod as important is that pod's.
        taken = [each for each in self._cleared.values() if not standing.is_above(each.standing)]
        plan = self._plan(pod, self._without(candidates, taken), cards_fit)
        if plan is None:
            return None
        victims = self._pods(victim.uid for victim in plan.victims)
        words = f"Clearing {plan.node}: {who_leaves(pod, victims)} must give way."
        leaving = frozenset(victim.uid for victim in plan.victims)
        claims = self._state.claims.freed_by(plan.node, leaving)
        cleared = self._cleared[uid] = Cleared(plan.node, standing, leaving, words, claims)
        for victim in victims:
            task = asyncio.create_task(self._evict(victim, pod, plan.node))
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)
        return cleared

    def _is_under_way(self, cleared: Cleared) -> bool:
        """Whether victims are still there or hold something, or claims that they alone used are not free yet."""
        state = self._state
        return any(
            state.pod(victim) is not None or state.engine.ledger.booking(victim) is not None
            for victim in cleared.victims
        ) or any(state.claims.is_leaving(cleared.node, key, cleared.victims) for key in cleared.claims)

    def _plan(self, pod: Pod, candidates: BoolArray, cards_fit: CardsFit | None) -> PreemptionPlan | None:
        rows = np.flatnonzero(candidates)
        start = self._rng.randrange(len(rows)) if len(rows) else 0
        node_at = self._state.engine.ledger.node_at
        return self.plan(pod, (node_at(row).name for row in np.roll(rows, -start).tolist()), cards_fit)

    def plan(self, pod: Pod, nodes: Iterable[str], cards_fit: CardsFit | None = None) -> PreemptionPlan | None:
        """Who would have to go from one of these nodes so that the pod fits there; None when nobody can give way."""
        level = pod.spec.priority or 0
        if not may_preempt(pod.spec.preemption_policy) or self._state.lowest_priority() >= level:
            return None
        on_cards = cards_fit or self._state.cards_fit_without(self._state.request(pod))

        def fits(node: str, gone: frozenset[str]) -> bool:
            row = self._state.row(node)
            return row is not None and on_cards(node, gone) and self._feasibility.fits_without(pod, row, gone)

        try:
            return choose(
                nodes,
                pods_on=self._on_node,
                fits=fits,
                priority=level,
                budgets=self._budgets.allowances(),
                limit=candidate_limit(self._state.nodes()),
            )
        except PodCostError:
            log.warning("preempting for %s: its claims are too hard to serve, and nobody gives way", _name(pod))
            return None

    def _on_node(self, node: str) -> list[PodOnNode]:
        node_ledger = self._state.engine.ledger.node(node)
        return [
            PodOnNode(
                uid=pod.metadata.uid,
                priority=pod.spec.priority or 0,
                started=pod.status.start_time,
                disruption_budgets=self._budgets.of(pod),
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
    """The pods that give way to a pod, in words for that pod's own message."""
    own = sorted(_name(victim) for victim in victims if _is_neighbour(victim, pod))
    others = len(victims) - len(own)
    counted = "1 pod of another namespace" if others == 1 else f"{others} pods of other namespaces"
    return ", ".join([*own, *([counted] if others else [])])


def for_whom(victim: Pod, pod: Pod) -> str:
    """The pod that another gives way to, in words for the message of the one that leaves."""
    return _name(pod) if _is_neighbour(victim, pod) else "a pod of another namespace with a higher priority"


def _is_neighbour(one: Pod, other: Pod) -> bool:
    return one.metadata.namespace == other.metadata.namespace


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
