"""PodDisruptionBudgets: how many of the pods that a budget names may be evicted now. The eviction itself asks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from shoal.embedded.controllers.execute import Action, EventAction, Owned, Requeue, StatusUpdate
from shoal.embedded.controllers.reconcile import pods
from shoal.embedded.store import Object

#: An eviction that was allowed and has led to nothing counts no longer after this.
_PATIENCE: Final = timedelta(minutes=2)
_ALLOWED: Final = "DisruptionAllowed"
_NO_PODS: Final = EventAction("NoPods", "No matching pods found")


def reconcile(budget: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one budget; `owned` has the pods it names and how many their owners want."""
    evicted = _evicted(budget, owned, now)
    healthy = sum(pods.is_ready(pod) for pod in owned.pods if _counts(pod, evicted))
    expected, desired = _wanted(budget["spec"], owned)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    status = _status(budget, healthy, desired, expected, allowed, now)
    if evicted:
        status["disruptedPods"] = evicted
    actions: list[Action] = [] if owned.pods else [_NO_PODS]
    if status != budget.get("status"):
        actions.append(StatusUpdate({**budget, "status": status}))
    moments = [moment for text in evicted.values() if (moment := pods.moment(text)) is not None]
    return [*actions, Requeue(min(moments) + _PATIENCE)] if moments else actions


def _evicted(budget: Object, owned: Owned, now: datetime) -> dict[str, str]:
    """The pods whose eviction was allowed of late, and which are not on their way out yet."""
    named = (budget.get("status") or {}).get("disruptedPods") or {}
    present = {pod["metadata"]["name"] for pod in owned.pods if not pods.is_deleted(pod)}
    return {
        name: text
        for name, text in named.items()
        if name in present and (moment := pods.moment(text)) is not None and moment + _PATIENCE > now
    }


def _counts(pod: Object, evicted: dict[str, str]) -> bool:
    return not pods.is_deleted(pod) and pod["metadata"]["name"] not in evicted


def _wanted(spec: Object, owned: Owned) -> tuple[int, int]:
    """How many pods there should be, and how many of them must be healthy."""
    if "maxUnavailable" in spec:
        away = pods.scaled(spec["maxUnavailable"], owned.scale, up=True)
        return owned.scale, max(0, owned.scale - away)
    least = spec.get("minAvailable", 1)
    if isinstance(least, str):
        return owned.scale, pods.scaled(least, owned.scale, up=True)
    return len(owned.pods), least


def _status(budget: Object, healthy: int, desired: int, expected: int, allowed: int, now: datetime) -> Object:
    generation = budget["metadata"].get("generation", 0)
    present = (budget.get("status") or {}).get("conditions") or []
    before = pods.found(present, _ALLOWED)
    word, reason = ("True", "SufficientPods") if allowed else ("False", "InsufficientPods")
    condition = {**pods.made(_ALLOWED, word, reason, "", now), "observedGeneration": generation}
    if before is not None and before["status"] == word:
        condition["lastTransitionTime"] = before["lastTransitionTime"]
    return {
        "observedGeneration": generation,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": [*pods.without(present, _ALLOWED), condition],
    }
