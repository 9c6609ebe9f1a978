"""What the claims hold that are prepared on this node (dynamic resource allocation): shares of cards, MIG partitions.

They are counted beside the shares that pods have by number. Which claims there are is told by `shoal.agent.claims`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from shoal.agent.node.holdings import PodHolding
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import dra
from shoal.model.request import NO_SHARE, Request, Share

#: A claim is counted as one container, which asks for cards by the driver's name.
_CONTAINER: Final = "claim"


class HeldClaims:
    """The prepared claims, by UID."""

    def __init__(self) -> None:
        self._cards: dict[str, tuple[CardShare, ...]] = {}
        self._partitions: dict[str, frozenset[str]] = {}

    def put(self, uid: str, node: str, cards: Sequence[CardShare], partitions: Collection[str]) -> PodHolding:
        """Set what a claim holds; as sums over the node take it. A card that is listed twice is held twice."""
        sums: dict[str, CardShare] = {}
        for card in cards:
            before = sums.get(card.uuid)
            sums[card.uuid] = card if before is None else CardShare(card.uuid, card.index, before.share + card.share)
        self._cards[uid] = tuple(sums.values())
        self._partitions[uid] = frozenset(partitions)
        entry = ContainerAllocation(_CONTAINER, self._cards[uid])
        return PodHolding(Request(), Allocation(node, (entry,)), resources={_CONTAINER: dra.DRIVER})

    def drop(self, uid: str) -> None:
        """A claim holds nothing any more."""
        self._cards.pop(uid, None)
        self._partitions.pop(uid, None)

    def on_card(self, uuid: str, *, but: str = "") -> Share:
        """What claims hold of a card together, without one."""
        found = (card.share for uid, cards in self._cards.items() if uid != but for card in cards if card.uuid == uuid)
        return sum(found, NO_SHARE)

    def cards(self) -> set[str]:
        """The cards of which claims hold something."""
        return {card.uuid for cards in self._cards.values() for card in cards}

    def has_partition(self, uuid: str, *, but: str = "") -> bool:
        """Whether a claim holds a MIG partition, other than one claim."""
        return any(uuid in held for uid, held in self._partitions.items() if uid != but)

    def partitions(self) -> Iterable[str]:
        """The MIG partitions that claims hold."""
        return frozenset().union(*self._partitions.values())

    def held(self) -> Mapping[str, tuple[CardShare, ...]]:
        """What each claim holds of cards, as it is published; its partitions are whole devices."""
        found = {
            uid: (*cards, *(CardShare(one, 0, Share(exclusive=True)) for one in sorted(self._partitions.get(uid, ()))))
            for uid, cards in self._cards.items()
        }
        return {uid: cards for uid, cards in found.items() if cards}
