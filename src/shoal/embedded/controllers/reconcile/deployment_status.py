"""The status of a Deployment: counters, and the conditions Available, Progressing and ReplicaFailure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from shoal.embedded.controllers.reconcile import conditions, rollout
from shoal.embedded.controllers.reconcile.pods import moment
from shoal.embedded.registry import timestamp
from shoal.embedded.store import Object

_PROGRESSING: Final = "Progressing"
_AVAILABLE: Final = "NewReplicaSetAvailable"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"
_PAUSED: Final = "DeploymentPaused"


def has_deadline(deployment: Object) -> bool:
    """Whether progress is judged at all."""
    deadline = deployment["spec"].get("progressDeadlineSeconds")
    return deadline is not None and deadline != rollout.FOREVER


def is_complete(deployment: Object, status: Object) -> bool:
    """Whether all pods are of the present template, and available."""
    total = rollout.replicas(deployment)
    counts = (status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas"))
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return all(count == total for count in counts) and seen


def status_of(deployment: Object, sets: list[Object], new: Object | None, now: datetime) -> Object:
    """Counters, and whether enough pods are available."""
    status, total = deployment["status"], rollout.replicas(deployment)
    available = rollout.counted(sets, "availableReplicas")
    present = list(status.get("conditions") or [])
    if available >= total - rollout.max_unavailable(deployment):
        text = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        text = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return conditions.counters(
        {
            "observedGeneration": deployment["metadata"].get("generation", 0),
            "replicas": rollout.counted(sets, "replicas"),
            "updatedReplicas": rollout.counted([new] if new else [], "replicas"),
            "readyReplicas": rollout.counted(sets, "readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(0, rollout.asked(sets) - available),
            "terminatingReplicas": rollout.counted(sets, "terminatingReplicas"),
            "collisionCount": status.get("collisionCount"),
            "conditions": _with(present, _made("Available", *text, now)),
        },
        shown=("terminatingReplicas", "collisionCount"),
    )


def rollout_status(before: Object, deployment: Object, sets: list[Object], new: Object | None, now: datetime) -> Object:
    """The status with a judgement of the rollout: done, going on, or stuck."""
    status = status_of(deployment, sets, new, now)
    present = status["conditions"]
    current = conditions.found(deployment["status"].get("conditions") or (), _PROGRESSING)
    if not has_deadline(deployment):
        present = conditions.without(present, _PROGRESSING)
    is_over = (
        status.get("replicas", 0) == status.get("updatedReplicas", 0)
        and current is not None
        and current["reason"] == _AVAILABLE
    )
    if has_deadline(deployment) and not is_over:
        present = _judged(before, deployment, status, new, now)
    failure = _failure(sets, new)
    if failure is not None:
        present = _with(present, failure)
    else:
        present = conditions.without(present, "ReplicaFailure")
    return {**status, "conditions": present}


def _judged(before: Object, deployment: Object, status: Object, new: Object | None, now: datetime) -> list[Object]:
    present: list[Object] = status["conditions"]
    current = conditions.found(present, _PROGRESSING)
    name = deployment["metadata"]["name"]
    subject = f'ReplicaSet "{new["metadata"]["name"]}"' if new else f'Deployment "{name}"'
    if is_complete(deployment, status):
        text = f"{subject} has successfully progressed."
        return _with(present, _made(_PROGRESSING, "True", _AVAILABLE, text, now))
    if _progressed(before.get("status") or {}, status):
        going = _made(_PROGRESSING, "True", "ReplicaSetUpdated", f"{subject} is progressing.", now)
        if current is not None and current["status"] == "True":
            going["lastTransitionTime"] = current["lastTransitionTime"]
        return [*conditions.without(present, _PROGRESSING), going]
    if _timed_out(deployment, current, now):
        text = f"{subject} has timed out progressing."
        return _with(present, _made(_PROGRESSING, "False", _TIMED_OUT, text, now))
    return present


def progress_due(deployment: Object, now: datetime) -> datetime | None:
    """When a rollout that shows no progress will have taken too long."""
    current = conditions.found(deployment["status"].get("conditions") or (), _PROGRESSING)
    if not has_deadline(deployment) or current is None or current["reason"] == _TIMED_OUT:
        return None
    if is_complete(deployment, deployment["status"]):
        return None
    since = moment(current.get("lastUpdateTime")) or now
    deadline = since + timedelta(seconds=deployment["spec"]["progressDeadlineSeconds"] + 1)
    return max(deadline, now + timedelta(seconds=1))


def note_pause(deployment: Object, now: datetime) -> None:
    """Tell in the condition that a rollout was paused or taken up again."""
    present = deployment["status"].get("conditions") or []
    current = conditions.found(present, _PROGRESSING)
    paused, told = bool(deployment["spec"].get("paused")), current is not None and current["reason"] == _PAUSED
    if not has_deadline(deployment) or (current is not None and current["reason"] == _TIMED_OUT) or paused is told:
        return
    text = (_PAUSED, "Deployment is paused") if paused else ("DeploymentResumed", "Deployment is resumed")
    deployment["status"]["conditions"] = _with(present, _made(_PROGRESSING, "Unknown", *text, now))


def note_found(deployment: Object, new: Object, now: datetime) -> None:
    """The ReplicaSet was there already when progress began to be judged."""
    if conditions.found(deployment["status"].get("conditions") or (), _PROGRESSING) is None:
        text = f'Found new replica set "{new["metadata"]["name"]}"'
        _note(deployment, _made(_PROGRESSING, "True", "FoundNewReplicaSet", text, now))


def note_created(deployment: Object, new: Object, now: datetime) -> None:
    """A ReplicaSet was made."""
    text = f'Created new replica set "{new["metadata"]["name"]}"'
    _note(deployment, _made(_PROGRESSING, "True", "NewReplicaSetCreated", text, now))


def note_failed(deployment: Object, message: str, now: datetime) -> None:
    """A ReplicaSet could not be made."""
    _note(deployment, _made(_PROGRESSING, "False", "ReplicaSetCreateError", message, now))


def _note(deployment: Object, condition: Object) -> None:
    if has_deadline(deployment):
        status = deployment["status"]
        status["conditions"] = _with(status.get("conditions") or [], condition)


def _made(kind: str, status: str, reason: str, message: str, now: datetime) -> Object:
    return {**conditions.made(kind, status, reason, message, now), "lastUpdateTime": timestamp(now)}


def _with(present: list[Object], condition: Object) -> list[Object]:
    """The condition in place of the one before, unless that says the same."""
    current = conditions.found(present, condition["type"])
    if current is not None and current["status"] == condition["status"]:
        if current["reason"] == condition["reason"]:
            return present
        condition = {**condition, "lastTransitionTime": current["lastTransitionTime"]}
    return [*conditions.without(present, condition["type"]), condition]


def _progressed(before: Object, after: Object) -> bool:
    def count(status: Object, name: str) -> int:
        return int(status.get(name, 0))

    def old(status: Object) -> int:
        return count(status, "replicas") - count(status, "updatedReplicas")

    more = any(
        count(after, name) > count(before, name) for name in ("updatedReplicas", "readyReplicas", "availableReplicas")
    )
    return more or old(after) < old(before)


def _timed_out(deployment: Object, current: Object | None, now: datetime) -> bool:
    if current is None or current["reason"] == _AVAILABLE:
        return False
    if current["reason"] == _TIMED_OUT:
        return True
    since = moment(current.get("lastUpdateTime")) or now
    return since + timedelta(seconds=deployment["spec"]["progressDeadlineSeconds"]) < now


def _failure(sets: list[Object], new: Object | None) -> Object | None:
    """The failure of a ReplicaSet, the newest one's before the others'."""
    for one in [*([new] if new else []), *sets]:
        found = conditions.found((one.get("status") or {}).get("conditions") or (), "ReplicaFailure")
        if found is not None:
            return {**found, "lastUpdateTime": found["lastTransitionTime"]}
    return None
