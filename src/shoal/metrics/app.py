"""The collector's process: how the parts are joined, for one node.

`run` has no global state and sets no signal handlers, so that many collectors can run in one process. The collector
makes a snapshot in each interval; whatever shows, stores or sends numbers reads the last one, in a task of its own: one
that fails is started again, and holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from shoal.gpu.protocol import Card
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.metrics import overuse
from shoal.metrics.cgroups import ContainerFolders, HostCgroups
from shoal.metrics.collector import CardReader, Collector, OpenNvml
from shoal.metrics.config import MetricsConfig
from shoal.metrics.digest import DigestWriter
from shoal.metrics.exporter.server import Exporter, InfluxSource
from shoal.metrics.history_points import HistoryKeeper
from shoal.metrics.history_server import HistoryServer
from shoal.metrics.influx_writer import InfluxWriter
from shoal.metrics.node_load import HostLoad, PodLoadWatch
from shoal.metrics.node_pods import KnownPod, NodeContainers
from shoal.metrics.overuse import Overuse
from shoal.metrics.processes import HostProcesses, ProcessOwners
from shoal.metrics.snapshot import LatestSnapshot
from shoal.metrics.supervision import supervised

COMPONENT: Final = "shoal-metrics"
REASON_OVERUSE: Final = "GPUOveruse"
_EVENTS_A_SECOND: Final = 5.0

#: What reads snapshots: its name for the log, and what to run.
SnapshotReader = tuple[str, Callable[[LatestSnapshot], Awaitable[None]]]


def snapshot_readers(config: MetricsConfig, client: Client) -> list[SnapshotReader]:
    """All that read snapshots and are switched on. Each is built from its own settings."""
    readers: list[SnapshotReader] = []
    influx = InfluxWriter(config.influx) if config.influx is not None else None
    exporter: Exporter | None = None
    if config.exporter is not None:
        sources = [InfluxSource(influx.buffer)] if influx is not None else []
        exporter = Exporter(config.exporter, client, sources=sources)
        readers.append(("exporter", exporter.run))
    if config.history is not None:
        readers.append(("history", HistoryKeeper(Path(config.history.folder)).run))
        if config.history.serve:
            status = exporter.status if exporter is not None else lambda: None
            server = HistoryServer(config.history, client, config.node_name, exporter=status)
            readers.append(("history server", server.run))
    if influx is not None:
        readers.append(("InfluxDB", influx.run))
    if config.keti is not None:
        from shoal.metrics.keti_grpc import KetiCollector  # gRPC costs 11 MB, and few ask for it

        readers.append(("KETI's gRPC", KetiCollector(config.keti).run))
    if config.digest is not None:
        readers.append(("live load", DigestWriter(config.digest, client, config.node_name).run))
    return readers


async def run(
    config: MetricsConfig,
    access: Access,
    open_nvml: OpenNvml,
    *,
    owners: ProcessOwners | None = None,
    folders: ContainerFolders | None = None,
    latest: LatestSnapshot | None = None,
) -> None:
    """Run the collector of one node until cancelled.

    `owners` tells the containers of PIDs and `folders` their cgroups: the host's own unless given. `latest` shows the
    snapshots to others in this process.
    """
    latest = latest or LatestSnapshot()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        events = Recorder(client, COMPONENT, host=config.node_name, per_second=_EVENTS_A_SECOND)
        await stack.enter_async_context(events)
        pods = NodeContainers(client, config.node_name, unit=config.memory_unit)
        reader = CardReader(
            open_nvml,
            owners or HostProcesses(Path(config.proc_root)),
            folders or HostCgroups(Path(config.cgroup_root)),
        )
        stack.callback(reader.close)

        def tell(pod: KnownPod, found: Overuse, card: Card) -> None:
            events.record(pod.about, "Warning", REASON_OVERUSE, overuse.words(found, card.index))

        loads = None if config.kubelet is None else PodLoadWatch(config.kubelet)
        collector = Collector(
            config.node_name,
            reader,
            pods,
            latest,
            interval=config.interval_seconds,
            grace=config.overuse_grace_seconds,
            told=tell,
            host=None if config.host_root is None else HostLoad(Path(config.proc_root), Path(config.host_root)),
            pod_loads=tuple if loads is None else loads.current,
        )
        await stack.enter_async_context(pods.reflector)
        async with asyncio.TaskGroup() as group:
            group.create_task(supervised("collector", collector.run))
            if loads is not None:
                group.create_task(supervised("loads of pods", loads.run))
            for name, part in snapshot_readers(config, client):
                group.create_task(supervised(name, partial(part, latest)), name=name)
