"""What is used beside what is allocated, as a document for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.analysis.inspect.document import document
from shoal.analysis.inspect.use import ClusterUse
from shoal.analysis.inspect.used import PodOnCard, UsedCard, UsedNode, mib
from shoal.metrics.history_wire import CardReading


def used_document(cluster: ClusterUse, nodes: Sequence[UsedNode]) -> dict[str, Any]:
    """The same with what is used: `used` of nodes, cards, pods and containers. null is not known, and never 0."""
    whole = document(cluster)
    for told, node in zip(whole["nodes"], nodes, strict=True):
        told["used"] = _used_of_node(node)
        for gpu, card in zip(told["gpus"], node.cards, strict=True):
            gpu["used"] = _used_of_card(card)
            holders = gpu["pods"]
            for holder, pod in zip(holders, card.pods, strict=False):
                holder["used"] = _used_of_pod(pod)
                by_name = {one.container: one for one in pod.containers}
                for container in holder["containers"]:
                    one = by_name.get(container["name"])
                    container["used"] = _use(one.used_bytes, one.utilisation) if one else _use(None, None)
            gpu["unrequested"] = [
                {"namespace": pod.namespace, "name": pod.name, "used": _used_of_pod(pod)}
                for pod in card.pods[len(holders) :]
            ]
    whole["notMeasured"] = {node.node.node.name: node.why for node in nodes if node.why}
    return whole


def _used_of_node(node: UsedNode) -> dict[str, Any]:
    reading, load = node.reading, node.reading.load if node.reading else None
    return {
        "memoryMiB": mib(node.used_bytes),
        "cpuMilli": load.cpu_used_milli if load else None,
        "hostMemoryMiB": mib(load.memory_used_bytes) if load else None,
        "ageSeconds": reading.age_seconds if reading else None,
    }


def _used_of_card(card: UsedCard) -> dict[str, Any]:
    reading = card.reading or CardReading(uuid="", index=0)
    return {
        **_use(reading.used_bytes, reading.utilisation),
        "unattributedMiB": mib(reading.unattributed_bytes),
        "temperatureCelsius": reading.temperature_celsius,
        "powerWatts": reading.power_watts,
    }


def _used_of_pod(pod: PodOnCard) -> dict[str, Any]:
    return _use(pod.used_bytes, pod.utilisation)


def _use(used: int | None, utilisation: int | None) -> dict[str, Any]:
    return {"memoryMiB": mib(used), "utilisation": utilisation}
