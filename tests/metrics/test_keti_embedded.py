"""Pods that the scheduler placed and the agent started, as KETI's clients see them: by gRPC and in InfluxDB."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec

from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded.nodes.cluster import few
from shoal.kube.resources import PODS
from shoal.metrics.influx_writer import InfluxSettings, InfluxWriter
from shoal.metrics.keti_grpc import KetiCollector
from shoal.metrics.keti_points import using
from shoal.metrics.keti_settings import KetiGrpcSettings
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from tests.metrics.keti_wire import KETI
from tests.testbed import influxdb
from tests.testbed.influxdb import InfluxServer
from tests.testbed.processes import Run

GIB = 2**30


def pod(name: str, gib: int, does: str) -> dict[str, object]:
    limits = {"aliyun.com/gpu-mem": str(gib)}
    return {
        "metadata": {"name": name, "annotations": {"shoal.dev/simulate": does}},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}]},
    }


@asynccontextmanager
async def measured(folder: Path) -> AsyncIterator[tuple[EmbeddedCluster, LatestSnapshot]]:
    """Two pods on one card of a node that is measured."""
    plan = EmbeddedPlan(few(1, "1xA30-24G"), metrics=True, metrics_seconds=0.1)
    async with EmbeddedCluster(plan, folder) as cluster, cluster.client() as client:
        await cluster.ready()
        for name, gib, does in (("one", 8, "memory=6Gi utilisation=30"), ("two", 4, "memory=1Gi utilisation=10")):
            await client.create(PODS.raw, pod(name, gib, does), namespace="default")
        latest = cluster.measured[next(iter(cluster.nodes)).name]
        while True:
            snapshot = await latest.after(latest.current.number if latest.current else 0)
            if len(named(snapshot)) == 2:
                break
        yield cluster, latest


def named(snapshot: Snapshot) -> list[str]:
    return [one.name.pod for card in snapshot.cards for one in using(card) if one.used_bytes and one.name.container]


async def test_ketis_clients_see_each_container_by_its_id(short_folder: Path) -> None:
    async with measured(short_folder) as (cluster, latest), cluster.client() as client:
        ports: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        settings = KetiGrpcSettings(host="127.0.0.1", port=0, v1_port=None)
        task = asyncio.create_task(KetiCollector(settings, serving_at=ports.set_result).run(latest))
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{(await ports)[0]}") as channel:
                call: Any = channel.unary_unary(
                    "/metric.MetricCollector/GetMultiMetric",
                    response_deserializer=KETI["metric.MultiMetric"].FromString,
                )
                answer = await call(b"", timeout=300)
        finally:
            task.cancel()
            await asyncio.wait([task])
        (card,) = answer.gpu_metrics.values()
        assert (card.pod_count, card.memory_used) == (2, 7 * GIB)
        for name, used in (("one", 6 * GIB), ("two", GIB)):
            seen = answer.pod_metrics[name]
            assert seen.is_gpu_pod
            ((key, entry),) = seen.pod_gpu_metrics.items()
            assert (entry.gpu_uuid, entry.gpu_memory_used) == (next(iter(answer.gpu_metrics)), used)
            shown: Any = await client.get(PODS.raw, name, namespace="default")
            assert shown["status"]["containerStatuses"][0]["containerID"].partition("://")[2] == key


async def test_influxdb_has_what_the_pods_use(short_folder: Path, testbed_run: Run) -> None:
    server = InfluxServer(testbed_run, influxdb.debian(), "influxdb-embedded")
    writer = InfluxWriter(msgspec.convert({"url": server.url}, InfluxSettings))
    async with measured(short_folder) as (_, latest):
        task = asyncio.create_task(writer.run(latest))
        async with asyncio.timeout(300):
            while writer.counts().written < 20:  # noqa: ASYNC110 - the collector's own pace
                await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    rows = server.query('select last(gpu_mps_memory) from podmetric group by "pod", "namespace"', "multimetric")
    assert {(row["namespace"], row["pod"]): row["last"] for row in rows} == {
        ("default", "one"): 6 * GIB,
        ("default", "two"): GIB,
    }
    (card,) = server.query("select * from gpumetric order by time desc limit 1", "multimetric")
    assert (card["memory(used)"], card["Podnum"], card["utilization"]) == (7 * GIB, 2, 40)
    server.kill()
