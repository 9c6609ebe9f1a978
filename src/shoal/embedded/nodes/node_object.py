"""The Node object of a simulated node, its status and its lease, as kubelet writes them. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from shoal.embedded.nodes.cluster import NodeDescription
from shoal.embedded.registry import timestamp
from shoal.embedded.store import Object
from shoal.model.contract import kubernetes

KUBELET_VERSION: Final = "v1.36.3"
LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
_STORAGE: Final = "256Gi"
_CONDITIONS: Final = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def node_object(spec: NodeDescription, address: str, now: datetime) -> Object:
    """A node as it registers."""
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        kubernetes.LABEL_HOSTNAME: spec.name,
        "kubernetes.io/os": "linux",
        **spec.labels,
    }
    node: Object = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": spec.name,
            "labels": labels,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"taints": [dict(taint) for taint in spec.taints]} if spec.taints else {},
    }
    node["status"] = node_status({}, spec, address, now)
    return node


def node_status(
    old: Mapping[str, Any],
    spec: NodeDescription,
    address: str,
    now: datetime,
    *,
    devices: Mapping[str, tuple[int, int]] | None = None,
    gone: Iterable[str] = (),
) -> dict[str, Any]:
    """The status of a node: kubelet's own part, and what others have put into its resources.

    `devices` is capacity and allocatable by resource of device plugins, `gone` the resources of plugins that left.
    """
    own = {
        kubernetes.RESOURCE_CPU: spec.cpu,
        kubernetes.RESOURCE_STORAGE: _STORAGE,
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        kubernetes.RESOURCE_MEMORY: spec.memory,
        kubernetes.RESOURCE_PODS: str(spec.pods),
        **{name: str(count) for name, count in spec.resources.items()},
    }
    status: dict[str, Any] = {}
    for number, part in enumerate(("capacity", "allocatable")):
        amounts = {**(old.get(part) or {}), **own, **dict.fromkeys(gone, "0")}
        amounts |= {name: str(counts[number]) for name, counts in (devices or {}).items()}
        status[part] = dict(sorted(amounts.items()))
    status["conditions"] = _conditions(old.get("conditions") or [], now)
    status["addresses"] = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": spec.name}]
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 10250}}
    status["nodeInfo"] = _info(spec.name)
    return {**{name: value for name, value in old.items() if name not in status}, **status}


def _conditions(old: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    before = {one["type"]: one for one in old}
    found = []
    for kind, status, reason, message in _CONDITIONS:
        was = before.get(kind, {})
        kept = was.get("lastTransitionTime") if was.get("status") == status else None
        found.append(
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": timestamp(now),
                "lastTransitionTime": kept or timestamp(now),
                "reason": reason,
                "message": message,
            }
        )
    own = {kind for kind, *_ in _CONDITIONS}
    return [*found, *(one for one in old if one["type"] not in own)]


def _info(name: str) -> dict[str, str]:
    machine = uuid.uuid5(uuid.NAMESPACE_DNS, name)
    return {
        "machineID": machine.hex,
        "systemUUID": str(machine),
        "bootID": str(uuid.uuid5(machine, "boot")),
        "kernelVersion": "6.0.0-simulated",
        "osImage": "simulated by Shoal",
        "containerRuntimeVersion": "containerd://2.4.2-simulated",
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def without_heartbeat(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without what changes at every look, to see whether there is news."""
    conditions = [
        {key: value for key, value in one.items() if key != "lastHeartbeatTime"} for one in status["conditions"]
    ]
    return {**status, "conditions": conditions}


def lease(name: str, node_uid: str, now: datetime) -> Object:
    """The sign of life of a node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
