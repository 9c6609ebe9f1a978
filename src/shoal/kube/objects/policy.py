"""Disruption budgets, as far as a scheduler that evicts pods reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.kube.objects.meta import Base, Object


class PodDisruptionBudgetSpec(Base, frozen=True, kw_only=True):
    """Which pods are meant and how many of them must stay. The selector stays as it came."""

    selector: dict[str, Any] | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(Base, frozen=True, kw_only=True):
    """What the budget allows now. `disrupted_pods` are evicted already and taken off what is allowed."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str | None] = msgspec.field(default_factory=dict)


class PodDisruptionBudget(Object, frozen=True, kw_only=True):
    """A budget of policy/v1."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
