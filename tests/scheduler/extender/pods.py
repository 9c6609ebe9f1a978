"""Pods on a real control plane: made in short words, and waited for."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable

from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS, Resource

CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict, namespaced=False)


def pod(name: str, *, scheduler: str = "", priority: str = "", claim: str = "", **limits: str) -> dict:
    names = {"mem": "aliyun.com/gpu-mem", "mps": "keti.com/mpsgpu", "gpu": "nvidia.com/gpu"}
    wanted = {names[key]: amount for key, amount in limits.items()}
    spec: dict = {"containers": [{"name": "main", "image": "x", "resources": {"limits": wanted}}]}
    if scheduler:
        spec["schedulerName"] = scheduler
    if priority:
        spec["priorityClassName"] = priority
    if claim:
        spec["volumes"] = [{"name": "late", "persistentVolumeClaim": {"claimName": claim}}]
    return {"metadata": {"name": name}, "spec": spec}


async def until(client: Client, namespace: str, holds: Callable[[list[Pod]], bool]) -> list[Pod]:
    """The pods of a namespace once something holds for them."""
    end = time.monotonic() + 300
    while True:
        pods = (await client.list(PODS, namespace=namespace)).items
        if holds(pods):
            return pods
        assert time.monotonic() < end, [
            (pod.metadata.name, pod.spec.node_name, [c.message for c in pod.status.conditions]) for pod in pods[:20]
        ]
        await asyncio.sleep(0.2)


def all_bound(pods: list[Pod]) -> bool:
    return all(pod.spec.node_name for pod in pods)


def used(pods: Iterable[Pod]) -> Counter[str]:
    """MiB held of each card, by UUID, as the pods' own records tell; a whole card counts 16 GiB."""
    held: Counter[str] = Counter()
    for holder in pods:
        record = json.loads(holder.metadata.annotations["shoal.dev/allocation"])
        assert record["node"] == holder.spec.node_name
        for container in record["containers"]:
            for card in container["cards"]:
                held[card["uuid"]] += 16384 if card.get("exclusive") else card.get("memory", 0)
    return held
