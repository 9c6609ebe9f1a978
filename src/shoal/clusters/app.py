"""The cluster manager's process: who leads, and how the parts are joined.

Every replica follows the clusters and answers probes and Prometheus; only the leader writes. A leader that loses its
lease ends, and is started anew. It has no global state and no signal handlers, so that many can run in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from shoal.clusters.asking import AskingChoice
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.entries import ClusterEntry
from shoal.clusters.keti_grpc import KetiClusters
from shoal.clusters.manager import ClusterManager, utc_now
from shoal.clusters.member import MemberTable
from shoal.clusters.members import OWN, Members, cluster_uid
from shoal.clusters.metrics import ManagerMetrics
from shoal.clusters.offers import OfferClient
from shoal.clusters.rooms import Rooms
from shoal.clusters.telling import ClustersTeller
from shoal.clusters.wishes import Choosing
from shoal.http.probes import answering_probes
from shoal.http.server import Bounds, Routes, in_pieces
from shoal.http.server import serving as serving_routes
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.errors import ConfigError
from shoal.kube.events import Recorder
from shoal.kube.lease import Election, Terms
from shoal.model.contract import shoal
from shoal.model.contract.clusters import NAME_MANAGER
from shoal.observe.prometheus import CONTENT_TYPE

log = logging.getLogger(__name__)

#: Bodies are not read at all.
_BOUNDS: Final = Bounds(connections=64, per_peer=32, body=0, bodies=0)


@dataclass(frozen=True, slots=True)
class ManagerPorts:
    """The ports on which a process answers; None: it does not."""

    probes: int | None
    metrics: int | None


Serving = Callable[[ManagerPorts], None]


async def run(
    config: ClusterManagerConfig,
    access: Access,
    *,
    identity: str,
    environ: Mapping[str, str],
    serving: Serving = lambda ports: None,
) -> None:
    """Run the manager of the cluster behind `access` until cancelled, or until it loses its lease."""
    files = [Path(one) for one in config.kubeconfigs]
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        members = Members(
            client, namespace=config.namespace, files=files, own=own_entry(config, access), environ=environ
        )
        await stack.enter_async_context(members)
        rooms = Rooms(members)
        offers = await stack.enter_async_context(OfferClient())
        choosing = AskingChoice(offers, rooms=rooms, problems=lambda: members.problems, unit=config.memory_unit)
        await members.settled()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rooms.run(), name="rooms")]
            if config.keti is not None:
                keti = KetiClusters(config.keti, members, choosing.look)
                tasks.append(group.create_task(keti.run(), name="KETI's clients"))
            try:

                def wire(manager: ClusterManager) -> None:
                    rooms.on_change(lambda cluster: manager.wake())
                    choosing.waits_at_home = manager.homes.waits
                    choosing.on_lapse = manager.wake
                    teller = ClustersTeller(
                        client,
                        members,
                        rooms,
                        manager.fences.record,
                        namespace=config.namespace,
                        may_write=manager.may_write,
                        clock=time.monotonic,
                        now=utc_now,
                    )
                    tasks.append(group.create_task(teller.run(), name="how clusters are"))

                await dispatch(config, client, members, choosing, wire, identity=identity, serving=serving)
            finally:
                for task in tasks:
                    task.cancel()


def own_entry(config: ClusterManagerConfig, access: Access) -> ClusterEntry | None:
    """Home as one of its own members. Raises ConfigError."""
    if not config.cluster_name:
        return None
    try:
        authority = Path(config.offer_ca).read_bytes() if config.offer_ca else b""
    except OSError as error:
        raise ConfigError(f"offerCa {config.offer_ca} cannot be read: {error.strerror}: correct it") from error
    return ClusterEntry(
        OWN,
        config.cluster_name,
        access,
        namespace=config.scheduler_namespace or config.namespace,
        offer_url=config.offer_url,
        offer_authority=authority,
    )


async def dispatch(
    config: ClusterManagerConfig,
    client: Client,
    members: MemberTable,
    choosing: Choosing,
    wire: Callable[[ClusterManager], None] = lambda manager: None,
    *,
    identity: str,
    serving: Serving = lambda ports: None,
) -> None:
    """Send pods to these members, when leading. `wire` is given the manager before it does anything."""
    async with contextlib.AsyncExitStack() as stack:
        recorder = Recorder(client, NAME_MANAGER, host=identity, per_second=config.events_per_second)
        await stack.enter_async_context(recorder)
        election = Election(
            client,
            namespace=config.namespace,
            name=config.lease_name,
            identity=identity,
            terms=Terms.lasting(config.lease_seconds),
        )
        manager = ClusterManager(
            config,
            client,
            members,
            choosing,
            recorder,
            home_cluster=await cluster_uid(client),
            may_write=lambda: election.leading,
        )
        wire(manager)
        serving(await _serve(config, manager, stack))
        await stack.enter_async_context(manager)

        async def lead() -> None:
            manager.metrics.leads.set(1)
            try:
                await manager.run()
            finally:
                manager.metrics.leads.set(0)

        await election.run(lead)


async def _serve(
    config: ClusterManagerConfig, manager: ClusterManager, stack: contextlib.AsyncExitStack
) -> ManagerPorts:
    probes = metrics = None
    if config.probe_port is not None:
        probes = await stack.enter_async_context(answering_probes(config.host, config.probe_port, manager.not_ready))
    if config.metrics_port is not None:
        scraped = _serve_metrics(config.host, config.metrics_port, manager.metrics)
        metrics = await stack.enter_async_context(scraped)
    return ManagerPorts(probes, metrics)


@contextlib.asynccontextmanager
async def _serve_metrics(host: str, port: int, metrics: ManagerMetrics) -> AsyncIterator[int]:
    """Answer Prometheus while the block runs; gives the port, which is a free one for 0."""

    async def scrape(request: web.BaseRequest) -> web.StreamResponse:
        return await in_pieces(request, (piece.encode() for piece in metrics.registry.pieces()), CONTENT_TYPE)

    routes = Routes({shoal.PATH_METRICS: ("GET", scrape)}, clock=time.monotonic, counted=metrics.answered)
    async with serving_routes(routes, host, port, _BOUNDS) as answering:
        yield answering
