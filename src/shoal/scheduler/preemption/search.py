"""Who must give way: the pods to evict so that a more important one fits, on which node.

The rules are kube-scheduler's. On a node all pods of lower priority are thought away; if the pod fits then, as many as
possible are let off again: first those whose eviction would break a disruption budget, and in both groups the most
important first. Of all nodes that one is taken where the fewest budgets break, then where the highest priority among
the victims is lowest, then the sum of their priorities, then their number, then where the victims run for the shortest.

Evicting, and keeping the place free until the victims are gone, is the loop's. Gangs are not evicted as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.resources import key_of
from shoal.kube.selectors import RawLabelSelector, label_selector
from shoal.kube.store import Store

#: Nodes on which victims are looked for: a tenth of all, but this many if there are as many.
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
    #: It is being deleted, on behalf of a pod that is to have its place.
    giving_way: bool = False

    @property
    def importance(self) -> tuple[int, str]:
        """The lowest is the most important: the higher priority, then the longer run."""
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


def refusal(policy: str | None, *, priority: int, nominated: Iterable[PodOnNode] = ()) -> str | None:
    """Why a pod may not make others give way, in words; None when it may.

    `nominated` are the pods on the node that it was promised, if it was: while they leave, no others are evicted.
    """
    if policy == NEVER:
        return f"its preemptionPolicy is {NEVER}"
    if any(pod.giving_way and pod.priority < priority for pod in nominated):
        return "pods on its node are giving way to it already"
    return None


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
    """Since when the longest-running of the most important victims runs."""
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
