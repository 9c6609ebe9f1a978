"""What the pods of one node share: its machine, its devices, its room, and the way to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.embedded.deletion import Deletion
from shoal.embedded.kinds import NODES
from shoal.embedded.nodes.claims.manager import ClaimManager
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.devices.manager import DeviceManager
from shoal.embedded.nodes.host import Host
from shoal.embedded.nodes.pods.admission import Amounts, requests_of
from shoal.embedded.nodes.pods.states import Timing
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object


@dataclass(slots=True)
class Site:
    """One node as its pods see it."""

    host: Host
    devices: DeviceManager
    claims: ClaimManager
    registry: Registry
    deletion: Deletion
    recorder: EventWriter
    clock: Clock
    timing: Timing
    #: Of all nodes of the process, as many pods at a time deal with their plugins.
    plugin_calls: asyncio.Semaphore
    #: One pod at a time is admitted.
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    _taken: dict[str, tuple[Object, Amounts]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.host.spec.name

    def node(self) -> Object:
        """The Node object, or an empty one if somebody deleted it."""
        found = self.registry.store.get(NODES.key, ("", self.name))
        return found or {"metadata": {}, "spec": {}, "status": {}}

    def take(self, pod: Object) -> None:
        """A pod is admitted: it has its resources from now on."""
        self._taken[pod["metadata"]["uid"]] = (pod, requests_of(pod))

    def release(self, uid: str) -> None:
        """A pod is over: its resources and its devices are free."""
        self._taken.pop(uid, None)

    def active(self) -> set[str]:
        """The UIDs of the pods that have resources."""
        return set(self._taken)

    def pods(self) -> list[Object]:
        """The pods that have resources."""
        return [pod for pod, _ in self._taken.values()]

    def others(self, uid: str) -> Iterable[Amounts]:
        """What all other pods have."""
        return [amounts for other, (_, amounts) in self._taken.items() if other != uid]
