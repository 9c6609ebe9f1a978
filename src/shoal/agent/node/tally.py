"""What the pods of a node hold of its cards, by resource: sums that the change of a pod changes by that pod alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.agent.node.holdings import Holding
from shoal.agent.nvidia.replicas import Cut
from shoal.model.contract import gpushare
from shoal.model.gpu import Gpu
from shoal.model.request import NO_SHARE, Share


@dataclass(slots=True)
class _Sum:
    """What is held of one card by one resource."""

    memory_mib: int = 0
    compute: int = 0
    clients: int = 0
    #: How many pods have the card as a whole.
    whole: int = 0
    #: The memory that was asked for; of a card given as a whole, too.
    asked_mib: int = 0
    #: Replicas: how often each share of each cut.
    cuts: Counter[tuple[Cut, Share]] = field(default_factory=Counter)

    def add(self, holding: Holding, share: Share, sign: int) -> None:
        self.memory_mib += sign * share.memory_mib
        self.compute += sign * share.compute
        self.clients += sign * share.clients
        self.whole += sign * share.exclusive
        self.asked_mib += sign * share.memory_mib
        if holding.cut is not None and not share.exclusive:
            self.cuts[holding.cut, share] += sign

    def share(self) -> Share:
        return Share(self.memory_mib, self.compute, self.clients, self.whole > 0)

    def units(self, gpu: Gpu) -> int:
        return self.whole + sum(count * (cut.count(gpu, share) or 0) for (cut, share), count in self.cuts.items())


class Tally:
    """The sums over some pods, each known by its UID."""

    def __init__(self) -> None:
        #: Another one after every change.
        self.version = 0
        self._holdings: dict[str, Holding] = {}
        #: By resource and the card's UUID.
        self._sums: dict[tuple[str, str], _Sum] = {}

    @classmethod
    def of(cls, holdings: Iterable[Holding]) -> Tally:
        """The sums over these pods."""
        tally = cls()
        for number, holding in enumerate(holdings):
            tally.put(str(number), holding)
        return tally

    def put(self, uid: str, holding: Holding | None) -> None:
        """A pod holds this from now on; None for nothing."""
        before = self._holdings.get(uid)
        if holding is before or holding == before:
            return
        self.version += 1
        if before is not None:
            self._add(before, -1)
            del self._holdings[uid]
        if holding is not None:
            self._add(holding, 1)
            self._holdings[uid] = holding

    def _add(self, holding: Holding, sign: int) -> None:
        for resource in set(holding.resources.values()):
            for uuid, share in holding.held(resource).items():
                self._sum(resource, uuid).add(holding, share, sign)
        for uuid, memory in _asked_of_whole(holding):
            self._sum(gpushare.RESOURCE_MEMORY, uuid).asked_mib += sign * memory

    def _sum(self, resource: str, uuid: str) -> _Sum:
        return self._sums.setdefault((resource, uuid), _Sum())

    def held(self, resource: str, uuid: str) -> Share:
        """What is held of a card by a resource."""
        found = self._sums.get((resource, uuid))
        return NO_SHARE if found is None else found.share()

    def units(self, resource: str, gpu: Gpu) -> int:
        """How many cards or replicas pods have of a card by a resource whose units are those."""
        found = self._sums.get((resource, gpu.uuid))
        return 0 if found is None else found.units(gpu)

    def asked_mib(self, uuid: str) -> int:
        """The memory of a card that containers asked for by the memory resource; of a whole card, too."""
        found = self._sums.get((gpushare.RESOURCE_MEMORY, uuid))
        return 0 if found is None else found.asked_mib


def _asked_of_whole(holding: Holding) -> Iterable[tuple[str, int]]:
    """What containers that have a card as a whole asked for by the memory resource."""
    for entry in () if holding.allocation is None else holding.allocation.containers:
        if holding.resources.get(entry.name) == gpushare.RESOURCE_MEMORY:
            for card in entry.cards:
                if card.share.exclusive:
                    yield card.uuid, entry.memory_limit_mib or 0
