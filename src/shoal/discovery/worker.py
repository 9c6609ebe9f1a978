"""The worker of a node: reads the machine now and then, and keeps the node's annotation at what it has read.

What cannot be read now stays as the annotation has it, also over a restart. A machine that never had a card gets no
annotation. Nothing is written while nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.errors import DiscoveryError, UnknownFactsError
from shoal.discovery.machine import OpenNvml, machine_name, read_bus, read_gpus
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.meta import Object
from shoal.kube.plugin_config import ConfigSource
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, Resource
from shoal.kube.store import Change
from shoal.model.backoff import Backoff
from shoal.model.contract.discovery import ANNOTATION_FACTS, VERSION, GpuFacts, NodeFacts, decode_facts, encode_facts
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: Nodes by their metadata alone: nothing else is read.
NODE_METADATA: Final[Resource[Object]] = Resource("", "v1", "nodes", "Node", Object, namespaced=False)
_BACKOFF: Final = Backoff(first=0.5, longest=60.0)


class Worker:
    """Discovery on one node. `run` goes on until it is cancelled."""

    def __init__(
        self, config: DiscoveryConfig, client: Client, open_nvml: OpenNvml, *, now: Callable[[], float] = time.time
    ) -> None:
        if config.node_name is None:
            raise DiscoveryError("a worker must know its node: give --node-name, or set NODE_NAME")
        self._name = config.node_name
        self._config = config
        self._client = client
        self._open_nvml = open_nvml
        self._now = now
        self._since = int(now())
        self._wake = asyncio.Event()
        self._told: dict[str, str] = {}
        self._trouble = "still reading the machine"
        self.reflector: Reflector[Object] = Reflector(
            client, NODE_METADATA, fields=f"metadata.name={self._name}", consumers=[self._on_node]
        )
        self._source = ConfigSource(
            config.plugin_config,
            client,
            labels=lambda: {} if self._node is None else self._node.metadata.labels,
            last=None,
            changed=self._on_config,
            unknown="the labels of cards stay as they are",
        )

    def waiting_for(self) -> str:
        """What keeps the worker from telling what it reads, in words; a machine without a driver does not."""
        if not self.reflector.synced.is_set():
            return f"still reading the node: {self.reflector.last_error or 'no answer yet'}"
        return self._trouble

    async def run(self) -> None:
        """Read and write until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.reflector)
            await self.reflector.wait_synced()
            group = await stack.enter_async_context(asyncio.TaskGroup())
            if self._config.driver:
                following = group.create_task(self._source.run(), name="the configuration of NVIDIA's plugin")
                stack.callback(following.cancel)
                await self._source.wait_looked()
            await self._go_on()

    async def _go_on(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            try:
                await self.settle()
                failures, pause = 0, self._config.interval_seconds
                self._trouble = ""
            except KubeError as error:
                log.warning("node %s: %s", self._name, error)
                self._trouble = f"the node cannot be written: {error}"
                failures += 1
                pause = _BACKOFF.after(failures)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def settle(self) -> None:
        """Read the machine, and write what differs, once."""
        config = self._source.current
        bus_and_gpus = await asyncio.to_thread(self._read, config)
        node = self._node
        if node is None:
            return  # not registered yet: the watch tells when it is
        written = node.metadata.annotations.get(ANNOTATION_FACTS)
        facts = merged(*bus_and_gpus, self._known(written))
        if facts is None:
            return
        try:
            text = encode_facts(facts)
        except CodecError as error:
            self._tell("facts", f"what was read cannot be told: {error}")
            return
        if text != written:
            log.info("node %s: writing %d characters of facts", self._name, len(text))
            with contextlib.suppress(NotFoundError):
                patch = {"metadata": {"annotations": {ANNOTATION_FACTS: text}}}
                await self._client.patch(NODES, self._name, patch)

    @property
    def _node(self) -> Object | None:
        return self.reflector.store.get(self._name)

    def _read(self, config: NvidiaConfig | None) -> tuple[tuple[str, ...] | None, GpuFacts | None]:
        """The classes of cards on the bus, and the cards; None for what is not known."""
        root = Path(self._config.sys_root)
        try:
            bus = read_bus(root)
        except UnknownFactsError as error:
            self._tell("bus", str(error))
            return None, None
        self._tell("bus", "")
        classes = tuple(sorted({card.pci_class for card in bus}))
        if not bus or not self._config.driver:
            return classes, None
        try:
            gpus = read_gpus(self._open_nvml, bus, config, machine=machine_name(root), since=self._since)
        except UnknownFactsError as error:
            self._tell("cards", f"{error}: what is known of the cards stays")
            return classes, None
        self._tell("cards", "")
        return classes, gpus

    def _known(self, written: str | None) -> NodeFacts | None:
        """The facts that the node has already."""
        if written is None:
            return None
        try:
            return decode_facts(written)
        except CodecError as error:
            self._tell("annotation", f"{error}: it is written anew")
            return None

    def _tell(self, what: str, problem: str) -> None:
        """Log a problem once."""
        if self._told.get(what, "") != problem:
            self._told[what] = problem
            if problem:
                log.warning("node %s: %s", self._name, problem)

    def _on_node(self, change: Change[Object]) -> None:
        before = {} if change.old is None else change.old.metadata.labels
        now = {} if change.new is None else change.new.metadata.labels
        if self._config.driver and before != now:
            self._source.look()
        written = None if change.new is None else change.new.metadata.annotations.get(ANNOTATION_FACTS)
        if change.old is None or change.old.metadata.annotations.get(ANNOTATION_FACTS) != written:
            self._wake.set()

    def _on_config(self) -> None:
        self._since = int(self._now())
        self._wake.set()


def merged(bus: tuple[str, ...] | None, gpus: GpuFacts | None, known: NodeFacts | None) -> NodeFacts | None:
    """What is told now: what was read, and of the rest what was known. None: there is nothing to tell.

    Cards that are off the bus are gone, whatever was known of them.
    """
    if bus is None:
        if known is None:
            return None
        bus = known.pci
    if not bus:
        return None if known is None else NodeFacts(version=VERSION, pci=())
    return NodeFacts(version=VERSION, pci=bus, gpus=gpus or (None if known is None else known.gpus))
