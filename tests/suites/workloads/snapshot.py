"""All that the controllers made of a namespace, in a form that is the same each time and on both clusters.

Names with a hash in them carry the image of the template instead, names that end in random letters end in `*`; times,
uids, versions and the nodes that pods happen to be on are left out.
"""

import re
from collections.abc import Iterable
from typing import Any

from tests.suites.connection import Connection

KINDS = {
    "deployments": "/apis/apps/v1/namespaces/{ns}/deployments",
    "replicasets": "/apis/apps/v1/namespaces/{ns}/replicasets",
    "statefulsets": "/apis/apps/v1/namespaces/{ns}/statefulsets",
    "daemonsets": "/apis/apps/v1/namespaces/{ns}/daemonsets",
    "controllerrevisions": "/apis/apps/v1/namespaces/{ns}/controllerrevisions",
    "jobs": "/apis/batch/v1/namespaces/{ns}/jobs",
    "claims": "/api/v1/namespaces/{ns}/persistentvolumeclaims",
    "resourceclaims": "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims",
    "pods": "/api/v1/namespaces/{ns}/pods",
    "events": "/api/v1/namespaces/{ns}/events",
}
UID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
TIMES = {"lastTransitionTime", "lastUpdateTime", "lastProbeTime", "startTime", "completionTime"}
#: Events that are told again with each try: how often depends on the time.
REPEATED = {"FailedCreate", "FailedResourceClaimCreation"}
#: Who writes events that are compared; others on the real side speak of nodes and volumes.
SOURCES = {
    *(f"{name}-controller" for name in ("deployment", "replicaset", "statefulset", "daemonset", "job")),
    "resource_claim",
}
Object = dict[str, Any]


def snapshot(connection: Connection, namespace: str) -> Object:
    """The namespace as it is now."""
    lists = {}
    for kind, path in KINDS.items():
        answer = connection.request("GET", path.format(ns=namespace))
        assert answer.status == 200, answer
        lists[kind] = answer.body["items"]
    names = _Names(lists, namespace)
    seen: Object = {}
    for kind in ("deployments", "replicasets", "statefulsets", "daemonsets", "jobs"):
        seen[kind] = _sorted(_workload(obj, names) for obj in lists[kind])
    seen["controllerrevisions"] = _sorted(_revision(obj, names) for obj in lists["controllerrevisions"])
    seen["resourceclaims"] = _sorted(_resource_claim(obj, names) for obj in lists["resourceclaims"])
    seen["claims"] = _sorted(_claim(obj, names) for obj in lists["claims"])
    seen["pods"] = _folded(_sorted(_pod(obj, names) for obj in lists["pods"]))
    seen["events"] = _events(lists["events"], names)
    return {kind: objects for kind, objects in seen.items() if objects}


class _Names:
    """Names that differ from run to run, and what stands for them."""

    def __init__(self, lists: Object, namespace: str) -> None:
        self._known: dict[str, str] = {namespace: "(ns)"}
        for obj in [*lists["replicasets"], *lists["controllerrevisions"]]:
            spec = obj["spec"] if "spec" in obj else obj["data"]["spec"]
            image = spec["template"]["spec"]["containers"][0]["image"]
            base, _, short = obj["metadata"]["name"].rpartition("-")
            if base and re.fullmatch(f"[{LETTERS}]{{6,10}}", short):
                self._known[short] = f"({image})"

    def of(self, text: str) -> str:
        """A text with the names replaced."""
        text = re.sub(UID, "(uid)", text)
        text = re.sub(f"-([{LETTERS}]{{5}})(?=$|[^a-z0-9-])", "-*", text)
        for name, other in self._known.items():
            text = text.replace(name, other)
        # What is not there any more leaves only the form of its name behind.
        return re.sub(f"-([{LETTERS}]{{8,10}})(?=$|[^a-z0-9])", "-(gone)", text)

    def all(self, value: Any) -> Any:
        """The same in depth, without times."""
        if isinstance(value, str):
            return self.of(value)
        if isinstance(value, list):
            return [self.all(one) for one in value]
        if isinstance(value, dict):
            return {self.of(key): "(time)" if key in TIMES and one else self.all(one) for key, one in value.items()}
        return value


def _meta(obj: Object, names: _Names) -> Object:
    metadata = obj["metadata"]
    seen: Object = {"name": names.of(metadata["name"])}
    for name in ("labels", "annotations", "finalizers"):
        if metadata.get(name):
            seen[name] = names.all(metadata[name])
    if metadata.get("ownerReferences"):
        seen["owners"] = [
            {
                "kind": one["kind"],
                "name": names.of(one["name"]),
                "controller": one.get("controller", False),
                "blocks": one.get("blockOwnerDeletion", False),
            }
            for one in metadata["ownerReferences"]
        ]
    if "deletionTimestamp" in metadata:
        seen["deleted"] = True
    return seen


def _workload(obj: Object, names: _Names) -> Object:
    seen = _meta(obj, names)
    seen["generation"] = obj["metadata"].get("generation")
    if "replicas" in obj["spec"]:
        seen["asked"] = obj["spec"]["replicas"]
    seen["selector"] = names.all(obj["spec"]["selector"])
    status = names.all(obj.get("status", {}))
    if "conditions" in status:
        status["conditions"].sort(key=lambda condition: condition["type"])
    seen["status"] = status
    return seen


def _revision(obj: Object, names: _Names) -> Object:
    return {**_meta(obj, names), "revision": obj["revision"]}


def _claim(obj: Object, names: _Names) -> Object:
    return {"name": names.of(obj["metadata"]["name"]), "labels": obj["metadata"].get("labels", {})}


def _resource_claim(obj: Object, names: _Names) -> Object:
    seen, metadata = _meta(obj, names), obj["metadata"]
    if "generateName" in metadata:
        seen["name"] = _of_pod(metadata["generateName"], metadata["ownerReferences"][0]["name"], names) + "*"
    for name in ("annotations", "finalizers"):
        if metadata.get(name):
            seen[name] = metadata[name]
    seen["spec"] = obj["spec"]
    status = obj.get("status", {})
    if "allocation" in status:
        seen["allocation"] = status["allocation"]
    if status.get("reservedFor"):
        seen["reservedFor"] = sorted(f"{one['resource']}/{names.of(one['name'])}" for one in status["reservedFor"])
    return seen


def _of_pod(text: str, pod: str, names: _Names) -> str:
    """A name that begins with that of a pod: both may end in random letters."""
    assert text.startswith(pod), (text, pod)
    return names.of(pod) + names.of(text.removeprefix(pod))


def _pod(obj: Object, names: _Names) -> Object:
    seen = _meta(obj, names)
    spec = obj["spec"]
    for name in ("hostname", "subdomain", "affinity", "tolerations", "restartPolicy"):
        if name in spec:
            seen[name] = names.all(spec[name])
    claims = [volume for volume in spec.get("volumes", ()) if "persistentVolumeClaim" in volume]
    if claims:
        seen["volumes"] = claims
    if "resourceClaimStatuses" in obj["status"]:
        name = obj["metadata"]["name"]
        seen["resourceclaims"] = {
            one["name"]: _of_pod(one["resourceClaimName"], name, names)
            for one in obj["status"]["resourceClaimStatuses"]
        }
    fields = ("name", "image", "env")
    seen["containers"] = [{name: one[name] for name in fields if name in one} for one in spec["containers"]]
    seen["bound"] = bool(spec.get("nodeName"))
    seen["phase"] = obj["status"]["phase"]
    return seen


def _events(events: list[Object], names: _Names) -> list[str]:
    """One line for each thing told, and how often."""
    counts: dict[str, int] = {}
    for event in events:
        if event["source"].get("component") not in SOURCES:
            continue
        about = event["involvedObject"]
        line = f"{about['kind']} {about['name']}: {event['type']} {event['reason']}: {event['message']}"
        named = names.of(line)
        counts[named] = counts.get(named, 0) + event.get("count", 1)
        if event["reason"] in REPEATED:
            counts[named] = 1
    return sorted(f"{line} (x{count})" for line, count in counts.items())


def _folded(objects: list[Object]) -> list[Object]:
    """Equal ones once, with their number."""
    folded: list[Object] = []
    for obj in objects:
        if folded and {**folded[-1], "count": 0} == {**obj, "count": 0}:
            folded[-1]["count"] += 1
        else:
            folded.append({**obj, "count": 1})
    return folded


def _sorted(objects: Iterable[Object]) -> list[Object]:
    return sorted(objects, key=lambda obj: (obj["name"], str(obj)))
