"""MIG partitions as devices: under which resource each is served, their IDs, and what a container gets for them.

A partition's device ID is its UUID, with a number behind it when it is time-sliced: kubelet's pick is the choice, and
the container gets what the ID names. Placement knows nothing of partitions by number; a card in MIG mode takes no share
of any other kind, so nothing has to be booked. Those that claims have are withdrawn from kubelet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.agent.device_plugin.devices import DeviceList
from shoal.agent.device_plugin.edits import NodeContext, answer_with, device_nodes, given_cards, vendor_edits_of
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.errors import RefusedError
from shoal.agent.node.checkpoint import DeviceRecord
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits
from shoal.model.contract import nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.errors import CodecError, shown
from shoal.model.gpu import Gpu, MigInstance, NodeGpus

_NONE, _SINGLE, _MIXED = nvidia.MIG_STRATEGIES


@dataclass(frozen=True, slots=True)
class MigPartition:
    """A MIG partition with its card, and its place among the partitions of the card."""

    gpu: Gpu
    place: int
    instance: MigInstance


def all_of(gpus: Iterable[Gpu]) -> Iterator[MigPartition]:
    """Every partition of these cards."""
    for gpu in gpus:
        if gpu.mig:
            for place, instance in enumerate(gpu.mig_instances):
                yield MigPartition(gpu, place, instance)


def served(gpus: Sequence[Gpu], config: NvidiaConfig) -> tuple[dict[str, list[MigPartition]], str]:
    """The partitions by the resource that counts them, and why some are not served, in words."""
    found: dict[str, list[MigPartition]] = {}
    if config.mig_strategy == _SINGLE and any(gpu.mig for gpu in gpus):
        every = list(all_of(gpus))
        alike = len({one.instance.profile for one in every}) == 1
        if not (alike and all(gpu.mig and gpu.mig_instances for gpu in gpus)):
            return {nvidia.RESOURCE_GPU: []}, (
                "migStrategy single needs every card in MIG mode and cut into the same profile: cut them alike, or "
                "write migStrategy: mixed"
            )
        found[nvidia.RESOURCE_GPU] = every
    elif config.mig_strategy == _MIXED:
        for one in all_of(gpus):
            try:
                found.setdefault(nvidia.mig_resource(one.instance.profile), []).append(one)
            except CodecError as error:
                return found, str(error)
    renamed = {name: name if (how := config.shared(name)) is None else how.served_as for name in found}
    return {renamed[name]: partitions for name, partitions in found.items()}, ""


def listing(
    resource: str,
    partitions: Sequence[MigPartition],
    config: NvidiaConfig | None,
    in_use: frozenset[str],
    claimed: Container[str] = (),
) -> DeviceList:
    """The devices of a resource. Those in use are always among them, and never withdrawn; `claimed` are the partitions
    that claims have.
    """
    shared = None if config is None else config.served(resource)
    healthy: set[str] = set(in_use)
    withdrawn: set[str] = set()
    for one in partitions:
        uuid = one.instance.uuid
        ids = [uuid] if shared is None else [nvidia.replica_id(uuid, number) for number in range(shared.replicas)]
        (healthy if one.gpu.healthy and uuid not in claimed else withdrawn).update(ids)
    return DeviceList(tuple(sorted(healthy)), tuple(sorted(withdrawn - healthy)))


def named_by(ids: Iterable[str]) -> bool:
    """Whether devices with these IDs are partitions."""
    return all(one.startswith(nvidia.MIG_UUID_PREFIX) for one in ids)


def names(ids: Iterable[str], uuid: str) -> bool:
    """Whether one of these device IDs names a partition, or a replica of it."""
    return any(named_by([one]) and nvidia.parse_replica_id(one)[0] == uuid for one in ids)


def chosen(ids: Iterable[str], node: NodeGpus) -> list[MigPartition]:
    """The partitions that device IDs name, each once. RefusedError if one is missing or unhealthy."""
    known: Mapping[str, MigPartition] = {one.instance.uuid: one for one in all_of(node.gpus)}
    found: dict[str, MigPartition] = {}
    for one in sorted(ids):
        uuid, _ = nvidia.parse_replica_id(one)
        partition = known.get(uuid)
        if partition is None:
            raise RefusedError(f"MIG partition {shown(uuid)} is not there any more: delete the pod")
        gpu = partition.gpu
        if not gpu.healthy:
            raise RefusedError(f"card {gpu.index} ({gpu.uuid}) is not healthy: {gpu.fault}")
        found[uuid] = partition
    return list(found.values())


class PartitionStarts:
    """What containers with partitions get, at Allocate and at PreStartContainer."""

    def __init__(self, pods: NodePods, specs: CdiSpecs, *, unit: MemoryUnit, by_mounts: bool) -> None:
        self._pods = pods
        self._specs = specs
        self._unit = unit
        self._by_mounts = by_mounts

    def answer(self, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        """The answer to Allocate for a runtime without CDI."""
        given = chosen(ids, self._pods.node)
        return answer_with(_uuids(given), self._edits(given), by_mounts=self._by_mounts)

    def verify(self, known: NodePod, record: DeviceRecord) -> None:
        """RefusedError for a container whose recorded answer names other partitions than its device IDs."""
        self.edits(known, record)
        uuids = _uuids(chosen(record.ids, self._pods.node))
        if sorted(given_cards(record.response(), self._pods.node)) != sorted(uuids):
            raise RefusedError(f"container {shown(record.container)} got cards of another plugin: delete the pod")

    def edits(self, known: NodePod, record: DeviceRecord) -> ContainerEdits:
        """All that the container gets."""
        other = known.holding.resources.get(record.container)
        if other not in (None, record.resource):
            raise RefusedError(
                f"container {shown(record.container)} asks for {record.resource} and {other}: keep one kind of GPU per "
                "container"
            )
        found = chosen(record.ids, self._pods.node)
        for one in found:
            if self._pods.claims.has_partition(one.instance.uuid):
                raise RefusedError(
                    f"MIG partition {one.instance.uuid} is in use by a claim: it is given when it is free"
                )
        return self._edits(found)

    def _edits(self, chosen: Sequence[MigPartition]) -> ContainerEdits:
        gpus = [one.gpu for one in chosen]
        nodes = self._specs.device_nodes(gpus)
        context = NodeContext(node=self._pods.node, unit=self._unit, device_nodes=nodes, vendor=self._specs.vendor())
        return partition_edits(chosen, context)


def _uuids(chosen: Sequence[MigPartition]) -> list[str]:
    return [one.instance.uuid for one in chosen]


def partition_edits(chosen: Sequence[MigPartition], context: NodeContext) -> ContainerEdits:
    """What a container gets for MIG partitions. Their capability devices come with NVIDIA's own spec alone."""
    cards = list({one.gpu.uuid: one.gpu for one in chosen}.values())
    uuids = [one.instance.uuid for one in chosen]
    vendor = vendor_edits_of([(one.instance.uuid, f"{one.gpu.index}:{one.place}") for one in chosen], context.vendor)
    given = {node.path for node in vendor.device_nodes}
    return vendor + ContainerEdits(
        env=(f"{nvidia.ENV_VISIBLE_DEVICES}={','.join(uuids)}",),
        device_nodes=tuple(node for node in device_nodes(cards, context) if node.path not in given),
    )
