"""Facts about pods that every controller asks for, and the pod that a template stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.controllers.execute import Action, Removal, Update
from shoal.embedded.kinds import PODS, Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import timestamp
from shoal.embedded.selectors import selector_of
from shoal.embedded.store import Object
from shoal.model.contract import kubernetes

# Who belongs to whom: objects that match a selector are adopted, those that match no longer are let go.


def claim(
    owner: Object, candidates: Iterable[Object], kind: Kind, *, finalizer: str = ""
) -> tuple[list[Object], list[Action]]:
    """The candidates that belong to the owner, and the writes that make it so. An adopted one gets the finalizer."""
    claimed: list[Object] = []
    actions: list[Action] = []
    selector = selector_of(owner["spec"].get("selector"))
    for obj in candidates:
        controller = controller_of(obj)
        fits = selector.matches(obj["metadata"].get("labels") or {})
        if controller is not None:
            if controller["uid"] != owner["metadata"]["uid"]:
                continue
            if fits:
                claimed.append(obj)
            elif not is_deleted(owner):
                actions.append(Update(kind, _released(obj, owner, finalizer)))
        elif fits and not is_deleted(owner) and not is_deleted(obj):
            adopted = _adopted(obj, owner, finalizer)
            claimed.append(adopted)
            actions.append(Update(kind, adopted))
    return claimed, actions


def _adopted(obj: Object, owner: Object, finalizer: str) -> Object:
    new: Object = copied(obj)
    metadata = new["metadata"]
    metadata["ownerReferences"] = [*metadata.get("ownerReferences", ()), owner_reference(owner)]
    if finalizer and finalizer not in metadata.get("finalizers", ()):
        metadata["finalizers"] = [*metadata.get("finalizers", ()), finalizer]
    return new


def _released(obj: Object, owner: Object, finalizer: str) -> Object:
    new: Object = copied(obj)
    metadata, uid = new["metadata"], owner["metadata"]["uid"]
    metadata["ownerReferences"] = [one for one in metadata["ownerReferences"] if one.get("uid") != uid]
    metadata["finalizers"] = [one for one in metadata.get("finalizers", ()) if one != finalizer]
    return new


# Conditions and counters of a status, written as the real controllers write them.


def found(conditions: Iterable[Object], kind: str) -> Object | None:
    """The condition of that type."""
    return next((one for one in conditions if one.get("type") == kind), None)


def without(conditions: Iterable[Object], kind: str) -> list[Object]:
    """All but the condition of that type."""
    return [one for one in conditions if one.get("type") != kind]


def made(kind: str, status: str, reason: str, message: str, now: datetime) -> Object:
    """A condition that began now."""
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": timestamp(now),
        "reason": reason,
        "message": message,
    }


def counters(values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> Object:
    """A status without what is zero or empty, but for the fields that are shown always; None is never shown."""
    always = frozenset(shown)
    return {name: value for name, value in values.items() if value or (name in always and value is not None)}


def scaled(value: Any, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total rounded up or down."""
    if isinstance(value, str):
        part = int(value.removesuffix("%")) * total
        return -(-part // 100) if up else part // 100
    return int(value or 0)


DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


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
    return phase(pod) in kubernetes.FINISHED_PHASES


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


# Pods of nodes that are gone: marked as failed and deleted once the node has been away for a while.


def reconcile(pod: Object, now: datetime) -> list[Action]:
    """What to do about a pod whose node is gone."""
    actions: list[Action] = []
    if not is_finished(pod):
        failed: Object = copied(pod)
        failed["status"]["phase"] = "Failed"
        text = ("DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists")
        others = without(failed["status"].get("conditions") or (), "DisruptionTarget")
        failed["status"]["conditions"] = [*others, made(*text, now)]
        actions.append(Update(PODS, failed, subresource="status"))
    return [*actions, Removal(PODS, pod, grace_seconds=0)]
