"""Which container gets which of the pod's cards.

The engine finds cards for the pod as a whole (`classes.CardNeed`); here they are assigned to its containers. Where the
containers do not fit on common cards, `spread` assigns them to several, the fullest card first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from itertools import combinations

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.request import ANY_CARD, NO_SHARE, CardSelector, ContainerKind, ContainerRequest, Share, accepts
from shoal.placement.classes import PodClass
from shoal.placement.columns import WHOLE
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.placement.topology import closest

#: Per container of the request, the slots of its cards.
CardAssignment = tuple[tuple[int, ...], ...]


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

    Goes back and tries other cards when a later container finds no room, while the class has steps left
    (`PodClass.steps`). Without any it takes the first cards for each container, and gives up where that fails.
    """
    if not _has_room_in_total(node, pod_class):
        return None
    return _Search(node, pod_class).place(0)


def _has_room_in_total(node: NodeLedger, pod_class: PodClass) -> bool:
    """Whether the cards together have what the containers need at the same time, however it is assigned."""
    usable = [
        card
        for card in node.slots
        if not card.exclusive and card.fault() is None and accepts(pod_class.selector, card.inventory)
    ]
    return all(
        total.memory_mib <= sum(max(0, card.free_mib) for card in usable)
        and total.compute <= sum(max(0, WHOLE - card.compute) for card in usable)
        and total.clients <= sum(max(0, card.inventory.mps_clients - card.clients) for card in usable)
        for total in pod_class.totals
    )


class _Search:
    """The search for cards of one node; what is assigned so far is kept by slot."""

    def __init__(self, node: NodeLedger, pod_class: PodClass) -> None:
        self._node = node
        self._class = pod_class
        self._containers = pod_class.request.containers
        self._slots = [slot for slot, card in enumerate(node.slots) if accepts(pod_class.selector, card.inventory)]
        self._assigned: dict[int, tuple[int, ...]] = {}
        self._on: dict[int, list[int]] = {slot: [] for slot in self._slots}
        #: By slot, what runs at the end: sidecars and ordinary containers.
        self._held = dict.fromkeys(self._slots, NO_SHARE)
        self._failed: set[Hashable] = set()

    def place(self, position: int) -> CardAssignment | None:
        """The assignment, with the containers from this position on; None when there is none."""
        order = self._class.largest_first
        if position == len(order):
            return _with_whole(self._node, self._class, self._assigned)
        if self._failed and (position, self._filling()) in self._failed:
            return None
        for slots in combinations(self._fitting(order[position]), self._containers[order[position]].gpus):
            before = self._take(order[position], slots)
            done = self.place(position + 1)
            if done is not None:
                return done
            self._give_back(order[position], before)
            self._class.steps -= 1
            if self._class.steps < 0:
                return None
        self._failed.add((position, self._filling()))
        return None

    def _take(self, i: int, slots: tuple[int, ...]) -> dict[int, Share]:
        """Assign cards to a container; what was held on them before."""
        before = {slot: self._held[slot] for slot in slots}
        self._assigned[i] = slots
        for slot in slots:
            self._on[slot].append(i)
            if self._containers[i].kind is not ContainerKind.INIT:
                self._held[slot] += self._containers[i].share
        return before

    def _give_back(self, i: int, before: dict[int, Share]) -> None:
        del self._assigned[i]
        self._held.update(before)
        for slot in before:
            self._on[slot].pop()

    def _fitting(self, i: int) -> list[int]:
        """The cards for one container beside what runs at the same time: the pod's own first, then the fullest."""
        container, cards = self._containers[i], self._node.slots
        fitting = [
            slot
            for slot in self._slots
            if all(self._containers[j].share.unsized is container.share.unsized for j in self._on[slot][:1])
            and cards[slot].holds(self._beside(i, slot) + container.share)
        ]
        fitting.sort(key=lambda slot: (not self._on[slot], _free(cards[slot], container.share), slot))
        return fitting

    def _beside(self, i: int, slot: int) -> Share:
        """What the pod's other containers hold on a card while this one runs: an init container meets earlier sidecars.

        A sidecar meets init containers that come after it too, but those are assigned later and look back here.
        """
        if self._containers[i].kind is not ContainerKind.INIT:
            return self._held[slot]
        met = (j for j in self._on[slot] if self._containers[j].kind is ContainerKind.SIDECAR and j < i)
        return sum((self._containers[j].share for j in met), NO_SHARE)

    def _filling(self) -> Hashable:
        """What is assigned: the same for assignments that leave the same choices to the containers after them."""
        found = Counter(
            (_state(self._node.slots[slot]), tuple(sorted(map(self._seen, held))))
            for slot, held in self._on.items()
            if held
        )
        return frozenset(found.items())

    def _seen(self, i: int) -> tuple[int, int, int, int]:
        share = self._containers[i].share
        # Which sidecars an init container meets depends on their place in the list.
        place = i if self._containers[i].kind is ContainerKind.SIDECAR else -1
        return share.memory_mib, share.compute, share.clients, place


def _state(card: CardLedger) -> Hashable:
    """What decides which containers a card can take: the same for cards of which either would do."""
    return (
        *(card.inventory.memory_mib, card.inventory.mps_clients, card.free_mib, card.compute, card.clients),
        *(card.unsized, card.pods, card.exclusive, card.untouched, card.fault()),
    )


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
