"""How long a scrape takes, over a socket on loopback, as Prometheus asks: kept connection, gzip.

Server and caller share one thread, so the caller's reading counts too, and the thread's CPU time is that of the whole
scrape: on a machine that others use it says more than the clock.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace

import bench.results as results
from shoal.metrics.exporter.server import Exporter
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.metrics.snapshot import LatestSnapshot
from tests.metrics.exporter.snapshots import busy_node

CARDS = 8
CONTAINERS = 200
_GZIP = 16 + zlib.MAX_WBITS
_MILLI = 1000


async def _scraped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, encoding: str) -> bytes:
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {encoding}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length"))
    return await reader.readexactly(int(length.partition(":")[2]))


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * _MILLI


async def _measure(scrapes: int) -> list[results.Row]:
    ports: asyncio.Queue[int] = asyncio.Queue()
    exporter = Exporter(ExporterSettings(listen="127.0.0.1:0", network_policy=True), serving_at=ports.put_nowait)
    latest = LatestSnapshot()
    task = asyncio.create_task(exporter.run(latest))
    reader, writer = await asyncio.open_connection("127.0.0.1", await ports.get(), limit=1 << 22)
    snapshot = busy_node(CARDS, CONTAINERS)
    rows: list[results.Row] = []
    try:
        for name, encoding, renewed in (
            ("scrape of a new snapshot, gzip", "gzip", True),
            ("scrape of a new snapshot, plain", "identity", True),
            ("scrape of a known snapshot, gzip", "gzip", False),
        ):
            times, cpu = [], []
            for number in range(scrapes):
                if renewed or not number:
                    latest.put(replace(snapshot, number=number + 1, monotonic=time.monotonic()))
                begun, begun_cpu = time.perf_counter(), time.thread_time()
                body = await _scraped(reader, writer, encoding)
                times.append(time.perf_counter() - begun)
                cpu.append(time.thread_time() - begun_cpu)
            text = zlib.decompress(body, _GZIP) if encoding == "gzip" else body
            assert text.count(b"shoal_container_memory_used_bytes{") == CONTAINERS
            rows.append(results.below(f"{name}: p99", _p99(times), "ms", 10.0))
            rows.append(results.below(f"{name}: p99 of CPU", _p99(cpu), "ms", 10.0))
        rows.append(results.Row("text of a scrape, 8 cards + 200 containers", len(text) / 1000, "kB"))
    finally:
        writer.close()
        task.cancel()
        await asyncio.wait({task})
    return rows


def scraping(scrapes: int = 500) -> list[results.Row]:
    """A scrape of 8 cards and 200 containers."""
    return asyncio.run(_measure(scrapes))
