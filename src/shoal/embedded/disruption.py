"""Does a pod's disruption budget allow its eviction? What the eviction subresource asks before it deletes."""

from __future__ import annotations

from typing import Any, Final

from shoal.embedded.errors import ApiStatus, forbidden
from shoal.embedded.kinds import BUDGETS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import Registry
from shoal.embedded.selectors import matches_selector
from shoal.embedded.store import Object

_NOT_NOW: Final = "Cannot evict pod as it would violate the pod's disruption budget."
_MANY: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_RETRY_SECONDS: Final = 10


def ask_budget(registry: Registry, pod: Object, *, dry_run: bool) -> None:
    """Take one disruption of the pod's budget, or raise; a pod that serves nobody needs none."""
    if pod["status"].get("phase") in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]:
        return
    labels = pod["metadata"].get("labels") or {}
    budgets = [
        budget
        for budget in registry.store.objects(BUDGETS.key, pod["metadata"]["namespace"])
        if matches_selector(budget["spec"].get("selector"), labels)
    ]
    if len(budgets) > 1:
        raise ApiStatus(500, "", _MANY)
    if budgets and not (_is_unready(pod) and _may_go_unready(budgets[0])):
        _take(registry, budgets[0], pod["metadata"]["name"], dry_run=dry_run)


def _is_unready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return not any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _may_go_unready(budget: Object) -> bool:
    """Whether a pod that is not ready may go: always, if so asked, else while enough others are healthy."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _take(registry: Registry, budget: Object, pod: str, *, dry_run: bool) -> None:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _not_now(f"The disruption budget {name} is still being processed by the server.", retry=True)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise forbidden(BUDGETS.plural, BUDGETS.group, name, "pdb disruptions allowed is negative")
    if allowed == 0:
        needed, present = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _not_now(f"The disruption budget {name} needs {needed} healthy pods and has {present} currently")
    if dry_run:
        return
    new: Object = copied(budget)
    new["status"]["disruptionsAllowed"] = allowed - 1
    new["status"].setdefault("disruptedPods", {})[pod] = registry.now()
    registry.write(BUDGETS, new, budget)


def _not_now(why: str, *, retry: bool = False) -> ApiStatus:
    details: dict[str, Any] = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry:
        details["retryAfterSeconds"] = _RETRY_SECONDS
    return ApiStatus(429, "TooManyRequests", _NOT_NOW, details)
