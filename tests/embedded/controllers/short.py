"""Objects and actions in the short form in which the cases of the controllers are written."""

from datetime import UTC, datetime
from typing import Any

from shoal.embedded.controllers.execute import (
    Action,
    Create,
    DropFinalizer,
    EventAction,
    Failure,
    Owned,
    Remember,
    Removal,
    Requeue,
    StatusUpdate,
    Update,
)
from shoal.embedded.controllers.reconcile import (
    daemon_set,
    deployment,
    job,
    replica_set,
    resource_claim,
    stateful_set,
)
from shoal.embedded.controllers.reconcile.pods import owner_reference
from shoal.embedded.kinds import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    STATEFUL_SETS,
)
from shoal.embedded.rules.kinds import default

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
BEFORE = "2026-05-01T11:00:00Z"
RECONCILES = {
    "Deployment": (DEPLOYMENTS, deployment.reconcile),
    "ReplicaSet": (REPLICA_SETS, replica_set.reconcile),
    "StatefulSet": (STATEFUL_SETS, stateful_set.reconcile),
    "DaemonSet": (DAEMON_SETS, daemon_set.reconcile),
    "Job": (JOBS, job.reconcile),
    "Pod": (PODS, resource_claim.reconcile_pod),
    "ResourceClaim": (RESOURCE_CLAIMS, resource_claim.reconcile_claim),
}
#: Without a template for pods, and not filled in: a case tells all there is.
PLAIN = ("Pod", "ResourceClaim")
Object = dict[str, Any]


def workload(told: Object) -> Object:
    """A whole object with what the server adds; the labels are `app: web` unless told."""
    kind, _ = RECONCILES[told["kind"]]
    if kind.kind in PLAIN:
        return plain(told)
    spec = {"template": {"spec": {}}, **told.get("spec", {})}
    template = spec["template"]
    template.setdefault("metadata", {}).setdefault("labels", {"app": "web"})
    template["spec"].setdefault("containers", [{"name": "main", "image": told.get("image", "busybox:1")}])
    if told["kind"] == "Job":
        template["spec"].setdefault("restartPolicy", "Never")
    else:
        spec.setdefault("selector", {"matchLabels": {"app": "web"}})
    name = told.get("name", "web")
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": BEFORE, "generation": 1}
    obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {**metadata, **told.get("meta", {})}}
    obj["spec"] = spec
    default(obj, kind, None)
    obj["status"] |= told.get("status", {})
    return obj


def pod(told: Object, owner: Object) -> Object:
    """A pod of the owner; `phase`, `ready`, `node`, `since`, `deleted` and `free` (of any owner) are its state."""
    labels = {"app": "web", **(owner["spec"]["template"]["metadata"].get("labels") or {}), **told.get("labels", {})}
    metadata: Object = {"name": told["name"], "namespace": "ns", "uid": f"uid-{told['name']}", "labels": labels}
    metadata["creationTimestamp"] = told.get("created", BEFORE)
    metadata["annotations"] = told.get("annotations", {})
    if owner["kind"] == "Job" and not told.get("counted"):
        metadata["finalizers"] = [job.TRACKING]
    if not told.get("free"):
        metadata["ownerReferences"] = [owner_reference(owner)]
    if told.get("deleted"):
        metadata |= {"deletionTimestamp": BEFORE, "deletionGracePeriodSeconds": 30}
    ready = {"type": "Ready", "status": "True" if told.get("ready") else "False"}
    ready["lastTransitionTime"] = told.get("since", BEFORE)
    status: Object = {"phase": told.get("phase", "Running"), "conditions": [ready]}
    if "ended" in told:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": told["ended"]}}}]
    spec = {"nodeName": told["node"]} if "node" in told else {}
    if "target" in told:
        daemon_set.pin(spec, told["target"])
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


def plain(told: Object) -> Object:
    """A pod, a claim or a template as told; its owner is a pod, `of: NAME`, and its UID is `uid-NAME` unless told."""
    metadata: Object = {"name": told["name"], "namespace": "ns", "uid": f"uid-{told['name']}", **told.get("meta", {})}
    if "of" in told:
        uid = told.get("of_uid", f"uid-{told['of']}")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": told["of"], "uid": uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    if told.get("deleted"):
        metadata["deletionTimestamp"] = BEFORE
    kind = told.get("kind", "")
    obj: Object = {"kind": kind, "apiVersion": "v1" if kind == "Pod" else "resource.k8s.io/v1", "metadata": metadata}
    return {**obj, "spec": told.get("spec", {}), "status": told.get("status", {})}


def node(told: Object) -> Object:
    """A node with labels and taints."""
    metadata = {"name": told["name"], "labels": told.get("labels", {})}
    return {
        "kind": NODES.kind,
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"taints": told["taints"]} if "taints" in told else {},
    }


def replica_set_of(told: Object, owner: Object) -> Object:
    """A ReplicaSet of a Deployment; `size` it asks for, `up` of its pods are available."""
    image = told.get("image", "busybox:1")
    spec = {"replicas": told["size"], "selector": {"matchLabels": {"app": "web", "pod-template-hash": told["name"]}}}
    one = workload({"kind": "ReplicaSet", "name": told["name"], "spec": spec, "image": image})
    metadata = one["metadata"]
    labels = {"app": "web", "pod-template-hash": told["name"]}
    metadata |= {"labels": labels, "ownerReferences": [owner_reference(owner)], "annotations": told.get("notes", {})}
    one["spec"]["template"]["metadata"]["labels"] = dict(labels)
    metadata["creationTimestamp"] = told.get("created", BEFORE)
    up, there = told.get("up", 0), told.get("there", told["size"])
    one["status"] = {"replicas": there, "readyReplicas": up, "availableReplicas": up, "observedGeneration": 1}
    return one


def owned(told: Object, owner: Object) -> Owned:
    """What the owner has."""
    failure = Failure(*told["failure"]) if "failure" in told else None
    memory = None
    if "failures" in told:
        memory = job.Failures(told["failures"][0], datetime.fromisoformat(told["failures"][1]))
    return Owned(
        pods=tuple(plain(one) if owner["kind"] in PLAIN else pod(one, owner) for one in told.get("pods", ())),
        resource_claims=tuple(map(plain, told.get("claims", ()))),
        templates=tuple(map(plain, told.get("templates", ()))),
        replica_sets=tuple(replica_set_of(one, owner) for one in told.get("sets", ())),
        revisions=tuple(told.get("revisions", ())),
        indirect={uid: tuple(pod(one, owner) for one in pods) for uid, pods in told.get("indirect", {}).items()},
        nodes=tuple(map(node, told.get("nodes", ()))),
        failure=failure,
        memory=memory,
    )


def shown(action: Action) -> Object:
    """An action as the cases write it."""
    match action:
        case Create(kind, obj):
            return {"create": kind.plural, "obj": obj}
        case Update(kind, obj, subresource):
            return {"update": f"{kind.plural}/{subresource}".rstrip("/"), "name": obj["metadata"]["name"], "obj": obj}
        case Removal(kind, obj):
            return {"delete": kind.plural, "name": obj["metadata"]["name"], "how": action.propagation}
        case DropFinalizer(kind, obj, finalizer):
            return {"drop": finalizer, "of": kind.plural, "name": obj["metadata"]["name"]}
        case StatusUpdate(obj):
            return {"status": obj["status"], "notes": obj["metadata"].get("annotations", {})}
        case EventAction(reason, message, warning):
            return {"event": f"{reason}: {message}", "warning": warning}
        case Requeue(at):
            return {"again": (at - NOW).total_seconds()}
        case Remember(memory):
            return {"remember": str(memory)}
