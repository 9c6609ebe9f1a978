"""Cards of one node for several wishes at once, where selectors or constraints tell them apart.

A search that goes back when a later wish finds no card, the fullest card that has room first; partitions of MIG, where
they are accepted too, after the cards, the smallest first. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from shoal.kube.objects.claims import DeviceConstraint
from shoal.model.contract import dra
from shoal.model.request import NO_SHARE, Share
from shoal.placement.ledger import NodeLedger
from shoal.scheduler.claims.acceptance import Fit, OnNode
from shoal.scheduler.claims.costs import Meter
from shoal.scheduler.claims.devices import Counter, PoolCounters
from shoal.scheduler.claims.wishes import DeviceWish

#: Per wish the devices that it gets.
Chosen = list[tuple[Fit, ...]]


#: Units for looking at one device of a wish, for choosing one, and for a device in a constraint.
_FIT_COST: Final = 20
_STEP_COST: Final = 20
_CONSTRAINT_COST: Final = 4


def chosen_on(
    node: NodeLedger,
    wishes: Sequence[tuple[int, DeviceWish]],
    found: Sequence[OnNode],
    constraints: Sequence[tuple[int, DeviceConstraint]],
    counters: PoolCounters,
    meter: Meter,
) -> Chosen | None:
    """Devices for every wish, each beside the number of its claim; None when there are none.

    Raises PodCostError when the meter runs out.
    """
    return _Search(node, wishes, found, constraints, counters, meter).run()


class _Search:
    def __init__(
        self,
        node: NodeLedger,
        wishes: Sequence[tuple[int, DeviceWish]],
        found: Sequence[OnNode],
        constraints: Sequence[tuple[int, DeviceConstraint]],
        counters: PoolCounters,
        meter: Meter,
    ) -> None:
        self._node = node
        self._wishes = wishes
        self._found = found
        self._constraints = constraints
        self._meter = meter
        self._step_cost = _STEP_COST + _CONSTRAINT_COST * len(constraints) * len(wishes)
        self._chosen: list[list[Fit]] = [[] for _ in wishes]
        self._taken: dict[str, list[Share]] = {}
        self._counters = counters
        #: What is left of the counters beside the partitions that somebody has.
        self._left = dict(counters.total)
        for uuid, some in counters.taken.items():
            if (card := node.cards.get(uuid)) is not None and card.pods:
                self._take_counters(some)

    def _take_counters(self, some: Mapping[Counter, Fraction], sign: int = 1) -> None:
        for counter, amount in some.items():
            self._left[counter] -= sign * amount

    def run(self) -> Chosen | None:
        counts = []
        for (_, wish), found in zip(self._wishes, self._found, strict=True):
            if wish.count is None and (not found.fits or len(found.fits) < found.matching):
                return None  # all that match, and one of them cannot be had
            counts.append(len(found.fits) if wish.count is None else wish.count)
        for claim in {claim for claim, _ in self._wishes}:
            own = (count for (one, _), count in zip(self._wishes, counts, strict=True) if one == claim)
            if sum(own) > dra.MAX_RESULTS:
                return None
        done = self._place(0, counts)
        return [tuple(fits) for fits in self._chosen] if done else None

    def _place(self, number: int, counts: list[int]) -> bool:
        """Serve the wishes from this one on."""
        if number == len(counts):
            return True
        mine = self._chosen[number]
        if len(mine) == counts[number]:
            return self._place(number + 1, counts)
        wish = self._wishes[number][1]
        self._meter.spend(_FIT_COST * len(self._found[number].fits))
        for fit in self._candidates(number, wish):
            self._meter.spend(self._step_cost)
            mine.append(fit)
            if not wish.admin:
                self._taken.setdefault(fit.device.uuid, []).append(fit.share)
                self._take_counters(self._counters.taken.get(fit.device.uuid, {}))
            if self._constraints_hold(number) and self._place(number, counts):
                return True
            mine.pop()
            if not wish.admin:
                self._taken[fit.device.uuid].pop()
                self._take_counters(self._counters.taken.get(fit.device.uuid, {}), -1)
            if wish.count is None:
                return False  # it must be this one
        return False

    def _candidates(self, number: int, wish: DeviceWish) -> list[Fit]:
        """Devices for the next place of a wish. Within a wish they come in one order, so that no set is tried twice."""
        fits, mine = self._found[number].fits, self._chosen[number]
        if wish.count is None:
            fit = fits[len(mine)]
            return [fit] if self._has_room(fit, wish) else []
        order = sorted(range(len(fits)), key=lambda place: (*self._free(fits[place]), place))
        if mine:
            last = next(place for place, index in enumerate(order) if fits[index] is mine[-1])
            order = order[last + 1 :]
        return [fits[index] for index in order if self._has_room(fits[index], wish)]

    def _free(self, fit: Fit) -> tuple[bool, int]:
        if fit.device.partition:
            return True, fit.device.memory_mib
        card = self._node.cards.get(fit.device.uuid)
        return False, 0 if card is None else card.free_mib

    def _has_room(self, fit: Fit, wish: DeviceWish) -> bool:
        uuid = fit.device.uuid
        if not self._is_there(fit):
            return False
        if wish.admin:
            return True
        beside = self._taken.get(uuid, [])
        if beside and (fit.share.exclusive or any(share.exclusive for share in beside)):
            return False
        needed = self._counters.taken.get(uuid, {})
        if any(self._left[counter] < amount for counter, amount in needed.items()):
            return False
        return self._node.refusal(uuid, sum(beside, NO_SHARE) + fit.share) is None

    def _is_there(self, fit: Fit) -> bool:
        """Whether the inventory has it as what it is published as: a node may publish a card as a partition."""
        if fit.device.partition:
            parts = () if self._node.inventory is None else self._node.inventory.partitions()
            return any(part.uuid == fit.device.uuid for _, part in parts)
        card = self._node.cards.get(fit.device.uuid)
        return card is not None and card.gpu is not None

    def _constraints_hold(self, number: int) -> bool:
        claim = self._wishes[number][0]
        return all(self._holds(constraint) for one, constraint in self._constraints if one == claim)

    def _holds(self, constraint: DeviceConstraint) -> bool:
        name = constraint.match_attribute or constraint.distinct_attribute
        if not name:
            return False  # of a kind that is not known
        values = [
            fit.device.attribute(name)
            for (_, wish), fits in zip(self._wishes, self._chosen, strict=True)
            if not constraint.requests or wish.request in constraint.requests or wish.name in constraint.requests
            for fit in fits
        ]
        if any(value is None for value in values):
            return False
        return len(set(values)) == (min(1, len(values)) if constraint.match_attribute else len(values))
