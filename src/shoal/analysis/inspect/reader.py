"""From nodes and pods to what is allocated: reads each object once, and again only after it has changed.

Nodes without Shoal's inventory are read from what they offer (Allocatable), as gpushare's own command reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.analysis.inspect.claims import HeldClaim, add, by_pods
from shoal.analysis.inspect.objects import (
    PartialClaim,
    PartialCondition,
    PartialNode,
    PartialPod,
    PartialPodSpec,
    PartialPodStatus,
)
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
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.resources import manifest_of
from shoal.model.allocation import Allocation, CardShare
from shoal.model.bound import allocation_of
from shoal.model.contract import clusters, gpushare, keti, kubernetes, mechanisms, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, ModelError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import PodParts, pod_parts
from shoal.model.node import held_written, node_gpus
from shoal.model.pod import gpus_of
from shoal.model.request import Share, phases

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
    #: And claims of devices, by theirs.
    claims: Mapping[str, tuple[CardShare, ...]] = field(default_factory=dict)

    @property
    def by_claims(self) -> frozenset[str]:
        """The resource names that the node serves through claims."""
        return mechanisms.by_claims(self.object.metadata.annotations)


#: A pod and what it was read with; it is read again when one of these has changed.
_ReadPod = tuple[PartialPod, NodeGpus | None, MemoryUnit, tuple[CardShare, ...] | None, PodUse]


class UseReader:
    """Works out the use of nodes. `unit` is what `aliyun.com/gpu-mem` counts; None takes it from each node."""

    def __init__(self, unit: MemoryUnit | None = None) -> None:
        self._unit = unit
        self._nodes: dict[str, _ReadNode] = {}
        self._pods: dict[str, _ReadPod] = {}
        #: By node, what it was worked out from and what came of it: a node on which nothing has changed stays the same.
        self._uses: dict[str, tuple[NodeUse, list[PodUse], dict[str, Share], NodeUse]] = {}

    def look_at(self, nodes: Iterable[PartialNode], pods: Iterable[PartialPod]) -> None:
        """Read some objects before `of` is asked for all: pods after their nodes."""
        for node in nodes:
            self._nodes[node.metadata.name] = self._node(node)
        unit = self._cluster_unit(self._nodes.values())
        self._pods.update(self._read(pods, unit or MemoryUnit.GIB, {}))

    def holds_claims(self, nodes: Iterable[PartialNode]) -> bool:
        """Whether one of these nodes says that it holds claims: only then does `of` need to know claims."""
        self.look_at(nodes, ())
        return any(one.claims for one in self._nodes.values())

    def of(
        self,
        nodes: Iterable[PartialNode],
        pods: Iterable[PartialPod],
        claims: Iterable[PartialClaim] = (),
        *,
        everywhere: bool = True,
        problem: str = "",
    ) -> ClusterUse:
        """The use of these nodes by these pods and claims. `everywhere` says that they are all nodes of the cluster,
        `problem` what else could not be read.
        """
        read = sorted((self._node(node) for node in nodes), key=lambda one: natural(one.object.metadata.name))
        self._nodes = {one.object.metadata.name: one for one in read}
        unit = self._cluster_unit(read)
        held = _held_claims(read, claims)
        users = {uid: claim.place for some in held.values() for claim in some for uid in claim.users()}
        self._pods = self._read(pods, unit or MemoryUnit.GIB, users)
        on_node: dict[str, dict[str, PodUse]] = {}
        waiting: list[PodUse] = []
        elsewhere: list[PodUse] = []
        for uid, (*_, use) in self._pods.items():
            node = self._nodes.get(use.node)
            if node is not None and node.use is not None:
                on_node.setdefault(use.node, {})[uid] = use
            elif everywhere:
                (elsewhere if use.cluster else waiting).append(use)
        for name, one in self._nodes.items():
            gone = {uid: _gone(name, uid, one.held[uid]) for uid in one.held if uid not in self._pods}
            if one.use is not None and gone:
                on_node.setdefault(name, {}).update(gone)
        self._uses = {
            name: self._used(one.use, on_node.get(name, {}), held.get(name, []))
            for name, one in self._nodes.items()
            if one.use
        }
        problems = [one.problem for one in read if one.problem]
        return ClusterUse(
            tuple(use for *_, use in self._uses.values()),
            tuple(sorted(waiting, key=_place)),
            (*problems, problem) if problem else tuple(problems),
            unit,
            elsewhere=tuple(sorted(elsewhere, key=_place)),
        )

    def _used(
        self, node: NodeUse, pods: Mapping[str, PodUse], claims: list[HeldClaim]
    ) -> tuple[NodeUse, list[PodUse], dict[str, Share], NodeUse]:
        known = self._uses.get(node.node.name)
        shown = by_pods(claims, pods) if claims else list(pods.values())
        held: dict[str, Share] = {}
        for own in (*(pod.held for pod in pods.values()), *(claim.held for claim in claims)):
            add(held, own)
        if known is not None and known[0] is node and known[1] == shown and known[2] == held:
            return known
        return node, shown, held, _used(node, shown, held)

    def _cluster_unit(self, read: Iterable[_ReadNode]) -> MemoryUnit | None:
        return self._unit or next((one.unit for one in read if one.unit), None)

    def _node(self, node: PartialNode) -> _ReadNode:
        known = self._nodes.get(node.metadata.name)
        return known if known is not None and known.object is node else _read_node(node, self._unit)

    def _read(
        self, pods: Iterable[PartialPod], unit: MemoryUnit, users: Mapping[str, tuple[str, str]]
    ) -> dict[str, _ReadPod]:
        """The pods that ask for GPUs and have not ended, and those that hold cards, by uid.

        `users` are those that hold some by claims, and the node and namespace of these.
        """
        found: dict[str, _ReadPod] = {}
        for pod in pods:
            node = self._nodes.get(pod.spec.node_name)
            given = None if node is None else node.held.get(pod.metadata.uid)
            by_claim = bool(users) and users.get(pod.metadata.uid) == (pod.spec.node_name, pod.metadata.namespace)
            asks = by_claim or _asks(pod)
            if given is None and (not asks or pod.status.phase in kubernetes.FINISHED_PHASES):
                continue
            gpus = node.use.node if node is not None and node.use is not None else None
            own = self._unit or (node.unit if node is not None else None) or unit
            known = self._pods.get(pod.metadata.uid)
            if known is None or known[0] is not pod or known[1] is not gpus or known[2] is not own or known[3] != given:
                parts = pod_parts(pod, by_claims=node.by_claims if node is not None else ())
                known = (pod, gpus, own, given, _read_pod(pod, parts, gpus, given, own))
            found[pod.metadata.uid] = known
        return found


def _gone(node: str, uid: str, cards: tuple[CardShare, ...]) -> PodUse:
    """A pod that the API server no longer has, and whose containers hold cards, as the node's agent says."""
    held = {card.uuid: card.share for card in cards}
    return PodUse(GONE, printable(uid), node, "", None, held, 0, "", ending=True)


def _held_claims(read: Iterable[_ReadNode], claims: Iterable[PartialClaim]) -> dict[str, list[HeldClaim]]:
    """What nodes with cards say is held by claims, by node."""
    holding = [one for one in read if one.claims and one.use is not None]
    known = {claim.metadata.uid: claim for claim in claims} if holding else {}
    return {
        (name := one.object.metadata.name): [
            HeldClaim.of(name, uid, cards, known.get(uid)) for uid, cards in one.claims.items()
        ]
        for one in holding
    }


def _asks(pod: PartialPod) -> bool:
    """Whether a container names a resource of ours."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        amounts = container.resources
        if not (_RESOURCES.isdisjoint(amounts.limits) and _RESOURCES.isdisjoint(amounts.requests)):
            return True
    return False


def slim_pod(pod: PartialPod) -> PartialPod:
    """A pod that asks for no card without what is then never looked at: most pods of a cluster are such."""
    if _asks(pod):
        return pod
    meta = pod.metadata
    own = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
    )
    return PartialPod(
        metadata=own,
        spec=PartialPodSpec(node_name=pod.spec.node_name),
        status=PartialPodStatus(phase=pod.status.phase),
    )


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
        said = None if written is None else shoal.decode_held(written)
        held = {} if said is None else said.pods
        claims = {} if said is None else said.claims
    except CodecError as error:
        return _ReadNode(node, use, own, printable(f"node {meta.name}: {error}"))
    return _ReadNode(node, use, own, held=held, claims=claims)


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


def _read_pod(
    pod: PartialPod, manifest: PodParts, node: NodeGpus | None, given: tuple[CardShare, ...] | None, unit: MemoryUnit
) -> PodUse:
    """What a pod has: the cards that its node's agent says it was `given`, else those of its annotation."""
    allocation, why = _placed(manifest, node, unit)
    held = allocation.held() if allocation is not None else {}
    if given is not None and held != (by_node := {card.uuid: card.share for card in given}):
        allocation, held, why = None, by_node, ""
    asked, meta = 0, pod.metadata
    cluster = "" if pod.spec.node_name else clusters.sent_to(meta.annotations)
    if not held:
        asked, broken = _asked(manifest, unit)
        why = why or broken or (_where(pod, cluster) if cluster else _why(pod, node))
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
        created=meta.creation_timestamp or "",
        cluster=cluster,
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


def _where(pod: PartialPod, cluster: str) -> str:
    """Where a pod is that was sent to another cluster, as its manager tells."""
    told = _condition(pod.status.conditions, clusters.CONDITION_DISPATCHED)
    return printable(told.message) if told is not None and told.message else f"sent to cluster {cluster}"


def _condition(conditions: Iterable[PartialCondition], kind: str) -> PartialCondition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def _used(node: NodeUse, pods: Iterable[PodUse], held: dict[str, Share]) -> NodeUse:
    """The node with its pods, in the order of their names, and what is held of its cards."""
    some = sorted(pods, key=_place)
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
