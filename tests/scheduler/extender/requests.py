"""Requests as kube-scheduler writes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def pod(name: str = "p", *, namespace: str = "default", priority: int = 0, **limits: str) -> dict[str, Any]:
    """A pod that asks for 4 GiB of a card, or for what it is told (`mem`, `mps`, `gpu`, `cpu`)."""
    names = {"mem": "aliyun.com/gpu-mem", "mps": "keti.com/mpsgpu", "gpu": "nvidia.com/gpu", "cpu": "cpu"}
    wanted = {names[key]: amount for key, amount in (limits or {"mem": "4"}).items()}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {"app": name}},
        "spec": {
            "priority": priority,
            "containers": [{"name": "main", "image": "x", "resources": {"limits": wanted, "requests": wanted}}],
        },
        "status": {"phase": "Pending"},
    }


def args(pod: object, names: Sequence[str], *, whole: bool = False) -> bytes:
    """The body of filter and prioritize."""
    nodes = {"metadata": {}, "items": [{"metadata": {"name": name, "labels": {"l": name}}} for name in names]}
    return json.dumps(
        {"Pod": pod, "Nodes": nodes if whole else None, "NodeNames": None if whole else list(names)}
    ).encode()


def binding(pod: Mapping[str, Any], node: str) -> bytes:
    """The body of bind."""
    meta = pod["metadata"]
    return json.dumps(
        {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    ).encode()


def preemption(pod: object, victims: Mapping[str, Sequence[str]], *, whole: bool = False, broken: int = 0) -> bytes:
    """The body of preempt: the UIDs that would have to go, by node."""
    chosen = {
        node: {
            "Pods": [{"metadata": {"uid": uid}} if whole else {"UID": uid} for uid in uids],
            "NumPDBViolations": broken,
        }
        for node, uids in victims.items()
    }
    return json.dumps(
        {
            "Pod": pod,
            "NodeNameToVictims": chosen if whole else None,
            "NodeNameToMetaVictims": None if whole else chosen,
        }
    ).encode()
