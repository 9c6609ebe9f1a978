"""Keeps the lists of devices, the node's object, the CDI files and the limits in step with the pods.

The cost of a pod's change depends on what that pod holds, not on the other pods: `node.holdings` keeps the sums.
kubelet's record is read when kubelet has written it, or when a pod with devices has ended. Only a change of the cards
or of the configuration makes the agent look at everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from shoal.agent.config import AgentConfig, Counting
from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.calls import DevicePluginCalls
from shoal.agent.device_plugin.serving import DevicePlugins, comes_and_goes, served_resources
from shoal.agent.device_plugin.start_check import start_of
from shoal.agent.errors import AgentError
from shoal.agent.health.node_health import NodeHealth
from shoal.agent.limits import ContainerStart, ShareLimits
from shoal.agent.node.annotations import PodAnnotations
from shoal.agent.node.checkpoint import KubeletCheckpoint
from shoal.agent.node.holdings import HeldTotals
from shoal.agent.node.object import NodeObject
from shoal.agent.node.pods import NodePods, PodChanges
from shoal.kube.plugin_config import ConfigSource
from shoal.model.contract import gpushare, shoal

log = logging.getLogger(__name__)

#: Changes within this time are handled together.
_GATHER_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 5.0
#: How often the agent looks whether containers of a finished pod still run.
_ENDS_SECONDS: Final = 0.25
#: How often the agent looks whether the reflector has listed the pods again.
_LISTS_SECONDS: Final = 5.0


class Reconciler:
    """Reconciles one node with its pods. `run` until it is cancelled."""

    def __init__(
        self,
        config: AgentConfig,
        pods: NodePods,
        checkpoint: KubeletCheckpoint,
        node: NodeObject,
        source: ConfigSource,
        health: NodeHealth,
        serving: DevicePlugins,
        calls: DevicePluginCalls,
        limits: ShareLimits,
        annotations: PodAnnotations,
        *,
        wake: asyncio.Event,
        trouble: Callable[[str], None],
    ) -> None:
        """`wake` is set when pods have changed; `trouble` is told why the devices cannot be listed."""
        self._config = config
        self._pods = pods
        self._checkpoint = checkpoint
        self._node = node
        self._source = source
        self._health = health
        self._serving = serving
        self._calls = calls
        self._limits = limits
        self._annotations = annotations
        self._wake = wake
        self._trouble = trouble
        #: The devices that pods have, by resource, and the version of kubelet's record that said so.
        self._in_use: dict[str, frozenset[str]] = {}
        self._read = -1
        #: The version of `shoal.dev/held` that was published last.
        self._shown = -1
        #: The version of the sums, and the devices in use, when kubelet was told last.
        self._told: tuple[int, dict[str, frozenset[str]]] | None = None

    async def first(self) -> None:
        """Learn which devices and cards are in use, then list the devices for the first time.

        Listed earlier, kubelet could be told that a device in use is gone, and a scheduler that a used card is free.
        """
        while True:
            try:
                await self._calls.inherit()
                self._list_devices(PodChanges(everything=True))
                self._trouble("")
                return
            except AgentError as error:
                self._trouble(str(error))
                log.warning("waiting: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def look_for_ends(self) -> None:
        """Let go of finished pods once none of their containers runs, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LISTS_SECONDS):
                    await self._pods.ending.wait()
            self._pods.look_for_ends()
            if self._pods.ending.is_set():
                await asyncio.sleep(_ENDS_SECONDS)

    async def run(self) -> None:
        """Act on every change of pods."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._wake.clear()
            news = self._pods.news()
            try:
                self.act(news)
            except AgentError as error:
                log.warning("devices are as they were: %s", error)
                self._pods.not_done(news)
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wake.set)
            self._annotations.note({known.uid for known in self._pods} if news.everything else news.pods)
            if news.everything or news.holders:
                await self._limits.keep_only(self._starts())

    def act(self, news: PodChanges) -> None:
        """Bring devices, node and files in line with the changes. AgentError if kubelet's record cannot be read."""
        self._list_devices(news)
        self._collect(news)

    def _list_devices(self, news: PodChanges) -> None:
        """Publish devices and cards to kubelet and the API server, if the changes can have affected them."""
        records = self._checkpoint.records()
        read = self._checkpoint.version
        if news.everything or read != self._read or any(map(self._checkpoint.of, news.holders)):
            alive = {one.pod_uid for one in records if self._pods.alive(one.pod_uid)}
            self._in_use, self._read = self._checkpoint.in_use(alive), read
        told = (self._pods.totals.version, self._in_use)
        if news.everything or told != self._told:
            self._tell(self._in_use)
            self._told = told
        if self._pods.held_version != self._shown:
            self._shown = self._pods.held_version
            self._node.publish({shoal.ANNOTATION_HELD: shoal.encode_held(self._pods.held())}, {})

    def _tell(self, in_use: dict[str, frozenset[str]]) -> None:
        gpus = self._pods.node.gpus
        offered = served_resources(self._config, self._source.current, gpus, self._pods.totals)
        self._source.complain(offered.problem)
        # kubelet restarts a container only while its resource is served.
        self._serving.keep({*self._served(), *offered.nvidias, *filter(comes_and_goes, in_use)})
        for name, plugin in self._serving.plugins.items():
            offered.tell(plugin, in_use.get(name, frozenset()))
        whole = sum(not gpu.mig for gpu in gpus)
        resources: dict[str, tuple[int, int] | None] = {gpushare.RESOURCE_COUNT: (whole, whole)}
        if shoal.RESOURCE_SLOT in self._serving.plugins:
            memory = offered.counts[gpushare.RESOURCE_MEMORY]
            resources[gpushare.RESOURCE_MEMORY] = (memory.total, memory.allowed)
        annotations = {
            shoal.ANNOTATION_GPUS: shoal.encode_gpus(gpus),
            shoal.ANNOTATION_FAULTS: self._health.remembered,
        }
        self._node.publish(annotations, resources)

    def _served(self) -> list[str]:
        names = list(self._config.resources)
        if gpushare.RESOURCE_MEMORY in names and not self._by_devices():
            names[names.index(gpushare.RESOURCE_MEMORY)] = shoal.RESOURCE_SLOT
        return names

    def _by_devices(self) -> bool:
        """Whether each unit of memory is a device."""
        if self._config.counting is not Counting.AUTO:
            return self._config.counting is Counting.DEVICES
        total = devices.memory(self._pods.node.gpus, HeldTotals(), self._config.memory_unit).total
        return devices.fits_a_message(gpushare.RESOURCE_MEMORY, total)

    def _collect(self, news: PodChanges) -> None:
        """Remove the CDI files of pods that are over."""
        if news.everything:
            self._calls.sweep()
        for uid in news.pods:
            if not self._pods.alive(uid):
                self._calls.forget(uid)

    def _starts(self) -> Iterator[ContainerStart]:
        """Every container with cards whose pod is not over."""
        for known in self._pods:
            if known.holding.allocation is not None and not known.holding.problem:
                for entry in known.holding.allocation.containers:
                    yield start_of(known, entry, self._pods.node)
