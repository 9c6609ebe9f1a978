"""A decision: which cards each container of a pod got, and how much of each.

The allocation is the record of a decision; it travels in the pod's annotations (`shoal.model.contract`). What
containers were given on a node is told by its agent: `Held`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.model.request import NO_SHARE, ContainerKind, Share, phases


@dataclass(frozen=True, slots=True)
class CardShare:
    """A share of one card."""

    uuid: str
    index: int
    share: Share


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The cards of one container, in the order it sees them."""

    name: str
    cards: tuple[CardShare, ...]
    kind: ContainerKind = ContainerKind.APP
    memory_limit_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The cards of a pod on one node. Containers stand in the order of the pod's spec, init containers first."""

    node: str
    containers: tuple[ContainerAllocation, ...]
    #: The policy that chose the cards.
    policy: str = ""

    def held(self) -> dict[str, Share]:
        """What the pod holds of each card, by UUID: the peak over its phases, not the sum of its containers."""
        if len(self.containers) == 1:
            return {card.uuid: card.share for card in self.containers[0].cards}
        peak: dict[str, Share] = {}
        for running in phases(tuple((c.kind, c) for c in self.containers)):
            at_once: dict[str, Share] = {}
            for container in running:
                for card in container.cards:
                    at_once[card.uuid] = at_once.get(card.uuid, NO_SHARE) + card.share
            for uuid, share in at_once.items():
                peak[uuid] = peak.get(uuid, NO_SHARE) | share
        return peak


@dataclass(frozen=True, slots=True)
class Held:
    """What containers on a node were given, by the UID of their pod, as the node's agent publishes it.

    A pod that is over and got no card is listed with none while kubelet has not released its devices. `as_of` is the
    resource version of pods up to which the agent knows what became of them: a pod that ended before it and is not
    listed holds nothing on the node.

    Claims (dynamic resource allocation) are told by their own UID, from before their first container starts until
    the node has taken their devices back: longer than the claim itself is there, if its pod was deleted by force.
    """

    pods: Mapping[str, tuple[CardShare, ...]] = field(default_factory=dict)
    as_of: int = 0
    claims: Mapping[str, tuple[CardShare, ...]] = field(default_factory=dict)

    def releases(self, pod: str, version: int) -> bool:
        """Whether a pod that ended at a resource version has left its cards."""
        return pod not in self.pods and self.as_of >= version
