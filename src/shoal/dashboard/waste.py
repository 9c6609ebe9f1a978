"""Fragmentation over time, and which cards are had and not used: noted once a minute while the server runs.

It begins when the server starts and is kept in memory alone, for a day; `shoal.analysis.waste` says what it means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shoal.analysis.inspect.used import UsedCard, mib
from shoal.analysis.waste import Fragmentation, UnusedCards, fragmentation
from shoal.dashboard.picture import MeasuredState, Picture

_EVERY: Final = 60.0
_KEPT: Final = 24 * 60
#: Cards that pods have and have not used for so long are idle.
UNUSED_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class WastePoint:
    """One moment of the whole cluster."""

    time: float
    fragmentation: Fragmentation
    requested_mib: int
    #: Of the cards that tell; None when none does.
    used_mib: int | None


def measured_cards(picture: Picture) -> Iterator[tuple[UsedCard, bool]]:
    """All cards, and whether each is measured now."""
    for node in picture.nodes.values():
        fresh = node.measurement.state is MeasuredState.FRESH
        for card in node.used.cards:
            yield card, fresh and card.reading is not None and card.reading.used_bytes is not None


class WasteLog:
    """What was noted. Have `follow` called with each picture."""

    def __init__(self) -> None:
        self.points: deque[WastePoint] = deque(maxlen=_KEPT)
        self.unused = UnusedCards(UNUSED_SECONDS)
        self._noted = float("-inf")

    def follow(self, picture: Picture, _: Picture) -> None:
        """Note a picture, if it is time to, and it is not old."""
        if picture.old_since is not None:
            return
        self.unused.look(measured_cards(picture), picture.time)
        if picture.time - self._noted >= _EVERY:
            self._noted = picture.time
            self.points.append(point_of(picture))


def point_of(picture: Picture) -> WastePoint:
    """A picture in numbers."""
    told = [
        card.reading.used_bytes
        for card, measured in measured_cards(picture)
        if measured and card.reading is not None and card.reading.used_bytes is not None
    ]
    requested = sum(card.requested_mib for card, _ in measured_cards(picture))
    return WastePoint(picture.time, fragmentation(picture.cluster), requested, mib(sum(told)) if told else None)
