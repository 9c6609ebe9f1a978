"""What a real API server takes: pods created and bound per second by raw requests, the ceiling for every scheduler.

One etcd (without fsync) and one kube-apiserver share the machine with the client. A binding carries 300 bytes of
annotations, as Shoal's do. Beside it the same with one request at a time, which shows how long one takes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterable

import aiohttp

import bench.results as results
from tests.testbed.apiserver import ADMIN, ApiServer
from tests.testbed.processes import Run

PODS = 3_000
IN_FLIGHT = 32
SERIAL = 300
NAMESPACE = "bench"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"


def tls(api: ApiServer) -> ssl.SSLContext:
    """The admin's certificate."""
    pair = api.authority.client(*ADMIN)
    context = ssl.create_default_context(cafile=str(api.ca))
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def pod(name: str) -> dict[str, object]:
    container = {
        "name": "main",
        "image": "shoal.test/busybox:1",
        "resources": {"limits": {"aliyun.com/gpu-mem": "3", "cpu": "1", "memory": "1Gi"}},
    }
    return {"metadata": {"name": name, "labels": {"app": "bench"}}, "spec": {"containers": [container]}}


def binding(name: str, node: str) -> dict[str, object]:
    annotations = {"shoal.dev/allocation": "x" * 280}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": node},
    }


async def rate(session: aiohttp.ClientSession, posts: Iterable[tuple[str, object]], in_flight: int) -> float:
    """Requests a second for all of these, so many at a time."""
    todo = iter(posts)
    done = 0

    async def work() -> None:
        nonlocal done
        for path, body in todo:
            async with session.post(path, json=body) as response:
                if response.status != 201:
                    raise RuntimeError(f"{path}: {response.status} {await response.text()}")
                await response.read()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return done / (time.perf_counter() - start)


async def measure(api: ApiServer) -> list[results.Row]:
    api.create_namespace(NAMESPACE)
    names = [f"pod-{n}" for n in range(PODS)]
    serial = [f"serial-{n}" for n in range(SERIAL)]
    connector = aiohttp.TCPConnector(ssl=tls(api), limit=0)
    async with aiohttp.ClientSession(api.url, connector=connector) as session:
        rows = []
        for label, many, flight in (("one at a time", serial, 1), (f"{IN_FLIGHT} in flight", names, IN_FLIGHT)):
            created = await rate(session, ((PATH, pod(name)) for name in many), flight)
            bound = await rate(
                session,
                ((f"{PATH}/{name}/binding", binding(name, f"node-{n % 100}")) for n, name in enumerate(many)),
                flight,
            )
            rows += [
                results.Row(f"pods created, {label}", created, "1/s"),
                results.Row(f"pods bound, {label}", bound, "1/s"),
            ]
    return rows


def main() -> None:
    with Run() as run:
        rows = asyncio.run(measure(ApiServer(run)))
    results.report("apiserver", rows)


if __name__ == "__main__":
    main()
