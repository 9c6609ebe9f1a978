"""MIG partitions as devices: under which resource each is served, and their IDs. Pure.

A partition's device ID is its UUID, with a number behind it when it is time-sliced: kubelet's pick is the choice, and
the container gets what the ID names. Placement knows nothing of them; a card in MIG mode takes no share of any other
kind, so nothing has to be booked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.agent.errors import RefusedError
from shoal.agent.nvidia.config import NvidiaConfig
from shoal.agent.plugins.devices import Listing
from shoal.model.contract import nvidia
from shoal.model.errors import CodecError, shown
from shoal.model.gpu import Gpu, MigInstance, NodeGpus

_NONE, _SINGLE, _MIXED = nvidia.MIG_STRATEGIES


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with its card, and its place among the partitions of that."""

    gpu: Gpu
    place: int
    instance: MigInstance


def all_of(gpus: Iterable[Gpu]) -> Iterator[Partition]:
    """Every partition of these cards."""
    for gpu in gpus:
        if gpu.mig:
            for place, instance in enumerate(gpu.mig_instances):
                yield Partition(gpu, place, instance)


def served(gpus: Sequence[Gpu], config: NvidiaConfig) -> tuple[dict[str, list[Partition]], str]:
    """The partitions by the resource that counts them, and what keeps some from being served, in words."""
    found: dict[str, list[Partition]] = {}
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
    resource: str, partitions: Sequence[Partition], config: NvidiaConfig | None, in_use: frozenset[str]
) -> Listing:
    """The devices of a resource. Those in use are always among them, and never withdrawn."""
    shared = None if config is None else config.served(resource)
    healthy: set[str] = set(in_use)
    withdrawn: set[str] = set()
    for one in partitions:
        uuid = one.instance.uuid
        ids = [uuid] if shared is None else [nvidia.replica_id(uuid, number) for number in range(shared.replicas)]
        (healthy if one.gpu.healthy else withdrawn).update(ids)
    return Listing(tuple(sorted(healthy)), tuple(sorted(withdrawn - healthy)))


def named_by(ids: Iterable[str]) -> bool:
    """Whether devices with these IDs are partitions."""
    return all(one.startswith(nvidia.MIG_UUID_PREFIX) for one in ids)


def chosen(ids: Iterable[str], node: NodeGpus) -> list[Partition]:
    """The partitions that device IDs name, each once. RefusedError if one is not there or not healthy."""
    known: Mapping[str, Partition] = {one.instance.uuid: one for one in all_of(node.gpus)}
    found: dict[str, Partition] = {}
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
