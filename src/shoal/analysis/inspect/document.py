"""What is allocated, as a document for programs. Amounts are MiB and percent, whatever unit the tables use."""

from __future__ import annotations

from typing import Any

from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse, taken, totals
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import Share

_MIB = MemoryUnit.MIB


def document(cluster: ClusterUse) -> dict[str, Any]:
    """All nodes with cards, and all pods that have none. Of one namespace, amounts are those of all pods."""
    open_nodes = [use for use in cluster.nodes if not use.cordoned]
    return {
        "memoryUnit": cluster.unit.value if cluster.unit else None,
        "namespace": cluster.namespace or None,
        **_totals(totals(cluster.nodes, _MIB)),
        "schedulable": _totals(totals(open_nodes, _MIB)),
        "nodes": [_node(use) for use in cluster.nodes],
        "waiting": [_waiting(pod) for pod in cluster.waiting],
        "elsewhere": [{**_waiting(pod), "cluster": pod.cluster} for pod in cluster.elsewhere],
        "problems": list(cluster.problems),
    }


def _totals(amounts: tuple[int, int]) -> dict[str, int]:
    return {"allocatedMiB": amounts[0], "totalMiB": amounts[1]}


def _node(use: NodeUse) -> dict[str, Any]:
    return {
        "name": use.node.name,
        "address": use.address,
        "ready": use.ready,
        "cordoned": use.cordoned,
        **_totals(use.totals(_MIB)),
        "gpus": [_gpu(use, gpu) for gpu in sorted(use.node.gpus, key=lambda gpu: gpu.index)],
        "pending": [_waiting(pod) for pod in use.pending],
    }


def _gpu(use: NodeUse, gpu: Gpu) -> dict[str, Any]:
    """A card. Of one that is in no inventory, health and isolation are not known."""
    share, unlisted = use.share(gpu), shoal.is_made_up(gpu.uuid)
    return {
        "index": gpu.index,
        "uuid": None if unlisted else gpu.uuid,
        "model": gpu.model or None,
        "healthy": None if unlisted else gpu.healthy,
        **({"fault": gpu.fault} if gpu.fault else {}),
        "isolation": None if unlisted else str(gpu.limited_by),
        "memoryLimitEnforced": None if unlisted else gpu.isolation.enforces_memory,
        "mig": gpu.mig,
        "totalMiB": gpu.memory_mib,
        "allocatedMiB": use.allocated(gpu),
        "allocatedCompute": 100 if share.exclusive else share.compute,
        "exclusive": share.exclusive,
        "mpsClients": share.clients,
        "pods": [_holder(pod, pod.held[gpu.uuid], gpu) for pod in use.pods if gpu.uuid in pod.held],
    }


def _holder(pod: PodUse, share: Share, gpu: Gpu) -> dict[str, Any]:
    """What a pod holds of a card, and which of its containers do."""
    containers = pod.allocation.containers if pod.allocation else ()
    shares = [
        {"name": container.name, "kind": container.kind.value, **_share(card.share, gpu)}
        for container in containers
        for card in container.cards
        if card.uuid == gpu.uuid
    ]
    return {**_pod(pod), **_share(share, gpu), "containers": shares, "claims": list(pod.claims)}


def _share(share: Share, gpu: Gpu) -> dict[str, Any]:
    return {
        "memoryMiB": taken(share, gpu),
        "compute": share.compute,
        "mpsClients": share.clients,
        "exclusive": share.exclusive,
    }


def _pod(pod: PodUse) -> dict[str, Any]:
    return {"namespace": pod.namespace, "name": pod.name, "phase": pod.phase, "ending": pod.ending}


def _waiting(pod: PodUse) -> dict[str, Any]:
    return {**_pod(pod), "node": pod.node or None, "memoryMiB": pod.asked_mib, "why": pod.why}
