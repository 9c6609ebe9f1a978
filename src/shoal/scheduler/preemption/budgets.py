"""Disruption budgets as the watch shows them: which cover a pod, and how many evictions each allows."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.store import Store
from shoal.scheduler.feasibility.wish.selectors import RawSelector, label_selector
from shoal.scheduler.preemption.search import allowances, budgets_of


class Budgets:
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
        selector = msgspec.convert(budget.spec.selector, RawSelector | None)
    except msgspec.ValidationError:
        return True  # a budget that cannot be read may mean this pod
    return label_selector(selector).matches(pod.metadata.labels)
