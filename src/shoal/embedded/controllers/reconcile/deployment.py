"""Deployments: a ReplicaSet for each template, and the way from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from shoal.embedded.controllers.execute import (
    Action,
    Create,
    EventAction,
    Owned,
    Removal,
    Requeue,
    StatusUpdate,
    Update,
)
from shoal.embedded.controllers.reconcile import pods
from shoal.embedded.controllers.reconcile.pods import claim, moment, scaled
from shoal.embedded.controllers.reconcile.revisions import hash_of
from shoal.embedded.kinds import REPLICA_SETS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import timestamp
from shoal.embedded.store import Object

# The status of a Deployment: counters, and the conditions Available, Progressing and ReplicaFailure.


_PROGRESSING: Final = "Progressing"
_AVAILABLE: Final = "NewReplicaSetAvailable"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"
_PAUSED: Final = "DeploymentPaused"


def has_deadline(deployment: Object) -> bool:
    """Whether progress is judged at all."""
    deadline = deployment["spec"].get("progressDeadlineSeconds")
    return deadline is not None and deadline != FOREVER


def is_complete(deployment: Object, status: Object) -> bool:
    """Whether all pods are of the present template, and available."""
    total = replicas(deployment)
    counts = (status.get(name, 0) for name in ("updatedReplicas", "replicas", "availableReplicas"))
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return all(count == total for count in counts) and seen


def status_of(deployment: Object, sets: list[Object], new: Object | None, now: datetime) -> Object:
    """Counters, and whether enough pods are available."""
    status, total = deployment["status"], replicas(deployment)
    available = counted(sets, "availableReplicas")
    present = list(status.get("conditions") or [])
    if available >= total - max_unavailable(deployment):
        text = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        text = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return pods.counters(
        {
            "observedGeneration": deployment["metadata"].get("generation", 0),
            "replicas": counted(sets, "replicas"),
            "updatedReplicas": counted([new] if new else [], "replicas"),
            "readyReplicas": counted(sets, "readyReplicas"),
            "availableReplicas": available,
            "unavailableReplicas": max(0, asked(sets) - available),
            "terminatingReplicas": counted(sets, "terminatingReplicas"),
            "collisionCount": status.get("collisionCount"),
            "conditions": _with(present, _made("Available", *text, now)),
        },
        shown=("terminatingReplicas", "collisionCount"),
    )


def rollout_status(before: Object, deployment: Object, sets: list[Object], new: Object | None, now: datetime) -> Object:
    """The status with a judgement of the rollout: done, going on, or stuck."""
    status = status_of(deployment, sets, new, now)
    present = status["conditions"]
    current = pods.found(deployment["status"].get("conditions") or (), _PROGRESSING)
    if not has_deadline(deployment):
        present = pods.without(present, _PROGRESSING)
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
        present = pods.without(present, "ReplicaFailure")
    return {**status, "conditions": present}


def _judged(before: Object, deployment: Object, status: Object, new: Object | None, now: datetime) -> list[Object]:
    present: list[Object] = status["conditions"]
    current = pods.found(present, _PROGRESSING)
    name = deployment["metadata"]["name"]
    subject = f'ReplicaSet "{new["metadata"]["name"]}"' if new else f'Deployment "{name}"'
    if is_complete(deployment, status):
        text = f"{subject} has successfully progressed."
        return _with(present, _made(_PROGRESSING, "True", _AVAILABLE, text, now))
    if _progressed(before.get("status") or {}, status):
        going = _made(_PROGRESSING, "True", "ReplicaSetUpdated", f"{subject} is progressing.", now)
        if current is not None and current["status"] == "True":
            going["lastTransitionTime"] = current["lastTransitionTime"]
        return [*pods.without(present, _PROGRESSING), going]
    if _timed_out(deployment, current, now):
        text = f"{subject} has timed out progressing."
        return _with(present, _made(_PROGRESSING, "False", _TIMED_OUT, text, now))
    return present


def progress_due(deployment: Object, now: datetime) -> datetime | None:
    """When a rollout that shows no progress will have taken too long."""
    current = pods.found(deployment["status"].get("conditions") or (), _PROGRESSING)
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
    current = pods.found(present, _PROGRESSING)
    paused, told = bool(deployment["spec"].get("paused")), current is not None and current["reason"] == _PAUSED
    if not has_deadline(deployment) or (current is not None and current["reason"] == _TIMED_OUT) or paused is told:
        return
    text = (_PAUSED, "Deployment is paused") if paused else ("DeploymentResumed", "Deployment is resumed")
    deployment["status"]["conditions"] = _with(present, _made(_PROGRESSING, "Unknown", *text, now))


def note_found(deployment: Object, new: Object, now: datetime) -> None:
    """The ReplicaSet was there already when progress began to be judged."""
    if pods.found(deployment["status"].get("conditions") or (), _PROGRESSING) is None:
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
    return {**pods.made(kind, status, reason, message, now), "lastUpdateTime": timestamp(now)}


def _with(present: list[Object], condition: Object) -> list[Object]:
    """The condition in place of the one before, unless that says the same."""
    current = pods.found(present, condition["type"])
    if current is not None and current["status"] == condition["status"]:
        if current["reason"] == condition["reason"]:
            return present
        condition = {**condition, "lastTransitionTime": current["lastTransitionTime"]}
    return [*pods.without(present, condition["type"]), condition]


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
        found = pods.found((one.get("status") or {}).get("conditions") or (), "ReplicaFailure")
        if found is not None:
            return {**found, "lastUpdateTime": found["lastTransitionTime"]}
    return None


# How many pods each ReplicaSet of a Deployment may have while one template replaces another. Pure arithmetic.


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


HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
_HISTORY: Final = "deployment.kubernetes.io/revision-history"
_HISTORY_CHARACTERS: Final = 2000
#: Annotations of a Deployment that its ReplicaSets do not get.
_OWN: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        *(REVISION, _HISTORY, DESIRED, MAXIMUM),
    }
)
_LONGEST_NAME: Final = 253


def reconcile(deployment: Object, owned: Owned, now: datetime) -> list[Action]:
    """The next step for one Deployment."""
    return _Step(deployment, owned, now).actions()


class _Step:
    """One look at a Deployment: what it has, and what has been decided so far."""

    def __init__(self, deployment: Object, owned: Owned, now: datetime) -> None:
        self._before = deployment
        self._deployment: Object = copied(deployment)
        self._deployment.setdefault("status", {})
        self._owned = owned
        self._now = now
        sets, self._actions = claim(deployment, owned.replica_sets, REPLICA_SETS)
        sets.sort(key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
        template = _bare(deployment["spec"]["template"])
        self._new = next((one for one in sets if _bare(one["spec"]["template"]) == template), None)
        self._old = [one for one in sets if one is not self._new]

    def actions(self) -> list[Action]:
        if self._owned.failure is not None:
            self._actions = []
            self._fail()
        elif pods.is_deleted(self._deployment):
            self._settle()
        else:
            self._proceed()
        if self._changed():
            self._actions.append(StatusUpdate(self._deployment))
        elif again := progress_due(self._deployment, self._now):
            self._actions.append(Requeue(again))
        return self._actions

    def _proceed(self) -> None:
        note_pause(self._deployment, self._now)
        if self._new is not None:
            self._renew()
        if self._deployment["spec"].get("paused"):
            self._rescale()
            self._clean()
            self._settle()
        elif self._is_rescaled():
            self._rescale()
            self._settle()
        elif is_rolling(self._deployment):
            self._roll()
        else:
            self._recreate()

    def _roll(self) -> None:
        if self._new is None:
            self._new = self._create()
        total, present = replicas(self._deployment), replicas(self._new)
        if present != total:
            size = total if present > total else first_size(self._deployment, self._old, present)
            if self._resize(self._new, size):
                return self._report()
        old = [one for one in self._old if replicas(one)]
        sizes = shrunk(self._deployment, old, self._new)
        resized = [self._resize(one, sizes[one["metadata"]["name"]]) for one in old]
        if not any(resized) and is_complete(self._deployment, self._deployment["status"]):
            self._clean()
        return self._report()

    def _recreate(self) -> None:
        resized = [self._resize(one, 0) for one in tuple(self._old)]
        if any(resized) or self._old_pods():
            return self._report()
        if self._new is None:
            self._new = self._create()
        self._resize(self._new, replicas(self._deployment))
        if is_complete(self._deployment, self._deployment["status"]):
            self._clean()
        return self._report()

    def _old_pods(self) -> bool:
        """Whether pods of an old template may still run."""
        if counted(self._old, "replicas"):
            return True
        new = self._new["metadata"]["uid"] if self._new else ""
        others = [one for uid, of_set in self._owned.indirect.items() if uid != new for one in of_set]
        return any(not pods.is_finished(pod) for pod in others)

    def _is_rescaled(self) -> bool:
        """Whether somebody changed the size: a ReplicaSet remembers another one."""
        total = str(replicas(self._deployment))
        noted = [_annotations(one).get(DESIRED) for one in self._sets() if replicas(one)]
        return any(text is not None and text != total for text in noted)

    def _rescale(self) -> None:
        total, active = replicas(self._deployment), [one for one in self._sets() if replicas(one)]
        if len(active) <= 1:
            latest = active or ([self._new] if self._new else self._old[-1:])
            for one in latest:
                if replicas(one) != total:
                    self._resize(one, total)
        elif self._is_saturated():
            for one in self._old:
                self._resize(one, 0)
        elif is_rolling(self._deployment):
            sizes = proportional(self._deployment, active)
            for one in active:
                self._resize(one, sizes[one["metadata"]["name"]], always=True)

    def _is_saturated(self) -> bool:
        if self._new is None:
            return False
        total = replicas(self._deployment)
        available = (self._new.get("status") or {}).get("availableReplicas", 0)
        return (
            replicas(self._new) == total and _annotations(self._new).get(DESIRED) == str(total) and available == total
        )

    def _resize(self, one: Object, size: int, *, always: bool = False) -> bool:
        """Give a ReplicaSet another size; whether it is another is the answer."""
        present = replicas(one)
        if present == size and not always:
            return False
        resized = copied(one)
        resized["spec"]["replicas"] = size
        resized["metadata"]["annotations"] = {**_annotations(one), **self._sizes()}
        if resized == one:
            return False
        self._replace(one, resized)
        if present == size:
            return False
        way, name = "up" if present < size else "down", one["metadata"]["name"]
        self._actions.append(
            EventAction("ScalingReplicaSet", f"Scaled {way} replica set {name} from {present} to {size}")
        )
        return True

    def _replace(self, one: Object, other: Object) -> None:
        """Write another state of a ReplicaSet; a further write in the same look takes the place of the first."""
        planned = [action for action in self._actions if isinstance(action, Create | Update) and action.obj is one]
        if planned:
            index = self._actions.index(planned[0])
            self._actions[index] = type(planned[0])(REPLICA_SETS, other)
        else:
            self._actions.append(Update(REPLICA_SETS, other))
        if one is self._new:
            self._new = other
        else:
            self._old[next(i for i, old in enumerate(self._old) if old is one)] = other

    def _sizes(self) -> dict[str, str]:
        total = replicas(self._deployment)
        return {DESIRED: str(total), MAXIMUM: str(total + max_surge(self._deployment))}

    def _renew(self) -> None:
        """Bring the ReplicaSet of the present template up to date with what the Deployment says of itself."""
        assert self._new is not None
        renewed = copied(self._new)
        renewed["metadata"]["annotations"] = self._annotated(_annotations(self._new))
        min_ready = self._deployment["spec"].get("minReadySeconds", 0)
        if renewed["spec"].get("minReadySeconds", 0) != min_ready:
            renewed["spec"]["minReadySeconds"] = min_ready
        if renewed != self._new:
            self._replace(self._new, renewed)
        self._set_revision(_annotations(self._new)[REVISION])
        note_found(self._deployment, self._new, self._now)

    def _annotated(self, present: dict[str, str]) -> dict[str, str]:
        """The annotations of the newest ReplicaSet: the Deployment's, its revision, and the revisions it had before."""
        copy = {name: text for name, text in _annotations(self._deployment).items() if name not in _OWN}
        result = {**present, **copy}
        revision = max((_revision(one) for one in self._old), default=0) + 1
        had = present.get(REVISION, "")
        if not had.isdigit() or int(had) < revision:
            result[REVISION] = str(revision)
            if had:
                result[_HISTORY] = _joined(present.get(_HISTORY, ""), had)
        return result

    def _create(self) -> Object:
        deployment = self._deployment
        template = copied(deployment["spec"]["template"])
        name, short = self._new_name()
        labels = {**(template["metadata"].get("labels") or {}), HASH: short}
        template["metadata"]["labels"] = labels
        selector = copied(deployment["spec"]["selector"])
        selector["matchLabels"] = {**selector.get("matchLabels", {}), HASH: short}
        size = first_size(deployment, self._old)
        made: Object = {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {**self._annotated({}), **self._sizes()},
                "ownerReferences": [pods.owner_reference(deployment)],
            },
            "spec": {"replicas": size, "selector": selector, "template": template},
        }
        if deployment["spec"].get("minReadySeconds"):
            made["spec"]["minReadySeconds"] = deployment["spec"]["minReadySeconds"]
        self._actions.append(Create(REPLICA_SETS, made))
        if size:
            self._actions.append(EventAction("ScalingReplicaSet", f"Scaled up replica set {name} from 0 to {size}"))
        self._set_revision(made["metadata"]["annotations"][REVISION])
        note_created(self._deployment, made, self._now)
        return made

    def _new_name(self) -> tuple[str, str]:
        """The name of the ReplicaSet for the present template, and the hash in it."""
        short = hash_of(self._deployment["spec"]["template"], self._deployment["status"].get("collisionCount"))
        name = self._deployment["metadata"]["name"]
        return f"{name[: _LONGEST_NAME - 1 - len(short)]}-{short}", short

    def _set_revision(self, revision: str) -> None:
        self._deployment["metadata"]["annotations"] = {**_annotations(self._deployment), REVISION: revision}

    def _fail(self) -> None:
        """The new ReplicaSet could not be made."""
        failure = self._owned.failure
        assert failure is not None
        if failure.reason == "AlreadyExists":
            status = self._deployment["status"]
            status["collisionCount"] = status.get("collisionCount", 0) + 1
            return
        message = f'Failed to create new replica set "{self._new_name()[0]}": {failure.message}'
        note_failed(self._deployment, message, self._now)
        self._actions.append(EventAction("ReplicaSetCreateError", message, warning=True))

    def _clean(self) -> None:
        """Delete the oldest ReplicaSets beyond the limit of the history."""
        limit = self._deployment["spec"].get("revisionHistoryLimit", FOREVER)
        alive = sorted((one for one in self._old if not pods.is_deleted(one)), key=_revision)
        for one in alive[: max(0, len(alive) - limit)] if limit != FOREVER else ():
            status = one.get("status") or {}
            seen = status.get("observedGeneration", 0) >= one["metadata"].get("generation", 0)
            if not status.get("replicas") and not replicas(one) and seen:
                self._actions.append(Removal(REPLICA_SETS, one))

    def _settle(self) -> None:
        """The status without any judgement of progress."""
        self._deployment["status"] = status_of(self._deployment, self._sets(), self._new, self._now)

    def _report(self) -> None:
        """The status of a rollout."""
        self._deployment["status"] = rollout_status(self._before, self._deployment, self._sets(), self._new, self._now)

    def _sets(self) -> list[Object]:
        return [*self._old, *([self._new] if self._new is not None else [])]

    def _changed(self) -> bool:
        same_status = self._deployment["status"] == (self._before.get("status") or {})
        return not same_status or _annotations(self._deployment) != _annotations(self._before)


def _annotations(obj: Object) -> dict[str, str]:
    return dict(obj["metadata"].get("annotations") or {})


def _revision(one: Object) -> int:
    text = _annotations(one).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def _joined(history: str, revision: str) -> str:
    """The revisions a ReplicaSet had, the oldest of them given up when the text becomes too long."""
    revisions = [*history.split(","), revision] if history else [revision]
    while len(",".join(revisions)) > _HISTORY_CHARACTERS:
        del revisions[0]
    return ",".join(revisions)


def _bare(template: Object) -> Object:
    """A template without the label that only ReplicaSets have."""
    labels = {name: text for name, text in (template["metadata"].get("labels") or {}).items() if name != HASH}
    return {**template, "metadata": {**template["metadata"], "labels": labels}}
