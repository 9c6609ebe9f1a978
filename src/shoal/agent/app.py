"""The agent's process: how the parts are joined, for one node.

`run` has no global state and sets no signal handlers, so that many agents can run in one process. All it knows it has
from the API server, from kubelet and from the CDI files; a reload ends and begins everything but the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import web

from shoal.agent.claims.driver import ClaimsDriver, rebooted
from shoal.agent.claims.preparing import PreparedClaims
from shoal.agent.claims.records import ClaimRecords
from shoal.agent.claims.slices import SlicePublisher, remove_slices
from shoal.agent.claims.specs import ClaimSpecs, remove_claim_specs
from shoal.agent.config import AUTO, AgentConfig, WithoutAllocation
from shoal.agent.device_plugin.calls import DevicePluginCalls
from shoal.agent.device_plugin.decisions import Decisions
from shoal.agent.device_plugin.edits import DeviceListStrategy, choose_strategy
from shoal.agent.device_plugin.matching import MatchByAmount
from shoal.agent.device_plugin.plugin import LetGo
from shoal.agent.device_plugin.serving import SOCKETS, DevicePlugins, alone_in, comes_and_goes, remove_sockets
from shoal.agent.device_plugin.specs import CdiSpecs
from shoal.agent.device_plugin.start_check import StartCheck
from shoal.agent.errors import RefusedError
from shoal.agent.health.node_health import NodeHealth
from shoal.agent.limits import NO_LIMITS, ShareLimits, node_limits
from shoal.agent.limits.endings import ClientEndings
from shoal.agent.limits.node_limits import MpsConsents, NodeLimits
from shoal.agent.limits.reports import LimitReports
from shoal.agent.node.annotations import PodAnnotations
from shoal.agent.node.cards import NodeCards, OpenDriver
from shoal.agent.node.cgroups import PodCgroups
from shoal.agent.node.checkpoint import KubeletCheckpoint
from shoal.agent.node.given import GivenFiles
from shoal.agent.node.object import NodeObject
from shoal.agent.node.pods import NodePods
from shoal.agent.nvidia import partitions, replicas
from shoal.agent.nvidia.config import config_source
from shoal.agent.nvidia.partitions import PartitionStarts
from shoal.agent.reconcile import Reconciler, ServedByClaims
from shoal.kube.access.credentials import Access
from shoal.kube.claims_api import ClaimsApi
from shoal.kube.client import Client
from shoal.kube.events import Recorder, reference_to
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.host_paths import HostPaths
from shoal.kubelet.pod_resources import PodResourcesClient
from shoal.model.contract import dra, gpushare, keti, mechanisms, shoal
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.gpu import NodeGpus
from shoal.observe.prometheus import CONTENT_TYPE, MetricRegistry

log = logging.getLogger(__name__)

COMPONENT: Final = "shoal-agent"
REASON_NO_CLAIMS: Final = "GPUClaimsUnavailable"
#: Changes that come together are answered together.
_GATHER_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 5.0
#: How often the agent looks whether MPS clients run as several users.
_USERS_SECONDS: Final = 5.0
_NONCE_BYTES: Final = 5


class Agent:
    """All parts for one node with one configuration. `run` until it is cancelled."""

    def __init__(
        self,
        config: AgentConfig,
        client: Client,
        recorder: Recorder,
        cards: NodeCards,
        paths: HostPaths,
        *,
        environment: Mapping[str, str],
        last: NvidiaConfig | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """`last` is the last good configuration of NVIDIA's plugin; `begun` is called when everything runs."""
        self.config = config
        self._client = client
        self._recorder = recorder
        self._paths = paths
        self._environment = environment
        self._begun = begun
        self._limits: ShareLimits = NO_LIMITS
        self._reports: LimitReports | None = None
        self._wake = asyncio.Event()
        #: Why the devices cannot be listed, in words.
        self._trouble = ""
        self.cards = cards
        self.node = NodeObject(
            client,
            config.node_name,
            isolation_changed=lambda: self._cards_changed(),
            labels_changed=self._labels_changed,
        )
        self.source = config_source(
            config, client, self.node, recorder, last=last, changed=lambda: self._cards_changed()
        )
        self.health = NodeHealth(
            cards, self.node, recorder, config.health_rules(), now=time.time, changed=lambda: self._cards_changed()
        )
        self._cgroups = PodCgroups(paths.pod_cgroups)
        self.pods = NodePods(
            client,
            NodeGpus(config.node_name),
            unit=config.memory_unit,
            files=GivenFiles(paths.given),
            runs=self._cgroups.runs,
            changed=self._wake.set,
        )
        self._consents = MpsConsents(client)
        self._claims_api = ClaimsApi(client)
        self._checkpoint = KubeletCheckpoint(paths.checkpoint)
        self._specs = CdiSpecs(paths)
        self.serving: DevicePlugins | None = None
        self._driver: ClaimsDriver | None = None
        #: By name that labels want served by claims, why it is not.
        self._complained: dict[str, str] = {}

    def waiting_for(self) -> str:
        """What the agent waits for before it serves every resource, in words; empty when it serves them."""
        for name, reflector in (("the node", self.node.reflector), ("the node's pods", self.pods.reflector)):
            if not reflector.synced.is_set() and (name == "the node" or not self.cards.waiting):
                return f"still reading {name}: {reflector.last_error or 'no answer yet'}"
        if self.cards.waiting or self._trouble:
            return self.cards.waiting or self._trouble
        if self.serving is None or (away := self.serving.away()):
            return f"kubelet has not asked for {'any resource' if self.serving is None else ', '.join(away)} yet"
        return self.source.waiting_for()

    def _labels_changed(self) -> None:
        self.source.look()
        self._wake.set()

    def _cards_changed(self) -> None:
        self.pods.move_to(self._inventory(), replicas.slicing_of(self.source.current))

    # Running

    async def run(self) -> None:
        """Publish and serve, as soon as there are cards."""
        async with contextlib.AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            # Called before the group waits for its tasks, none of which ends by itself.
            stack.callback(lambda: [task.cancel() for task in tasks])
            tasks = [group.create_task(self.node.run(), name="node object")]
            await stack.enter_async_context(self.node.reflector)
            await self.node.reflector.wait_synced()
            await self.node.wait_registered()
            await self.cards.wait(self._publish_none)
            self.health.recall()
            tasks.append(group.create_task(self.source.run(), name="configuration"))
            self._cards_changed()
            await stack.enter_async_context(self.pods.reflector)
            await self.pods.reflector.wait_synced()
            await self.source.wait_looked()
            pod_resources = await stack.enter_async_context(PodResourcesClient(self._paths.pod_resources))
            strategy = self._strategy()
            limits = self._build_limits(strategy)
            if node_limits.asks_consent(self.config, self.cards.driver.driver()):
                await stack.enter_async_context(self._consents.reflector)
            calls = self._calls(pod_resources, strategy)
            self._reports = LimitReports(
                self.node, self.pods, self._recorder, limited=calls.isolation, runs=self._cgroups.runs
            )
            self.serving = serving = self._serve(calls, pod_resources.wait_let_go)
            annotations = PodAnnotations(self._client, self.pods, self._recorder, calls.isolation, calls.record)
            claims = self._claims()
            reconciler = self._reconciler(serving, calls, annotations, claims)
            self._cards_changed()
            claims.recall()
            await reconciler.first()
            stack.callback(serving.stop)
            serving.start(group)
            tasks.append(group.create_task(calls.look_ahead(), name="witness"))
            tasks.append(group.create_task(reconciler.run(), name="devices"))
            tasks.append(group.create_task(reconciler.look_for_ends(), name="ends"))
            tasks.append(group.create_task(annotations.run(), name="annotations"))
            tasks.append(group.create_task(self.health.run(), name="health"))
            tasks.append(group.create_task(limits.run(), name="limits"))
            if limits.mps is not None:
                endings = ClientEndings(limits.mps, self._with_gpus, self._paths.proc)
                tasks.append(group.create_task(endings.run(), name="endings"))
                if not limits.mps.namespaces:
                    tasks.append(group.create_task(self._look_at_users(self._reports, limits), name="users"))
            if len(claims) or self.config.claims:
                tasks.append(group.create_task(self._drive(claims, strategy), name="driver"))
            self._begun()
            await asyncio.Event().wait()

    async def _look_at_users(self, reports: LimitReports, limits: NodeLimits) -> None:
        """See whether MPS clients of several users wait for each other, until cancelled."""
        while True:
            reports.look_at_users(limits.client_pods)
            await asyncio.sleep(_USERS_SECONDS)

    def _with_gpus(self) -> Iterator[Pod]:
        """The pods that have GPUs, by whatever mechanism, or other claims."""
        for known in self.pods:
            pod = known.pod
            if known.holding.resources or pod.spec.resource_claims or pod.status.extended_resource_claim_status:
                yield pod

    def _build_limits(self, strategy: DeviceListStrategy) -> NodeLimits:
        def changed() -> None:
            if self._reports is not None:
                self._reports.look(limits.faults(), lost=limits.lost(), restarted=limits.restarted())
            self._cards_changed()

        limits = node_limits.build(
            self.config,
            self.cards,
            self._paths,
            cdi=strategy.by_cdi,
            environment=self._environment,
            isolated=lambda: self.node.isolated,
            opted_in=self._consents.given,
            changed=changed,
        )
        self._limits = limits
        return limits

    def _calls(self, pod_resources: PodResourcesClient, strategy: DeviceListStrategy) -> DevicePluginCalls:
        self._specs.remove_drafts()
        unit = self.config.memory_unit
        check = StartCheck(self.pods, self._specs, unit=unit, limits=self._limits, isolated=lambda: self.node.isolated)
        chooses = self.config.without_allocation is WithoutAllocation.CHOOSE
        decisions = Decisions(
            self._client, self.pods, self._checkpoint, unit=unit, chooses=chooses, now_ns=time.time_ns
        )
        by_mounts = strategy is DeviceListStrategy.VOLUME_MOUNTS
        return DevicePluginCalls(
            self._recorder,
            self.pods,
            self._specs,
            self._checkpoint,
            pod_resources,
            check,
            decisions,
            MatchByAmount(
                self._client, self.pods, self._checkpoint, check, decisions, by_mounts=by_mounts, clock=time.monotonic
            ),
            PartitionStarts(self.pods, self._specs, unit=unit, by_mounts=by_mounts),
            strategy=strategy,
            nonce=lambda: secrets.token_hex(_NONCE_BYTES),
        )

    def _claims(self) -> PreparedClaims:
        specs = ClaimSpecs(
            self._paths.own_cdi,
            self._specs,
            self._limits,
            lambda: self.pods.node,
            unit=self.config.memory_unit,
            isolated=lambda: self.node.isolated,
        )
        records = ClaimRecords(self._paths.claims, self.config.node_name)
        return PreparedClaims(
            self._claims_api, self.pods, records, specs, unit=self.config.memory_unit, in_use=self._partition_in_use
        )

    def _partition_in_use(self, uuid: str) -> bool:
        """Whether a container has a MIG partition by number."""
        records = self._checkpoint.records()
        return any(self.pods.alive(record.pod_uid) and partitions.names(record.ids, uuid) for record in records)

    async def _drive(self, claims: PreparedClaims, strategy: DeviceListStrategy) -> None:
        """Serve claims, if the node's runtime takes CDI devices."""
        if not strategy.by_cdi:
            self._no_claims("the node's runtime takes no CDI devices, by which claims reach containers")
            return
        self._driver = driver = ClaimsDriver(
            self.cards,
            self.pods,
            claims,
            self._claims_api,
            lambda version: SlicePublisher(self._client, self.config.node_name, lambda: self.node.node, version),
            self._paths.driver(dra.DRIVER),
            complain=self._no_claims,
            in_use=self._partition_in_use,
            clients=self._claims_clients,
        )
        await driver.run(publishing=self.config.claims, rebooted=rebooted(self._paths))

    def _claims_clients(self) -> bool:
        """Whether MPS clients are, or are to be, served by claims."""
        node = self.node.node
        annotations = {} if node is None else node.metadata.annotations
        return keti.RESOURCE_MPS in mechanisms.asked_for(self.node.labels) or keti.RESOURCE_MPS in annotations.get(
            mechanisms.ANNOTATION_MECHANISMS, ""
        )

    def _name_not_by_claims(self, name: str, words: str) -> None:
        """Tell once why a name that the node's labels list is not served by claims; empty words if it can be."""
        if self._complained.get(name, "") != words:
            self._complained[name] = words
            if words:
                self._no_claims(f"{name}: {words}")

    def _no_claims(self, words: str) -> None:
        log.warning("cards are not offered as claims: %s", words)
        if self.node.node is not None:
            self._recorder.record(
                reference_to(NODES, self.node.node),
                "Warning",
                REASON_NO_CLAIMS,
                f"cards are not offered as claims: {words}",
            )

    def _serve(self, calls: DevicePluginCalls, let_go: LetGo) -> DevicePlugins:
        async def allocate(resource: str, ids: Sequence[str]) -> api.ContainerAllocateResponse:
            shared = None if self.source.current is None else self.source.current.served(resource)
            if shared is not None and shared.fail_requests_greater_than_one and len(ids) > 1:
                raise RefusedError(
                    f"a container asks for {len(ids)} of {resource}, whose replicas share a card: ask for 1, or write "
                    "failRequestsGreaterThanOne: false"
                )
            return await calls.allocate(resource, ids)

        return DevicePlugins(self._paths, allocate=allocate, pre_start=calls.pre_start, let_go=let_go)

    def _reconciler(
        self,
        serving: DevicePlugins,
        calls: DevicePluginCalls,
        annotations: PodAnnotations,
        claims: PreparedClaims,
    ) -> Reconciler:
        def trouble(words: str) -> None:
            self._trouble = words

        return Reconciler(
            self.config,
            self.pods,
            self._checkpoint,
            self.node,
            self.source,
            self.health,
            serving,
            calls,
            self._limits,
            annotations,
            claims=claims.starts,
            names=ServedByClaims(
                offered=lambda: self._driver is not None and self._driver.offered,
                held=claims.names,
                complain=self._name_not_by_claims,
            ),
            wake=self._wake,
            trouble=trouble,
        )

    def _strategy(self) -> DeviceListStrategy:
        if self.config.device_list_strategy != AUTO:
            return DeviceListStrategy(self.config.device_list_strategy)
        node = self.node.node
        kubelet, runtime = ("", "")
        if node is not None:
            kubelet, runtime = node.status.node_info.kubelet_version, node.status.node_info.container_runtime_version
        chosen = choose_strategy(kubelet, runtime)
        log.info("containers are told their cards by %s: %s", chosen.strategy.value, chosen.why)
        return chosen.strategy

    def _inventory(self) -> NodeGpus:
        faults = {**self._limits.faults(), **self.health.faults}
        gpus = self.cards.gpus(self.config, faults)
        limited = [(gpu, self._limits.isolation(gpu.uuid)) for gpu in gpus]
        return NodeGpus(
            self.config.node_name,
            tuple(replace(gpu, isolation=by.memory, compute_isolation=by.compute) for gpu, by in limited),
        )

    def _publish_none(self) -> None:
        """Take the node's published cards back while the driver shows none, so that no scheduler counts on them."""
        node = self.node.node
        if node is not None and shoal.ANNOTATION_GPUS in node.metadata.annotations:
            resources: dict[str, tuple[int, int] | None] = {gpushare.RESOURCE_COUNT: (0, 0)}
            if shoal.RESOURCE_SLOT in node.status.capacity:
                resources[gpushare.RESOURCE_MEMORY] = (0, 0)  # counted here; otherwise it is kubelet's to count
            self.node.publish({shoal.ANNOTATION_GPUS: shoal.encode_gpus(())}, resources)


async def run(
    config: AgentConfig,
    access: Access,
    nvml: OpenDriver,
    paths: HostPaths,
    *,
    reloads: asyncio.Queue[AgentConfig] | None = None,
    environment: Mapping[str, str] | None = None,
    serving: Callable[[int], None] = lambda port: None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Run the agent of one node until cancelled. A configuration from `reloads` takes the place of the one before.

    `environment` is what the programs of MPS get. `begun` is called when everything runs, with each configuration.
    """
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        recorder = await stack.enter_async_context(Recorder(client, COMPONENT, host=config.node_name))
        cards = NodeCards(nvml)  # for all configurations: a process can open its driver once
        agent: Agent | None = None
        other = ""

        def told(words: str) -> None:
            nonlocal other
            other = words

        if config.port is not None:
            waiting = serve_probes(
                config.host, config.port, lambda: other or ("starting" if agent is None else agent.waiting_for())
            )
            serving(await stack.enter_async_context(waiting))
        await stack.enter_async_context(alone_in(paths.device_plugins, told))
        while True:
            last = None if agent is None else agent.source.current
            agent = Agent(config, client, recorder, cards, paths, environment=environment or {}, last=last, begun=begun)
            before, config = config, await _until_reload(agent, reloads or asyncio.Queue())
            if before.claims and not config.claims:
                await remove_slices(client, config.node_name)


async def _until_reload(agent: Agent, reloads: asyncio.Queue[AgentConfig]) -> AgentConfig:
    """Run the agent until there is another configuration."""
    running = asyncio.create_task(agent.run(), name=f"agent of {agent.config.node_name}")
    waiting = asyncio.create_task(reloads.get())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        return waiting.result()
    finally:
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)


async def keep_mps(config: AgentConfig, nvml: OpenDriver, *, environment: Mapping[str, str]) -> None:
    """Keep the node's MPS daemon running until cancelled, and do nothing else."""
    await node_limits.keep_daemon(config, NodeCards(nvml), environment)


async def cleanup(
    config: AgentConfig,
    access: Access,
    paths: HostPaths,
    nvml: OpenDriver,
    *,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Leave nothing of the agent on the node: no CDI files, no sockets, no MPS, nothing in the node's object."""
    await node_limits.cleanup(config, paths, NodeCards(nvml), environment or {})
    specs = CdiSpecs(paths)
    specs.remove_drafts()
    specs.keep_only(())
    GivenFiles(paths.given).clear()
    _remove_claims(config, paths)
    remove_sockets(paths)
    async with Client(access) as client:
        await remove_slices(client, config.node_name)
        node = NodeObject(client, config.node_name)
        async with node.reflector:
            await node.reflector.wait_synced()
            own = dict.fromkeys(
                (
                    shoal.ANNOTATION_GPUS,
                    shoal.ANNOTATION_HELD,
                    shoal.ANNOTATION_FAULTS,
                    mechanisms.ANNOTATION_MECHANISMS,
                ),
                None,
            )
            counted = node.node.status.capacity if node.node is not None else ()
            passing = filter(comes_and_goes, counted)
            node.publish(own, dict.fromkeys((gpushare.RESOURCE_COUNT, *SOCKETS, *passing), None))
            await node.settle()


def _remove_claims(config: AgentConfig, paths: HostPaths) -> None:
    """Remove what the DRA driver has on the node: records, CDI files, sockets."""
    ClaimRecords(paths.claims, config.node_name).clear()
    remove_claim_specs(paths.own_cdi)
    paths.booted.unlink(missing_ok=True)
    sockets = paths.driver(dra.DRIVER)
    for path in (sockets.registration, sockets.calls):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not there, or not empty
        sockets.calls.parent.rmdir()


@contextlib.asynccontextmanager
async def serve_probes(host: str, port: int, waiting_for: Callable[[], str]) -> AsyncIterator[int]:
    """Answer probes and Prometheus while the block runs; gives the port. `waiting_for` is empty when all is served."""

    async def health(_: web.Request) -> web.Response:
        # A node without a driver is no reason to restart the process: it would not bring one.
        return web.Response(text=waiting_for() or "ok")

    async def ready(_: web.Request) -> web.Response:
        reason = waiting_for()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    registry = MetricRegistry()
    serves = registry.gauge("shoal_agent_ready", "1 while the agent serves every resource of its node.")

    async def metrics(_: web.Request) -> web.Response:
        serves.set(int(not waiting_for()))
        return web.Response(text=registry.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get(shoal.PATH_HEALTH, health)
    app.router.add_get(shoal.PATH_READY, ready)
    app.router.add_get(shoal.PATH_METRICS, metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
