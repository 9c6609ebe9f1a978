"""Replicas of cards under NVIDIA's names, by time slicing or MPS: what one is in the books. Pure.

Of a card that is cut into N replicas each one is booked as an N-th of its memory, and by MPS of its compute too. So
they live on one card with shares of every other kind, and none of them is given more than the card has. The cut stands
as the policy in a pod's allocation: what a pod has stays readable when the configuration is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from shoal.agent.nvidia.config import NvidiaConfig
from shoal.model.contract import nvidia
from shoal.model.gpu import Gpu
from shoal.model.request import FULL_COMPUTE, NO_SHARE, Share

#: The resources that can be replicas of cards.
RESOURCES: Final = (nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED)
_LABEL: Final = re.compile(r"(time-slicing|mps)-([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Cut:
    """Into how many replicas a card is cut, and by what."""

    strategy: str
    replicas: int

    @property
    def label(self) -> str:
        """The cut as the policy of an allocation."""
        return f"{self.strategy}-{self.replicas}"

    @property
    def limited(self) -> bool:
        """Whether a container is to be kept to its replicas. A time slice may use all memory that is there."""
        return self.strategy == nvidia.SHARING_STRATEGIES[2]

    def share(self, gpu: Gpu, count: int = 1) -> Share:
        """What so many replicas of a card are. Nothing if the card cannot be cut so fine."""
        memory = gpu.memory_mib // self.replicas
        compute = FULL_COMPUTE // self.replicas if self.limited and memory else 0
        return Share(memory * count, compute * count)

    def room(self, gpu: Gpu) -> int:
        """The memory of all replicas of a card: what does not divide is nobody's."""
        return self.share(gpu, self.replicas).memory_mib

    def count(self, gpu: Gpu, share: Share) -> int | None:
        """How many replicas of the card a share is; None if it is no number of them."""
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
    """Replicas as they are given out now: under which resource, and whether the fullest card comes first."""

    resource: str
    cut: Cut
    packed: bool = False


def slicing_of(config: NvidiaConfig | None) -> Slicing | None:
    """How whole cards are cut; None if they are not. The partitions of a card are cut elsewhere."""
    shared = None if config is None else config.shared(nvidia.RESOURCE_GPU)
    if config is None or shared is None:
        return None
    return Slicing(shared.served_as, Cut(shared.strategy, shared.replicas), config.packed)
