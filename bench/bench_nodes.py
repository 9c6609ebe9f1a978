"""What simulated nodes take: 200 nodes with 8 cards each, 2,000 pods bound to them at once, until all run.

Everything is one process: the embedded API server, the nodes, and this. Pods come without plugins, then with one device
each from a device plugin over its socket, on a few nodes. The rate is given by wall clock and by CPU time, since
machines are shared.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio

import bench.results as results
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import NAMESPACES, NODES, PODS, Kind
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import parse
from shoal.embedded.subresources import bind
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc

NODE_COUNT = 200
MANY = 2_000
PLUGIN_NODES = 20
SERVED = 400
RESOURCE = "example.com/unit"
IDLE_SECONDS = 20


class Plugin(rpc.DevicePluginServicer):
    """A device plugin that agrees to everything."""

    async def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:  # noqa: N802
        return api.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(  # noqa: N802
        self, request: api.Empty, context: object
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(devices=[api.Device(ID=f"d{n}", health="Healthy") for n in range(100)])
        await asyncio.Event().wait()

    async def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:  # noqa: N802
        return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse(envs={"A": "b"})])

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: object
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()


async def serve(folder: Path) -> grpc.aio.Server:
    """A plugin that has registered."""
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Plugin(), server)
    server.add_insecure_port(f"unix:{folder / 'plugin.sock'}")
    await server.start()
    request = api.RegisterRequest(
        version=constants.DEVICE_PLUGIN_VERSION, endpoint="plugin.sock", resource_name=RESOURCE
    )
    address = f"unix:{folder / constants.REGISTRATION_SOCKET}"
    async with grpc.aio.insecure_channel(address, options=constants.CHANNEL_OPTIONS) as channel:
        await rpc.RegistrationStub(channel).Register(request)
    return server


async def until(cluster: EmbeddedApi, kind: Kind, condition: Callable[[], bool]) -> None:
    """Wait until the objects of a kind are as wanted."""
    changed = asyncio.Event()
    cluster.registry.store.listen(kind.key, changed.set)
    while not condition():
        await changed.wait()
        changed.clear()
        await asyncio.sleep(0.02)  # looking costs too
    cluster.registry.store.unlisten(kind.key, changed.set)


def allocatable(cluster: EmbeddedApi, node: str) -> str | None:
    """How many devices a node has told of."""
    amount: str | None = cluster.registry.get(NODES, "", node)["status"]["allocatable"].get(RESOURCE)
    return amount


async def storm(cluster: EmbeddedApi, namespace: str, count: int, nodes: list[str], limits: dict) -> list[results.Row]:
    """Bind pods and wait until they run."""
    registry = cluster.registry
    registry.create(NAMESPACES, "", {"metadata": {"name": namespace}})
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"], "resources": {"limits": limits}}
    for number in range(count):
        registry.create(PODS, namespace, {"metadata": {"name": f"p{number}"}, "spec": {"containers": [container]}})

    def running() -> int:
        found = registry.store.objects(PODS.key, namespace)
        return sum((one.get("status") or {}).get("phase") == "Running" for one in found)

    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        bind(registry, namespace, f"p{number}", {"target": {"name": nodes[number % len(nodes)]}})
        if number % 20 == 0:
            await asyncio.sleep(0)
    await until(cluster, PODS, lambda: running() == count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return [
        results.Row(f"{namespace}: pods running", count / wall, "1/s"),
        results.Row(f"{namespace}: pods running per second of CPU", count / cpu, "1/s"),
    ]


async def measure(directory: Path) -> list[results.Row]:
    async with EmbeddedApi(directory / "api") as cluster:
        groups = [
            {"name": "plain", "count": NODE_COUNT - PLUGIN_NODES, "gpus": "8xA100-80G", "devicePlugins": False},
            {"name": "served", "count": PLUGIN_NODES, "gpus": "8xA100-80G"},
        ]
        nodes = Nodes(cluster, parse(groups), directory / "n")
        begin = time.perf_counter()
        await nodes.start()
        rows = [results.Row(f"{NODE_COUNT} nodes registered after", time.perf_counter() - begin, "s")]
        names = [kubelet.name for kubelet in nodes]
        rows += await storm(cluster, "plain", MANY, names, {})
        used, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        idle = 100 * (time.process_time() - used) / (time.perf_counter() - wall)
        rows.append(results.Row("CPU while nothing happens", idle, "% of a core"))
        served = [name for name in names if name.startswith("served")]
        plugins = [await serve(nodes[name].host.folders.device_plugins) for name in served]
        await until(cluster, NODES, lambda: all(allocatable(cluster, name) == "100" for name in served))
        rows += await storm(cluster, "served", SERVED, served, {RESOURCE: "1"})
        await nodes.stop()
        for plugin in plugins:
            await plugin.stop(None)
    rows.append(results.Row("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"))
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder)))
    results.report("nodes", rows)


if __name__ == "__main__":
    main()
