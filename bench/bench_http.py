"""The extender's HTTP server beside aiohttp's, in one run: filter with 5,000 names over one kept connection.

The same verbs behind both, a caller in a process of its own. Rounds alternate between the servers, so that what else
the machine does falls on both; medians over the rounds. CPU is that of the serving process, per request: all of it, and
with a handler that answers nothing, which leaves the server's own share.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable

import numpy as np
from aiohttp import web

import bench.results as results
from bench.bench_extender import Bench
from shoal.model.contract import gpushare
from shoal.scheduler.http.connection import Bounds
from shoal.scheduler.http.messages import Request, Response
from shoal.scheduler.http.server import serving

ROUNDS = 9
CALLS = 200
Verb = Callable[[bytes], bytes]


@contextlib.asynccontextmanager
async def ours(verb: Verb) -> AsyncIterator[int]:
    def answer(request: Request) -> Response:
        return Response(verb(request.body))

    async with serving(answer, "127.0.0.1", 0, Bounds(64 << 20, 10)) as port:
        yield port


@contextlib.asynccontextmanager
async def theirs(verb: Verb) -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=verb(await request.read()), content_type="application/json")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post(gpushare.PATH_FILTER, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def measured(port: int, body: bytes) -> tuple[list[float], float]:
    """Milliseconds of each request as the caller sees them, and the server's CPU milliseconds per request."""
    caller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.bench_http", "caller", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert caller.stdin is not None
    assert caller.stdout is not None
    caller.stdin.write(len(body).to_bytes(8) + body)
    await caller.stdin.drain()
    await caller.stdout.readline()  # connected and warm
    begin = time.process_time()
    caller.stdin.write(b"\n")
    times = json.loads(await caller.stdout.readline())
    cpu = (time.process_time() - begin) * 1e3 / CALLS
    await caller.wait()
    return times, cpu


def call(port: int) -> None:
    """The process that asks: one body, over and over."""
    body = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8)))
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask() -> float:
        begin = time.perf_counter()
        connection.request("POST", gpushare.PATH_FILTER, body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        return (time.perf_counter() - begin) * 1e3

    for _ in range(10):
        ask()
    print("warm", flush=True)
    sys.stdin.buffer.readline()
    print(json.dumps([ask() for _ in range(CALLS)]), flush=True)


async def compare(name: str, verb: Verb, body: bytes) -> list[results.Row]:
    servers = {"ours": ours, "aiohttp": theirs}
    times: dict[str, list[list[float]]] = {server: [] for server in servers}
    cpu: dict[str, list[float]] = {server: [] for server in servers}
    for _ in range(ROUNDS):
        for server, started in servers.items():
            async with started(verb) as port:
                seen, used = await measured(port, body)
            times[server].append(seen)
            cpu[server].append(used)
    rows = []
    for server in servers:
        for rank in (50, 99):
            middle = statistics.median(float(np.percentile(seen, rank)) for seen in times[server])
            rows.append(results.Row(f"{name}, {server}: p{rank}", middle, "ms"))
        rows.append(results.Row(f"{name}, {server}: CPU per request", statistics.median(cpu[server]), "ms"))
    ratios = [one / other for one, other in zip(cpu["ours"], cpu["aiohttp"], strict=True)]
    rows.append(results.Row(f"{name}: CPU of ours / aiohttp's", statistics.median(ratios), ""))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["caller"]:
        call(int(sys.argv[2]))
        return
    bench, offering_all = Bench(), Bench(all_up_to=5_000)
    body = bench.body(4, bench.names)
    found = asyncio.run(compare("filter, the best alone", bench.verbs.filter, body))
    found += asyncio.run(compare("filter, offering all", offering_all.verbs.filter, body))
    found += asyncio.run(compare("nothing", lambda _: b"{}", body))
    results.report("http", found)


if __name__ == "__main__":
    main()
