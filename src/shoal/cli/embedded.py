"""The embedded cluster with everything that runs on it, in one process: API server, controllers, simulated nodes with
an agent and a collector each, the scheduler. `shoal up` and `shoal demo` are two ways to use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from shoal.agent import app as agent
from shoal.agent.config import FAMILIES, AgentConfig
from shoal.dashboard import app as dashboard
from shoal.dashboard.config import DashboardConfig
from shoal.discovery import app as discovery
from shoal.discovery.config import DiscoveryConfig
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.kinds import DEVICE_CLASSES, NODES
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import NodeDescription
from shoal.embedded.nodes.devices.plugins import socket_address
from shoal.embedded.nodes.host import Host
from shoal.embedded.policies.shipped import device_class
from shoal.embedded.store import Object
from shoal.gpu.simulated import SimulatedNvml
from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import LeadershipLostError
from shoal.kubelet.host_paths import HostPaths
from shoal.metrics import app as metrics
from shoal.metrics.config import MetricsConfig
from shoal.metrics.digest import DigestSettings
from shoal.metrics.history_server import HistorySettings
from shoal.metrics.processes import ContainerRef, container_in
from shoal.metrics.snapshot import LatestSnapshot
from shoal.model.contract import dra, keti, kubernetes, nvidia, shoal
from shoal.model.contract.clusters import NAMESPACE_MANAGER
from shoal.model.contract.gpushare import MemoryUnit
from shoal.scheduler import app as scheduler
from shoal.scheduler.config import SECRET, ElectionConfig, OfferConfig, SchedulerConfig, TlsConfig

log = logging.getLogger(__name__)

#: On one machine nobody but its users should reach the cluster.
_LOOPBACK: Final = "127.0.0.1"
#: Collectors run on clusters of so many nodes unless asked for: each has threads of its own.
MOST_COLLECTORS: Final = 32
#: As many agents start at once.
_STARTING: Final = 8
_START_SECONDS: Final = 10.0
#: Most of what a cluster is made of stays: Python need not look so often for what has gone.
_GC_THRESHOLD: Final = (50_000, 20, 20)
#: Each end of a TLS connection keeps a buffer of 256 KiB unless told otherwise, and each node has several connections.
_TLS_BUFFER: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class EmbeddedPlan:
    """What the cluster shall be."""

    nodes: Sequence[NodeDescription]
    unit: MemoryUnit = MemoryUnit.GIB
    policy: str = "fragmentation"
    name: str = ""
    port: int = 0
    #: Whether each node has a collector.
    metrics: bool = False
    #: How often they read the cards.
    metrics_seconds: float = 5.0
    #: Whether nodes are labelled with what they have.
    discovery: bool = False
    #: Whether agents offer the cards as claims too, and the scheduler allocates these.
    claims: bool = False
    #: Whether its scheduler makes offers to a cluster manager.
    offers: bool = False
    #: When they tell the scheduler what is used.
    digest: DigestSettings = field(default_factory=DigestSettings)


class EmbeddedCluster:
    """A running cluster. Use it in `async with`, which ends it; whoever waits for it hears when a part of it breaks."""

    def __init__(self, plan: EmbeddedPlan, directory: Path) -> None:
        self.plan = plan
        self._directory = directory
        self.api = EmbeddedApi(directory / "api", plan.port, admission=plan.unit)
        self.nodes = Nodes(self.api, plan.nodes, directory / "nodes")
        if plan.claims:
            for kubelet in self.nodes:  # better now than when it is used
                socket_address(_paths(kubelet.host).driver(dra.DRIVER).registration)
        #: By node, what its collector last saw.
        self.measured: dict[str, LatestSnapshot] = {}
        #: The port on which its scheduler makes offers, once `offering` is set.
        self.offer_port = 0
        self.offering = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._gc_threshold = gc.get_threshold()
        self._tls_buffer = SSLProtocol.max_size

    @property
    def kubeconfig(self) -> Path:
        """How to reach it."""
        return self.api.kubeconfig()

    def client(self) -> Client:
        """A client of it."""
        return Client(load_access(environ=os.environ, home=Path.home(), kubeconfig=self.kubeconfig))

    async def __aenter__(self) -> EmbeddedCluster:
        gc.set_threshold(*_GC_THRESHOLD)
        SSLProtocol.max_size = _TLS_BUFFER
        await self.api.__aenter__()
        await self._group.__aenter__()
        if self.plan.claims:
            self.api.registry.create(DEVICE_CLASSES, "", device_class(), manager="shoal")
        self._start("controllers", Controllers(self.api.registry, self.api.deletion).run())
        self._start("nodes", self.nodes.run())
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=self.kubeconfig)
        config = SchedulerConfig(
            scheduler_names=(kubernetes.DEFAULT_SCHEDULER, keti.SCHEDULER_NAME),
            cluster_name=self.plan.name,
            host=_LOOPBACK,
            port=0,
            health_host=_LOOPBACK,
            health_port=0,
            memory_unit=self.plan.unit,
            policy=self.plan.policy,
            claims=self.plan.claims,
            election=ElectionConfig(enabled=False),
            tls=TlsConfig(secret=SECRET) if self.plan.offers else None,
            offer=OfferConfig(enabled=self.plan.offers, host=_LOOPBACK, port=0),
        )
        self._start("scheduler", self._scheduler(config, access))
        self._start("agents", self._agents(access))
        if self.plan.discovery:
            leader = partial(discovery.run_leader, DiscoveryConfig(), access, identity="embedded")
            self._start("discovery", run_anew("discovery", leader))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nodes before agents: a kubelet that outlives its plugins complains about them.
        for task in self._tasks:
            task.cancel()
            await asyncio.wait({task})
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            await self.api.__aexit__(kind, error, trace)
            gc.set_threshold(*self._gc_threshold)
            SSLProtocol.max_size = self._tls_buffer

    @contextlib.asynccontextmanager
    async def dashboard(self, port: int = 0) -> AsyncIterator[dashboard.Serving]:
        """Serve its dashboard while the block lasts, on loopback and without TLS."""
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=self.kubeconfig)
        manager = NAMESPACE_MANAGER if self.plan.offers else ""
        config = DashboardConfig(host=_LOOPBACK, port=port, memory_unit=self.plan.unit, manager_namespace=manager)
        served: asyncio.Future[dashboard.Serving] = asyncio.get_running_loop().create_future()
        # One that fails ends the block with its error, before it serves too.
        async with asyncio.TaskGroup() as group:
            task = group.create_task(dashboard.run(config, access, serving=served.set_result), name="dashboard")
            serving = await served
            try:
                yield serving
            finally:
                task.cancel()

    async def ready(self) -> None:
        """Return when all nodes are Ready and offer their cards."""
        for spec in self.plan.nodes:
            await self._offered(spec)

    async def _offered(self, spec: NodeDescription) -> None:
        """Return when a node is Ready and offers its cards."""
        store, changed = self.api.registry.store, asyncio.Event()
        store.listen(NODES.key, changed.set, spec.name)
        try:
            while not _offers(store.get(NODES.key, ("", spec.name)), len(spec.cards)):
                await changed.wait()
                changed.clear()
        finally:
            store.unlisten(NODES.key, changed.set, spec.name)

    async def _agents(self, access: Access) -> None:
        """Start the agents, a few at a time: all at once they would wait for each other until they give up."""
        starting = asyncio.Semaphore(_STARTING)

        async def settle(spec: NodeDescription) -> None:
            # One that has nothing to offer, since its cards are broken, must not keep the others waiting.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await self._offered(spec)
            starting.release()

        for kubelet in self.nodes:
            if kubelet.host.spec.cards:
                await starting.acquire()
                self._start(f"agent of {kubelet.name}", self._agent(kubelet.host, access))
                self._start(f"start of {kubelet.name}", settle(kubelet.host.spec))
                if self.plan.discovery:
                    self._start(f"worker of {kubelet.name}", self._worker(kubelet.host, access))
                if self.plan.metrics:
                    self._start(f"collector of {kubelet.name}", self._collector(kubelet.host, access))

    def _scheduler(self, config: SchedulerConfig, access: Access) -> Coroutine[None, None, None]:
        def serving(ports: scheduler.Ports) -> None:
            if ports.offer is not None:
                self.offer_port = ports.offer
                self.offering.set()

        return scheduler.run(config, access, identity="embedded", serving=serving)

    def _agent(self, host: Host, access: Access) -> Coroutine[None, None, None]:
        return agent.run(
            AgentConfig(node_name=host.spec.name, memory_unit=self.plan.unit, claims=self.plan.claims, port=None),
            access,
            lambda: host.nvml,
            _paths(host),
        )

    def _worker(self, host: Host, access: Access) -> Coroutine[None, None, None]:
        root = host.folders.root / "sys"
        write_bus(root, [card.pci for card in host.nvml.survey().cards])
        config = DiscoveryConfig(node_name=host.spec.name, sys_root=str(root))
        # The agent's driver is its own: who closes it ends its watches.
        return discovery.run_worker(
            config, access, lambda: SimulatedNvml(host.spec.cards, clock=lambda: 0.0, seed=host.spec.name)
        )

    def _collector(self, host: Host, access: Access) -> Coroutine[None, None, None]:
        latest = self.measured[host.spec.name] = LatestSnapshot()
        config = MetricsConfig(
            node_name=host.spec.name,
            memory_unit=self.plan.unit,
            interval_seconds=self.plan.metrics_seconds,
            host_root=None,
            digest=self.plan.digest,
            history=HistorySettings(folder=str(host.folders.root / "history"), host=_LOOPBACK, port=0),
        )
        containers = SimulatedContainers(host)
        return metrics.run(config, access, lambda: host.nvml, owners=containers, folders=containers, latest=latest)

    def _start(self, name: str, part: Coroutine[None, None, None]) -> None:
        self._tasks.append(self._group.create_task(part, name=name))


def _paths(host: Host) -> HostPaths:
    """The folders of a simulated node, as its agent has them."""
    return HostPaths(
        host.folders.device_plugins,
        host.folders.pod_resources,
        host.folders.cdi,
        run=host.folders.run,
        programs=host.folders.root / "programs",
        pod_cgroups=host.folders.cgroups,
        plugins_registry=host.folders.plugins_registry,
        plugins=host.folders.plugins,
        host_plugins=host.folders.plugins,
    )


async def run_anew(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Run a part, and start it anew when it has lost its lease, as kubelet would: a laptop has slept, or was busy."""
    while True:
        try:
            return await part()
        except LeadershipLostError as error:
            log.warning("%s is started anew: %s", name, error)


class SimulatedContainers:
    """The containers of the programs on a simulated node: no `/proc` and no cgroups have them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def owner(self, pid: int) -> ContainerRef | None:
        """The container of a program."""
        return container_in(self._host.programs.cgroups.get(pid, ""))

    def begin(self) -> None:
        """Nothing has to be looked for."""

    def folder(self, container: ContainerRef) -> str | None:
        """The cgroup of a container with a program."""
        paths = tuple(self._host.programs.cgroups.copy().values())
        return next((path for path in paths if container_in(path) == container), None)


def write_bus(root: Path, cards: Sequence[str]) -> None:
    """What discovery reads of the kernel's /sys on a machine with these cards, by their addresses."""
    devices, firmware = root / "bus" / "pci" / "devices", root / "class" / "dmi" / "id"
    for folder in (devices, firmware):
        folder.mkdir(parents=True, exist_ok=True)
    (firmware / "product_name").write_text("Simulated\n")
    for address in cards:
        (devices / address).mkdir(exist_ok=True)
        (devices / address / "vendor").write_text(f"0x{nvidia.PCI_VENDOR}\n")
        (devices / address / "class").write_text("0x030200\n")


def _offers(node: Object | None, cards: int) -> bool:
    """The node is Ready, and its agent has published its cards and been heard by kubelet."""
    if node is None:
        return False
    status = node["status"]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
    if not cards:
        return ready
    offered = status.get("allocatable", {}).keys() & set(FAMILIES)
    annotations = node["metadata"].get("annotations", {})
    return ready and shoal.ANNOTATION_GPUS in annotations and len(offered) == len(FAMILIES)
