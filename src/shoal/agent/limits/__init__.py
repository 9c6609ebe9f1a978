"""What limits a container to its share of a GPU, as further edits of its CDI spec.

`tiers` says which limits a node can set, `node_limits` sets them. A limit on the container's own cgroup comes as a
`createRuntime` hook among the edits, since that cgroup does not exist yet when these are made: `cgroup` has the hook
and the socket it asks. `mps` looks after the MPS daemon. `NO_LIMITS` sets none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from shoal.kubelet.cdi import ContainerEdits, Hook
from shoal.model.allocation import ContainerAllocation
from shoal.model.gpu import Gpu, LimitedBy


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """A container that is about to be created, with the cards it gets in the order it sees them."""

    namespace: str
    pod: str
    pod_uid: str
    container: ContainerAllocation
    cards: Sequence[Gpu]
    #: Its pod has a priority below zero: others go first.
    yields: bool = False
    #: What NVIDIA's own CDI spec runs for these cards.
    hooks: Sequence[Hook] = ()
    #: The UUIDs of other GPUs that it may see: those of the whole claim, if it has its GPUs by a request of one.
    beside: frozenset[str] = frozenset()

    @property
    def gpus(self) -> frozenset[str]:
        """The UUIDs of all GPUs that it may see."""
        return self.beside | {card.uuid for card in self.cards}


class ShareLimits(Protocol):
    """Keeps containers to their shares."""

    def isolation(self, uuid: str) -> LimitedBy:
        """What limits containers to their shares of a GPU."""

    def faults(self) -> Mapping[str, str]:
        """By UUID, the cards of which no share can be given now, and why."""

    def edits(self, start: ContainerStart) -> ContainerEdits:
        """The edits that limit the container. RefusedError keeps it from starting."""

    async def prepare(self, start: ContainerStart) -> None:
        """Make everything ready that the edits refer to. RefusedError keeps the container from starting."""

    async def keep_only(self, starts: Iterable[ContainerStart]) -> None:
        """Remove what was made ready for any other container."""


class _NoLimits:
    def isolation(self, uuid: str) -> LimitedBy:
        """None."""
        return LimitedBy()

    def faults(self) -> Mapping[str, str]:
        """None."""
        return {}

    def edits(self, start: ContainerStart) -> ContainerEdits:
        """Nothing."""
        return ContainerEdits()

    async def prepare(self, start: ContainerStart) -> None:
        """There is nothing to do."""

    async def keep_only(self, starts: Iterable[ContainerStart]) -> None:
        """There is nothing to do."""


NO_LIMITS: Final = _NoLimits()
