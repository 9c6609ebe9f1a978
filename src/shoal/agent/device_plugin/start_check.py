"""Whether a container may start with the cards of its allocation now, and its edits if it may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.agent.device_plugin.edits import NodeContext, cards_of, container_edits
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.errors import RefusedError
from shoal.agent.limits import ContainerStart, ShareLimits
from shoal.agent.node.pods import NodePod, NodePods
from shoal.kubelet.cdi import ContainerEdits, Hook
from shoal.model.allocation import ContainerAllocation
from shoal.model.bound import missing_card, no_cards
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import fits


def start_of(
    known: NodePod, entry: ContainerAllocation, node: NodeGpus, *, hooks: Sequence[Hook] = ()
) -> ContainerStart:
    """A container of a pod, as `shoal.agent.limits` takes it. `hooks` are those of NVIDIA's own spec."""
    yields = (known.pod.spec.priority or 0) < 0
    return ContainerStart(*known.key, known.uid, entry, cards_of(entry, node), yields, hooks)


class StartCheck:
    """Checks containers against the pods and cards of one node."""

    def __init__(
        self, pods: NodePods, specs: CdiSpecs, *, unit: MemoryUnit, limits: ShareLimits, isolated: Callable[[], bool]
    ) -> None:
        self._pods = pods
        self._specs = specs
        self._unit = unit
        self._limits = limits
        self._isolated = isolated

    def entry(self, known: NodePod, container: str) -> ContainerAllocation:
        """The container's cards. RefusedError if there are none, or it may not have them now."""
        holding = known.holding
        if holding.problem:
            raise RefusedError(holding.problem)
        entry = holding.entry(container)
        if entry is None or container not in holding.resources:
            raise RefusedError(no_cards(container))
        if problem := missing_card(entry, self._pods.node):
            raise RefusedError(problem)  # given earlier, when the machine of this name had other cards
        for card in cards_of(entry, self._pods.node):
            if not card.healthy:
                raise RefusedError(f"card {card.index} ({card.uuid}) is not healthy: {card.fault}")
        self._check_room(known, entry)
        return entry

    def _check_room(self, known: NodePod, entry: ContainerAllocation) -> None:
        """RefusedError if a card has no room for the pod beside what other pods were given, whoever decided so."""
        own = known.holding.held()
        for card in cards_of(entry, self._pods.node):
            taken = self._pods.taken(card.uuid, but=known.uid)
            if not fits(card, taken, own[card.uuid]):
                use = "is in use as a whole" if taken.exclusive else f"has {taken.memory_mib} MiB in use"
                raise RefusedError(
                    f"card {card.index} ({card.uuid}) {use} by other pods of the node, or by claims: it is given to "
                    "this one when they are gone"
                )

    async def prepare(self, known: NodePod, entry: ContainerAllocation) -> None:
        """Make everything ready that the edits refer to."""
        await self._limits.prepare(start_of(known, entry, self._pods.node))

    def edits(self, known: NodePod, entry: ContainerAllocation) -> ContainerEdits:
        """The edits of the container: its cards and its limits."""
        node, holding = self._pods.node, known.holding
        assert holding.allocation is not None
        context = NodeContext(
            node=node,
            unit=self._unit,
            device_nodes=self._specs.device_nodes(cards_of(entry, node)),
            vendor=self._specs.vendor(),
            isolated=self._isolated(),
        )
        edits = container_edits(entry, holding.allocation, holding.resources[entry.name], context)
        return edits + self._limits.edits(start_of(known, entry, node, hooks=edits.hooks))
