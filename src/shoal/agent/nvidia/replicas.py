"""Replicas of cards under NVIDIA's names, by time slicing or MPS: which share of a card each one is. Pure.

A replica of a card that is cut into N is booked as an N-th of its memory, and with MPS of its compute too. So replicas
and all other shares can lie on one card, and together never exceed it. The cut is the policy of a pod's allocation, so
that the allocation can be read after the configuration has changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shoal.model.contract import nvidia
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.gpu import Gpu
from shoal.model.request import FULL_COMPUTE, NO_SHARE, Share

#: The resources that can be replicas of cards.
RESOURCES: Final = (nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED)
_LABEL: Final = re.compile(r"(time-slicing|mps)-([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Cut:
    """Into how many replicas a card is cut, and by which sharing strategy."""

    strategy: str
    replicas: int

    @property
    def label(self) -> str:
        """The cut as it stands in an allocation, as its policy."""
        return f"{self.strategy}-{self.replicas}"

    @property
    def limited(self) -> bool:
        """Whether a container is limited to its replicas: by MPS. With time slicing it may use all memory."""
        return self.strategy == nvidia.SHARING_STRATEGIES[2]

    def share(self, gpu: Gpu, count: int = 1) -> Share:
        """The share of so many replicas. An empty one if the card is too small for the cut."""
        memory = gpu.memory_mib // self.replicas
        compute = FULL_COMPUTE // self.replicas if self.limited and memory else 0
        return Share(memory * count, compute * count)

    def room(self, gpu: Gpu) -> int:
        """The memory of all replicas of a card together; a remainder is not used."""
        return self.share(gpu, self.replicas).memory_mib

    def count(self, gpu: Gpu, share: Share) -> int | None:
        """How many replicas of the card a share is; None if it is not a whole number of them."""
        one = self.share(gpu)
        if share == NO_SHARE or share.exclusive or not one.memory_mib:
            return None
        number = share.memory_mib // one.memory_mib
        return number if 0 < number <= self.replicas and self.share(gpu, number) == share else None


def read_label(policy: str) -> Cut | None:
    """The cut that an allocation's policy names; None for a policy of another kind."""
    match = _LABEL.fullmatch(policy)
    return None if match is None else Cut(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class Slicing:
    """How replicas are given out: under which resource, and whether the fullest card comes first."""

    resource: str
    cut: Cut
    packed: bool = False


def slicing_of(config: NvidiaConfig | None) -> Slicing | None:
    """How whole cards are cut; None if they are not. Shared MIG partitions are in `partitions`."""
    shared = None if config is None else config.shared(nvidia.RESOURCE_GPU)
    if config is None or shared is None:
        return None
    return Slicing(shared.served_as, Cut(shared.strategy, shared.replicas), config.packed)
