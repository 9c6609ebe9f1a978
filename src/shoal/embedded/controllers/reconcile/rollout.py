"""How many pods each ReplicaSet of a Deployment may have while one template replaces another. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from shoal.embedded.controllers.reconcile.conditions import scaled
from shoal.embedded.store import Object

DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
MAXIMUM: Final = "deployment.kubernetes.io/max-replicas"
FOREVER: Final = 2**31 - 1


def replicas(obj: Object) -> int:
    """How many it asks for."""
    return int(obj["spec"].get("replicas", 1))


def asked(sets: Iterable[Object]) -> int:
    """How many they ask for together."""
    return sum(map(replicas, sets))


def counted(sets: Iterable[Object], field: str) -> int:
    """The sum of a counter of their statuses."""
    return sum((one.get("status") or {}).get(field, 0) for one in sets)


def is_rolling(deployment: Object) -> bool:
    """Whether old and new pods may run side by side."""
    return bool(deployment["spec"]["strategy"]["type"] == "RollingUpdate")


def fence(deployment: Object) -> tuple[int, int]:
    """How many pods may be too many, and how many may be missing; one of them is never zero."""
    if not is_rolling(deployment):
        return 0, 0
    rolling, total = deployment["spec"]["strategy"].get("rollingUpdate") or {}, replicas(deployment)
    surge = scaled(rolling.get("maxSurge", 0), total, up=True)
    missing = scaled(rolling.get("maxUnavailable", 0), total, up=False)
    return surge, 1 if not surge and not missing else missing


def max_surge(deployment: Object) -> int:
    """How many pods may be too many."""
    return fence(deployment)[0]


def max_unavailable(deployment: Object) -> int:
    """How many pods may be missing."""
    return min(fence(deployment)[1], replicas(deployment))


def first_size(deployment: Object, old: Iterable[Object], new_size: int = 0) -> int:
    """How many pods the new ReplicaSet may have now, having `new_size`."""
    total = replicas(deployment)
    if not is_rolling(deployment):
        return total
    room = total + max_surge(deployment) - asked(old) - new_size
    return new_size if room <= 0 else new_size + min(room, total - new_size)


def shrunk(deployment: Object, old: list[Object], new: Object) -> dict[str, int]:
    """The sizes of the old ReplicaSets after the next step down, by name: pods that do not run go first."""
    sizes = {one["metadata"]["name"]: replicas(one) for one in old}
    least = replicas(deployment) - max_unavailable(deployment)
    not_up = replicas(new) - (new.get("status") or {}).get("availableReplicas", 0)
    room = asked([*old, new]) - least - not_up
    if room <= 0:
        return sizes
    oldest_first = sorted(old, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
    for one in oldest_first:
        name, available = one["metadata"]["name"], (one.get("status") or {}).get("availableReplicas", 0)
        step = max(0, min(room, sizes[name] - available))
        sizes[name] -= step
        room -= step
    spare = counted([*old, new], "availableReplicas") - least
    for one in oldest_first:
        name = one["metadata"]["name"]
        step = max(0, min(sizes[name], spare))
        sizes[name] -= step
        spare -= step
    return sizes


def proportional(deployment: Object, active: list[Object]) -> dict[str, int]:
    """The sizes of all ReplicaSets when a Deployment is scaled in the middle of a rollout, by name."""
    total = replicas(deployment)
    limit = total + max_surge(deployment) if total else 0
    to_add = limit - asked(active)
    newest_first = to_add > 0
    ordered = sorted(active, key=lambda one: one["metadata"]["creationTimestamp"], reverse=newest_first)
    ordered.sort(key=replicas, reverse=True)
    sizes, added = {one["metadata"]["name"]: replicas(one) for one in ordered}, 0
    for one in ordered:
        share, left = _share(deployment, one), to_add - added
        step = 0 if not to_add else min(share, left) if to_add > 0 else max(share, left)
        sizes[one["metadata"]["name"]] += step
        added += step
    if ordered and to_add:
        largest = ordered[0]["metadata"]["name"]
        sizes[largest] = max(0, sizes[largest] + to_add - added)
    return sizes


def _share(deployment: Object, one: Object) -> int:
    """What falls to one ReplicaSet by its part of the size before."""
    total, size = replicas(deployment), replicas(one)
    if total == 0:
        return -size
    annotated = (one["metadata"].get("annotations") or {}).get(MAXIMUM, "")
    before = int(annotated) if annotated.isdigit() else 0
    before = before or (deployment.get("status") or {}).get("replicas", 0)
    if before == 0:
        return 0
    # Half away from zero, not to even as Python's round.
    return math.floor(size * (total + max_surge(deployment)) / before + 0.5) - size
