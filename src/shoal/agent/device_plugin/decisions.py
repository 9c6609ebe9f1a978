"""Allocations that the agent decides on itself, and their record on the pod.

Pods that somebody else bound to the node come without an allocation: they get the fullest cards that have room.
Schedulers that know Shoal decide better than this.

A container that got its cards from another device plugin, before the agent replaced it, keeps them: kubelet stores that
plugin's answer and uses it each time the container starts again. The cards in that answer count more than annotations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.edits import given_cards
from shoal.agent.errors import AgentError, NoCardError, RefusedError
from shoal.agent.node.checkpoint import DeviceRecord, KubeletCheckpoint
from shoal.agent.node.holdings import PodHolding
from shoal.agent.node.pods import NodePod, NodePods
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.replicas import Slicing
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.resources import PODS
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bound import recorded
from shoal.model.contract import nvidia
from shoal.model.contract.decisions import encode_decision
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, ModelError, shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import pod_parts
from shoal.model.request import NO_SHARE, ContainerRequest, Request, Share, accepts, fits, mixes, share_amounts

log = logging.getLogger(__name__)


class Decisions:
    """Chooses cards for pods without an allocation, if configured so (`chooses`), and writes allocations on pods."""

    def __init__(
        self,
        client: Client,
        pods: NodePods,
        checkpoint: KubeletCheckpoint,
        *,
        unit: MemoryUnit,
        chooses: bool,
        now_ns: Callable[[], int],
    ) -> None:
        self.chooses = chooses
        self._client = client
        self._pods = pods
        self._checkpoint = checkpoint
        self._unit = unit
        self._now_ns = now_ns
        self._choosing = asyncio.Lock()

    async def inherit(self) -> None:
        """Write allocations on pods that got cards from another plugin and have none, so that schedulers count them.

        AgentError if kubelet's record cannot be read.
        """
        self._checkpoint.records()
        for known in list(self._pods):
            holding = known.holding
            if known.given or holding.allocation is not None or holding.problem:
                continue
            try:
                await self._inherited(known)
            except AgentError as error:
                log.warning("pod %s: %s", "/".join(known.key), error)

    async def _inherited(self, known: NodePod) -> bool:
        """Whether the pod has its cards from another plugin; if so its allocation is written."""
        given = allocation_by(self._checkpoint.of(known.uid), known.holding, self._pods.node)
        if given is not None:
            await self.write_down(known, given)
            self._pods.give(self._pods.get(known.uid) or known)
            log.info("pod %s has its cards from another plugin: written down", "/".join(known.key))
        return given is not None

    async def decided(self, known: NodePod) -> NodePod:
        """The pod with its allocation; if it has none, cards are chosen and written on it."""
        holding = known.holding
        if holding.allocation is not None or holding.problem:
            return known
        if not holding.request.containers:
            raise RefusedError("the pod asks for no cards that the agent counts: delete it")
        if await self._inherited(known):
            return self._pods.get(known.uid) or known
        if not self.chooses:
            raise RefusedError(
                "nobody has chosen cards for this pod: let Shoal's scheduler place it, or run the agent with "
                "withoutAllocation: choose"
            )
        async with self._choosing:
            known = self._pods.get(known.uid) or known
            if known.holding.allocation is None:
                taken = self._pods.used(but=known.uid)
                holding = known.holding
                chosen = choose_cards(
                    holding.request,
                    node=self._pods.node,
                    taken=taken,
                    slicing=self._pods.slicing,
                    sliced=holding.sliced,
                )
                await self.write_down(known, chosen)
                log.info("pod %s came without an allocation: cards were chosen here", "/".join(known.key))
        return self._pods.get(known.uid) or known

    async def write_down(self, known: NodePod, allocation: Allocation) -> None:
        """Write an allocation on a pod. It counts at once, before the API server has answered."""
        annotations = self.annotations(allocation, known.holding)
        self._pods.assume(known.uid, allocation)
        meta = known.pod.metadata
        # The uid makes the server refuse when another pod has taken the name.
        patch = {"metadata": {"uid": meta.uid, "annotations": annotations}}
        try:
            self._pods.written(await self._client.patch(PODS, meta.name, patch, namespace=meta.namespace))
        except KubeError as error:
            self._pods.assume(known.uid, None)
            raise RefusedError(f"the choice of cards could not be written down: {error}") from error

    def is_written(self, known: NodePod, allocation: Allocation) -> bool:
        """Whether the pod's annotations, of any family, tell this allocation."""
        try:
            asked = replace(Request(), containers=tuple(map(_asked, allocation.containers)))
            present = recorded(pod_parts(known.pod), request=asked, node=self._pods.node, unit=self._unit)
        except ModelError:
            return False
        return present is not None and present.containers == allocation.containers

    def annotations(self, allocation: Allocation, holding: PodHolding) -> dict[str, str]:
        """The annotations of the decision."""
        return encode_decision(
            allocation,
            app_names=holding.app_names,
            node=self._pods.node,
            unit=self._unit,
            now_ns=self._now_ns(),
            replicas=holding.sliced,
        )


def _asked(entry: ContainerAllocation) -> ContainerRequest:
    """The request that an allocation of one container answers."""
    share = next((card.share for card in entry.cards), NO_SHARE)
    return ContainerRequest(entry.name, len(entry.cards), share, entry.kind, entry.memory_limit_mib)


def choose_cards(
    request: Request,
    *,
    node: NodeGpus,
    taken: Mapping[str, Share],
    slicing: Slicing | None = None,
    sliced: Collection[str] = (),
) -> Allocation:
    """An allocation for the pod; NoCardError says why there is none. `taken` is what others hold, by UUID.

    The containers in `sliced` ask for replicas.
    """
    usable = [gpu for gpu in node.gpus if gpu.healthy and not gpu.mig and accepts(request.selector, gpu)]
    placed: list[ContainerAllocation] = []
    for container in request.containers:
        if slicing is not None and container.name in sliced:
            placed.append(_replicas(container, slicing, usable, placed, taken))
            continue
        options = [gpu for gpu in usable if _fits(gpu, _entry(container, [gpu]), placed, taken)]
        if len(options) < container.gpus:
            raise NoCardError(
                f"container {shown(container.name)} asks for {container.gpus} cards with {_words(container.share)}, "
                f"{len(options)} of {len(node.gpus)} cards on {node.name} have room: free some, or delete the pod so "
                "that it is placed elsewhere"
            )
        options.sort(key=lambda gpu: (gpu.memory_mib - taken.get(gpu.uuid, NO_SHARE).memory_mib, gpu.index))
        placed.append(_entry(container, options[: container.gpus]))
    return Allocation(node.name, tuple(placed), slicing.cut.label if slicing is not None and sliced else "")


def _replicas(
    container: ContainerRequest,
    slicing: Slicing,
    usable: Sequence[Gpu],
    placed: Sequence[ContainerAllocation],
    taken: Mapping[str, Share],
) -> ContainerAllocation:
    """Replicas one by one, each on the card with the least part of its memory in use; with the most if packed."""
    chosen: dict[str, int] = {}

    def with_one_more(gpu: Gpu) -> ContainerAllocation:
        return _sliced(container, slicing, usable, {**chosen, gpu.uuid: chosen.get(gpu.uuid, 0) + 1})

    def part_in_use(gpu: Gpu) -> float:
        used = taken.get(gpu.uuid, NO_SHARE).memory_mib + slicing.cut.share(gpu, chosen.get(gpu.uuid, 0)).memory_mib
        return (-used if slicing.packed else used) / gpu.memory_mib

    # Memory that does not divide among the replicas is not used.
    cut = [replace(gpu, memory_mib=room) for gpu in usable if (room := slicing.cut.room(gpu))]
    for number in range(container.gpus):
        options = [gpu for gpu in cut if _fits(gpu, with_one_more(gpu), placed, taken)]
        if not options:
            raise NoCardError(
                f"container {shown(container.name)} asks for {container.gpus} of {slicing.resource}, and {number} "
                "are free on cards that it may use: free some, or delete the pod so that it is placed elsewhere"
            )
        best = min(options, key=lambda gpu: (part_in_use(gpu), gpu.index))
        chosen[best.uuid] = chosen.get(best.uuid, 0) + 1
    return _sliced(container, slicing, usable, chosen)


def _sliced(
    container: ContainerRequest, slicing: Slicing, usable: Sequence[Gpu], counts: Mapping[str, int]
) -> ContainerAllocation:
    gpus = [gpu for gpu in usable if gpu.uuid in counts]
    cards = tuple(CardShare(gpu.uuid, gpu.index, slicing.cut.share(gpu, counts[gpu.uuid])) for gpu in gpus)
    limit = None if slicing.cut.limited else max(gpu.memory_mib for gpu in gpus)
    return ContainerAllocation(container.name, cards, container.kind, limit)


def _fits(
    gpu: Gpu, entry: ContainerAllocation, placed: Sequence[ContainerAllocation], taken: Mapping[str, Share]
) -> bool:
    """Whether the card has room for the container, beside other pods and the pod's other containers."""
    whole = Allocation("", (*placed, entry)).held()
    own = Allocation("", tuple(placed)).held().get(gpu.uuid, NO_SHARE) if placed else NO_SHARE
    if own != NO_SHARE and (
        own.exclusive or any(card.share.exclusive or mixes(own, card.share) for card in entry.cards)
    ):
        return False
    return fits(gpu, taken.get(gpu.uuid, NO_SHARE), whole[gpu.uuid])


def _entry(container: ContainerRequest, gpus: Sequence[Gpu]) -> ContainerAllocation:
    cards = tuple(CardShare(gpu.uuid, gpu.index, container.share) for gpu in gpus)
    return ContainerAllocation(container.name, cards, container.kind, container.memory_limit_mib)


def _words(share: Share) -> str:
    if share.exclusive:
        return "nobody else on them"
    return ", ".join(f"{amount} free" for amount in share_amounts(share))


def is_inherited(record: DeviceRecord) -> bool:
    """Whether another plugin gave a container its devices. The IDs of MIG partitions are the same for all plugins."""
    own = all(devices.is_own(record.resource, one) for one in record.ids)
    return not own and not partitions.named_by(record.ids)


def _is_replica(device: str) -> bool:
    try:
        return nvidia.parse_replica_id(device)[1] is not None
    except CodecError:
        return False


def allocation_by(records: Iterable[DeviceRecord], holding: PodHolding, node: NodeGpus) -> Allocation | None:
    """The allocation that another plugin's answers gave a pod; None unless they name cards for all its containers.

    None for replicas too: it is not known how that plugin cut its cards.
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
