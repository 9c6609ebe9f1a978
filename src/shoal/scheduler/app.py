"""The scheduler's process: what it watches, who leads, and how the parts are joined.

Every replica follows the cluster, and serves health and metrics on a port of their own. Only the leader is ready,
answers the stock scheduler and runs the loop. A leader that loses its lease ends, and is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.http.errors import TlsError
from shoal.http.tls import FileTls, TlsFiles
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.events import Recorder
from shoal.kube.lease import Election, boot_clock
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    DEVICE_CLASSES,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
)
from shoal.model.backoff import Backoff
from shoal.model.contract import dra, gpushare, keti, load
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler import health
from shoal.scheduler.binder import Binder
from shoal.scheduler.certificates import BundleSecret
from shoal.scheduler.claims.placing import ClaimsPlacing
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.config import SECRET, LoadSource, SchedulerConfig
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.fence import FenceWatch
from shoal.scheduler.handover import Handover
from shoal.scheduler.keti_policy import KetiPolicyWatch
from shoal.scheduler.live_loads import LiveLoads
from shoal.scheduler.load_servers import LoadPolling
from shoal.scheduler.loop import Loop
from shoal.scheduler.metrics import LedgerSource, LoadLines, Metrics, WatchSource
from shoal.scheduler.offer.departures import Departures
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.offer.offers import Offers
from shoal.scheduler.offer.room import RoomPublisher
from shoal.scheduler.offer.server import OfferAddress, OfferServer
from shoal.scheduler.preemption import Clearing, DisruptionBudgets
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.rivals import Rivals
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.tls import OwnTls, ServerTls
from shoal.scheduler.volume_claims import VolumeClaims

log = logging.getLogger(__name__)

COMPONENT: Final = "shoal-scheduler"
#: How long a leader that lets another lead stays out of the election.
_STAND_BACK_SECONDS: Final = 10.0
#: How often pods are looked at whose cards become free by time.
_SWEEP_SECONDS: Final = 5.0
#: A start waits so long for the first digests at most; live load never keeps the scheduler from working.
_LOAD_SECONDS: Final = 5.0
#: Without collectors there may be nothing to read, and no right to: that is asked seldom.
_LOAD_PACE: Final = Pace(backoff=Backoff(first=1.0, longest=300.0))
#: Events that may wait for their turn: those of as many pods bound in a burst.
EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports on which a process answers."""

    extender: int
    health: int
    #: None while offers are off.
    offer: int | None = None


#: Called with the ports once the process answers.
Serving = Callable[[Ports], None]


class Scheduler:
    """All parts of one process on one client."""

    def __init__(self, client: Client, recorder: Recorder, config: SchedulerConfig, *, identity: str) -> None:
        self.config = config
        self._client = client
        self.metrics = Metrics()
        self.election = Election(
            client, namespace=config.election.namespace, name=config.election.name, identity=identity
        )
        self._leads = False
        self._leads_since = 0.0
        self.reporter = Reporter(client, recorder, now=_now, may_write=self.may_write)
        engine = Engine(Ledger(), POLICIES[config.policy])
        tables = ClusterTables()
        self.state = ClusterState(engine, tables, unit=config.memory_unit, news=self._on_news, report=self._report)
        rivals = Rivals(
            metrics=self.metrics,
            leads_since=lambda: self._leads_since if self.may_write() else None,
            clock=time.monotonic,
            report=self._report,
        )
        self.binder = Binder(client, self.state, may_write=self.may_write, now_ns=time.time_ns, on_bind=rivals.on_bind)
        feasibility = Feasibility(tables)
        disruption_budgets = Reflector(client, POD_DISRUPTION_BUDGETS)
        budgets = DisruptionBudgets(disruption_budgets.store)
        self._handover = Handover(namespace=config.election.namespace, name=identity, node=self.state.node)
        claims = VolumeClaims(client, tables, feasibility)
        offer_holds = OfferHolds(self.state, clock=time.monotonic, metrics=self.metrics)
        context = SchedulingContext(
            client=client,
            state=self.state,
            feasibility=feasibility,
            binder=self.binder,
            reporter=self.reporter,
            metrics=self.metrics,
            offer_holds=offer_holds,
            may_write=self.may_write,
            clock=time.monotonic,
        )
        self._device_claims: ClaimsPlacing | None = None
        if config.claims:
            self._device_claims = ClaimsPlacing(
                client,
                self.state,
                news=self._on_news,
                may_write=self.may_write,
                now=_now,
                clock=time.monotonic,
            )
        clearing = Clearing(context, budgets=budgets, rng=random.Random())
        self.loop = Loop(
            context,
            claims=claims,
            device_claims=self._device_claims,
            clearing=clearing,
            names=config.scheduler_names,
            cluster=config.cluster_name,
            binds=config.binds,
        )
        verbs = Verbs(
            context,
            plan=clearing.plan,
            try_again=self.reporter.try_again,
            offer_all_up_to=config.offer_all_up_to,
        )
        self.extender = Extender(
            verbs, self.state, metrics=self.metrics, not_ready=self.not_ready, clock=time.monotonic
        )
        departures = Departures(self.state, clock=time.monotonic)
        self.offers = OfferServer(
            Offers(context, keep_clear=clearing.keep_clear, departures=departures, cluster=config.cluster_name),
            client,
            namespace=config.election.namespace,
            audience=config.offer.audience,
            metrics=self.metrics,
            not_ready=self.not_ready,
            clock=time.monotonic,
        )
        self._room = RoomPublisher(
            client, self.state, offer_holds, namespace=config.election.namespace, may_write=self.may_write
        )
        self._fences = FenceWatch(
            client, self.reporter, namespace=config.election.namespace, may_write=self.may_write, clock=boot_clock
        )
        policies = KetiPolicyWatch(engine, namespaces=config.policy_namespaces, news=self._on_news, recorder=recorder)
        self._reflectors: dict[str, Reflector[Any]] = {
            # Nodes come first: a pod on a node that is known is understood at once.
            "nodes": Reflector(client, NODES, consumers=[self.state.on_node, self._handover.on_node]),
            # Claims come before pods: a pod whose claim is allocated already is bound to its node.
            **(_claim_reflectors(client, self._device_claims) if self._device_claims is not None else {}),
            "pods": Reflector(
                client,
                PODS,
                consumers=[
                    *(offer_holds.on_pod, departures.on_pod, self._fences.on_pod),
                    *(rivals.on_pod, self.state.on_pod, verbs.pods.on_pod),
                    *(self.loop.on_pod, self._handover.on_pod),
                ],
            ),
            "namespaces": Reflector(client, NAMESPACES, consumers=[self.state.on_namespace]),
            "configmaps": Reflector(
                client,
                CONFIG_MAPS,
                namespace=gpushare.UNHEALTHY_CONFIGMAP_NAMESPACE,
                consumers=[self.state.on_config_map],
            ),
            **{
                f"configmap {name}": Reflector(
                    client, CONFIG_MAPS, fields=f"metadata.name={name}", consumers=[policies.on_config_map]
                )
                for name in keti.POLICY_CONFIGMAPS
            },
            "persistentvolumes": Reflector(client, VOLUMES, consumers=[self.state.on_volume]),
            "persistentvolumeclaims": Reflector(client, CLAIMS, consumers=[self.state.on_claim, claims.on_claim]),
            "storageclasses": Reflector(client, STORAGE_CLASSES, consumers=[self.state.on_storage_class]),
            "poddisruptionbudgets": disruption_budgets,
        }
        self.loads = LiveLoads(
            engine.ledger,
            news=self._on_news,
            ttl=config.live_load.ttl_seconds,
            tolerated_mib=config.live_load.tolerated_mib,
        )
        #: Not among the others: nobody waits for it.
        self._leases = Reflector(
            client, LEASES, namespace=load.NAMESPACE, consumers=[self.loads.on_lease], pace=_LOAD_PACE
        )
        watches: dict[str, Reflector[Any]] = dict(self._reflectors)
        if config.live_load.source is LoadSource.LEASE:
            watches["leases"] = self._leases
        self.metrics.registry.add(LedgerSource(engine.ledger))
        self.metrics.registry.add(WatchSource(watches))
        if config.live_load.source is not LoadSource.OFF:
            self.metrics.registry.add(LoadLines(engine.ledger, self.loads))

    # Who may do what

    def may_write(self) -> bool:
        """Whether this process may write to the cluster: it leads, or is the only one."""
        return self._leads and (not self.config.election.enabled or self.election.leading)

    def not_ready(self) -> str:
        """Why nothing may be decided now; empty when all is well."""
        unsynced = [name for name, reflector in self._reflectors.items() if not reflector.synced.is_set()]
        if unsynced:
            return f"still reading {', '.join(unsynced)}"
        if not self.may_write():
            return f"not the leader: that is {self.election.leader or 'nobody yet'}"
        return ""

    def _report(self, *told: Any) -> None:
        # Every replica sees the same; only the leader reports it.
        if self.may_write():
            self.reporter.warn(*told)

    def _on_news(self, news: ClusterEvent) -> None:
        self.loop.on_news(news)

    # Running

    async def run(self, *, serving: Serving = lambda ports: None) -> None:
        """Watch, serve and, when leading, schedule; until cancelled. Raises TlsError."""
        config = self.config
        address = Address(
            config.extender_host,
            config.port,
            await self._tls(),
            bounds=config.limits.bounds(),
            open_inspect=config.open_inspect,
        )
        async with contextlib.AsyncExitStack() as stack:
            answering = health.serve(
                config.health_host,
                config.health_port,
                metrics=self.metrics,
                not_ready=self.not_ready,
                clock=time.monotonic,
            )
            healthy = await stack.enter_async_context(answering)
            port = await stack.enter_async_context(self.extender.serve(address))
            offering = None
            if config.offer.enabled:
                where = OfferAddress(config.offer.host, config.offer.port, await self._offer_tls())
                offering = await stack.enter_async_context(self.offers.serve(where))
            serving(Ports(port, healthy, offering))
            await self._look_for_claims()
            for reflector in self._reflectors.values():
                await stack.enter_async_context(reflector)
                await reflector.wait_synced()
            await self._begin_live_load(stack)
            # What the first lists hold stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            log.info("knows %d nodes", self.state.nodes())
            sweeping = asyncio.create_task(self._sweep(), name="sweep")
            stack.callback(sweeping.cancel)
            if not config.election.enabled:
                await self._lead()
                return
            await self.election.run(self._lead)
            # The lease is free. Another takes it meanwhile; then this process ends, and is started anew.
            log.info("lets another replica lead: the node is cordoned")
            await asyncio.sleep(_STAND_BACK_SECONDS)

    async def _look_for_claims(self) -> None:
        """Go on without claims, and say so, where the API server has no such objects."""
        if self._device_claims is None:
            return
        try:
            await self._client.page(DEVICE_CLASSES, limit=1)
        except NotFoundError:
            self.loop.device_claims = None
            self.state.tables.nodes.make_claims(False)
            self.loop.no_claims = (
                f"has claims of devices, which this scheduler allocates with {DEVICE_CLASSES.api_version} alone, and "
                "the API server does not have it: upgrade to Kubernetes 1.34, or use the stock scheduler"
            )
            log.error(
                "claims: true in the settings has no effect: the API server has no %s, which comes with Kubernetes "
                "1.34; before, the stock scheduler allocates whole cards",
                DEVICE_CLASSES.api_version,
            )
            for name in _CLAIM_WATCHES:
                del self._reflectors[name]
        except KubeError as error:
            log.warning("looking for device classes: %s", error)  # the watches go on asking

    async def _begin_live_load(self, stack: contextlib.AsyncExitStack) -> None:
        """Follow what is really used. Nothing waits for it for long: without it requests count alone."""
        config = self.config.live_load
        if config.source is LoadSource.LEASE:
            await stack.enter_async_context(self._leases)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOAD_SECONDS):
                    await self._leases.wait_synced()
        elif config.source is not LoadSource.OFF:
            polling = LoadPolling(config, self.state.engine.ledger, self.loads)
            task = asyncio.create_task(polling.run(), name="live load")
            stack.callback(task.cancel)

    async def _sweep(self) -> None:
        """Release cards that become free by time alone, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.state.sweep()
            self.loads.expire()

    async def _tls(self) -> ServerTls | None:
        tls = self.config.tls
        if tls is None:
            return None
        if tls.secret is None:
            authority = Path(tls.client_ca) if tls.client_ca else None
            return FileTls(TlsFiles(Path(tls.certificate), Path(tls.key), authority))
        return await OwnTls.begun(self._bundle(tls.secret))

    async def _offer_tls(self) -> ServerTls:
        """The extender's certificate for callers that show tokens, and no certificates."""
        tls = self.config.tls
        if tls is None:
            raise TlsError(f"offers are enabled without tls: set tls: {{secret: {SECRET}}}")
        if tls.secret is None:
            return FileTls(TlsFiles(Path(tls.certificate), Path(tls.key)))
        return await OwnTls.begun(self._bundle(tls.secret), clients=False)

    def _bundle(self, name: str) -> BundleSecret:
        return BundleSecret(self._client, namespace=self.config.election.namespace, name=name, now=_now)

    async def _catch_up(self) -> None:
        """Read anew what the last leader may have changed: its last Bindings may not have come by the watch yet."""
        for name in ("nodes", "resourceclaims", "pods"):
            if name in self._reflectors:
                await self._reflectors[name].refresh()

    async def _lead(self) -> None:
        """Schedule, until another replica should lead."""
        if self.config.election.enabled:
            await self._catch_up()
        self._leads_since = time.monotonic()
        self._leads = True
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.reporter.run(), name="conditions")]
                if self.config.offer.enabled:
                    tasks.append(group.create_task(self._room.run(), name="room"))
                    tasks.append(group.create_task(self._fences.run(), name="fences"))
                if self.config.scheduler_names:
                    tasks.append(group.create_task(self.loop.run(), name="loop"))
                if self.config.election.enabled:
                    await self._handover.until_due()
                    for task in tasks:
                        task.cancel()
        finally:
            self._leads = False


#: The watches that claims of devices need.
_CLAIM_WATCHES: Final = ("resourceslices", "deviceclasses", "resourceclaims")


def _claim_reflectors(client: Client, claims: ClaimsPlacing) -> dict[str, Reflector[Any]]:
    slices, classes, own = _CLAIM_WATCHES
    return {
        slices: Reflector(client, RESOURCE_SLICES, fields=f"spec.driver={dra.DRIVER}", consumers=[claims.on_slice]),
        classes: Reflector(client, DEVICE_CLASSES, consumers=[claims.on_class]),
        own: Reflector(client, RESOURCE_CLAIMS, consumers=[claims.on_claim]),
    }


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def run(config: SchedulerConfig, access: Access, *, identity: str, serving: Serving = lambda ports: None) -> None:
    """Run the scheduler until cancelled, or until it loses its lease."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        events = Recorder(client, COMPONENT, queue=EVENTS, per_second=config.events_per_second)
        recorder = await stack.enter_async_context(events)
        await Scheduler(client, recorder, config, identity=identity).run(serving=serving)
