"""Pods of one template are one class: what the class needs of a node, worked out once.

The containers of a pod go on the same cards first: shares that run at the same time are stacked, so that a pod of two
containers with one card each needs one card that holds both. Whole cards are never stacked with anything, and clients
without sizes with their like alone. The result is a short list of `CardNeed`s, each on cards of its own. Where no node
can hold the stack, `shoal.placement.assignment` spreads the containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from shoal.model.request import (
    NO_SHARE,
    CardSelector,
    ContainerKind,
    ContainerRequest,
    Request,
    Share,
    accepts_model,
    phases,
)
from shoal.placement.columns import WHOLE, CardKind

#: How often one decision may go back in the search for cards apart, on all nodes together: a tenant can write pods for
#: which the search would take hours. Four containers on eight different cards go back 4,096 times at most.
STEPS = 5000


@dataclass(frozen=True, slots=True)
class CardNeed:
    """`gpus` distinct cards with `share` free on each."""

    gpus: int
    share: Share

    def size_on(self, kind: CardKind) -> int:
        """The part of such a card that this takes, in share units: its largest part of memory, compute or clients."""
        if self.share.exclusive:
            return WHOLE
        size = max(1, self.share.compute)
        for wanted, total in ((self.share.memory_mib, kind.memory_mib), (self.share.clients, kind.mps_clients)):
            if wanted and total:
                size = max(size, -((total - 2 * WHOLE * wanted) // (2 * total)))
        return min(size, WHOLE)


class PodClass:
    """A request and what follows from it alone. Compare by identity: `shoal.placement.engine` keeps one per request."""

    __slots__ = (
        "_accepted",
        "cpu",
        "largest_first",
        "needs",
        "only_whole",
        "ram",
        "request",
        "selector",
        "several",
        "sized_cards",
        "splittable",
        "steps",
        "totals",
        "whole",
        "whole_sizes",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cpu = request.cpu_milli
        self.ram = request.memory_mib
        self.selector: CardSelector = request.selector
        self.needs = card_needs(request)
        #: Whole cards the pod takes, and the memory each must have, the largest first.
        self.whole = sum(need.gpus for need in self.needs if need.share.exclusive)
        self.whole_sizes = tuple(
            need.share.memory_mib for need in self.needs if need.share.exclusive for _ in range(need.gpus)
        )
        #: Cards of the pod for shares with sizes: in `needs` they come before those for clients without.
        self.sized_cards = sum(need.gpus for need in self.needs if not (need.share.exclusive or need.share.unsized))
        #: Untouched cards are all alike: counting them is enough.
        self.only_whole = self.needs == (CardNeed(self.whole, Share(exclusive=True)),) and not self.selector
        #: The containers might fit apart where they do not fit together.
        self.splittable = sum(not container.share.exclusive for container in request.containers) > 1
        #: The containers with shares, in the order in which they are assigned where they go apart.
        self.largest_first = _largest_first(request.containers)
        #: What is needed of all cards of a node together at each time, where the containers go apart.
        self.totals = _totals(request) if self.splittable else ()
        #: What is left of `STEPS` for the decision under way.
        self.steps = STEPS
        #: There are shares for more than one ordinary container on one card.
        self.several = _several([one for one in request.containers if not one.share.exclusive])
        self._accepted: dict[str, bool] = {}

    @property
    def wants_gpu(self) -> bool:
        return bool(self.needs)

    def accepts_model(self, model: str) -> bool:
        """Whether the pods accept cards of this model: asked of every make anew with every demand, so kept."""
        known = self._accepted.get(model)
        if known is None:
            known = self._accepted[model] = accepts_model(self.selector, model)
        return known


def _largest_first(containers: Sequence[ContainerRequest]) -> list[int]:
    """Containers that last before init containers, then by size."""

    def size(i: int) -> tuple[bool, int, int, int]:
        share = containers[i].share
        return containers[i].kind is ContainerKind.INIT, -share.memory_mib, -share.compute, -share.clients

    return sorted((i for i, container in enumerate(containers) if not container.share.exclusive), key=size)


def _totals(request: Request) -> tuple[Share, ...]:
    """The sum of all shares, of each card as often as it is wanted, by phase; equal ones once."""
    found: dict[Share, None] = {}
    for running in phases(tuple((container.kind, container) for container in request.containers)):
        shares = [(one.gpus, one.share) for one in running if not one.share.exclusive]
        total = Share(
            sum(gpus * share.memory_mib for gpus, share in shares),
            sum(gpus * share.compute for gpus, share in shares),
            sum(gpus * share.clients for gpus, share in shares),
        )
        found[total] = None
    return tuple(found)


def _several(shares: Sequence[ContainerRequest]) -> bool:
    return len(shares) > 1 or any(one.gpus > 1 or one.kind is not ContainerKind.APP for one in shares)


def card_needs(request: Request) -> tuple[CardNeed, ...]:
    """The cards a pod needs when its containers share cards wherever they may: whole cards, then the largest share.

    Clients without sizes come last.
    """
    whole: list[int] = []
    sized: list[Share] = []
    unsized: list[Share] = []
    for running in phases(tuple((container.kind, container) for container in request.containers)):
        whole = [max(sizes) for sizes in zip_longest(whole, _whole_sizes(running), fillvalue=0)]
        shared = [container for container in running if not container.share.exclusive]
        sized = _larger(sized, _stacked([container for container in shared if not container.share.unsized]))
        unsized = _larger(unsized, _stacked([container for container in shared if container.share.unsized]))
    shares = [*(Share(memory_mib=size, exclusive=True) for size in whole), *sized, *unsized]
    return tuple(CardNeed(len(list(cards)), share) for share, cards in groupby(shares))


def _whole_sizes(containers: Iterable[ContainerRequest]) -> list[int]:
    """A whole card is not booked by the MiB, but it must have as many as its container may use."""
    sizes = [c.memory_limit_mib or 0 for c in containers if c.share.exclusive for _ in range(c.gpus)]
    return sorted(sizes, reverse=True)


def _stacked(containers: list[ContainerRequest]) -> list[Share]:
    """Card i carries every container that wants more than i cards."""
    depth = max((container.gpus for container in containers), default=0)
    return [
        sum((container.share for container in containers if container.gpus > card), NO_SHARE) for card in range(depth)
    ]


def _larger(one: list[Share], other: list[Share]) -> list[Share]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [share | shorter[i] if i < len(shorter) else share for i, share in enumerate(longer)]
