"""Which container gets which of the pod's cards.

The engine finds cards for the pod as a whole (`classes.CardNeed`); here they are dealt out to its containers. Where
the containers do not fit on common cards, `spread` deals them out over several, fullest card first.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.gpu import Gpu
from shoal.model.request import NO_SHARE, CardSelector, ContainerKind, ContainerRequest, Share, accepts
from shoal.placement.cards.topology import closest
from shoal.placement.classes import PodClass
from shoal.placement.ledger import CardBooks, NodeBooks

#: Per container of the request, the slots of its cards.
Deal = tuple[tuple[int, ...], ...]


def untouched(node: NodeBooks) -> list[int]:
    """The slots of the cards that may be used and that nobody holds a share of."""
    return [slot for slot, card in enumerate(node.slots) if not card.pods and card.fault() is None]


def stacked(node: NodeBooks, pod_class: PodClass, stack: Sequence[int]) -> Deal:
    """Containers with shares all start at the first card of the stack; whole cards are chosen by topology."""
    whole = _whole_cards(node, pod_class, taken=stack)
    deal: list[tuple[int, ...]] = []
    held = 0
    for container in pod_class.request.containers:
        if not container.share.exclusive:
            deal.append(tuple(stack[: container.gpus]))
            continue
        deal.append(tuple(whole[held : held + container.gpus]))
        if container.kind is not ContainerKind.INIT:
            held += container.gpus
    return tuple(deal)


def spread(node: NodeBooks, pod_class: PodClass) -> Deal | None:
    """Containers one by one, each on cards the pod uses already if it can; None when there is no room this way."""
    containers = pod_class.request.containers
    running: dict[int, Share] = {}
    deal: dict[int, tuple[int, ...]] = {}
    shares = [i for i, container in enumerate(containers) if not container.share.exclusive]
    lasting = sorted(
        (i for i in shares if containers[i].kind is not ContainerKind.INIT),
        key=lambda i: (containers[i].share.memory_mib, containers[i].share.compute, containers[i].share.clients),
        reverse=True,
    )
    for i in lasting:
        slots = _room(node, pod_class.selector, containers[i], beside=running, prefer=running)
        if slots is None:
            return None
        deal[i] = slots
        for slot in slots:
            running[slot] = running.get(slot, NO_SHARE) + containers[i].share
    for i in shares:
        if containers[i].kind is ContainerKind.INIT:
            slots = _room(
                node, pod_class.selector, containers[i], beside=_sidecars(containers, deal, before=i), prefer=running
            )
            if slots is None:
                return None
            deal[i] = slots
            for slot in slots:
                running.setdefault(slot, NO_SHARE)
    return _with_whole(node, pod_class, deal)


def allocation(node: NodeBooks, pod_class: PodClass, deal: Deal, policy: str) -> Allocation:
    """The deal as a record."""
    containers = tuple(
        ContainerAllocation(
            container.name,
            tuple(_card(node.slots[slot], container.share) for slot in slots),
            container.kind,
            container.memory_limit_mib,
        )
        for container, slots in zip(pod_class.request.containers, deal, strict=True)
    )
    return Allocation(node.name, containers, policy)


def _card(card: CardBooks, share: Share) -> CardShare:
    gpu = _gpu(card)
    return CardShare(gpu.uuid, gpu.index, share)


def _gpu(card: CardBooks) -> Gpu:
    if card.gpu is None:
        raise LookupError("a card that is gone was dealt out")
    return card.gpu


def _whole_cards(node: NodeBooks, pod_class: PodClass, *, taken: Sequence[int]) -> list[int]:
    if not pod_class.whole:
        return []
    free = [
        slot for slot in untouched(node) if slot not in taken and accepts(pod_class.selector, _gpu(node.slots[slot]))
    ]
    return [free[i] for i in closest([_gpu(node.slots[slot]) for slot in free], pod_class.whole)]


def _room(
    node: NodeBooks,
    selector: CardSelector,
    container: ContainerRequest,
    *,
    beside: dict[int, Share],
    prefer: dict[int, Share],
) -> tuple[int, ...] | None:
    """The cards for one container beside what the pod holds there at the same time: its own first, then the fullest."""
    fitting = [
        slot
        for slot, card in enumerate(node.slots)
        if card.gpu is not None
        and accepts(selector, card.gpu)
        and card.refusal(beside.get(slot, NO_SHARE) + container.share) is None
    ]
    fitting.sort(key=lambda slot: (slot not in prefer, _free(node.slots[slot], container.share), slot))
    return tuple(fitting[: container.gpus]) if len(fitting) >= container.gpus else None


def _free(card: CardBooks, share: Share) -> int:
    """Free memory if the container asks for memory, else clients, else compute."""
    if share.memory_mib:
        return _gpu(card).memory_mib - card.memory_mib
    return _gpu(card).mps_clients - card.clients if share.clients else 100 - card.compute


def _sidecars(
    containers: Sequence[ContainerRequest], deal: dict[int, tuple[int, ...]], *, before: int
) -> dict[int, Share]:
    """What the sidecars started before a container hold, by slot."""
    held: dict[int, Share] = {}
    for i in range(before):
        if containers[i].kind is ContainerKind.SIDECAR and not containers[i].share.exclusive:
            for slot in deal[i]:
                held[slot] = held.get(slot, NO_SHARE) + containers[i].share
    return held


def _with_whole(node: NodeBooks, pod_class: PodClass, deal: dict[int, tuple[int, ...]]) -> Deal | None:
    """Add the whole cards, apart from all others."""
    taken = sorted({slot for slots in deal.values() for slot in slots})
    whole = _whole_cards(node, pod_class, taken=taken)
    if len(whole) < pod_class.whole:
        return None
    own = stacked(node, pod_class, taken)
    return tuple(deal.get(i, own[i]) for i in range(len(own)))
