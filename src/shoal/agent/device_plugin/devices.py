"""The devices kubelet counts: how many units of each resource, which of them are withdrawn, and their IDs. Pure.

An ID says nothing about a card: kubelet picks IDs freely, and whoever reads them in PodResources must not be misled. So
units are withdrawn by number. A card in use as a whole takes its units out of the shared resources, a card that is
shared leaves the whole ones. A unit that a container has is never withdrawn: kubelet would not let its pod come back
after a restart of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from shoal.agent.node.holdings import HeldTotals
from shoal.agent.nvidia.replicas import RESOURCES as COUNTED
from shoal.agent.nvidia.replicas import Cut
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import FULL_COMPUTE, NO_SHARE, Share

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
class DeviceList:
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


def memory(gpus: Sequence[Gpu], totals: HeldTotals, unit: MemoryUnit) -> Count:
    """Units of `aliyun.com/gpu-mem`."""

    def units(card: _Card) -> tuple[int, int]:
        size = 0 if card.gpu.mig else unit.floor(card.gpu.memory_mib)
        own = unit.ceil(totals.asked_mib(card.gpu.uuid))
        if not card.gpu.healthy or card.own.exclusive or card.others.exclusive:
            return size, min(size, own)
        return size, max(own, size - unit.ceil(card.others.memory_mib))

    return _count(gpus, totals, gpushare.RESOURCE_MEMORY, units)


def clients(gpus: Sequence[Gpu], totals: HeldTotals) -> Count:
    """Units of `keti.com/mpsgpu`."""

    def units(card: _Card) -> tuple[int, int]:
        size = card.gpu.mps_clients
        free = card.gpu.healthy and not card.others.exclusive
        return size, size if free else min(size, card.own.clients)

    return _count(gpus, totals, keti.RESOURCE_MPS, units)


def whole(gpus: Sequence[Gpu], totals: HeldTotals) -> Count:
    """Units of `nvidia.com/gpu`. Replicas of a cut that is no more stay with those who have them."""

    def units(card: _Card) -> tuple[int, int]:
        size = 0 if card.gpu.mig else 1
        free = card.gpu.healthy and card.own == card.others == NO_SHARE
        return max(size, card.units), card.units or (size if free else 0)

    return _count(gpus, totals, nvidia.RESOURCE_GPU, units)


def replicas(gpus: Sequence[Gpu], totals: HeldTotals, resource: str, cut: Cut) -> Count:
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

    return _count(gpus, totals, resource, units)


def _count(gpus: Sequence[Gpu], totals: HeldTotals, resource: str, units: Callable[[_Card], tuple[int, int]]) -> Count:
    total = allowed = 0
    for gpu in gpus:
        others = sum((totals.held(other, gpu.uuid) for other in _PREFIXES if other != resource), NO_SHARE)
        had = totals.units(resource, gpu) if resource in COUNTED else 0
        size, may = units(_Card(gpu, totals.held(resource, gpu.uuid), others, had))
        total, allowed = total + size, allowed + may
    return Count(total, allowed)


def listing(resource: str, count: Count, in_use: Iterable[str]) -> DeviceList:
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
    return DeviceList((*healthy, *sorted(taken, key=lambda one: (len(one), one))), tuple(withdrawn))


def settled(resource: str, listed: DeviceList, count: Count, in_use: Set[str]) -> int:
    """How many devices, from the first one on, may be taken or given back without a change of the list.

    These are all healthy. While those in use are not more than are allowed, each that is taken is one less that is
    free, so that none beyond them is withdrawn or comes back.
    """
    if not len(in_use) <= count.allowed <= count.total:
        return 0
    prefix = _PREFIXES[resource]
    gap = (number for number, one in enumerate(listed.healthy) if one != f"{prefix}{number:x}")
    return next(gap, len(listed.healthy))


def is_below(resource: str, device: str, number: int) -> bool:
    """Whether a device is one of the first so many of a resource."""
    own = _number(resource, device)
    return own is not None and own < number


def is_own(resource: str, device: str) -> bool:
    """Whether a device is one of the agent's: who served the resource before may have left other IDs."""
    return _number(resource, device) is not None


def _number(resource: str, device: str) -> int | None:
    prefix = _PREFIXES.get(resource, "")
    try:
        own = int(device.removeprefix(prefix), 16)
    except ValueError:
        return None
    return own if prefix and device == f"{prefix}{own:x}" else None


def fits_a_message(resource: str, units: int) -> bool:
    """Whether kubelet would take a list of so many devices, were none of them healthy: that word is the longer one."""
    # The largest ID for all of them: never too small, and quick.
    one = api.ListAndWatchResponse()
    one.devices.add(ID=f"{_PREFIXES[resource]}{max(0, units - 1):x}", health=constants.UNHEALTHY)
    return units * one.ByteSize() <= constants.MAX_MESSAGE_BYTES
