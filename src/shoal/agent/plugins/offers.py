"""What a node offers to kubelet, by resource: counted units, or MIG partitions by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.agent.config import Config
from shoal.agent.node.tally import Tally
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.config import NvidiaConfig
from shoal.agent.nvidia.partitions import Partition
from shoal.agent.nvidia.replicas import slicing_of
from shoal.agent.plugins import devices
from shoal.agent.plugins.devices import Count
from shoal.agent.plugins.plugin import Plugin
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Offers:
    """All resources that the node could serve."""

    counts: Mapping[str, Count]
    partitions: Mapping[str, Sequence[Partition]]
    #: The resource whose units are replicas of cards, if there is one.
    replicas: tuple[str, ...]
    sharing: NvidiaConfig | None
    #: What keeps partitions from being served, in words.
    problem: str = ""

    @property
    def nvidias(self) -> set[str]:
        """The resources that come with NVIDIA's configuration."""
        return {*self.partitions, *self.replicas}

    def tell(self, plugin: Plugin, in_use: frozenset[str]) -> None:
        """Have a plugin tell kubelet of its devices. Of a resource that is not offered those in use are all."""
        name = plugin.resource.name
        count = self.counts.get(name)
        if name in self.partitions or count is None:
            plugin.show(partitions.listing(name, self.partitions.get(name, ()), self.sharing, in_use))
        else:
            plugin.count(count, in_use)


def offers(config: Config, sharing: NvidiaConfig | None, gpus: Sequence[Gpu], tally: Tally) -> Offers:
    """What is offered of these cards. `sharing` is None while it is not known how NVIDIA's resources are shared."""
    slots = config.slots_per_card * sum(not gpu.mig for gpu in gpus)
    counts = {
        gpushare.RESOURCE_MEMORY: devices.memory(gpus, tally, config.memory_unit),
        keti.RESOURCE_MPS: devices.clients(gpus, tally),
        nvidia.RESOURCE_GPU: Count(0, 0) if sharing is None else devices.whole(gpus, tally),
        shoal.RESOURCE_SLOT: Count(slots, slots),
    }
    if sharing is None or nvidia.RESOURCE_GPU not in config.resources:
        return Offers(counts, {}, (), sharing)
    slicing = slicing_of(sharing)
    if slicing is not None:
        counts[slicing.resource] = devices.replicas(gpus, tally, slicing.resource, slicing.cut)
    found, problem = partitions.served(gpus, sharing)
    return Offers(counts, found, () if slicing is None else (slicing.resource,), sharing, problem)
