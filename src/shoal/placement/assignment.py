"""Which container gets which of the pod's cards.

The engine finds cards for the pod as a whole (`classes.CardNeed`); here they are assigned to its containers. Where the
containers do not fit on common cards, `spread` assigns them to several, the fullest card first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.request import ANY_CARD, NO_SHARE, CardSelector, ContainerKind, ContainerRequest, Share, accepts
from shoal.placement.classes import PodClass
from shoal.placement.columns import WHOLE
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.placement.topology import closest

#: Per container of the request, the slots of its cards.
CardAssignment = tuple[tuple[int, ...], ...]

#: Steps after which the search for cards apart gives up; a pod of four containers on eight cards takes at most 4,096.
_TRIES = 5000


def untouched(node: NodeLedger, selector: CardSelector = ANY_CARD) -> list[int]:
    """The slots of the cards that may be used, that the pod accepts, and of which nobody holds or uses any."""
    return [
        slot
        for slot, card in enumerate(node.slots)
        if card.untouched and card.fault() is None and accepts(selector, card.inventory)
    ]


def stacked(node: NodeLedger, pod_class: PodClass, stack: Sequence[int]) -> CardAssignment:
    """Containers with shares all start at the first card of the stack; whole cards are chosen by topology.

    Clients without sizes start behind the cards for shares with sizes.
    """
    whole = _whole_cards(node, pod_class, taken=stack)
    assigned: list[tuple[int, ...]] = []
    for container in pod_class.request.containers:
        if not container.share.exclusive:
            first = pod_class.sized_cards if container.share.unsized else 0
            assigned.append(tuple(stack[first : first + container.gpus]))
            continue
        own = _least_that_will_do(node, whole, container)
        assigned.append(own)
        if container.kind is not ContainerKind.INIT:
            whole = [slot for slot in whole if slot not in own]
    return tuple(assigned)


def _least_that_will_do(node: NodeLedger, whole: Sequence[int], container: ContainerRequest) -> tuple[int, ...]:
    """The cards with the least memory that is enough: the larger ones are left to the other containers."""
    size = container.memory_limit_mib or 0
    enough = [slot for slot in whole if node.slots[slot].inventory.memory_mib >= size]
    enough.sort(key=lambda slot: node.slots[slot].inventory.memory_mib)
    return tuple(sorted(enough[: container.gpus]))


def spread(node: NodeLedger, pod_class: PodClass) -> CardAssignment | None:
    """Containers one by one, each on cards the pod uses already if it can; None when there is no room this way.

    Goes back and tries other cards when a later container finds no room, up to `_TRIES` steps.
    """
    containers = pod_class.request.containers
    shares = [i for i, container in enumerate(containers) if not container.share.exclusive]
    order = sorted(shares, key=lambda i: _largest_first(containers[i]))
    tries = iter(range(_TRIES))

    def place(position: int, assigned: dict[int, tuple[int, ...]]) -> CardAssignment | None:
        if position == len(order):
            return _with_whole(node, pod_class, assigned)
        i = order[position]
        for slots in _rooms(node, pod_class, i, assigned):
            if next(tries, None) is None:
                return None
            done = place(position + 1, {**assigned, i: slots})
            if done is not None:
                return done
        return None

    return place(0, {})


def _largest_first(container: ContainerRequest) -> tuple[bool, int, int, int]:
    """Containers that last before init containers, then by size."""
    share = container.share
    return container.kind is ContainerKind.INIT, -share.memory_mib, -share.compute, -share.clients


def _rooms(
    node: NodeLedger, pod_class: PodClass, i: int, assigned: dict[int, tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """The sets of cards for one container beside what runs at the same time: the pod's own first, then the fullest."""
    containers = pod_class.request.containers
    container = containers[i]
    beside = _beside(containers, assigned, i)
    own = {slot for slots in assigned.values() for slot in slots}
    strange = {
        slot
        for j, slots in assigned.items()
        if containers[j].share.unsized is not container.share.unsized
        for slot in slots
    }
    fitting = [
        slot
        for slot, card in enumerate(node.slots)
        if slot not in strange
        and accepts(pod_class.selector, card.inventory)
        and card.refusal(beside.get(slot, NO_SHARE) + container.share) is None
    ]
    fitting.sort(key=lambda slot: (slot not in own, _free(node.slots[slot], container.share), slot))
    return combinations(fitting, container.gpus)


def _beside(containers: Sequence[ContainerRequest], assigned: dict[int, tuple[int, ...]], i: int) -> dict[int, Share]:
    """What the pod's other containers hold while this one runs, by slot: an init container meets earlier sidecars only.

    A sidecar meets init containers that come after it too, but those are assigned later and look back here.
    """
    held: dict[int, Share] = {}
    for j, slots in assigned.items():
        alone = containers[i].kind is ContainerKind.INIT
        if alone and not (containers[j].kind is ContainerKind.SIDECAR and j < i):
            continue
        for slot in slots:
            held[slot] = held.get(slot, NO_SHARE) + containers[j].share
    return held


def allocation(node: NodeLedger, pod_class: PodClass, assigned: CardAssignment, policy: str) -> Allocation:
    """The assignment as a record."""
    containers = tuple(
        ContainerAllocation(
            container.name,
            tuple(_card(node.slots[slot], container.share) for slot in slots),
            container.kind,
            container.memory_limit_mib,
        )
        for container, slots in zip(pod_class.request.containers, assigned, strict=True)
    )
    return Allocation(node.name, containers, policy)


def _card(card: CardLedger, share: Share) -> CardShare:
    return CardShare(card.inventory.uuid, card.inventory.index, share)


def _whole_cards(node: NodeLedger, pod_class: PodClass, *, taken: Collection[int]) -> list[int]:
    if not pod_class.whole:
        return []
    free = [slot for slot in untouched(node, pod_class.selector) if slot not in taken]
    return [free[i] for i in closest([node.slots[slot].inventory for slot in free], pod_class.whole_sizes)]


def _free(card: CardLedger, share: Share) -> int:
    """Free memory if the container asks for memory, else clients, else compute."""
    if share.memory_mib:
        return card.free_mib
    return card.inventory.mps_clients - card.clients if share.clients else WHOLE - card.compute


def _with_whole(node: NodeLedger, pod_class: PodClass, assigned: dict[int, tuple[int, ...]]) -> CardAssignment | None:
    """Add the whole cards, apart from all others."""
    taken = {slot for slots in assigned.values() for slot in slots}
    if len(_whole_cards(node, pod_class, taken=taken)) < pod_class.whole:
        return None
    own = stacked(node, pod_class, sorted(taken))
    return tuple(assigned.get(i, own[i]) for i in range(len(own)))
