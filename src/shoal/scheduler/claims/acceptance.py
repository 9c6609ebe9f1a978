"""Which devices of which nodes could serve a wish, were nothing taken: selectors, taints and capacity.

Kept per wish and node, and asked again only of nodes whose devices changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shoal.kube.objects.claims import DeviceTaint, DeviceToleration
from shoal.kube.taints import tolerates
from shoal.model import quantity
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import dra
from shoal.model.errors import CodecError, QuantityError
from shoal.model.request import Share
from shoal.scheduler.claims.capacity import consumed
from shoal.scheduler.claims.costs import Meter
from shoal.scheduler.claims.devices import DeviceTable, PublishedDevice
from shoal.scheduler.claims.errors import EvaluationError
from shoal.scheduler.claims.selectors import Selector, Selectors
from shoal.scheduler.claims.wishes import DeviceWish

#: Units for looking at one device.
_DEVICE_COST: Final = 4
#: Wishes kept, where one with long selectors, or in a large cluster, counts as several; the ones unused for longest are
#: forgotten beyond it.
_WISHES: Final = 512
_CHARACTERS: Final = 1_000
_DEVICES: Final = 4_000
#: Kinds of devices of which a wish remembers what it would take.
_KINDS: Final = 256


@dataclass(frozen=True, slots=True)
class Fit:
    """A device that could serve a wish, and what the wish would take of it."""

    device: PublishedDevice
    share: Share
    #: None of a partition, which is taken as it is.
    consumed: dict[str, Fraction]

    @property
    def amounts(self) -> Share:
        """What is taken, also of a card that is taken whole by that."""
        names = (dra.CAPACITY_MEMORY, dra.CAPACITY_COMPUTE, dra.CAPACITY_CLIENTS)
        memory, compute, clients = (self.consumed.get(name, 0) for name in names)
        return Share(quantity.mebibytes(Fraction(memory)), int(compute), int(clients))


@dataclass(frozen=True, slots=True)
class OnNode:
    """The devices of one node that could serve a wish; `matching` counts those too that are tainted or too small."""

    fits: tuple[Fit, ...]
    matching: int

    @property
    def cards(self) -> OnNode:
        """Without partitions of MIG."""
        if not any(fit.device.partition for fit in self.fits):
            return self
        return OnNode(tuple(fit for fit in self.fits if not fit.device.partition), self.matching)


class Acceptance:
    """One wish over all nodes."""

    def __init__(
        self,
        selectors: Sequence[Selector],
        capacity: tuple[tuple[str, str | int | float], ...],
        tolerations: tuple[DeviceToleration, ...],
        weight: int = 1,
    ) -> None:
        #: What it counts for where wishes are kept.
        self.weight = weight
        self.nodes: dict[str, OnNode] = {}
        #: What an expression could not answer, and on which device.
        self.problem = ""
        #: What the wish takes of any card that could serve it; None where that differs from card to card.
        self.share: Share | None = None
        #: Whether cards could serve it somewhere, and partitions of MIG.
        self.by_card = False
        self.by_partition = False
        #: Changes with every change of the above.
        self.version = 0
        self._selectors = selectors
        self._capacity = dict(capacity)
        self._tolerations = tolerations
        self._seen = -1
        #: By kind of device what the wish would take of it, or why it can never serve the wish.
        self._shares: BoundedCache[object, _Taken | str] = BoundedCache(_KINDS)

    def on(self, node: str, *, partitions: bool) -> OnNode | None:
        """What could serve it on a node, partitions of MIG included or not."""
        found = self.nodes.get(node)
        return found if found is None or partitions or not self.by_partition else found.cards

    def catch_up(self, table: DeviceTable, meter: Meter) -> None:
        """Ask about the nodes whose devices changed. Raises PodCostError when the meter runs out."""
        if self._seen == table.version:
            return
        changed = table.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None:
            changed = list({**self.nodes, **table.nodes})
            self.problem = ""
        for node in changed:
            found = self._on(table.nodes.get(node, ()), meter)
            if found.matching:
                self.nodes[node] = found
            else:
                self.nodes.pop(node, None)
        self._seen = table.version
        self.version += 1
        self.share = self._common_share()

    def _common_share(self) -> Share | None:
        every = [fit for found in self.nodes.values() for fit in found.fits]
        fits = [fit for fit in every if not fit.device.partition]
        self.by_card, self.by_partition = bool(fits), len(fits) < len(every)
        if all(fit.share.exclusive for fit in fits):
            return Share(exclusive=True)
        # Devices of one kind have what is consumed in common.
        amounts = {fit.amounts for fit in {id(fit.consumed): fit for fit in fits}.values()}
        return amounts.pop() if len(amounts) == 1 else None

    def _on(self, devices: tuple[PublishedDevice, ...], meter: Meter) -> OnNode:
        fits: list[Fit] = []
        matching = 0
        for device in devices:
            try:
                meter.spend(_DEVICE_COST)
                if not self._matches(device, meter):
                    continue
            except EvaluationError as error:
                # The stock scheduler ends the whole try; here the node is not used.
                self.problem = self.problem or str(error)
                return OnNode((), 0)
            matching += 1
            fit = self._fit(device)
            if fit is not None:
                fits.append(fit)
        return OnNode(tuple(fits), matching)

    def _matches(self, device: PublishedDevice, meter: Meter) -> bool:
        if device.values is None:
            raise EvaluationError(device.problem)
        return all(selector.accepts(device.values, meter) for selector in self._selectors)

    def _fit(self, device: PublishedDevice) -> Fit | None:
        if not all(_tolerated(taint, self._tolerations) for taint in device.device.taints):
            return None
        taken = self._shares.of(device.kind, lambda: self._taken(device))
        return None if isinstance(taken, str) else Fit(device, *taken)

    def _taken(self, device: PublishedDevice) -> _Taken | str:
        """The same for devices of one kind; in words why they can never serve the wish."""
        try:
            taken = consumed(self._capacity, device.device.capacity)
            if taken is None:
                return "too small"
            if device.partition:
                return Share(exclusive=True), {}
            share = dra.allocated_share(written(taken), share_id="share", memory_mib=device.memory_mib)
        except (QuantityError, CodecError) as error:
            return str(error)
        return share, taken


#: A share, and what it consumes of each capacity.
_Taken = tuple[Share, dict[str, Fraction]]


def written(amounts: dict[str, Fraction]) -> dict[str, str]:
    """Consumed capacity as it stands in a claim's status."""
    return {name: quantity.canonical(amount, binary=name == dra.CAPACITY_MEMORY) for name, amount in amounts.items()}


def _tolerated(taint: DeviceTaint, tolerations: tuple[DeviceToleration, ...]) -> bool:
    if taint.effect not in (dra.EFFECT_NO_SCHEDULE, dra.EFFECT_NO_EXECUTE):
        return True
    return any(tolerates(toleration, taint) for toleration in tolerations)


class Acceptances:
    """Wishes over all nodes, each worked out once."""

    def __init__(self, table: DeviceTable, selectors: Selectors) -> None:
        self._table = table
        self._selectors = selectors
        self._known: BoundedCache[object, Acceptance] = BoundedCache(_WISHES, weigh=lambda one: one.weight)

    def of(self, wish: DeviceWish, of_class: tuple[str, ...], meter: Meter) -> Acceptance:
        """Where a wish could be served; `of_class` are the expressions of its class.

        Raises SelectorError, and PodCostError when the meter runs out.
        """
        key = (of_class, wish.selectors, wish.capacity, wish.tolerations)
        found = self._known.of(key, lambda: self._begun(wish, of_class, meter))
        found.catch_up(self._table, meter)
        return found

    def _begun(self, wish: DeviceWish, of_class: tuple[str, ...], meter: Meter) -> Acceptance:
        selectors = [self._selectors.of(expression, meter) for expression in (*of_class, *wish.selectors)]
        characters = sum(len(one.expression) for one in selectors)
        weight = 1 + characters // _CHARACTERS + self._table.count // _DEVICES
        return Acceptance(selectors, wish.capacity, wish.tolerations, weight)
