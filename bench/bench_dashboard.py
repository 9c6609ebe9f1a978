"""What the dashboard's server costs: 50 viewers on 1,000 nodes of 8 cards, idle and while pods come and go.

The cluster is synthetic, in an embedded API server in this process; the dashboard is a process of its own, and its CPU
and memory are that process's. Every card tells another utilisation in each round, as busy cards do. Readings come from
inside the dashboard first, every five seconds; then, in a second run, from 1,000 collectors over TLS, each with an
address of its own on this machine, as often as the dashboard lets itself. Traffic is what arrives at one viewer.
Machines are shared: compare inside one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

import bench.results as results
from bench.usage import cpu_seconds, most_resident, resident
from shoal.analysis.collectors import Measured
from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.metrics import history_wire as wire
from shoal.metrics.history_tls import OwnHistoryTls
from shoal.metrics.history_wire import Announcement, CardReading, NodeReading
from shoal.model.contract import shoal
from shoal.model.gpu import Gpu

NODE_COUNT, CARDS, VIEWERS = 1000, 8, 50
MEMORY = 81920
ON_NODE = 6
SECONDS = 20.0
A_SECOND = 10
MIB = 1 << 20


def node(number: int, cards: int) -> dict[str, Any]:
    name = f"node-{number}"
    inventory = [Gpu(uuid=uuid(name, index), index=index, memory_mib=MEMORY, model="A100") for index in range(cards)]
    offered = {"cpu": "64", "memory": "512Gi", "pods": "110", "aliyun.com/gpu-mem": str(cards * MEMORY // 1024)}
    return {
        "metadata": {"name": name, "annotations": {shoal.ANNOTATION_GPUS: shoal.encode_gpus(inventory)}},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "addresses": [{"type": "InternalIP", "address": f"10.0.{number // 250}.{number % 250}"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def uuid(name: str, index: int) -> str:
    return f"GPU-{name}-{index:04d}-b2f6-9d31c0a1e4f7"


def pod(name: str, node_name: str, index: int) -> dict[str, Any]:
    limits = {"aliyun.com/gpu-mem": "16"}
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_DEV": "80",
        "ALIYUN_COM_GPU_MEM_POD": "16",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    }
    return {
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node_name, "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


class Readings:
    """Every card tells another utilisation in each round."""

    def __init__(self, cards: int) -> None:
        self._cards = cards
        self._chance = random.Random(1)

    async def measure(self, names: Collection[str]) -> Measured:
        return Measured({name: self.of(name) for name in names}, {})

    def of(self, name: str) -> NodeReading:
        cards = tuple(
            CardReading(
                uuid=uuid(name, index),
                index=index,
                used_bytes=self._chance.randrange(16 * 1024) * MIB,
                unattributed_bytes=0,
                utilisation=self._chance.randrange(101),
            )
            for index in range(self._cards)
        )
        return NodeReading(node=name, time=1.0, age_seconds=1.0, interval_seconds=5.0, sees_cards=True, cards=cards)


class CollectorServer:
    """The collectors of all nodes: whom a caller reaches says the address at which it asks."""

    def __init__(self, cards: int) -> None:
        self._readings = Readings(cards)
        self.tls = OwnHistoryTls(lambda: datetime.now(UTC))
        self.asked = 0

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        application = web.Application()
        application.router.add_get(wire.PATH_SNAPSHOT, self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "0.0.0.0", 0, ssl_context=self.tls.context)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        host = request.transport.get_extra_info("sockname")[0]
        self.asked += 1
        return web.Response(body=msgspec.json.encode(self._readings.of(node_at(host))))

    def announcement(self, name: str, host: str, port: int) -> str:
        told = Announcement(node=name, host=host, port=port, authority=self.tls.authority)
        return msgspec.json.encode(told).decode()


def host_of(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def node_at(host: str) -> str:
    third, fourth = host.split(".")[2:]
    return f"node-{int(third) * 250 + int(fourth) - 1}"


def serve(kubeconfig: Path, cards: int, seconds: float, *, ask: bool) -> None:
    """The dashboard's process; it asks collectors, or has readings of its own."""
    access = load_kubeconfig([kubeconfig], environ={}, explicit=True)
    config = DashboardConfig(port=0, measure_seconds=seconds)

    def tell(serving: app.Serving) -> None:
        print(serving.url, flush=True)

    asyncio.run(app.run(config, access, measure=None if ask else Readings(cards).measure, serving=tell))


class Viewer:
    """A stream, of which bytes are counted; one that reads says when names appear."""

    def __init__(self, url: str, token: str, *, reads: bool = False) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}
        self.bytes = 0
        self.first = 0
        self._inflate = zlib.decompressobj(31) if reads else None
        self._waited: dict[bytes, asyncio.Future[float]] = {}
        self._rest = b""

    async def run(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.get(f"{self.url}/api/v1/stream", headers=self._headers, timeout=timeout) as answer:
            async for part in answer.content.iter_any():
                self.bytes += len(part)
                self.first = self.first or self.bytes
                if self._inflate is not None:
                    self._look(self._inflate.decompress(part))

    def _look(self, text: bytes) -> None:
        self._rest = (self._rest + text)[-(4 << 20) :]
        for name, future in list(self._waited.items()):
            if name in self._rest and not future.done():
                future.set_result(time.monotonic())
        self._rest = self._rest[-200:]

    def visible(self, name: str) -> asyncio.Future[float]:
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waited[f'"{name}"'.encode()] = future
        return future


@contextlib.asynccontextmanager
async def dashboard(api: EmbeddedApi, cards: int, seconds: float, *, ask: bool) -> AsyncIterator[tuple[str, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.bench_dashboard",
        "--serve",
        str(api.kubeconfig()),
        "--cards",
        str(cards),
        "--measure",
        str(seconds),
        *(["--ask"] if ask else []),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), process.pid
    finally:
        process.terminate()
        await process.wait()


async def phase(pid: int, viewers: list[Viewer], seconds: float) -> tuple[float, float]:
    """CPU in percent of a core, and kB/s at one viewer, over some time."""
    cpu, began = cpu_seconds(pid), time.monotonic()
    before = [viewer.bytes for viewer in viewers]
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    sent = max(viewer.bytes - old for viewer, old in zip(viewers, before, strict=True))
    return 100 * (cpu_seconds(pid) - cpu) / took, sent / took / 1000


async def churn(api: EmbeddedApi, reader: Viewer, nodes: int, seconds: float) -> list[float]:
    """Pods come bound, ten a second, and the ones before go; how long until each is seen."""
    chance, seen, there = random.Random(2), [], []
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        name, where = f"new-{number}", f"node-{chance.randrange(nodes)}"
        visible = reader.visible(name)
        api.registry.create(PODS, "default", pod(name, where, chance.randrange(CARDS)))
        seen.append((time.monotonic(), visible))
        there.append(name)
        if len(there) > 50:
            old = api.registry.get(PODS, "default", there.pop(0))
            api.registry.remove(PODS, old, old)
        await asyncio.sleep(1 / A_SECOND)
    async with asyncio.timeout(60):
        return [await visible - began for began, visible in seen]


async def measure(nodes: int, cards: int, viewers: int, seconds: float, pace: float) -> list[results.Row]:
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedApi(Path(folder)) as api:
            for number in range(nodes):
                api.registry.create(NODES, "", node(number, cards))
                for place in range(ON_NODE):
                    api.registry.create(PODS, "default", pod(f"pod-{number}-{place}", f"node-{number}", place % cards))
            async with dashboard(api, cards, pace, ask=False) as (url, pid):
                rows = await _measured(api, url, pid, nodes, cards, viewers, seconds)
            collectors = CollectorServer(cards)
            async with collectors.serve() as port:
                announce(api, collectors, nodes, port)
                async with dashboard(api, cards, pace, ask=True) as (url, pid):
                    return rows + await _asking(api, collectors, url, pid, nodes, viewers)


def announce(api: EmbeddedApi, collectors: CollectorServer, nodes: int, port: int) -> None:
    """What collectors write, and the account whose token they take."""
    api.registry.create(NAMESPACES, "", {"metadata": {"name": wire.NAMESPACE}})
    api.registry.create(SERVICE_ACCOUNTS, wire.NAMESPACE, {"metadata": {"name": wire.VIEWER_ACCOUNT}})
    leases = api.registry.catalogue.find("coordination.k8s.io", "v1", "leases")
    assert leases is not None
    for number in range(nodes):
        name = f"node-{number}"
        told = {wire.ANNOTATION: collectors.announcement(name, host_of(number), port)}
        api.registry.create(leases, wire.NAMESPACE, {"metadata": {"name": name, "annotations": told}, "spec": {}})


async def _asking(
    api: EmbeddedApi, collectors: CollectorServer, url: str, pid: int, nodes: int, viewers: int
) -> list[results.Row]:
    """The same viewers, with collectors that are asked."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
        open_ones = [Viewer(url, api.token) for _ in range(viewers)]
        streams = [asyncio.create_task(one.run(session)) for one in open_ones]
        while collectors.asked < nodes:  # noqa: ASYNC110 - plain counts, nobody signals them
            await asyncio.sleep(0.1)
        cpu, began, asked = cpu_seconds(pid), time.monotonic(), collectors.asked
        while collectors.asked < asked + 2 * nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        took, spent, asked = time.monotonic() - began, cpu_seconds(pid) - cpu, collectors.asked - asked
        memory = resident(pid)
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
    whole = f"{viewers} viewers, {nodes:,} collectors asked"
    return [
        results.below(f"{whole}: CPU", 100 * spent / took, "% of a core", 20),
        results.below(f"{whole}: memory", memory, "MB", 150),
        results.Row(f"{whole}: each asked every", nodes * took / asked, "s"),
    ]


async def _measured(
    api: EmbeddedApi, url: str, pid: int, nodes: int, cards: int, viewers: int, seconds: float
) -> list[results.Row]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        open_ones = [Viewer(url, api.token, reads=number == 0) for number in range(viewers)]
        streams = [asyncio.create_task(one.run(session)) for one in open_ones]
        while not all(one.bytes > 10_000 for one in open_ones):  # noqa: ASYNC110 - plain counts, nobody signals them
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        snapshot = open_ones[1].bytes
        idle_cpu, idle_traffic = await phase(pid, open_ones, seconds)
        busy = asyncio.create_task(churn(api, open_ones[0], nodes, seconds))
        busy_cpu, busy_traffic = await phase(pid, open_ones, seconds)
        visible = await busy
        memory, peak = resident(pid), most_resident(pid)
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
    whole = f"{viewers} viewers, {nodes:,} × {cards} cards"
    return [
        results.below(f"{whole}: memory", memory, "MB", 150),
        results.Row(f"{whole}: memory at its highest", peak, "MB"),
        results.below(f"{whole}: CPU, idle", idle_cpu, "% of a core", 20),
        results.below(f"{whole}: CPU, {A_SECOND} pods a second", busy_cpu, "% of a core", 20),
        results.below("traffic of a tab, idle, all cards busy", idle_traffic, "kB/s", 50),
        results.Row(f"traffic of a tab, {A_SECOND} pods a second", busy_traffic, "kB/s"),
        results.Row("first ten seconds of a tab", snapshot / 1000, "kB"),
        results.below("bound to visible, slowest", max(visible), "s", 2),
        results.Row("bound to visible, median", statistics.median(visible), "s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--nodes", type=int, default=NODE_COUNT)
    parser.add_argument("--cards", type=int, default=CARDS)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--measure", type=float, default=5.0, help="seconds between two rounds of readings")
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.cards, given.measure, ask=given.ask)
        return
    rows = asyncio.run(measure(given.nodes, given.cards, given.viewers, given.seconds, given.measure))
    results.report("dashboard", rows)


if __name__ == "__main__":
    main()
