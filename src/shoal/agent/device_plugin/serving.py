"""Which resources a node serves to kubelet, and their device plugins: one for each resource, coming and going with it.

One agent serves a node: a second one would take the plugins' sockets away from the first, and that one from it. So the
folder of the sockets is locked. The kernel gives the lock back however its holder ends: a new agent takes over when the
old one is gone, and only waits where somebody runs two of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.agent.config import AgentConfig
from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.devices import Count
from shoal.agent.device_plugin.plugin import Allocate, LetGo, Plugin, PluginResource, PreStart
from shoal.agent.node.holdings import HeldTotals
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.partitions import MigPartition
from shoal.agent.nvidia.replicas import slicing_of
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.node_files import SOCKET_NVIDIA_PREFIX, SOCKET_SLOT
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.gpu import Gpu

log = logging.getLogger(__name__)

SOCKETS: Final = {
    gpushare.RESOURCE_MEMORY: gpushare.PLUGIN_SOCKET,
    keti.RESOURCE_MPS: keti.PLUGIN_SOCKET,
    nvidia.RESOURCE_GPU: nvidia.DEVICE_PLUGIN_SOCKET,
    shoal.RESOURCE_SLOT: SOCKET_SLOT,
}
_LOOK_SECONDS: Final = 0.5


def socket_of(resource: str) -> str:
    """The file name of a resource's socket."""
    return SOCKETS.get(resource) or f"{SOCKET_NVIDIA_PREFIX}{resource.removeprefix(nvidia.DOMAIN + '/')}.sock"


def comes_and_goes(resource: str) -> bool:
    """Whether a resource is served only where MIG partitions or NVIDIA's configuration ask for it."""
    return resource == nvidia.RESOURCE_GPU_SHARED or resource.startswith(nvidia.RESOURCE_MIG_PREFIX)


def remove_sockets(paths: HostPaths) -> None:
    """Remove the sockets of all resources that any configuration can serve."""
    for name in SOCKETS.values():
        (paths.device_plugins / name).unlink(missing_ok=True)
    for path in paths.device_plugins.glob(f"{SOCKET_NVIDIA_PREFIX}*.sock"):
        path.unlink(missing_ok=True)


class DevicePlugins:
    """The device plugins of a node. They serve once `start` was called, until their tasks are cancelled."""

    def __init__(self, paths: HostPaths, *, allocate: Allocate, pre_start: PreStart, let_go: LetGo) -> None:
        self.plugins: dict[str, Plugin] = {}
        self._paths = paths
        self._allocate = allocate
        self._pre_start = pre_start
        self._let_go = let_go
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, resources: Iterable[str], *, by_claims: Container[str] = ()) -> None:
        """Have a plugin for each of these resources, and none for others; one without devices for those by claims."""
        wanted = {name: PluginResource(name, socket_of(name), name in by_claims) for name in resources}
        for name, plugin in list(self.plugins.items()):
            if plugin.resource == wanted.get(name):
                continue
            del self.plugins[name]
            if (task := self._tasks.get(name)) is not None:
                task.cancel()
        for name in sorted(wanted.keys() - self.plugins.keys()):
            resource = wanted[name]
            self.plugins[name] = Plugin(
                resource, self._paths, allocate=self._allocate, pre_start=self._pre_start, let_go=self._let_go
            )
            self._begin(name)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Serve, in tasks of this group."""
        self._group = group
        for name in self.plugins:
            self._begin(name)

    def stop(self) -> None:
        """End all tasks."""
        self._group = None
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, name: str) -> None:
        if self._group is not None:
            self._tasks[name] = self._group.create_task(_after(self._tasks.get(name), self.plugins[name]), name=name)

    def away(self) -> Sequence[str]:
        """The resources whose list kubelet is not reading."""
        return [name for name, plugin in self.plugins.items() if not plugin.connected.is_set()]


async def _after(before: asyncio.Task[None] | None, plugin: Plugin) -> None:
    """Run a plugin once the one before has left the socket."""
    if before is not None:
        await asyncio.wait({before})
    await plugin.run()


@dataclass(frozen=True, slots=True)
class ServedResources:
    """All resources that the node could serve."""

    counts: Mapping[str, Count]
    partitions: Mapping[str, Sequence[MigPartition]]
    #: The resource whose units are replicas of cards, if there is one.
    replicas: tuple[str, ...]
    sharing: NvidiaConfig | None
    #: Why some partitions are not served, in words.
    problem: str = ""

    @property
    def nvidias(self) -> set[str]:
        """The resources that come with NVIDIA's configuration."""
        return {*self.partitions, *self.replicas}

    def tell(self, plugin: Plugin, in_use: frozenset[str], claimed: Container[str] = ()) -> None:
        """Have a plugin list its devices, without the partitions that claims have. Of a resource that is not served any
        more, those in use are listed.
        """
        name = plugin.resource.name
        count = self.counts.get(name)
        if plugin.resource.by_claims:
            plugin.count(Count(0, 0), frozenset())
        elif name in self.partitions or count is None:
            plugin.show(partitions.listing(name, self.partitions.get(name, ()), self.sharing, in_use, claimed))
        else:
            plugin.count(count, in_use)


def served_resources(
    config: AgentConfig, sharing: NvidiaConfig | None, gpus: Sequence[Gpu], totals: HeldTotals
) -> ServedResources:
    """What these cards offer. `sharing` is None while NVIDIA's configuration has not been read."""
    slots = config.slots_per_card * sum(not gpu.mig for gpu in gpus)
    counts = {
        gpushare.RESOURCE_MEMORY: devices.memory(gpus, totals, config.memory_unit),
        keti.RESOURCE_MPS: devices.clients(gpus, totals),
        nvidia.RESOURCE_GPU: Count(0, 0) if sharing is None else devices.whole(gpus, totals),
        shoal.RESOURCE_SLOT: Count(slots, slots),
    }
    if sharing is None or nvidia.RESOURCE_GPU not in config.resources:
        return ServedResources(counts, {}, (), sharing)
    slicing = slicing_of(sharing)
    if slicing is not None:
        counts[slicing.resource] = devices.replicas(gpus, totals, slicing.resource, slicing.cut)
    found, problem = partitions.served(gpus, sharing)
    return ServedResources(counts, found, () if slicing is None else (slicing.resource,), sharing, problem)


@asynccontextmanager
async def alone_in(folder: Path, waiting: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the lock on a folder of sockets. `waiting` is told why it cannot be had yet, and '' once it is held."""
    descriptor = _opened(folder)
    try:
        told = False
        while not _locked(descriptor):
            if not told:
                told = True
                words = f"another agent serves in {folder}: end it, or wait until it has ended"
                log.warning("waiting: %s", words)
                waiting(words)
            await asyncio.sleep(_LOOK_SECONDS)
        waiting("")
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
