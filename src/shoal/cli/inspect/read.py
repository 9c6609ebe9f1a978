"""What the tables show, read from the API server: nodes with cards, and what the pods on them hold."""

from __future__ import annotations

from shoal.cli.inspect.summary import UNKNOWN_ADDRESS, NodeUse
from shoal.kube.client import Client
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS, manifest_of
from shoal.model.bound import allocation_of
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import NodeGpus
from shoal.model.node import node_gpus
from shoal.model.pod import request_of
from shoal.model.request import Share

_FINISHED = ("Succeeded", "Failed")


async def read_uses(client: Client, *, unit: MemoryUnit) -> list[NodeUse]:
    """Every node with cards, by name."""
    nodes = (await client.list(NODES)).items
    pods = [pod for pod in (await client.list(PODS)).items if pod.status.phase not in _FINISHED]
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(pod.spec.node_name, []).append(pod)
    uses = []
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        gpus = node_gpus(manifest_of(node), unit=unit)
        if gpus.gpus:
            uses.append(_use(gpus, node, by_node.get(node.metadata.name, []), unit))
    return uses


def _use(gpus: NodeGpus, node: Node, pods: list[Pod], unit: MemoryUnit) -> NodeUse:
    held: dict[str, Share] = {}
    pending = 0
    for pod in pods:
        try:
            allocation = allocation_of(manifest_of(pod), node=gpus, unit=unit)
        except CodecError:
            allocation = None
        if allocation is None:
            pending += _asked_mib(pod, unit)
            continue
        for uuid, share in allocation.held().items():
            held[uuid] = held.get(uuid, Share()) + share
    address = next((one.address for one in node.status.addresses if one.type == "InternalIP"), UNKNOWN_ADDRESS)
    return NodeUse(gpus, address, held, pending)


def _asked_mib(pod: Pod, unit: MemoryUnit) -> int:
    """What a pod asks for whose card is not known; nothing when that cannot be read either."""
    try:
        request = request_of(manifest_of(pod), unit=unit)
    except RequestError:
        return 0
    return sum(container.gpus * container.share.memory_mib for container in request.containers)
