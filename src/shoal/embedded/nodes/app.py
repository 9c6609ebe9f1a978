"""All simulated nodes of a cluster in one process: one watch of pods for all of them, and one loop of heartbeats."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from shoal.embedded.deletion import Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import PODS
from shoal.embedded.logs import LogSources
from shoal.embedded.nodes.clock import Clock, WallClock
from shoal.embedded.nodes.cluster import NodeDescription
from shoal.embedded.nodes.devices.plugins import socket_address
from shoal.embedded.nodes.errors import NodesError
from shoal.embedded.nodes.faults import Faults
from shoal.embedded.nodes.host import Folders, Host
from shoal.embedded.nodes.kubelet import Kubelet
from shoal.embedded.nodes.lifecycle import NodeLifecycle
from shoal.embedded.nodes.pods.states import Timing
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.gpu.simulated import SimulatedNvml

#: Nodes that started at once do not all give signs of life at once; this is how often somebody looks who is due.
_TICK: Final = timedelta(seconds=1)
#: As many pods at a time deal with plugins: one process answers for all nodes, and who asks does not wait forever.
_PLUGIN_CALLS: Final = 16


class Api(Protocol):
    """The API server that the nodes belong to."""

    registry: Registry
    deletion: Deletion
    logs: LogSources


class Nodes:
    """Simulated nodes. `run` until it is cancelled; or `start` and `stop`.

    Each has a folder of its name under `directory`, which must be short: sockets are in it.
    """

    def __init__(
        self,
        api: Api,
        specs: Iterable[NodeDescription],
        directory: Path,
        *,
        clock: Clock | None = None,
        timing: Timing | None = None,
        rng: random.Random | None = None,
        lifecycle: bool = True,
    ) -> None:
        """`lifecycle`: whether to play the controller that taints nodes which went quiet, and evicts their pods."""
        self._api = api
        self._directory = directory
        self._clock: Clock = clock or WallClock(api.registry.clock)
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        self._recorder = EventWriter(api.registry, "kubelet")
        self._plugin_calls = asyncio.Semaphore(_PLUGIN_CALLS)
        self._kubelets: dict[str, Kubelet] = {}
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._pods_changed = asyncio.Event()
        self._lifecycle = NodeLifecycle(api.registry, api.deletion, self._recorder, self._clock) if lifecycle else None
        self._faults = Faults(api.registry, self._recorder, self._cards)
        self._tasks: list[asyncio.Task[None]] = []
        for spec in specs:
            self._make(spec)

    def __getitem__(self, name: str) -> Kubelet:
        """The kubelet of a node."""
        return self._kubelets[name]

    def __iter__(self) -> Iterator[Kubelet]:
        return iter(self._kubelets.values())

    def __len__(self) -> int:
        return len(self._kubelets)

    def _make(self, spec: NodeDescription) -> Kubelet:
        if spec.name in self._kubelets:
            raise NodesError(f"there is a node {spec.name!r} already: choose another name")
        folders = Folders(self._directory / spec.name)
        socket_address(folders.pod_resources)  # better now than when it is used
        host = Host(spec, next(self._numbers), folders, self._clock)
        leases = self._api.registry.catalogue.find("coordination.k8s.io", "v1", "leases")
        if leases is None:
            raise NodesError("the API server has no leases: nodes cannot give signs of life")
        kubelet = Kubelet(
            host,
            self._api.registry,
            self._api.deletion,
            self._recorder,
            leases=leases,
            clock=self._clock,
            timing=self._timing,
            rng=random.Random(self._rng.random()),
            plugin_calls=self._plugin_calls,
            news=self._wake.set,
        )
        self._kubelets[spec.name] = kubelet
        return kubelet

    async def run(self) -> None:
        """Until cancelled. Should one of its loops break, so does this."""
        await self.start()
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            await self.stop()

    async def start(self) -> None:
        """Register all nodes and take up their pods."""
        version = self._api.registry.store.version
        self._api.registry.store.listen(PODS.key, self._pods_changed.set)
        for kubelet in self._kubelets.values():
            self._api.logs.add(kubelet.name, kubelet.host)
            await kubelet.start()
        loops = [self._follow_pods(version), self._beat(), self._faults.run()]
        if self._lifecycle is not None:
            loops.append(self._lifecycle.run())
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """End all kubelets. Their nodes stay, and go quiet."""
        self._api.registry.store.unlisten(PODS.key, self._pods_changed.set)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for kubelet in self._kubelets.values():
            self._api.logs.remove(kubelet.name)
            await kubelet.stop()

    async def add(self, spec: NodeDescription) -> Kubelet:
        """One more node, at once."""
        kubelet = self._make(spec)
        self._api.logs.add(spec.name, kubelet.host)
        await kubelet.start()
        return kubelet

    async def remove(self, name: str) -> None:
        """Stop a node's kubelet for good. The Node object is for somebody else to delete."""
        kubelet = self._kubelets.pop(name)
        self._api.logs.remove(name)
        await kubelet.stop()

    def _cards(self, node: str) -> SimulatedNvml | None:
        kubelet = self._kubelets.get(node)
        return kubelet.host.nvml if kubelet else None

    async def _follow_pods(self, version: int) -> None:
        """The one watch: every change of a pod goes to the kubelet of its node."""
        store = self._api.registry.store
        while True:
            self._pods_changed.clear()
            try:
                changes = store.changes_after(PODS.key, version)
            except ApiStatus:  # too many at once: begin with what is there, as any watch does
                version = store.version
                for kubelet in self._kubelets.values():
                    kubelet.resync()
                continue
            for change in changes:
                pod = change.after or change.removed
                kubelet_of = self._kubelets.get(pod["spec"].get("nodeName", "")) if pod is not None else None
                if kubelet_of is not None and pod is not None:
                    kubelet_of.deliver(pod)
                version = change.version
            await self._pods_changed.wait()

    async def _beat(self) -> None:
        while True:
            for kubelet in self._kubelets.values():
                if kubelet.running:
                    kubelet.beat()
            await self._clock.wait(self._wake, self._next_look())

    def _next_look(self) -> datetime:
        return self._clock.now() + _TICK
