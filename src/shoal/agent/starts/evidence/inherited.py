"""Containers that have their cards from another plugin, whose place the agent has taken. Pure.

kubelet keeps the answer of that plugin and goes by it each time the container starts again. So the cards in the answer
are what the container has, whatever else is written anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.agent.node.holdings import Holding
from shoal.agent.nvidia import partitions
from shoal.agent.plugins import devices
from shoal.agent.starts.evidence.checkpoint import Record
from shoal.agent.starts.matching import given_cards
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import nvidia
from shoal.model.errors import CodecError
from shoal.model.gpu import NodeGpus


def is_inherited(record: Record) -> bool:
    """Whether another plugin gave a container its devices. Partitions name themselves, whoever gave them."""
    own = all(devices.is_own(record.resource, one) for one in record.ids)
    return not own and not partitions.named_by(record.ids)


def _is_replica(device: str) -> bool:
    try:
        return nvidia.parse_replica_id(device)[1] is not None
    except CodecError:
        return False


def allocation_by(records: Iterable[Record], holding: Holding, node: NodeGpus) -> Allocation | None:
    """What the answers of another plugin have given a pod; None unless they tell it of all its containers.

    Replicas are left out: how that plugin had cut its cards is not known.
    """
    found = {(record.container, record.resource): record for record in records}
    indices = {gpu.uuid: gpu.index for gpu in node.gpus}
    entries = []
    for container in holding.request.containers:
        record = found.get((container.name, holding.resources.get(container.name, "")))
        if record is None or not is_inherited(record) or any(map(_is_replica, record.ids)):
            return None
        cards = given_cards(record.response(), node)
        if len(cards) != container.gpus or not indices.keys() >= set(cards):
            return None
        shares = tuple(CardShare(uuid, indices[uuid], container.share) for uuid in cards)
        entries.append(ContainerAllocation(container.name, shares, container.kind, container.memory_limit_mib))
    return Allocation(node.name, tuple(entries)) if entries else None
