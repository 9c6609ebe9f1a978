"""Keeps the lists of devices, the node's object, the CDI files and the limits in step with the pods.

The cost of a pod's change depends on what that pod holds, not on the other pods: `node.holdings` keeps the sums.
kubelet's record is read when kubelet has written it, or when a pod with devices has ended. Only a change of the cards
or of the configuration makes the agent look at everything again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from shoal.agent.config import AgentConfig, Counting
from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.calls import DevicePluginCalls
from shoal.agent.device_plugin.edits import version_numbers
from shoal.agent.device_plugin.serving import DevicePlugins, comes_and_goes, served_resources
from shoal.agent.device_plugin.start_check import start_of
from shoal.agent.errors import AgentError
from shoal.agent.health.node_health import NodeHealth
from shoal.agent.limits import ContainerStart, ShareLimits
from shoal.agent.node.annotations import PodAnnotations
from shoal.agent.node.checkpoint import KubeletCheckpoint
from shoal.agent.node.holdings import HeldTotals
from shoal.agent.node.mechanisms import NameMechanisms
from shoal.agent.node.object import NodeObject
from shoal.agent.node.pods import NodePods, PodChanges
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.replicas import slicing_of
from shoal.kube.plugin_config import ConfigSource
from shoal.model.contract import gpushare, mechanisms, nvidia, shoal
from shoal.model.contract.mechanisms import Mechanism, asked_for
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: Changes within this time are handled together.
_GATHER_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 5.0
#: How often the agent looks whether containers of a finished pod still run.
_ENDS_SECONDS: Final = 0.25
#: How often the agent looks whether the reflector has listed the pods again.
_LISTS_SECONDS: Final = 5.0
#: From this version on kubelet takes claims that were made of resource names, unless its feature gate is off.
_NAMES_KUBELET: Final = (1, 36)
#: How often the agent looks whether a name can change over to the other mechanism.
_CHANGE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ServedByClaims:
    """What the node's driver says: whether it offers claims, which names are held by them; and whom to tell why not."""

    offered: Callable[[], bool] = lambda: False
    held: Callable[[], Iterable[str]] = lambda: ()
    complain: Callable[[str, str], None] = lambda name, words: None


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
        claims: Callable[[], Iterable[ContainerStart]] = lambda: (),
        names: ServedByClaims = ServedByClaims(),  # noqa: B008 - has no state
        wake: asyncio.Event,
        trouble: Callable[[str], None],
    ) -> None:
        """`wake` is set when pods have changed; `trouble` is told why the devices cannot be listed.

        `claims` are what limits are kept for besides pods, `names` which resource names can be served by them.
        """
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
        self._claims = claims
        self._names = names
        self._mechanisms = NameMechanisms()
        #: The names by claims that kubelet has been told of.
        self._ready: set[str] = set()
        self._next_look = 0.0
        self._wake = wake
        self._trouble = trouble
        #: The devices that pods have, by resource, and the version of kubelet's record that said so.
        self._in_use: dict[str, frozenset[str]] = {}
        self._read = -1
        #: The version of `shoal.dev/held` that was published last.
        self._shown = -1
        #: The version of the sums, and the devices in use, when kubelet was told last.
        self._told: tuple[object, ...] | None = None

    async def first(self) -> None:
        """Learn which devices and cards are in use, then list the devices for the first time.

        Listed earlier, kubelet could be told that a device in use is gone, and a scheduler that a used card is free.
        """
        while True:
            try:
                await self._calls.inherit()
                self._recall_mechanisms()
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
        self._look_at_mechanisms()
        # kubelet restarts a container only while its resource is served. Its record can lack a pod for a while.
        kept = frozenset(filter(comes_and_goes, (*self._in_use, *self._pods.resources_in_use())))
        told = (self._pods.totals.version, self._in_use, kept, self._mechanisms.by_claims)
        if news.everything or told != self._told:
            self._tell(self._in_use, kept)
            self._told = told
        if self._pods.held_version != self._shown:
            self._shown = self._pods.held_version
            self._node.publish({shoal.ANNOTATION_HELD: shoal.encode_held(self._pods.held())}, {})

    def _tell(self, in_use: dict[str, frozenset[str]], kept: frozenset[str]) -> None:
        gpus = self._pods.node.gpus
        offered = served_resources(self._config, self._source.current, gpus, self._pods.totals)
        self._source.complain(offered.problem)
        self._serving.keep({*self._served(), *offered.nvidias, *kept}, by_claims=self._mechanisms.by_claims)
        claimed = frozenset(self._pods.claims.partitions())
        for name, plugin in self._serving.plugins.items():
            offered.tell(plugin, in_use.get(name, frozenset()), claimed)
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

    # Names by claims

    def _recall_mechanisms(self) -> None:
        alive = {one.pod_uid for one in self._checkpoint.records() if self._pods.alive(one.pod_uid)}
        self._in_use = self._checkpoint.in_use(alive)
        given = {name for known in self._pods if known.given for name in known.holding.resources.values()}
        self._mechanisms.recall(
            self._shown_mechanisms(), devices={*self._in_use, *given}, claims=set(self._names.held())
        )
        self._ready |= self._mechanisms.by_claims
        self._pods.serve_by_claims(self._mechanisms.by_claims)

    def _look_at_mechanisms(self) -> None:
        """Change names over that nobody holds any more, and publish what is."""
        shown = self._shown_mechanisms()
        if not (shown or self._mechanisms.by_claims or asked_for(self._node.labels)):
            return  # as on most nodes
        wanted = asked_for(self._node.labels) & self._possible()
        self._mechanisms.look(wanted, shown, devices=self._by_devices_held(), claims=self._by_claims_held())
        by_claims = self._mechanisms.by_claims
        self._pods.serve_by_claims(by_claims)
        plugins = self._serving.plugins
        self._ready &= by_claims
        for name in by_claims - self._ready:
            if name in plugins and plugins[name].resource.by_claims and plugins[name].connected.is_set():
                self._ready.add(name)
        states = {
            # Until kubelet has let go of the plugin with devices, it would refuse containers with claims.
            name: Mechanism.TO_CLAIMS if one is Mechanism.CLAIMS and name not in self._ready else one
            for name, one in self._mechanisms.states.items()
        }
        self._node.publish({mechanisms.ANNOTATION_MECHANISMS: mechanisms.encode(states)}, {})
        if self._mechanisms.changing or by_claims != self._ready or asked_for(self._node.labels) - by_claims:
            self._look_again()

    def _look_again(self) -> None:
        """Look at the mechanisms again soon: what they wait for may come without a change of pods."""
        loop = asyncio.get_running_loop()
        if self._next_look <= loop.time():
            self._next_look = loop.time() + _CHANGE_SECONDS
            loop.call_at(self._next_look, self._wake.set)

    def _possible(self) -> frozenset[str]:
        """The names that can be served by claims on this node; of others that its labels list, why not is told.

        A name that is served so already stays, unless claims are switched off.
        """
        found = set()
        for name in asked_for(self._node.labels):
            why = self._why_not(name)
            self._names.complain(name, why)
            if name in self._mechanisms.by_claims:
                found |= {name} if self._config.claims else set()
            elif not why and self._names.offered():
                found.add(name)
        return frozenset(found)

    def _why_not(self, name: str) -> str:
        if not self._config.claims:
            return "the agent offers no claims: see its setting claims"
        version = "" if self._node.node is None else self._node.node.status.node_info.kubelet_version
        if (version_numbers(version) or _NAMES_KUBELET) < _NAMES_KUBELET:
            return f"kubelet {version} does not take claims in place of devices: 1.36 and newer do"
        if name not in self._config.resources:
            return "the agent does not serve it: see its setting resources"
        if name == gpushare.RESOURCE_MEMORY and not self._by_devices():
            return "the node has more units of it than kubelet counts as devices"
        current = self._source.current
        if name == nvidia.RESOURCE_GPU and current is not None:
            cut = slicing_of(current) is not None or name in partitions.served(self._pods.node.gpus, current)[0]
            return "NVIDIA's configuration makes replicas or partitions of it" if cut else ""
        return ""

    def _shown_mechanisms(self) -> dict[str, Mechanism]:
        node = self._node.node
        try:
            return {} if node is None else mechanisms.decode(node.metadata.annotations)
        except CodecError as error:
            log.warning("what the node says of its mechanisms is written anew: %s", error)
            return {}

    def _by_devices_held(self) -> set[str]:
        """The names of which pods of the node have devices, or will have."""
        return {*self._in_use, *(name for known in self._pods for name in known.holding.resources.values())}

    def _by_claims_held(self) -> set[str]:
        """The names of which pods of the node have claims, or will have."""
        return {*self._names.held(), *self._pods.claimed_names()}

    # Which resources

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
        """Every container with cards whose pod is not over, and every prepared claim."""
        yield from self._claims()
        for known in self._pods:
            if known.holding.allocation is not None and not known.holding.problem:
                for entry in known.holding.allocation.containers:
                    yield start_of(known, entry, self._pods.node)
