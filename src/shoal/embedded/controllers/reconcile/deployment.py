"""Deployments: a ReplicaSet for each template, and the way from one to the next."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from shoal.embedded.controllers.actions import Action, Create, Delete, Event, Owned, Requeue, Status, Update
from shoal.embedded.controllers.reconcile import deployment_status as statuses
from shoal.embedded.controllers.reconcile import pods, rollout
from shoal.embedded.controllers.reconcile.claims import claim
from shoal.embedded.controllers.reconcile.hashes import hash_of
from shoal.embedded.kinds import REPLICA_SETS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object

HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
_HISTORY: Final = "deployment.kubernetes.io/revision-history"
_HISTORY_CHARACTERS: Final = 2000
#: Annotations of a Deployment that its ReplicaSets do not get.
_OWN: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        *(REVISION, _HISTORY, rollout.DESIRED, rollout.MAXIMUM),
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
            self._actions.append(Status(self._deployment))
        elif again := statuses.progress_due(self._deployment, self._now):
            self._actions.append(Requeue(again))
        return self._actions

    def _proceed(self) -> None:
        statuses.note_pause(self._deployment, self._now)
        if self._new is not None:
            self._renew()
        if self._deployment["spec"].get("paused"):
            self._rescale()
            self._clean()
            self._settle()
        elif self._is_rescaled():
            self._rescale()
            self._settle()
        elif rollout.is_rolling(self._deployment):
            self._roll()
        else:
            self._recreate()

    def _roll(self) -> None:
        if self._new is None:
            self._new = self._create()
        total, present = rollout.replicas(self._deployment), rollout.replicas(self._new)
        if present != total:
            size = total if present > total else rollout.first_size(self._deployment, self._old, present)
            if self._resize(self._new, size):
                return self._report()
        old = [one for one in self._old if rollout.replicas(one)]
        shrunk = rollout.shrunk(self._deployment, old, self._new)
        resized = [self._resize(one, shrunk[one["metadata"]["name"]]) for one in old]
        if not any(resized) and statuses.is_complete(self._deployment, self._deployment["status"]):
            self._clean()
        return self._report()

    def _recreate(self) -> None:
        resized = [self._resize(one, 0) for one in tuple(self._old)]
        if any(resized) or self._old_pods():
            return self._report()
        if self._new is None:
            self._new = self._create()
        self._resize(self._new, rollout.replicas(self._deployment))
        if statuses.is_complete(self._deployment, self._deployment["status"]):
            self._clean()
        return self._report()

    def _old_pods(self) -> bool:
        """Whether pods of an old template may still run."""
        if rollout.counted(self._old, "replicas"):
            return True
        new = self._new["metadata"]["uid"] if self._new else ""
        others = [one for uid, of_set in self._owned.indirect.items() if uid != new for one in of_set]
        return any(not pods.is_finished(pod) for pod in others)

    def _is_rescaled(self) -> bool:
        """Whether somebody changed the size: a ReplicaSet remembers another one."""
        total = str(rollout.replicas(self._deployment))
        noted = [_annotations(one).get(rollout.DESIRED) for one in self._sets() if rollout.replicas(one)]
        return any(text is not None and text != total for text in noted)

    def _rescale(self) -> None:
        total, active = rollout.replicas(self._deployment), [one for one in self._sets() if rollout.replicas(one)]
        if len(active) <= 1:
            latest = active or ([self._new] if self._new else self._old[-1:])
            for one in latest:
                if rollout.replicas(one) != total:
                    self._resize(one, total)
        elif self._is_saturated():
            for one in self._old:
                self._resize(one, 0)
        elif rollout.is_rolling(self._deployment):
            sizes = rollout.proportional(self._deployment, active)
            for one in active:
                self._resize(one, sizes[one["metadata"]["name"]], always=True)

    def _is_saturated(self) -> bool:
        if self._new is None:
            return False
        total = rollout.replicas(self._deployment)
        available = (self._new.get("status") or {}).get("availableReplicas", 0)
        return (
            rollout.replicas(self._new) == total
            and _annotations(self._new).get(rollout.DESIRED) == str(total)
            and available == total
        )

    def _resize(self, one: Object, size: int, *, always: bool = False) -> bool:
        """Give a ReplicaSet another size; whether it is another is the answer."""
        present = rollout.replicas(one)
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
        self._actions.append(Event("ScalingReplicaSet", f"Scaled {way} replica set {name} from {present} to {size}"))
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
        total = rollout.replicas(self._deployment)
        return {rollout.DESIRED: str(total), rollout.MAXIMUM: str(total + rollout.max_surge(self._deployment))}

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
        statuses.note_found(self._deployment, self._new, self._now)

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
        size = rollout.first_size(deployment, self._old)
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
            self._actions.append(Event("ScalingReplicaSet", f"Scaled up replica set {name} from 0 to {size}"))
        self._set_revision(made["metadata"]["annotations"][REVISION])
        statuses.note_created(self._deployment, made, self._now)
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
        statuses.note_failed(self._deployment, message, self._now)
        self._actions.append(Event("ReplicaSetCreateError", message, warning=True))

    def _clean(self) -> None:
        """Delete the oldest ReplicaSets beyond the limit of the history."""
        limit = self._deployment["spec"].get("revisionHistoryLimit", rollout.FOREVER)
        alive = sorted((one for one in self._old if not pods.is_deleted(one)), key=_revision)
        for one in alive[: max(0, len(alive) - limit)] if limit != rollout.FOREVER else ():
            status = one.get("status") or {}
            seen = status.get("observedGeneration", 0) >= one["metadata"].get("generation", 0)
            if not status.get("replicas") and not rollout.replicas(one) and seen:
                self._actions.append(Delete(REPLICA_SETS, one))

    def _settle(self) -> None:
        """The status without any judgement of progress."""
        self._deployment["status"] = statuses.status_of(self._deployment, self._sets(), self._new, self._now)

    def _report(self) -> None:
        """The status of a rollout."""
        self._deployment["status"] = statuses.rollout_status(
            self._before, self._deployment, self._sets(), self._new, self._now
        )

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
