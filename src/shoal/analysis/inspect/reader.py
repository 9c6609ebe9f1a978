"""From nodes and pods to what is allocated: reads each object once, and again only after it has changed.

Nodes without Shoal's inventory are read from what they offer (Allocatable), as gpushare's own command reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.analysis.inspect.objects import PartialCondition, PartialNode, PartialPod
from shoal.analysis.inspect.use import (
    UNKNOWN_ADDRESS,
    ClusterUse,
    NodeUse,
    PodUse,
    natural,
    offered,
    printable,
    unit_of_capacity,
    unit_of_inventory,
)
from shoal.kube.resources import manifest_of
from shoal.model.allocation import Allocation, CardShare
from shoal.model.bound import allocation_of
from shoal.model.contract import gpushare, keti, kubernetes, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, ModelError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import PodParts, pod_parts
from shoal.model.node import held_written, node_gpus
from shoal.model.pod import gpus_of
from shoal.model.request import NO_SHARE, Share, phases

_RESOURCES: Final = frozenset(
    (gpushare.RESOURCE_MEMORY, gpushare.RESOURCE_COMPUTE, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)
)
_COUNTED: Final = (gpushare.RESOURCE_MEMORY, gpushare.RESOURCE_COUNT)
#: In place of the namespace of a pod that is gone and still holds cards; its UID is all that is known of it.
GONE: Final = "(gone)"


@dataclass(frozen=True, slots=True)
class _ReadNode:
    """A node as read: its use without pods (None without cards), and the unit it counts memory in."""

    object: PartialNode
    use: NodeUse | None
    unit: MemoryUnit | None
    problem: str = ""
    #: What its agent says pods hold, by UID.
    held: Mapping[str, tuple[CardShare, ...]] = field(default_factory=dict)


#: A pod and what it was read with; it is read again when one of these has changed.
_ReadPod = tuple[PartialPod, NodeGpus | None, MemoryUnit, tuple[CardShare, ...] | None, PodUse]


class UseReader:
    """Works out the use of nodes. `unit` is what `aliyun.com/gpu-mem` counts; None takes it from each node."""

    def __init__(self, unit: MemoryUnit | None = None) -> None:
        self._unit = unit
        self._nodes: dict[str, _ReadNode] = {}
        self._pods: dict[str, _ReadPod] = {}

    def look_at(self, nodes: Iterable[PartialNode], pods: Iterable[PartialPod]) -> None:
        """Read some objects before `of` is asked for all: pods after their nodes."""
        for node in nodes:
            self._nodes[node.metadata.name] = self._node(node)
        unit = self._cluster_unit(self._nodes.values())
        self._pods.update(self._read(pods, unit or MemoryUnit.GIB))

    def of(self, nodes: Iterable[PartialNode], pods: Iterable[PartialPod], *, everywhere: bool = True) -> ClusterUse:
        """The use of these nodes by these pods. `everywhere` says that they are all nodes of the cluster."""
        read = sorted((self._node(node) for node in nodes), key=lambda one: natural(one.object.metadata.name))
        self._nodes = {one.object.metadata.name: one for one in read}
        unit = self._cluster_unit(read)
        self._pods = self._read(pods, unit or MemoryUnit.GIB)
        on_node: dict[str, list[PodUse]] = {}
        waiting: list[PodUse] = []
        for *_, use in self._pods.values():
            node = self._nodes.get(use.node)
            if node is not None and node.use is not None:
                on_node.setdefault(use.node, []).append(use)
            elif everywhere:
                waiting.append(use)
        for one in read:
            gone = [_gone(one.object.metadata.name, uid, one.held[uid]) for uid in one.held if uid not in self._pods]
            if one.use is not None and gone:
                on_node.setdefault(one.object.metadata.name, []).extend(gone)
        return ClusterUse(
            tuple(_used(one.use, on_node.get(one.use.node.name, ())) for one in read if one.use is not None),
            tuple(sorted(waiting, key=_place)),
            tuple(one.problem for one in read if one.problem),
            unit,
        )

    def _cluster_unit(self, read: Iterable[_ReadNode]) -> MemoryUnit | None:
        return self._unit or next((one.unit for one in read if one.unit), None)

    def _node(self, node: PartialNode) -> _ReadNode:
        known = self._nodes.get(node.metadata.name)
        return known if known is not None and known.object is node else _read_node(node, self._unit)

    def _read(self, pods: Iterable[PartialPod], unit: MemoryUnit) -> dict[str, _ReadPod]:
        """The pods that ask for GPUs and have not ended, and those that hold cards, by uid."""
        found: dict[str, _ReadPod] = {}
        for pod in pods:
            node = self._nodes.get(pod.spec.node_name)
            given = None if node is None else node.held.get(pod.metadata.uid)
            if given is None and (not _asks(pod) or pod.status.phase in kubernetes.FINISHED_PHASES):
                continue
            gpus = node.use.node if node is not None and node.use is not None else None
            own = self._unit or (node.unit if node is not None else None) or unit
            known = self._pods.get(pod.metadata.uid)
            if known is None or known[0] is not pod or known[1] is not gpus or known[2] is not own or known[3] != given:
                known = (pod, gpus, own, given, _read_pod(pod, gpus, given, own))
            found[pod.metadata.uid] = known
        return found


def _gone(node: str, uid: str, cards: tuple[CardShare, ...]) -> PodUse:
    """A pod that the API server no longer has, and whose containers hold cards, as the node's agent says."""
    held = {card.uuid: card.share for card in cards}
    return PodUse(GONE, printable(uid), node, "", None, held, 0, "", ending=True)


def _asks(pod: PartialPod) -> bool:
    """Whether a container names a resource of ours."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        amounts = container.resources
        if not (_RESOURCES.isdisjoint(amounts.limits) and _RESOURCES.isdisjoint(amounts.requests)):
            return True
    return False


def _read_node(node: PartialNode, unit: MemoryUnit | None) -> _ReadNode:
    meta, status = node.metadata, node.status
    units = offered(status.allocatable, gpushare.RESOURCE_MEMORY)
    inventory = shoal.ANNOTATION_GPUS in meta.annotations
    own = unit or (None if inventory else unit_of_capacity(status.allocatable))
    try:
        gpus = node_gpus(_manifest(node, inventory=inventory), unit=own or MemoryUnit.GIB)
    except CodecError as error:
        return _ReadNode(node, None, None, printable(f"node {meta.name}: {error}"))
    if inventory and own is None:
        own = unit_of_inventory(units or offered(status.capacity, gpushare.RESOURCE_MEMORY), gpus.gpus)
    if not gpus.gpus:
        return _ReadNode(node, None, None)
    if not all(gpu.model.isprintable() and gpu.fault.isprintable() for gpu in gpus.gpus):
        gpus = replace(gpus, gpus=tuple(_printable(gpu) for gpu in gpus.gpus))
    address = next((one.address for one in status.addresses if one.type == "InternalIP"), UNKNOWN_ADDRESS)
    ready = _condition(status.conditions, "Ready")
    use = NodeUse(
        gpus,
        printable(address),
        offered_mib=None if inventory or not own else own.to_mib(units),
        cordoned=node.spec.unschedulable,
        ready=ready is None or ready.status == "True",
        shares=inventory or units > 0,
    )
    try:
        written = held_written(meta.annotations, status.capacity)
        held = {} if written is None else shoal.decode_held(written).pods
    except CodecError as error:
        return _ReadNode(node, use, own, printable(f"node {meta.name}: {error}"))
    return _ReadNode(node, use, own, held=held)


def _printable(gpu: Gpu) -> Gpu:
    return replace(gpu, model=printable(gpu.model), fault=printable(gpu.fault))


def _manifest(node: PartialNode, *, inventory: bool) -> dict[str, object]:
    """The node for `shoal.model`. Without an inventory, what it offers of memory stands for what it has."""
    manifest = manifest_of(node)
    if not inventory:
        allocatable = node.status.allocatable
        told = {resource: allocatable.get(resource, 0) for resource in _COUNTED}
        manifest["status"] = {**manifest.get("status", {}), "capacity": {**node.status.capacity, **told}}
    return manifest


def _read_pod(pod: PartialPod, node: NodeGpus | None, given: tuple[CardShare, ...] | None, unit: MemoryUnit) -> PodUse:
    """What a pod has: the cards that its node's agent says it was `given`, else those of its annotation."""
    manifest = pod_parts(pod)
    allocation, why = _placed(manifest, node, unit)
    held = allocation.held() if allocation is not None else {}
    if given is not None and held != (by_node := {card.uuid: card.share for card in given}):
        allocation, held, why = None, by_node, ""
    asked = 0
    if not held:
        asked, broken = _asked(manifest, unit)
        why = why or broken or _why(pod, node)
    meta = pod.metadata
    return PodUse(
        meta.namespace,
        meta.name,
        pod.spec.node_name,
        pod.status.phase,
        allocation,
        held,
        asked,
        why,
        ending=meta.deletion_timestamp is not None,
    )


def _placed(manifest: PodParts, node: NodeGpus | None, unit: MemoryUnit) -> tuple[Allocation | None, str]:
    """The decision on a pod, or why the one it carries does not count."""
    if node is None:
        return None, ""
    try:
        allocation = allocation_of(manifest, node=node, unit=unit)
    except CodecError as error:
        return None, printable(str(error))
    return allocation, ""


def _asked(manifest: PodParts, unit: MemoryUnit) -> tuple[int, str]:
    """The most memory a pod asks for at one time, and why that cannot be read."""
    try:
        request = gpus_of(manifest, unit=unit)
    except ModelError as error:
        return 0, printable(str(error))
    running = phases(tuple((container.kind, container) for container in request.containers))
    return max(
        sum(one.gpus * (one.share.memory_mib or one.memory_limit_mib or 0) for one in some) for some in running
    ), ""


def _why(pod: PartialPod, node: NodeGpus | None) -> str:
    if pod.spec.node_name and node is not None:
        return f"it is bound to node {node.name} without a card: no GPU scheduler placed it"
    if pod.spec.node_name:
        return printable(f"it is bound to node {pod.spec.node_name}, which has no cards")
    scheduled = _condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return printable(scheduled.message or scheduled.reason or "not scheduled")
    return "no scheduler has looked at it yet"


def _condition(conditions: Iterable[PartialCondition], kind: str) -> PartialCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def _used(node: NodeUse, pods: Iterable[PodUse]) -> NodeUse:
    """The node with its pods, in the order of their names."""
    held: dict[str, Share] = {}
    some = sorted(pods, key=_place)
    for pod in some:
        for uuid, share in pod.held.items():
            held[uuid] = held.get(uuid, NO_SHARE) + share
    pending = tuple([pod for pod in some if not pod.held])
    return replace(
        node,
        pods=tuple([pod for pod in some if pod.held]),
        pending=pending,
        held=held,
        pending_mib=sum([pod.asked_mib for pod in pending]),
    )


def _place(pod: PodUse) -> tuple[str, str]:
    return pod.namespace, pod.name
