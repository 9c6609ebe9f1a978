"""ReplicaSets: as many pods as asked for, and a status that tells how many of them are ready."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from shoal.embedded.controllers.execute import Action, Create, EventAction, Owned, Removal, Requeue, StatusUpdate
from shoal.embedded.controllers.reconcile import pods
from shoal.embedded.controllers.reconcile.pods import claim
from shoal.embedded.kinds import PODS
from shoal.embedded.store import Object

#: Pods made or deleted in one look. The real one takes 500, with many hands; here the API waits meanwhile.
BURST: Final = 100
CREATED: Final = EventAction("SuccessfulCreate", "Created pod: {name}")
NOT_CREATED: Final = EventAction("FailedCreate", "Error creating: {error}", warning=True)
DELETED: Final = EventAction("SuccessfulDelete", "Deleted pod: {name}")
NOT_DELETED: Final = EventAction("FailedDelete", "Error deleting: {error}", warning=True)


def reconcile(replica_set: Object, owned: Owned, now: datetime) -> list[Action]:
    """What to do about one ReplicaSet."""
    active, actions = claim(replica_set, filter(pods.is_active, owned.pods), PODS)
    uid = replica_set["metadata"]["uid"]
    terminating = [
        pod for pod in owned.pods if pods.is_terminating(pod) and (pods.controller_of(pod) or {}).get("uid") == uid
    ]
    if owned.failure is not None:
        actions = []
    elif not pods.is_deleted(replica_set):
        actions += _managed(replica_set, active, owned)
    status = _status(replica_set, active, len(terminating), owned, now)
    if status != replica_set.get("status"):
        actions.append(StatusUpdate({**replica_set, "status": status}))
    min_ready = replica_set["spec"].get("minReadySeconds", 0)
    again = pods.next_available(active, min_ready, now) if min_ready else None
    return [*actions, Requeue(again)] if again else actions


def _managed(replica_set: Object, active: list[Object], owned: Owned) -> list[Action]:
    missing = replica_set["spec"]["replicas"] - len(active)
    if missing > 0:
        pod = pods.from_template(replica_set["spec"]["template"], replica_set)
        return [Create(PODS, pod, CREATED, NOT_CREATED)] * min(missing, BURST)
    if missing == 0:
        return []
    related = [pod for siblings in owned.indirect.values() for pod in siblings] or active
    on_node = Counter(pod["spec"].get("nodeName", "") for pod in related if pods.is_active(pod))
    spare = pods.deletion_order(active, on_node)[: min(-missing, BURST)]
    return [Removal(PODS, pod, DELETED, NOT_DELETED) for pod in spare]


def _status(replica_set: Object, active: list[Object], terminating: int, owned: Owned, now: datetime) -> Object:
    spec, metadata = replica_set["spec"], replica_set["metadata"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    min_ready = spec.get("minReadySeconds", 0)
    present = (replica_set.get("status") or {}).get("conditions") or []
    if owned.failure is None:
        present = pods.without(present, "ReplicaFailure")
    elif pods.found(present, "ReplicaFailure") is None:
        reason = "FailedCreate" if len(active) < spec["replicas"] else "FailedDelete"
        present = [*present, pods.made("ReplicaFailure", "True", reason, owned.failure.message, now)]
    return pods.counters(
        {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(
                labels.items() <= (pod["metadata"].get("labels") or {}).items() for pod in active
            ),
            "readyReplicas": sum(map(pods.is_ready, active)),
            "availableReplicas": sum(pods.is_available(pod, min_ready, now) for pod in active),
            "terminatingReplicas": terminating,
            "observedGeneration": metadata.get("generation", 0),
            "conditions": present,
        },
        shown=("replicas", "terminatingReplicas"),
    )
