"""The devices that nodes publish in their ResourceSlices, as far as Shoal's scheduler can allocate them.

Only slices of Shoal's own driver count, in the pool that is named after their node, and only while the pool is whole:
all slices of its newest generation are there. A device is a card that several claims may share, or a partition of MIG,
which one claim has alone and which takes of the counters of its card. Both must be in the node's inventory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import msgspec

from shoal.kube.objects.claims import DeviceAttribute, ResourceSlice, SliceDevice
from shoal.kube.store import Change
from shoal.model import quantity
from shoal.model.contract import dra
from shoal.model.errors import QuantityError
from shoal.scheduler.claims.errors import EvaluationError
from shoal.scheduler.claims.selectors import DeviceValues

_encode = msgspec.json.Encoder(order="deterministic").encode

#: Changes remembered: who has seen none for longer looks at all nodes again.
_LOG: Final = 4_096


class PublishedDevice:
    """A card, or a partition of one, as its node publishes it."""

    __slots__ = ("device", "kind", "memory_mib", "partition", "pool", "problem", "uuid", "values")

    def __init__(self, device: SliceDevice, pool: str, uuid: str, *, partition: bool = False) -> None:
        self.device = device
        self.pool = pool
        self.uuid = uuid
        self.partition = partition
        #: The same for devices of which a share consumes the same.
        self.kind = (sys.intern(_encode(device.capacity).decode()), partition)
        self.values: DeviceValues | None = None
        #: Why no selector can be asked about it.
        self.problem = ""
        self.memory_mib = 0
        try:
            self.values = DeviceValues(device, dra.DRIVER)
            memory = device.capacity.get(dra.CAPACITY_MEMORY)
            self.memory_mib = 0 if memory is None else quantity.mebibytes(memory.value, round_up=False)
        except (EvaluationError, QuantityError) as error:
            self.problem = f"device {device.name} of {pool} cannot be read: {error}"

    def attribute(self, name: str) -> object:
        """The value of a fully qualified attribute and its type; None when it has no such."""
        attributes = self.device.attributes
        found = attributes.get(name)
        if found is None and name.startswith(f"{dra.DRIVER}/"):
            found = attributes.get(name.removeprefix(f"{dra.DRIVER}/"))
        return None if found is None else _typed(found)


def _typed(attribute: DeviceAttribute) -> object:
    for kind, value in (
        ("int", attribute.int_),
        ("bool", attribute.bool_),
        ("string", attribute.string),
        ("version", attribute.version),
    ):
        if value is not None:
            return kind, value
    return None


#: A counter set, and a counter of it.
Counter = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The counters of a pool, and what each partition takes of them, by its UUID."""

    total: Mapping[Counter, Fraction] = field(default_factory=dict)
    taken: Mapping[str, Mapping[Counter, Fraction]] = field(default_factory=dict)


_NO_COUNTERS: Final = PoolCounters()


class DeviceTable:
    """Published devices by node."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[PublishedDevice, ...]] = {}
        #: How many there are on all nodes.
        self.count = 0
        self._counters: dict[str, PoolCounters] = {}
        #: Changes with every change of devices.
        self.version = 0
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._log: list[str] = []
        self._logged_from = 0

    def on_slice(self, change: Change[ResourceSlice]) -> None:
        """A slice appeared, changed or went away."""
        name = change.object.metadata.name
        touched: set[str] = set()
        if change.old is not None and _is_ours(change.old):
            node = change.old.spec.node_name or ""
            self._slices.get(node, {}).pop(name, None)
            touched.add(node)
        if change.new is not None and _is_ours(change.new):
            node = change.new.spec.node_name or ""
            self._slices.setdefault(node, {})[name] = change.new
            touched.add(node)
        for node in touched:
            self._take_in(node)

    def counters(self, node: str) -> PoolCounters:
        """The counters of a node's pool."""
        return self._counters.get(node, _NO_COUNTERS)

    def changed_since(self, version: int) -> list[str] | None:
        """The nodes whose devices changed since; None when that is too long ago to tell."""
        start = version - self._logged_from
        return None if start < 0 else list(dict.fromkeys(self._log[start:]))

    def _take_in(self, node: str) -> None:
        devices, counters = _devices_of(node, self._slices.get(node, {}))
        self._counters.pop(node, None)
        if counters.total:
            self._counters[node] = counters
        if not self._slices.get(node):
            self._slices.pop(node, None)
        self.count += len(devices) - len(self.nodes.get(node, ()))
        if devices:
            self.nodes[node] = devices
        else:
            self.nodes.pop(node, None)
        self.version += 1
        self._log.append(node)
        if len(self._log) > _LOG:
            self._logged_from += len(self._log) - _LOG // 2
            del self._log[: -_LOG // 2]


def _is_ours(one: ResourceSlice) -> bool:
    spec = one.spec
    return spec.driver == dra.DRIVER and bool(spec.node_name) and spec.pool.name == spec.node_name


def _devices_of(node: str, slices: dict[str, ResourceSlice]) -> tuple[tuple[PublishedDevice, ...], PoolCounters]:
    """The devices of a whole pool, in the order of its slices; none while it is being changed, or is invalid."""
    newest = max((one.spec.pool.generation for one in slices.values()), default=0)
    current = [one for _, one in sorted(slices.items()) if one.spec.pool.generation == newest]
    nothing = (), _NO_COUNTERS
    if not current or any(one.spec.pool.resource_slice_count != len(current) for one in current):
        return nothing
    devices = [device for one in current for device in one.spec.devices]
    if len({device.name for device in devices}) < len(devices):
        return nothing  # invalid, and so for the stock scheduler
    found = [one for one in (_published(device, node) for device in devices) if one is not None]
    try:
        total = _totals(current)
        taken = {one.uuid: _consumption(one.device) for one in found if one.partition}
    except (QuantityError, ValueError):
        return nothing
    if any(counter not in total for some in taken.values() for counter in some):
        return nothing
    return tuple(found), PoolCounters(total, taken)


def _totals(slices: list[ResourceSlice]) -> dict[Counter, Fraction]:
    """All counters of a pool. Raises ValueError when two sets have one name."""
    sets = [one for each in slices for one in each.spec.shared_counters]
    if len({one.name for one in sets}) < len(sets):
        raise ValueError("two counter sets of one name")
    return {(one.name, name): quantity.parse(counter.value) for one in sets for name, counter in one.counters.items()}


def _consumption(device: SliceDevice) -> dict[Counter, Fraction]:
    found: dict[Counter, Fraction] = {}
    for one in device.consumes_counters:
        for name, counter in one.counters.items():
            key = one.counter_set, name
            found[key] = found.get(key, Fraction(0)) + quantity.parse(counter.value)
    return found


def _published(device: SliceDevice, node: str) -> PublishedDevice | None:
    uuid = device.attributes.get(dra.ATTRIBUTE_UUID, DeviceAttribute()).string
    partition = dra.is_partition(device.name)
    if not uuid or dra.device_name(uuid, mig=partition) != device.name:
        return None
    if bool(device.allow_multiple_allocations) is partition or (device.consumes_counters and not partition):
        return None
    return PublishedDevice(device, node, uuid, partition=partition)
