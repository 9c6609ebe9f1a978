"""What a container gets for MIG partitions: kubelet picked them by their UUIDs, so there is nothing to choose."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.agent.errors import RefusedError
from shoal.agent.node.pods import Known, NodePods
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.partitions import Partition
from shoal.agent.starts import matching
from shoal.agent.starts.edits import Scene, partition_edits
from shoal.agent.starts.evidence.checkpoint import Record
from shoal.agent.starts.specs import Specs
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import shown


class PartitionStarts:
    """Answers for the partitions of one node."""

    def __init__(self, pods: NodePods, specs: Specs, *, unit: MemoryUnit, by_mounts: bool) -> None:
        self._pods = pods
        self._specs = specs
        self._unit = unit
        self._by_mounts = by_mounts

    def answer(self, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        """The answer to Allocate for a runtime without CDI."""
        chosen = partitions.chosen(ids, self._pods.node)
        return matching.answer_with(_uuids(chosen), self._edits(chosen), by_mounts=self._by_mounts)

    def verify(self, known: Known, record: Record) -> None:
        """Refuse a container that would get anything but what its IDs name."""
        self.edits(known, record)
        uuids = _uuids(partitions.chosen(record.ids, self._pods.node))
        if sorted(matching.given_cards(record.response(), self._pods.node)) != sorted(uuids):
            raise RefusedError(f"container {shown(record.container)} got cards of another plugin: delete the pod")

    def edits(self, known: Known, record: Record) -> ContainerEdits:
        """All that the container gets."""
        other = known.holding.resources.get(record.container)
        if other not in (None, record.resource):
            raise RefusedError(
                f"container {shown(record.container)} asks for {record.resource} and {other}: keep one kind of GPU per "
                "container"
            )
        return self._edits(partitions.chosen(record.ids, self._pods.node))

    def _edits(self, chosen: Sequence[Partition]) -> ContainerEdits:
        gpus = [one.gpu for one in chosen]
        nodes = self._specs.device_nodes(gpus)
        scene = Scene(node=self._pods.node, unit=self._unit, device_nodes=nodes, vendor=self._specs.vendor())
        return partition_edits(chosen, scene)


def _uuids(chosen: Sequence[Partition]) -> list[str]:
    return [one.instance.uuid for one in chosen]
