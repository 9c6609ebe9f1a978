"""Facts about pods that every controller asks for, and the pod that a template stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}
_FINISHED: Final = ("Succeeded", "Failed")


def phase(pod: Object) -> str:
    """Pending, Running, Succeeded, Failed; empty for a pod that is not made yet."""
    return str((pod.get("status") or {}).get("phase", ""))


def condition(obj: Object, kind: str) -> Object | None:
    """The condition of that type."""
    for one in (obj.get("status") or {}).get("conditions") or ():
        if one.get("type") == kind:
            return dict(one)
    return None


def moment(text: str | None) -> datetime | None:
    """A time as objects carry it."""
    return datetime.fromisoformat(text) if text else None


def is_deleted(obj: Object) -> bool:
    """Whether its end has begun."""
    return "deletionTimestamp" in obj["metadata"]


def is_ready(pod: Object) -> bool:
    """Whether its condition says so."""
    ready = condition(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def ready_since(pod: Object) -> datetime | None:
    """When it became ready."""
    return moment((condition(pod, "Ready") or {}).get("lastTransitionTime")) if is_ready(pod) else None


def is_available(pod: Object, min_ready: int, now: datetime) -> bool:
    """Ready for so many seconds."""
    if not is_ready(pod):
        return False
    since = ready_since(pod)
    return min_ready == 0 or (since is not None and since + timedelta(seconds=min_ready) <= now)


def next_available(pods: Iterable[Object], min_ready: int, now: datetime) -> datetime | None:
    """When the next ready pod has been ready for long enough."""
    span = timedelta(seconds=min_ready)
    times = [since + span for pod in pods if (since := ready_since(pod)) is not None and since + span > now]
    return min(times, default=None)


def is_finished(pod: Object) -> bool:
    """Succeeded or failed."""
    return phase(pod) in _FINISHED


def is_active(pod: Object) -> bool:
    """Neither finished nor on its way out."""
    return not is_finished(pod) and not is_deleted(pod)


def is_terminating(pod: Object) -> bool:
    """On its way out, and perhaps still running."""
    return is_deleted(pod) and not is_finished(pod)


def controller_of(obj: Object) -> Object | None:
    """The owner that controls an object."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner)
    return None


def owner_reference(owner: Object) -> Object:
    """The reference that says: this one controls it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def from_template(template: Mapping[str, Any], owner: Object) -> Object:
    """The pod that a template stands for; its name is made from the owner's."""
    given = template.get("metadata") or {}
    metadata: Object = {
        name: copied(given[name]) for name in ("labels", "annotations", "finalizers") if given.get(name)
    }
    metadata["generateName"] = f"{owner['metadata']['name']}-"
    metadata["ownerReferences"] = [owner_reference(owner)]
    return {"metadata": metadata, "spec": copied(template["spec"])}


def deletion_order(pods: Iterable[Object], on_node: Mapping[str, int]) -> list[Object]:
    """The pods, those first that are missed least; `on_node` counts the related pods of each node."""

    def rank(pod: Object) -> tuple[Any, ...]:
        spec, metadata, status = pod["spec"], pod["metadata"], pod.get("status") or {}
        node = spec.get("nodeName", "")
        restarts = [one.get("restartCount", 0) for one in status.get("containerStatuses") or ()]
        since = ready_since(pod)
        return (
            bool(node),
            _PHASES.get(status.get("phase", ""), 0),
            is_ready(pod),
            _cost(metadata),
            -on_node.get(node, 0),
            -since.timestamp() if since else 0.0,
            -max(restarts, default=0),
            _newest_first(metadata.get("creationTimestamp", "")),
        )

    return sorted(pods, key=rank)


def _cost(metadata: Object) -> int:
    text = (metadata.get("annotations") or {}).get(DELETION_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0  # as the real one has it: a cost that is no number costs nothing


def _newest_first(text: str) -> float:
    when = moment(text)
    return -when.timestamp() if when else 0.0
