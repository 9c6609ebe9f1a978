"""The bar of a card: two lanes, above what its pods requested, below what they use. Geometry and words, no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.dashboard.documents import CardDocument, NodeDocument

#: A bar is this long, whatever its card holds; one alone on a page is longer.
LENGTH: Final = 200.0
LONG: Final = 1000.0
REQUESTED: Final = 0
USED: Final = 1


@dataclass(frozen=True, slots=True)
class BarShare:
    """What a pod has of a card. `name` is empty for pods that the viewer may not read."""

    name: str
    requested_mib: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class Part:
    """A block of a lane."""

    lane: int
    x: float
    width: float
    kind: str
    words: str = ""
    odd: bool = False
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """All blocks, and what they say in words."""

    parts: Sequence[Part]
    words: str
    stale: bool = False
    broken: bool = False
    length: float = LENGTH


def gib(mib: int | float | None) -> str | None:
    """An amount of memory as it is told; None for what is not known."""
    if mib is None:
        return None
    if mib == 0:
        return "0 GiB"
    if mib < 1024:
        return f"{round(mib)} MiB"
    amount = mib / 1024
    return f"{round(amount)} GiB" if amount >= 100 else f"{round(amount, 1):g} GiB"


def bar(
    *,
    total_mib: int,
    requested_mib: int,
    used_mib: int | None,
    unattributed_mib: int | None,
    shares: Sequence[BarShare],
    stale: bool = False,
    broken: bool = False,
    length: float = LENGTH,
) -> Bar:
    """The bar of a card of that size."""
    requested = _requested(_Lane(REQUESTED, max(total_mib, requested_mib, 1), length), requested_mib, shares)
    used = _used(_Lane(USED, max(total_mib, 1), length), used_mib, unattributed_mib, shares)
    words = f"requested {gib(requested_mib)} of {gib(total_mib)}, used {gib(used_mib) or 'not known'}"
    if stale:
        words += " some time ago"
    return Bar((*requested, *used), words + (", broken" if broken else ""), stale=stale, broken=broken, length=length)


def _requested(lane: _Lane, requested_mib: int, shares: Sequence[BarShare]) -> list[Part]:
    for place, share in enumerate(shares):
        name, pattern = share.name or "pods you may not read", "" if share.name else "others"
        words = f"{name}: {gib(share.requested_mib)} requested"
        lane.add(share.requested_mib, "requested" if share.name else "", words, odd=bool(place % 2), pattern=pattern)
    lane.add(requested_mib - sum(share.requested_mib for share in shares), "requested", "requested")
    return lane.parts


def _used(lane: _Lane, used_mib: int | None, unattributed_mib: int | None, shares: Sequence[BarShare]) -> list[Part]:
    if used_mib is None:
        return [Part(USED, 0.5, lane.length - 1, "nothing", "what is used is not known")]
    told = unattributed_mib or 0
    for place, share in enumerate(shares):
        if share.used_mib is None:
            continue
        told += share.used_mib
        name, beyond = share.name or "pods you may not read", share.used_mib - share.requested_mib
        within = f"{name}: {gib(share.used_mib)} used"
        lane.add(min(share.used_mib, share.requested_mib), "used", within, odd=bool(place % 2))
        lane.add(beyond, "", f"{name}: {gib(max(beyond, 0))} more than requested", pattern="stripe")
    lane.add(used_mib - told, "used", "used")
    lane.add(unattributed_mib or 0, "", f"{gib(unattributed_mib or 0)} used by no pod", pattern="hatch")
    return lane.parts


class _Lane:
    """Blocks one after another, none beyond the end; the ground comes first."""

    def __init__(self, lane: int, scale: int, length: float) -> None:
        self._lane, self._scale, self._x = lane, scale, 0.0
        self.length = length
        self.parts: list[Part] = [Part(lane, 0.0, length, "free")]

    def add(self, mib: int, kind: str, words: str, *, odd: bool = False, pattern: str = "") -> None:
        width = min(mib * self.length / self._scale, self.length - self._x)
        if width <= 0:
            return
        # A thin gap keeps neighbours apart for those who do not see their colours.
        shown = width - 0.8 if width > 3 else width
        self.parts.append(Part(self._lane, round(self._x, 2), round(shown, 2), kind, words, odd, pattern))
        self._x += width


def card_bar(card: CardDocument, length: float = LENGTH) -> Bar:
    """The bar of a card."""
    return bar(
        length=length,
        total_mib=card.total_mib,
        requested_mib=card.requested_mib,
        used_mib=card.used_mib,
        unattributed_mib=card.unattributed_mib,
        shares=[
            BarShare(f"{one.namespace}/{one.pod}" if one.pod else "", one.requested_mib, one.used_mib)
            for one in card.holders
        ],
        stale=card.collector.state == "stale",
        broken=card.healthy is False,
    )


def node_bar(node: NodeDocument) -> Bar:
    """All cards of a node as one."""
    return bar(
        total_mib=node.total_mib,
        requested_mib=node.requested_mib,
        used_mib=node.used_mib,
        unattributed_mib=None,
        shares=(),
        stale=node.collector.state == "stale",
        broken=not node.ready,
    )
