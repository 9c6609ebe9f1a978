"""Holds: cards booked for some seconds for a pod that is not being bound yet, whoever wants them kept.

Two kinds: the extender's, between scoring and binding (`extender.holds`), and those of offers (`offer.holds`). A hold
is a booking like any other, so it can never give a card twice, and it ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shoal.model.allocation import Allocation
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.scheduler.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class Hold:
    """The decision on a pod that is not being bound yet."""

    allocation: Allocation
    until: float


class HoldTable:
    """Holds by the key of their booking."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._holds: dict[str, Hold] = {}
        #: No hold ends before.
        self._soonest = float("inf")

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[str]:
        return iter(self._holds)

    def __contains__(self, key: str) -> bool:
        return key in self._holds

    def get(self, key: str) -> Hold | None:
        """The hold under a key."""
        return self._holds.get(key)

    def put(self, key: str, allocation: Allocation, seconds: float) -> None:
        """Something is held from now on."""
        hold = self._holds[key] = Hold(allocation, self._clock() + seconds)
        self._soonest = min(self._soonest, hold.until)

    def pop(self, key: str) -> Hold | None:
        """Forget a hold; the booking is the caller's to end."""
        return self._holds.pop(key, None)

    def over(self) -> list[str]:
        """The keys whose time is over, in the order in which they were put."""
        now = self._clock()
        if self._soonest > now:
            return []
        self._soonest = min((hold.until for hold in self._holds.values() if hold.until > now), default=float("inf"))
        return [key for key, hold in self._holds.items() if hold.until <= now]


def fits_but_for(
    state: ClusterState,
    request: Request,
    among: BoolArray,
    held: Iterable[str],
    *,
    may_run: Callable[[int, frozenset[str]], bool] = lambda row, gone: True,
) -> bool:
    """Whether the pod would fit on one of these nodes but for cards that are only held.

    For such a pod nobody is evicted: the cards come free by themselves, or are taken by whom they are held for.
    `may_run` asks the filters beside the cards about a row without some bookings.
    """
    held_on: dict[str, set[str]] = {}
    for key in held:
        booking = state.engine.ledger.booking(key)
        row = None if booking is None else state.rows.get(booking.node)
        if booking is not None and row is not None and row < len(among) and among[row]:
            held_on.setdefault(booking.node, set()).add(key)
    fits = state.engine.fits_without(request)
    return any(
        fits(node, gone) and may_run(state.rows[node], gone)
        for node, keys in held_on.items()
        if (gone := frozenset(keys))
    )
