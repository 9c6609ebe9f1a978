"""Live load from servers: real Prometheus and InfluxDB, and servers that answer what they should not."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shoal.metrics.exporter.server import Exporter
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.metrics.snapshot import LatestSnapshot
from shoal.model.contract.load import CardDigest
from shoal.model.request import Share
from shoal.placement.ledger import Ledger
from shoal.scheduler import load_servers as servers
from shoal.scheduler.config import LiveLoadConfig, LoadSource
from shoal.scheduler.errors import LoadSourceError
from shoal.scheduler.live_loads import LiveLoads
from shoal.scheduler.load_servers import (
    InfluxServer,
    LoadPolling,
    LoadServer,
    PrometheusServer,
    ServerSession,
    beyond_bookings,
)
from tests.kube.waiting import until
from tests.metrics.snapshots import GIB as GIBIBYTE
from tests.metrics.snapshots import card, container, snapshot
from tests.placement.clusters import GIB, booking, ledger_of, node
from tests.testbed import influxdb, prometheus
from tests.testbed.processes import Run

BOTH = [LoadSource.PROMETHEUS, LoadSource.INFLUXDB]


def config_of(source: LoadSource, url: str, **more: Any) -> LiveLoadConfig:
    return LiveLoadConfig(source=source, url=url, **{"interval_seconds": 1.0, **more})


def server_of(config: LiveLoadConfig) -> LoadServer:
    return PrometheusServer(config) if config.source is LoadSource.PROMETHEUS else InfluxServer(config)


async def read(config: LiveLoadConfig) -> dict[str, CardDigest]:
    async with ServerSession(config) as session:
        return await server_of(config).read(session)


@asynccontextmanager
async def answering(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server of the test's own."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("source", BOTH)
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"broken\nforged line", "answers 500"),
        (200, b"", "no answer of"),
        (200, b"[1,2]", "no answer of"),
        (200, b'{"status":"error","error":"too many\\nseries","data":{},"results":[{"error":"x"}]}', "answers '"),
        (302, b"", "answers 302"),
    ],
)
async def test_wrong_answers_are_errors_in_words(source: LoadSource, status: int, body: bytes, words: str) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, body=body, headers={"Location": "/elsewhere"} if status == 302 else {})

    async with answering(handle) as url:
        with pytest.raises(LoadSourceError, match=words) as told:
            await read(config_of(source, url))
    assert "\n" not in str(told.value)
    assert "/elsewhere" not in asked, "no redirect is followed"


@pytest.mark.parametrize("source", BOTH)
async def test_too_much_and_too_slow_are_cut_off(source: LoadSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MAX_ANSWER", 1 << 20)
    over = asyncio.Event()

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(64):
            await response.write(b" " * (1 << 16))
        return response

    async def hang(request: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async with answering(flood) as url:
        with pytest.raises(LoadSourceError, match="more than 1 MiB"):
            await read(config_of(source, url))
    async with answering(hang) as url:
        with pytest.raises(LoadSourceError, match="cannot be read"):
            await read(config_of(source, url, timeout_seconds=0.2))
        over.set()
    with pytest.raises(LoadSourceError, match="cannot be read"):
        await read(config_of(source, "http://127.0.0.1:1"))


def vector(*series: tuple[dict[str, str], object]) -> bytes:
    result = [{"metric": metric, "value": [1.0, str(value)]} for metric, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


async def test_series_that_contradict_each_other_tell_nothing() -> None:
    """Somebody else's target claims a card; equal copies, as dcgm-exporter writes for shared cards, are no lie."""

    async def handle(request: web.Request) -> web.Response:
        query = (await request.post())["query"]
        assert isinstance(query, str)
        assert 'job="shoal-metrics"' in query
        if "shoal_card_memory_unattributed_bytes" in query:
            lies = [({"UUID": "a", "instance": "x"}, 2**33), ({"UUID": "a", "instance": "y"}, 0)]
            odd = [({"UUID": "c"}, value) for value in ("NaN", "-1", "+Inf", "1e300", "x")]
            return web.Response(body=vector(*lies, ({"UUID": "b"}, 2**30), *odd, ({}, 5)))
        return web.Response(body=vector(({"UUID": "b"}, 50), ({"UUID": "b", "pod": "p"}, 50)))

    async with answering(handle) as url:
        found = await read(config_of(LoadSource.PROMETHEUS, url))
    assert found == {"b": CardDigest(50, 1024, 1, 50, 50, 50)}


async def test_credentials_come_from_a_file(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(body=b'{"results":[{}]}')

    (tmp_path / "token").write_text("Token user:secret\n")
    async with answering(handle) as url:
        assert await read(config_of(LoadSource.INFLUXDB, url, authorization_file=str(tmp_path / "token"))) == {}
    assert seen == ["Token user:secret"]


def test_without_attribution_what_is_beyond_all_bookings_is_nobodys() -> None:
    ledger = ledger_of(node("n1", [16, 16, 16]))
    ledger.confirm(booking("p", "n1", {0: Share(6 * GIB)}))
    ledger.confirm(booking("q", "n1", {1: Share(exclusive=True)}))
    books = ledger.node("n1")
    assert books is not None
    used = CardDigest(used_mib=8 * GIB)
    assert [beyond_bookings(each, used).unattributed_mib for each in books.slots] == [2 * GIB, 0, 8 * GIB]
    assert beyond_bookings(books.slots[0], CardDigest(5, unattributed_mib=1)) == CardDigest(5, unattributed_mib=1)


async def test_a_server_that_comes_back_counts_again() -> None:
    """While it fails what it said runs out by itself."""
    well = False

    async def handle(request: web.Request) -> web.Response:
        columns = ["time", "used", "utilisation", "celsius", "watts"]
        series = {"tags": {"UUID": "GPU-n1-0"}, "columns": columns, "values": [[0, 8 * 2**30, 5, 50, 70_000]]}
        body = json.dumps({"results": [{"series": [series]}]}).encode()
        return web.Response(body=body) if well else web.Response(status=503)

    ledger = ledger_of(node("n1", [16]))
    loads = LiveLoads(ledger, news=lambda _: None)
    async with answering(handle) as url:
        task = asyncio.create_task(LoadPolling(config_of(LoadSource.INFLUXDB, url), ledger, loads).run())
        try:
            await asyncio.sleep(0.1)
            assert free(ledger) == 16
            well = True
            await until(lambda: free(ledger) == 8, "it was asked again")
        finally:
            task.cancel()
            await asyncio.wait({task})


def free(ledger: Ledger) -> int:
    books = ledger.node("n1")
    assert books is not None
    return books.slots[0].free_mib // GIB


# Real servers


@pytest.mark.kube
async def test_influxdb(testbed_run: Run, tmp_path: Path) -> None:
    server = influxdb.InfluxServer(testbed_run, influxdb.debian(), "influxdb-load", auth=True)
    try:
        await asyncio.to_thread(server.query, "CREATE DATABASE multimetric")
        for uuid, used, power in (("GPU-1", 3 * 2**30, 70_500), ("GPU-2", 5, 0)):
            fields = f"memory(used)={used}i,utilization=40i,temperature=55i,Power={power}i"
            line = f"gpumetric,UUID={uuid},node=n1 {fields}"
            await asyncio.to_thread(server.write, line, "multimetric")
        pair = base64.b64encode(f"{influxdb.USER}:{influxdb.PASSWORD}".encode()).decode()
        (tmp_path / "auth").write_text(f"Basic {pair}")
        config = config_of(LoadSource.INFLUXDB, server.url, authorization_file=str(tmp_path / "auth"))
        assert await read(config) == {
            "GPU-1": CardDigest(3 * 1024, utilisation=40, celsius=55, watts=71),
            "GPU-2": CardDigest(1, utilisation=40, celsius=55, watts=0),
        }
        (tmp_path / "auth").write_text("Basic bm86bm8=")
        with pytest.raises(LoadSourceError, match="answers 401"):
            await read(config)
    finally:
        server.kill()


@pytest.mark.kube
async def test_prometheus(testbed_run: Run) -> None:
    """What a collector's port shows comes back as its digest has it."""
    pods = [
        container("over", 6 * GIBIBYTE, requested=2 * GIBIBYTE),
        container("under", GIBIBYTE, requested=2 * GIBIBYTE),
    ]
    latest = LatestSnapshot()
    seen = snapshot([card(0, pods, unattributed=3 * GIBIBYTE), card(1)])
    latest.put(dataclasses.replace(seen, time=time.time(), monotonic=time.monotonic(), interval=300.0))
    ports: list[int] = []
    exporter = Exporter(ExporterSettings(listen="127.0.0.1:0", network_policy=True), serving_at=ports.append)
    task = asyncio.create_task(exporter.run(latest))
    try:
        await until(lambda: bool(ports), "serving")
        scrape = {
            "job_name": "shoal-metrics",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}],
        }
        server = await asyncio.to_thread(prometheus.PrometheusServer, testbed_run, "prometheus-load", [scrape])
        config = config_of(LoadSource.PROMETHEUS, server.url)
        async with asyncio.timeout(300):
            while len(found := await read(config)) < 2 or found["GPU-n1-0"].overuse_mib is None:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert found["GPU-n1-0"] == CardDigest(10 * 1024, 3 * 1024, 4 * 1024, 40, 55, 71)
        assert found["GPU-n1-1"] == CardDigest(0, 0, None, 40, 55, 71)
        assert await read(config_of(LoadSource.PROMETHEUS, server.url, matchers='job="another"')) == {}
        server.process.kill()
    finally:
        task.cancel()
        await asyncio.wait({task})
