"""The plugins of a node, one for each resource: they come and go with the resources that are to be served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from shoal.agent.node.paths import HostPaths
from shoal.agent.plugins.plugin import Allocate, Plugin, PreStart, Resource
from shoal.model.contract import gpushare, keti, nvidia, shoal

SOCKETS: Final = {
    gpushare.RESOURCE_MEMORY: gpushare.PLUGIN_SOCKET,
    keti.RESOURCE_MPS: keti.PLUGIN_SOCKET,
    nvidia.RESOURCE_GPU: nvidia.DEVICE_PLUGIN_SOCKET,
    shoal.RESOURCE_SLOT: "shoal-gpu.sock",
}
_NVIDIA: Final = "shoal-nvidia-"


def socket_of(resource: str) -> str:
    """The file name of a resource's socket."""
    return SOCKETS.get(resource) or f"{_NVIDIA}{resource.removeprefix(nvidia.DOMAIN + '/')}.sock"


def comes_and_goes(resource: str) -> bool:
    """Whether a resource is served only where cards or NVIDIA's configuration have it."""
    return resource == nvidia.RESOURCE_GPU_SHARED or resource.startswith(nvidia.RESOURCE_MIG_PREFIX)


def remove_sockets(paths: HostPaths) -> None:
    """Remove the sockets that any configuration has left."""
    for name in SOCKETS.values():
        (paths.device_plugins / name).unlink(missing_ok=True)
    for path in paths.device_plugins.glob(f"{_NVIDIA}*.sock"):
        path.unlink(missing_ok=True)


class Serving:
    """The plugins that are there now. They serve once `start` was called, until their tasks are cancelled."""

    def __init__(self, paths: HostPaths, *, allocate: Allocate, pre_start: PreStart) -> None:
        self.plugins: dict[str, Plugin] = {}
        self._paths = paths
        self._allocate = allocate
        self._pre_start = pre_start
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, resources: Iterable[str]) -> None:
        """Have a plugin for each of these resources, and none for others."""
        wanted = set(resources)
        for name in self.plugins.keys() - wanted:
            del self.plugins[name]
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()
        for name in sorted(wanted - self.plugins.keys()):
            resource = Resource(name, socket_of(name))
            self.plugins[name] = Plugin(resource, self._paths, allocate=self._allocate, pre_start=self._pre_start)
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
            self._tasks[name] = self._group.create_task(self.plugins[name].run(), name=name)

    def away(self) -> Sequence[str]:
        """The resources for which kubelet has not asked."""
        return [name for name, plugin in self.plugins.items() if not plugin.connected.is_set()]
