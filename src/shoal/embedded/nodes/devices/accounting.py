"""Which devices there are, which of them are healthy, and which container has which. Pure.

The rules, and the words in which something is refused, are those of kubelet's device manager. Asking plugins is for
`shoal.embedded.nodes.devices.manager`. Topology hints are not looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.embedded.nodes.devices.checkpoint import NO_NUMA, Checkpoint, Entry
from shoal.embedded.nodes.errors import AllocationError


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device as its plugin lists it."""

    id: str
    healthy: bool = True
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices a container gets for sure, those it may get, and how many of these it needs."""

    taken: frozenset[str]
    available: tuple[str, ...]
    needed: int


class Accounts:
    """The devices of one node."""

    def __init__(self, rng: random.Random) -> None:
        self.devices: dict[str, dict[str, PluginDevice]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self._rng = rng
        #: By pod, container and resource.
        self._held: dict[str, dict[str, dict[str, Entry]]] = {}
        self._in_use: dict[str, set[str]] = {}

    def listed(self, resource: str, devices: Iterable[PluginDevice]) -> None:
        """A plugin sent its list: it replaces the one before."""
        self.devices[resource] = {device.id: device for device in devices}
        self.healthy[resource] = {device.id for device in self.devices[resource].values() if device.healthy}
        self.unhealthy[resource] = set(self.devices[resource]) - self.healthy[resource]

    def lost(self, resource: str) -> None:
        """A plugin is gone: none of its devices is healthy."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        self.healthy[resource] = set()

    def forget(self, resource: str) -> None:
        """A plugin has been gone for long."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable by resource."""
        return {
            name: (len(healthy) + len(self.unhealthy.get(name, ())), len(healthy))
            for name, healthy in self.healthy.items()
        }

    def is_known(self, resource: str) -> bool:
        """Whether a resource is one of a plugin: of one that is there, or of one that somebody has devices of."""
        return resource in self.healthy or resource in self._in_use

    def in_use(self) -> dict[str, int]:
        """How many devices are taken, by resource."""
        return {name: len(ids) for name, ids in self._in_use.items()}

    def held_by(self, pod_uid: str, container: str) -> dict[str, Entry]:
        """A container's devices by resource."""
        return self._held.get(pod_uid, {}).get(container, {})

    def pods(self) -> set[str]:
        """The UIDs of all pods that have devices."""
        return set(self._held)

    def keep_only(self, active: Iterable[str]) -> None:
        """Free the devices of all pods but these."""
        for uid in set(self._held) - set(active):
            del self._held[uid]
        self._recount()

    def choose(self, pod_uid: str, container: str, resource: str, count: int, reusable: set[str]) -> Choice | None:
        """What a container can have; None if it has all it needs. AllocationError if it cannot have as many."""
        entry = self.held_by(pod_uid, container).get(resource)
        held = entry.ids if entry is not None else frozenset()
        if entry is not None and len(held) != count:
            change = f"from {len(held)} to {count}"
            raise AllocationError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" {change}'
            )
        self._check_health(resource, held)
        if entry is not None or not count:
            return None
        taken = frozenset(sorted(reusable)[:count])
        self._in_use.setdefault(resource, set()).update(taken)
        needed = count - len(taken)
        available = self.healthy[resource] - self._in_use[resource]
        if len(available) < needed:
            raise AllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        return Choice(taken, tuple(sorted(available)), needed)

    def _check_health(self, resource: str, held: frozenset[str]) -> None:
        healthy = self.healthy.get(resource)
        if healthy is None:
            raise AllocationError(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not held <= healthy:
            why = "previously allocated devices are no longer healthy"
            raise AllocationError(f"{why}; cannot allocate unhealthy devices {resource}")

    def take(self, resource: str, choice: Choice, preferred: Iterable[str] = ()) -> list[str]:
        """Settle on devices: those the plugin prefers first, then any, as kubelet takes them in no order."""
        wanted = [one for one in dict.fromkeys(preferred) if one in set(choice.available)][: choice.needed]
        rest = choice.needed - len(wanted)
        if rest:
            left = [one for one in choice.available if one not in set(wanted)]
            wanted += self._rng.sample(left, rest)
        self._in_use.setdefault(resource, set()).update(wanted)
        return [*sorted(choice.taken), *wanted]

    def hold(self, pod_uid: str, container: str, resource: str, ids: Iterable[str], response: bytes) -> None:
        """A plugin agreed: these devices are the container's."""
        by_numa: dict[int, list[str]] = {}
        for one in ids:
            device = self.devices.get(resource, {}).get(one, PluginDevice(one))
            for numa in device.numa or (NO_NUMA,):
                by_numa.setdefault(numa, []).append(one)
        devices = {numa: tuple(found) for numa, found in by_numa.items()}
        entry = Entry(pod_uid, container, resource, devices, response)
        self._held.setdefault(pod_uid, {}).setdefault(container, {})[resource] = entry

    def settle(self) -> None:
        """An allocation failed half way: only what containers hold is in use."""
        self._recount()

    def checkpoint(self) -> Checkpoint:
        """All of it, to be written down."""
        entries = tuple(
            entry for pod in self._held.values() for container in pod.values() for entry in container.values()
        )
        return Checkpoint(entries, {name: tuple(sorted(ids)) for name, ids in self.healthy.items()})

    def restore(self, checkpoint: Checkpoint) -> None:
        """As kubelet begins from its checkpoint: whose devices are taken is known, no device is there yet."""
        self._held = {}
        for entry in checkpoint.entries:
            self._held.setdefault(entry.pod_uid, {}).setdefault(entry.container, {})[entry.resource] = entry
        self.healthy = {name: set() for name in checkpoint.registered}
        self.unhealthy = {name: set() for name in checkpoint.registered}
        self._recount()

    def _recount(self) -> None:
        self._in_use = {}
        for pod in self._held.values():
            for container in pod.values():
                for resource, entry in container.items():
                    self._in_use.setdefault(resource, set()).update(entry.ids)


class Reuse:
    """The devices of a pod's init containers, which later containers of it take over. Of one pod at a time."""

    def __init__(self) -> None:
        self._free: dict[str, set[str]] = {}

    def of(self, resource: str) -> set[str]:
        """What can be taken over."""
        return set(self._free.get(resource, ()))

    def offer(self, held: Mapping[str, Entry]) -> None:
        """An init container will have ended."""
        for resource, entry in held.items():
            self._free.setdefault(resource, set()).update(entry.ids)

    def withdraw(self, held: Mapping[str, Entry]) -> None:
        """A container keeps its devices to the end."""
        for resource, entry in held.items():
            self._free.get(resource, set()).difference_update(entry.ids)
