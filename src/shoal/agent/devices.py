"""The devices kubelet counts: how many units of each resource, which of them are withdrawn, and their IDs. Pure.

An ID says nothing about a card: kubelet picks IDs freely, and whoever reads them in PodResources must not be misled. So
units are withdrawn by number. A card in use as a whole takes its units out of the shared resources, a card that is
shared leaves the whole ones. A unit that a container has is never withdrawn: kubelet would not let its pod come back
after a restart of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shoal.agent.holdings import Holding, used
from shoal.agent.replicas import RESOURCES as COUNTED
from shoal.agent.replicas import Cut
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.pod import FULL_COMPUTE
from shoal.model.request import NO_SHARE, Share

#: So that no ID looks like the index of a card.
_PREFIXES: Final = {
    gpushare.RESOURCE_MEMORY: "m",
    keti.RESOURCE_MPS: "c",
    nvidia.RESOURCE_GPU: "g",
    nvidia.RESOURCE_GPU_SHARED: "r",
    shoal.RESOURCE_SLOT: "s",
}


@dataclass(frozen=True, slots=True)
class Count:
    """Units of a resource: all of them, and those that may be in use."""

    total: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The devices of a resource as kubelet is told of them."""

    healthy: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()

    def message(self) -> api.ListAndWatchResponse:
        """The list on the wire."""
        answer = api.ListAndWatchResponse()
        for ids, health in ((self.healthy, constants.HEALTHY), (self.withdrawn, constants.UNHEALTHY)):
            for one in ids:
                answer.devices.add(ID=one, health=health)
        return answer


@dataclass(frozen=True, slots=True)
class _Card:
    """A card with what its own resource and all others hold of it."""

    gpu: Gpu
    own: Share
    others: Share
    #: How many units of its own resource containers have of it, where units are cards or replicas.
    units: int = 0


def memory(gpus: Sequence[Gpu], holdings: Sequence[Holding], unit: MemoryUnit) -> Count:
    """Units of `aliyun.com/gpu-mem`."""
    asked = _asked_memory(holdings)

    def units(card: _Card) -> tuple[int, int]:
        size = 0 if card.gpu.mig else unit.floor(card.gpu.memory_mib)
        own = unit.ceil(asked.get(card.gpu.uuid, 0))
        if not card.gpu.healthy or card.own.exclusive or card.others.exclusive:
            return size, min(size, own)
        return size, max(own, size - unit.ceil(card.others.memory_mib))

    return _count(gpus, holdings, gpushare.RESOURCE_MEMORY, units)


def clients(gpus: Sequence[Gpu], holdings: Sequence[Holding]) -> Count:
    """Units of `keti.com/mpsgpu`."""

    def units(card: _Card) -> tuple[int, int]:
        size = card.gpu.mps_clients
        free = card.gpu.healthy and not card.others.exclusive
        return size, size if free else min(size, card.own.clients)

    return _count(gpus, holdings, keti.RESOURCE_MPS, units)


def whole(gpus: Sequence[Gpu], holdings: Sequence[Holding]) -> Count:
    """Units of `nvidia.com/gpu`. Replicas of a cut that is no more stay with those who have them."""

    def units(card: _Card) -> tuple[int, int]:
        size = 0 if card.gpu.mig else 1
        free = card.gpu.healthy and card.own == card.others == NO_SHARE
        return max(size, card.units), card.units or (size if free else 0)

    return _count(gpus, holdings, nvidia.RESOURCE_GPU, units)


def replicas(gpus: Sequence[Gpu], holdings: Sequence[Holding], resource: str, cut: Cut) -> Count:
    """Units of a resource whose units are replicas: of a card that others use too, those that have room beside them."""

    def units(card: _Card) -> tuple[int, int]:
        one = cut.share(card.gpu)
        if card.gpu.mig or one == NO_SHARE:
            return card.units, card.units
        total = max(cut.replicas, card.units)
        if not card.gpu.healthy or card.own.exclusive or card.others.exclusive:
            return total, card.units
        taken = card.own + card.others
        room = [(cut.room(card.gpu) - taken.memory_mib) // one.memory_mib, total - card.units]
        if one.compute:
            room.append((FULL_COMPUTE - taken.compute) // one.compute)
        return total, card.units + max(0, min(room))

    return _count(gpus, holdings, resource, units)


def _count(
    gpus: Sequence[Gpu], holdings: Sequence[Holding], resource: str, units: Callable[[_Card], tuple[int, int]]
) -> Count:
    own = used(holdings, resource)
    others: dict[str, Share] = {}
    for other in _PREFIXES:
        if other != resource:
            for uuid, share in used(holdings, other).items():
                others[uuid] = others.get(uuid, NO_SHARE) + share
    had = _units(gpus, holdings, resource)
    total = allowed = 0
    for gpu in gpus:
        mine, theirs = own.get(gpu.uuid, NO_SHARE), others.get(gpu.uuid, NO_SHARE)
        size, may = units(_Card(gpu, mine, theirs, had.get(gpu.uuid, 0)))
        total, allowed = total + size, allowed + may
    return Count(total, allowed)


def _units(gpus: Sequence[Gpu], holdings: Sequence[Holding], resource: str) -> dict[str, int]:
    """How many cards or replicas pods have of each card, by UUID, if the resource counts those."""
    found: dict[str, int] = {}
    if resource not in COUNTED:
        return found
    cards = {gpu.uuid: gpu for gpu in gpus}
    for holding in holdings:
        for uuid, share in holding.held(resource).items():
            if share.exclusive:
                found[uuid] = found.get(uuid, 0) + 1
            elif holding.cut is not None and uuid in cards:
                found[uuid] = found.get(uuid, 0) + (holding.cut.count(cards[uuid], share) or 0)
    return found


def _asked_memory(holdings: Iterable[Holding]) -> dict[str, int]:
    """The memory that containers asked for by the memory resource, by card; of a whole card, what they asked for it."""
    asked: dict[str, int] = {}
    for holding in holdings:
        for uuid, share in holding.held(gpushare.RESOURCE_MEMORY).items():
            asked[uuid] = asked.get(uuid, 0) + share.memory_mib
        for entry in () if holding.allocation is None else holding.allocation.containers:
            if holding.resources.get(entry.name) == gpushare.RESOURCE_MEMORY:
                for card in entry.cards:
                    if card.share.exclusive:
                        asked[card.uuid] = asked.get(card.uuid, 0) + (entry.memory_limit_mib or 0)
    return asked


def listing(resource: str, count: Count, in_use: Iterable[str]) -> Listing:
    """The devices of a resource. Those in use are always among them, and never withdrawn.

    They stand in the order of their numbers: a list with the same devices is the same list, and is not sent again.
    """
    taken = set(in_use)
    room = max(0, count.total - len(taken))
    spare = max(0, count.allowed - len(taken))
    prefix = _PREFIXES[resource]
    healthy: list[str] = []
    withdrawn: list[str] = []
    free = number = 0
    while free < room:
        one = f"{prefix}{number:x}"
        number += 1
        if one in taken:
            taken.remove(one)
            healthy.append(one)
        else:
            (healthy if free < spare else withdrawn).append(one)
            free += 1
    return Listing((*healthy, *sorted(taken, key=lambda one: (len(one), one))), tuple(withdrawn))


def fits_a_message(resource: str, units: int) -> bool:
    """Whether kubelet would take a list of so many devices, were none of them healthy: that word is the longer one."""
    # The largest ID for all of them: never too small, and quick.
    one = api.ListAndWatchResponse()
    one.devices.add(ID=f"{_PREFIXES[resource]}{max(0, units - 1):x}", health=constants.UNHEALTHY)
    return units * one.ByteSize() <= constants.MAX_MESSAGE_BYTES
