"""The node's cards as devices of a DRA driver, and the slices that hold them. Pure.

A card is a device that many claims can share, with memory and compute as capacity. A MIG partition is a device for one
claim; what it takes of its card is told by counters, which have slices of their own. One that a container has by number
is no device meanwhile.

The stock scheduler takes the first device that fits, in the order of the list, and knows nothing of shares by number.
So cards without such shares come first, those with the least free memory in front, which makes its choice nearly a best
fit. Then come the others, those with the most free memory in front: a claim that does not fit there waits on the node.

Where claims cannot share a device, a card is one claim's as a whole, and no device while a part of it is given by
number, nor while it is sick: such a cluster knows no taints either.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from shoal.gpu.protocol import Card, Driver
from shoal.kube.objects.claims import (
    CapacityRange,
    CapacityRequestPolicy,
    CounterConsumption,
    CounterSet,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounter,
    DeviceTaint,
    SliceDevice,
)
from shoal.model import quantity
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from shoal.model.request import FULL_COMPUTE, NO_SHARE, Share

T = TypeVar("T")

_LABEL_VALUE: Final = 63
_NO_LABEL: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class PoolSlice:
    """What one slice of a pool holds: devices, or counters of cards."""

    devices: tuple[SliceDevice, ...] = ()
    counters: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldOfCard:
    """What is held of a card: by claims, and by number."""

    claims: Share = NO_SHARE
    numbers: Share = NO_SHARE


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The cards of a node by the names of their devices."""

    gpus: Mapping[str, Gpu]
    partitions: Mapping[str, tuple[Gpu, int, MigInstance]]

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> NodeDevices:
        """The devices of these cards. A card in MIG mode is there by its partitions alone."""
        whole: dict[str, Gpu] = {}
        parts: dict[str, tuple[Gpu, int, MigInstance]] = {}
        for gpu in gpus:
            if not gpu.mig and gpu.memory_mib:
                whole[dra.device_name(gpu.uuid)] = gpu
            for place, part in enumerate(gpu.mig_instances if gpu.mig else ()):
                parts[dra.device_name(part.uuid, mig=True)] = (gpu, place, part)
        return cls(whole, parts)

    def fault(self, device: str) -> str:
        """Why the card of a device is unhealthy; empty while it is healthy."""
        gpu = self.gpus.get(device) or self.partitions[device][0]
        return "" if gpu.healthy else gpu.fault or "unhealthy"

    def __iter__(self) -> Iterator[str]:
        return iter((*self.gpus, *self.partitions))


def pool_slices(
    gpus: Sequence[Gpu],
    cards: Sequence[Card],
    driver: Driver,
    use: Mapping[str, HeldOfCard],
    given: Container[str] = (),
    *,
    clients: bool = False,
) -> tuple[PoolSlice, ...]:
    """The slices of a node's pool. `use` tells what is held of cards, by UUID, `given` which partitions containers have
    by number; `clients` publishes MPS clients too.
    """
    found = NodeDevices.of(gpus)
    by_uuid = {card.uuid: card for card in cards}
    groups = nvlink_groups(gpus)

    def attributes(gpu: Gpu) -> dict[str, DeviceAttribute]:
        return _attributes(gpu, by_uuid.get(gpu.uuid), driver, groups.get(gpu.uuid))

    devices = [_card(name, gpu, attributes(gpu), clients=clients) for name, gpu in _ordered(found.gpus, use)]
    devices += [
        _partition(name, *part, attributes(part[0]))
        for name, part in found.partitions.items()
        if part[2].uuid not in given
    ]
    advanced = any(device.taints or device.consumes_counters for device in devices)
    sets = [_counters(gpu) for gpu in gpus if gpu.mig and gpu.mig_instances]
    return (
        *(
            PoolSlice(devices=part)
            for part in _parts(devices, dra.MAX_DEVICES_ADVANCED if advanced else dra.MAX_DEVICES)
        ),
        *(PoolSlice(counters=part) for part in _parts(sets, dra.MAX_COUNTER_SETS)),
    )


def whole_slices(
    gpus: Sequence[Gpu],
    cards: Sequence[Card],
    driver: Driver,
    use: Mapping[str, HeldOfCard],
    given: Container[str] = (),
) -> tuple[PoolSlice, ...]:
    """The slices of a node's pool where a device is one claim's alone: cards of which nothing is held by number, and
    partitions, both without a fault. The smallest cards come first.
    """
    by_number = {
        name for name, gpu in NodeDevices.of(gpus).gpus.items() if use.get(gpu.uuid, HeldOfCard()).numbers != NO_SHARE
    }
    devices = [
        _whole(device)
        for one in pool_slices(gpus, cards, driver, {}, given)
        for device in one.devices
        if device.name not in by_number and not device.taints
    ]
    return tuple(PoolSlice(devices=part) for part in _parts(devices, dra.MAX_DEVICES))


def _whole(device: SliceDevice) -> SliceDevice:
    """The device without what concerns sharing: how amounts are asked for, and counters."""
    capacity = {name: DeviceCapacity(value=one.value) for name, one in device.capacity.items()}
    return msgspec.structs.replace(device, allow_multiple_allocations=None, capacity=capacity, consumes_counters=())


def _parts(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    for begin in range(0, len(items), size):
        yield tuple(items[begin : begin + size])


def _ordered(gpus: Mapping[str, Gpu], use: Mapping[str, HeldOfCard]) -> list[tuple[str, Gpu]]:
    def key(item: tuple[str, Gpu]) -> tuple[bool, int, int]:
        gpu = item[1]
        held = use.get(gpu.uuid, HeldOfCard())
        total = held.claims + held.numbers
        free = 0 if total.exclusive else gpu.memory_mib - total.memory_mib
        by_number = held.numbers != NO_SHARE
        return by_number, -free if by_number else free, gpu.index

    return sorted(gpus.items(), key=key)


def _card(name: str, gpu: Gpu, attributes: dict[str, DeviceAttribute], *, clients: bool) -> SliceDevice:
    memory = _mebibytes(gpu.memory_mib)
    step = dra.MEMORY_STEP
    compute = CapacityRange(min=dra.COMPUTE_MIN, step=dra.COMPUTE_STEP)
    return SliceDevice(
        name=name,
        allow_multiple_allocations=True,
        attributes={**attributes, dra.ATTRIBUTE_TYPE: DeviceAttribute(string=dra.TYPE_GPU)},
        capacity={
            dra.CAPACITY_MEMORY: DeviceCapacity(
                value=memory,
                request_policy=CapacityRequestPolicy(default=memory, valid_range=CapacityRange(min=step, step=step)),
            ),
            dra.CAPACITY_COMPUTE: DeviceCapacity(
                value=str(FULL_COMPUTE),
                request_policy=CapacityRequestPolicy(default=dra.COMPUTE_MIN, valid_range=compute),
            ),
            **({dra.CAPACITY_CLIENTS: _clients(gpu)} if clients and gpu.mps_clients else {}),
        },
        taints=_taints(gpu),
    )


def _clients(gpu: Gpu) -> DeviceCapacity:
    valid = CapacityRange(min=dra.CLIENTS_MIN, step=dra.CLIENTS_STEP)
    return DeviceCapacity(
        value=str(gpu.mps_clients),
        request_policy=CapacityRequestPolicy(default=dra.CLIENTS_MIN, valid_range=valid),
    )


def _partition(
    name: str, gpu: Gpu, place: int, part: MigInstance, attributes: dict[str, DeviceAttribute]
) -> SliceDevice:
    own = {
        dra.ATTRIBUTE_TYPE: DeviceAttribute(string=dra.TYPE_MIG),
        dra.ATTRIBUTE_UUID: _text(part.uuid),
        dra.ATTRIBUTE_PARENT: _text(gpu.uuid),
        dra.ATTRIBUTE_PROFILE: _text(part.profile),
    }
    memory = _mebibytes(part.memory_mib)
    return SliceDevice(
        name=name,
        attributes={**attributes, **own},
        capacity={dra.CAPACITY_MEMORY: DeviceCapacity(value=memory)},
        consumes_counters=(
            CounterConsumption(
                counter_set=dra.device_name(gpu.uuid), counters={dra.COUNTER_MEMORY: DeviceCounter(value=memory)}
            ),
        ),
        taints=_taints(gpu),
    )


def _counters(gpu: Gpu) -> CounterSet:
    total = max(gpu.memory_mib, sum(part.memory_mib for part in gpu.mig_instances))
    return CounterSet(
        name=dra.device_name(gpu.uuid), counters={dra.COUNTER_MEMORY: DeviceCounter(value=_mebibytes(total))}
    )


def _mebibytes(mib: int) -> str:
    """As the API server writes it, so that what was written and what is read back are equal."""
    return quantity.canonical(mib * quantity.MEBIBYTE, binary=True)


def _taints(gpu: Gpu) -> tuple[DeviceTaint, ...]:
    if gpu.healthy:
        return ()
    words = _NO_LABEL.sub("-", gpu.fault)[:_LABEL_VALUE].strip("-._")
    return (DeviceTaint(key=dra.TAINT_UNHEALTHY, value=words, effect=dra.EFFECT_NO_SCHEDULE),)


def _attributes(gpu: Gpu, card: Card | None, driver: Driver, group: int | None) -> dict[str, DeviceAttribute]:
    """What is known of a card, without what is not."""
    cuda = None if driver.cuda is None else "{}.{}.0".format(*driver.cuda)
    found = {
        dra.ATTRIBUTE_UUID: _text(gpu.uuid),
        dra.ATTRIBUTE_INDEX: DeviceAttribute(int_=gpu.index),
        dra.ATTRIBUTE_MODEL: _text(gpu.model),
        dra.ATTRIBUTE_ARCHITECTURE: _text("" if card is None else card.family),
        dra.ATTRIBUTE_DRIVER_VERSION: DeviceAttribute(version=version(driver.version)),
        dra.ATTRIBUTE_CUDA_VERSION: DeviceAttribute(version=cuda),
        dra.ATTRIBUTE_NUMA: DeviceAttribute(int_=gpu.numa),
        dra.ATTRIBUTE_NVLINK: DeviceAttribute(int_=group),
        dra.ATTRIBUTE_ISOLATION: DeviceAttribute(string=gpu.isolation.value),
    }
    return {name: one for name, one in found.items() if one not in (DeviceAttribute(), DeviceAttribute(string=""))}


def _text(words: str) -> DeviceAttribute:
    return DeviceAttribute(string=words[: dra.MAX_ATTRIBUTE])


def version(text: str) -> str | None:
    """A version as semantic versions are written: `535.104.05` is 535.104.5. None if there is no number in it."""
    numbers = [str(int(number)) for number in _NUMBER.findall(text)[:3]]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else None


def nvlink_groups(gpus: Iterable[Gpu]) -> dict[str, int]:
    """By UUID, the group of cards that reach each other over NVLink: the lowest index in it. Lone cards have none."""
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    peers: dict[str, set[str]] = {uuid: set() for uuid in indices}
    for gpu in gpus:
        for link in gpu.links:
            if link.peer in indices:
                peers[gpu.uuid].add(link.peer)
                peers[link.peer].add(gpu.uuid)
    found: dict[str, int] = {}
    for uuid in sorted(indices, key=indices.__getitem__):
        if uuid in found or not peers[uuid]:
            continue
        reached, todo = {uuid}, [uuid]
        while todo:
            fresh = peers[todo.pop()] - reached
            reached |= fresh
            todo += fresh
        found.update(dict.fromkeys(reached, indices[uuid]))
    return found
