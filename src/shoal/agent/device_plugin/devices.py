"""The devices kubelet counts: how many units of each resource, which of them are withdrawn, and their IDs. Pure.

kubelet picks IDs freely, so an ID does not name a card, and units are withdrawn by number. While a card is in use as a
whole its units are withdrawn from the shared resources; while it is shared, it is withdrawn from the whole ones. A unit
that a container has is never withdrawn: after a restart kubelet would not admit its pod again.
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
from shoal.model.contract import dra, gpushare, keti, nvidia, shoal
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
#: By what cards are held: by number, and by claims.
_HOLDERS: Final = (*_PREFIXES, dra.DRIVER)


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
        """The list as a message to kubelet."""
        answer = api.ListAndWatchResponse()
        for ids, health in ((self.healthy, constants.HEALTHY), (self.withdrawn, constants.UNHEALTHY)):
            for one in ids:
                answer.devices.add(ID=one, health=health)
        return answer


@dataclass(frozen=True, slots=True)
class _Card:
    """A card, what the counted resource holds of it, and what all other resources hold."""

    gpu: Gpu
    own: Share
    others: Share
    #: How many units of the counted resource containers have of it, if it counts cards or replicas.
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
    """Units of `nvidia.com/gpu`. Containers keep replicas of an earlier configuration."""

    def units(card: _Card) -> tuple[int, int]:
        size = 0 if card.gpu.mig else 1
        free = card.gpu.healthy and card.own == card.others == NO_SHARE
        return max(size, card.units), card.units or (size if free else 0)

    return _count(gpus, totals, nvidia.RESOURCE_GPU, units)


def replicas(gpus: Sequence[Gpu], totals: HeldTotals, resource: str, cut: Cut) -> Count:
    """Units of a resource that counts replicas. Of a card with other shares on it, only those that still fit."""

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
        others = sum((totals.held(other, gpu.uuid) for other in _HOLDERS if other != resource), NO_SHARE)
        had = totals.units(resource, gpu) if resource in COUNTED else 0
        size, may = units(_Card(gpu, totals.held(resource, gpu.uuid), others, had))
        total, allowed = total + size, allowed + may
    return Count(total, allowed)


def listing(resource: str, count: Count, in_use: Iterable[str]) -> DeviceList:
    """The devices of a resource. Those in use are always among them, and never withdrawn.

    They are sorted by number, so that equal lists compare as equal and are not sent again.
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
    """How many devices, from the first on, containers can take or give back without a change of the list.

    All of them are healthy. As long as no more are in use than are allowed, a device that is taken is one fewer free
    one, and the list of withdrawn devices stays the same.
    """
    if not len(in_use) <= count.allowed <= count.total:
        return 0
    prefix = _PREFIXES[resource]
    gap = (number for number, one in enumerate(listed.healthy) if one != f"{prefix}{number:x}")
    return next(gap, len(listed.healthy))


def is_below(resource: str, device: str, number: int) -> bool:
    """Whether a device is among the first `number` of a resource."""
    own = _number(resource, device)
    return own is not None and own < number


def is_own(resource: str, device: str) -> bool:
    """Whether the agent made this device ID. Another plugin that served the resource before made others."""
    return _number(resource, device) is not None


def _number(resource: str, device: str) -> int | None:
    prefix = _PREFIXES.get(resource, "")
    try:
        own = int(device.removeprefix(prefix), 16)
    except ValueError:
        return None
    return own if prefix and device == f"{prefix}{own:x}" else None


def fits_a_message(resource: str, units: int) -> bool:
    """Whether a list of so many devices, all unhealthy (the longer word), fits into a message to kubelet."""
    # Counted with the longest ID for all of them: quick, and never too small.
    one = api.ListAndWatchResponse()
    one.devices.add(ID=f"{_PREFIXES[resource]}{max(0, units - 1):x}", health=constants.UNHEALTHY)
    return units * one.ByteSize() <= constants.MAX_MESSAGE_BYTES
