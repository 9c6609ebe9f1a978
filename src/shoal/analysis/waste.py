"""What of the cards nobody gets anything from, and why: fragmentation, and idle cards by cause. Pure.

Fragmentation is what FGD's authors call F, by memory: the part of the free memory that a pod like those which are there
cannot use, on the average over them. A free piece is usable for a pod if the pod's share of one card fits into it; for
one that takes cards whole, if the card is wholly free. CPU and the number of cards are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.analysis.inspect.use import ClusterUse, NodeUse
from shoal.analysis.inspect.used import UsedCard
from shoal.model.gpu import Gpu

#: In the place of an amount: the card as a whole.
WHOLE: Final = -1


class IdleCause(StrEnum):
    """Why nothing is got from a card, or from a part of it."""

    #: Nothing is requested of it, and a pod could have it.
    FREE = "free"
    #: Nothing is requested, and its node takes no pods: it is cordoned or not ready.
    CLOSED = "closed"
    #: It does not work.
    BROKEN = "broken"
    #: Pods have it and have used none of its memory for a while.
    UNUSED = "unused"
    #: Pods have it, and nobody measures whether they use it.
    UNMEASURED = "unmeasured"
    #: The rest of a card that is too small for every pod there is.
    REMAINDER = "remainder"


@dataclass(frozen=True, slots=True)
class IdleCard:
    """A card, the memory that is idle, and why; since when, in seconds since 1970, if that is known."""

    node: str
    gpu: Gpu
    cause: IdleCause
    memory_mib: int
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """`percent` of `free_mib` cannot be used, on the average; None when nothing is free or nobody asks."""

    percent: float | None
    free_mib: int
    #: Cards of which nothing is requested.
    free_cards: int


def demand_of(cluster: ClusterUse) -> Counter[int]:
    """How often each share of one card is asked for, by those who have one and those who wait; WHOLE for a card."""
    found: Counter[int] = Counter()
    for node in cluster.nodes:
        for pod in node.pods:
            found.update(WHOLE if share.exclusive else share.memory_mib for share in pod.held.values())
        found.update(pod.asked_mib for pod in node.pending)
    found.update(pod.asked_mib for pod in cluster.waiting)
    del found[0]
    return found


def fragmentation(cluster: ClusterUse, demand: Mapping[int, int] | None = None) -> Fragmentation:
    """How much of what is free cannot be used."""
    demand = demand_of(cluster) if demand is None else demand
    pieces = Counter(
        (free, gpu.uuid not in node.held)
        for node in cluster.nodes
        if not node.cordoned and node.ready
        for gpu in node.node.gpus
        if gpu.healthy and (free := _free(node, gpu)) > 0
    )
    free_mib = sum(free * count for (free, _), count in pieces.items())
    asked = sum(demand.values())
    percent = None
    if free_mib and asked:
        lost = sum(
            free * count * sum(times for amount, times in demand.items() if not _fits(amount, free, whole=whole))
            for (free, whole), count in pieces.items()
        )
        percent = round(100 * lost / (free_mib * asked), 2)
    return Fragmentation(percent, free_mib, sum(count for (_, whole), count in pieces.items() if whole))


def _free(node: NodeUse, gpu: Gpu) -> int:
    share = node.share(gpu)
    return 0 if share.exclusive or share.unsized else max(0, gpu.memory_mib - share.memory_mib)


def _fits(amount: int, free: int, *, whole: bool) -> bool:
    return whole if amount == WHOLE else amount <= free


def idle_cards(
    cards: Iterable[tuple[UsedCard, bool]], demand: Mapping[int, int], unused: Mapping[str, float]
) -> Iterator[IdleCard]:
    """The cards that are idle, whole or in part. With each card goes whether it is measured now.

    `unused` are those that pods have and do not use, by UUID, since when.
    """
    smallest = min((amount for amount in demand if amount != WHOLE), default=None)
    for card, measured in cards:
        node, gpu = card.node, card.gpu
        name, held = node.node.name, gpu.uuid in node.held
        if not gpu.healthy:
            yield IdleCard(name, gpu, IdleCause.BROKEN, gpu.memory_mib)
        elif not held:
            closed = node.cordoned or not node.ready
            yield IdleCard(name, gpu, IdleCause.CLOSED if closed else IdleCause.FREE, gpu.memory_mib)
        else:
            if gpu.uuid in unused:
                yield IdleCard(name, gpu, IdleCause.UNUSED, card.requested_mib, unused[gpu.uuid])
            elif not measured:
                yield IdleCard(name, gpu, IdleCause.UNMEASURED, card.requested_mib)
            free = _free(node, gpu)
            if smallest is not None and 0 < free < smallest:
                yield IdleCard(name, gpu, IdleCause.REMAINDER, free)


class UnusedCards:
    """Which cards pods have and do not use, since when. It knows what it was told since it was made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def look(self, cards: Iterable[tuple[UsedCard, bool]], now: float) -> None:
        """Take in what is measured now; a card of which nothing is known now is begun anew."""
        since: dict[str, float] = {}
        for card, measured in cards:
            if measured and card.gpu.uuid in card.node.held and _unused(card):
                since[card.gpu.uuid] = self._since.get(card.gpu.uuid, now)
        self._since = since

    def known(self, now: float) -> dict[str, float]:
        """Those that have not been used for long enough, by UUID."""
        return {uuid: since for uuid, since in self._since.items() if now - since >= self._seconds}


def _unused(card: UsedCard) -> bool:
    """Whether pods on a card use none of its memory. Of a pod that tells nothing, nothing is known."""
    if card.reading is None:
        return False
    if card.reading.used_bytes == 0:
        return True
    running = [one for pod in card.pods for one in pod.containers if one.source is not None]
    known = card.reading.unattributed_bytes is not None
    return known and all(one.used_bytes == 0 for one in running)
