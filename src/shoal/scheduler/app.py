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

from shoal.http.tls import FileTls, TlsFiles
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.lease import Election
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
)
from shoal.model.backoff import Backoff
from shoal.model.contract import gpushare, keti, load
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler import health
from shoal.scheduler.binder import Binder
from shoal.scheduler.certificates import BundleSecret
from shoal.scheduler.claims import Claims
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.config import LoadSource, SchedulerConfig
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.handover import Handover
from shoal.scheduler.keti_policy import KetiPolicyWatch
from shoal.scheduler.live_load.loads import LiveLoads
from shoal.scheduler.live_load.servers import LoadPolling
from shoal.scheduler.loop import Loop
from shoal.scheduler.metrics import LedgerSource, LoadLines, Metrics, WatchSource
from shoal.scheduler.preemption import Clearing, DisruptionBudgets
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.rivals import Rivals
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.tls import OwnTls, ServerTls

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
        claims = Claims(client, tables, feasibility)
        context = SchedulingContext(
            client=client,
            state=self.state,
            feasibility=feasibility,
            binder=self.binder,
            reporter=self.reporter,
            metrics=self.metrics,
            may_write=self.may_write,
            clock=time.monotonic,
        )
        clearing = Clearing(context, budgets=budgets, rng=random.Random())
        self.loop = Loop(
            context,
            claims=claims,
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
        policies = KetiPolicyWatch(engine, namespaces=config.policy_namespaces, news=self._on_news, recorder=recorder)
        self._reflectors: dict[str, Reflector[Any]] = {
            # Nodes come first: a pod on a node that is known is understood at once.
            "nodes": Reflector(client, NODES, consumers=[self.state.on_node, self._handover.on_node]),
            "pods": Reflector(
                client,
                PODS,
                consumers=[
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
            serving(Ports(port, healthy))
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
        namespace = self.config.election.namespace
        return await OwnTls.begun(BundleSecret(self._client, namespace=namespace, name=tls.secret, now=_now))

    async def _catch_up(self) -> None:
        """Read anew what the last leader may have changed: its last Bindings may not have come by the watch yet."""
        for name in ("nodes", "pods"):
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
                if self.config.scheduler_names:
                    tasks.append(group.create_task(self.loop.run(), name="loop"))
                if self.config.election.enabled:
                    await self._handover.until_due()
                    for task in tasks:
                        task.cancel()
        finally:
            self._leads = False


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def run(config: SchedulerConfig, access: Access, *, identity: str, serving: Serving = lambda ports: None) -> None:
    """Run the scheduler until cancelled, or until it loses its lease."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        events = Recorder(client, COMPONENT, queue=EVENTS, per_second=config.events_per_second)
        recorder = await stack.enter_async_context(events)
        await Scheduler(client, recorder, config, identity=identity).run(serving=serving)
