"""The embedded cluster as a whole, as `shoal up` starts it: 200 nodes with 8 cards each, 2,000 pods until all run.

Pods go the whole way: created over HTTP, admitted, decided by the scheduler, bound, given their cards by the node's
agent over kubelet's gRPC, started. Everything is one process, so the numbers are what one Python process can do.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import tempfile
import time
from pathlib import Path

import bench.results as results
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded import kinds as embedded
from shoal.embedded.kinds import Kind
from shoal.embedded.nodes.cluster import few
from shoal.embedded.store import Object
from shoal.kube.client import Client
from shoal.kube.resources import PODS

NODES = 200
GPUS = "8xA100-80G"
MANY = 2_000
IN_FLIGHT = 32
START_SECONDS = 3.0
IDLE_SECONDS = 10.0


async def start_up() -> float:
    """Seconds from nothing to a small cluster that is ready."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        started = time.monotonic()
        async with EmbeddedCluster(EmbeddedPlan(few(3, "4xA30-24G")), Path(directory)) as cluster:
            await cluster.ready()
            return time.monotonic() - started


async def create(client: Client, count: int) -> None:
    """Pods of three sizes."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            limits = {"aliyun.com/gpu-mem": str((10, 20, 40)[number % 3])}
            container = {"name": "main", "image": "x", "resources": {"limits": limits}}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"p{number}"},
                "spec": {"containers": [container]},
            }
            await client.create(PODS.raw, pod, namespace="default")

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def all_running(cluster: EmbeddedCluster, count: int) -> asyncio.Event:
    """Set when that many pods run; told by the store, since asking over HTTP would cost more than it tells."""
    running: set[str] = set()
    over = asyncio.Event()

    def observe(kind: Kind, before: Object | None, after: Object | None) -> None:
        if kind.key == embedded.PODS.key and after is not None and after["status"]["phase"] == "Running":
            running.add(after["metadata"]["name"])
            if len(running) == count:
                over.set()

    cluster.api.registry.observers.append(observe)
    return over


async def idle() -> float:
    """What the cluster takes when nobody wants anything of it, in percent of a core."""
    cpu = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    return 100 * (time.process_time() - cpu) / IDLE_SECONDS


async def measure() -> list[results.Row]:
    """All rows."""
    rows = [results.below("start-up, 3 nodes", await start_up(), "s", START_SECONDS)]
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        started, cpu = time.monotonic(), time.process_time()
        async with (
            EmbeddedCluster(EmbeddedPlan(few(NODES, GPUS)), Path(directory)) as cluster,
            cluster.client() as client,
        ):
            await cluster.ready()
            rows.append(results.Row(f"start-up, {NODES} nodes x 8 with agents", time.monotonic() - started, "s"))
            rows.append(results.Row("the same by CPU time", time.process_time() - cpu, "CPU-s"))
            rows.append(results.Row("CPU while nothing happens", await idle(), "% of a core"))
            over = all_running(cluster, MANY)
            started, cpu = time.monotonic(), time.process_time()
            await create(client, MANY)
            created = time.monotonic() - started
            await over.wait()
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    rows += [
        results.Row(f"{MANY} pods created", MANY / created, "pods/s"),
        results.Row(f"{MANY} pods from create to Running", MANY / seconds, "pods/s"),
        results.Row("the pods by CPU time", MANY / cpu, "pods/CPU-s"),
        results.Row("memory at most", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"),
    ]
    return rows


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    results.report("embedded", asyncio.run(measure()))
