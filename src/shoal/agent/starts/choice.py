"""Cards for a pod that came without an allocation: the fullest ones that have room. Pure.

Schedulers that know Shoal decide better than this; it is for pods that somebody else bound to the node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shoal.agent.errors import NoCardError
from shoal.agent.nvidia.replicas import Slicing
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.errors import shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import NO_SHARE, ContainerRequest, Request, Share, accepts, fits, mixes


def choose(
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
    """Replicas one by one, each on the card with the smallest part of its memory in use, or with the largest."""
    chosen: dict[str, int] = {}

    def with_one_more(gpu: Gpu) -> ContainerAllocation:
        return _sliced(container, slicing, usable, {**chosen, gpu.uuid: chosen.get(gpu.uuid, 0) + 1})

    def part_in_use(gpu: Gpu) -> float:
        used = taken.get(gpu.uuid, NO_SHARE).memory_mib + slicing.cut.share(gpu, chosen.get(gpu.uuid, 0)).memory_mib
        return (-used if slicing.packed else used) / gpu.memory_mib

    # Of memory that does not divide no card gives a replica more.
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
    """Whether the card has room for the container beside others' and the pod's own containers."""
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
    amounts = ((share.memory_mib, "MiB free"), (share.compute, "% compute free"), (share.clients, "MPS clients free"))
    return ", ".join(f"{amount} {unit}" for amount, unit in amounts if amount)
