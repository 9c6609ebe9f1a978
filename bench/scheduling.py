"""What the benchmark of the schedulers stands on: a cluster of node objects, pods by the thousand, and who sees them.

Nodes have no kubelet and no controllers: nothing writes but the schedulers. When a pod gets its node is seen by a watch
on a thread of its own, so that nothing else this process does can delay it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.usage import cpu_seconds, resident
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.objects.meta import Object
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS, Resource
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import gpushare
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import node
from tests.testbed.processes import Process, Run, TestbedError

NAMESPACE = "bench"
CARDS = 8
#: GiB of one card of 16 that the pods ask for in turn.
SIZES = (1, 2, 4, 8, 16)
IN_FLIGHT = 64
#: How long a scheduler may bind nothing at all before it counts as stuck.
STUCK_SECONDS = 60.0

_POD_NAMES = Resource("", "v1", "pods", "Pod", Object)


def client_of(kubeconfig: Path) -> Client:
    """Our client, as the user of a kubeconfig."""
    return Client(load_access(environ={}, home=Path("/"), kubeconfig=kubeconfig))


def manifest(name: str, gib: int, scheduler: str) -> dict[str, Any]:
    """A pod that asks for a share of a card and nothing else."""
    container = {
        "name": "main",
        "image": "shoal.test/busybox:1",
        "resources": {"limits": {gpushare.RESOURCE_MEMORY: str(gib)}},
    }
    return {
        "metadata": {"name": name, "labels": {"app": f"size-{gib}"}},
        "spec": {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


class Rig:
    """An API server with nodes and nothing else that runs."""

    def __init__(self, run: Run, nodes: int) -> None:
        self.run = run
        self.plane = ControlPlane(run, f"nodes-{nodes}", controllers=False)
        self.kubeconfig = self.plane.api.kubeconfig()
        self.nodes = [f"node-{n:05}" for n in range(nodes)]
        self.plane.api.create_namespace(NAMESPACE)
        asyncio.run(self._make_nodes())

    async def _make_nodes(self) -> None:
        async def one(client: Client, name: str) -> None:
            await client.create(NODES, node(name, CARDS))
            # New nodes are tainted until a controller has seen them ready.
            await client.patch(NODES, name, {"spec": {"taints": None}})

        async with self._each(self.nodes) as each:
            await each(one)

    def make_pods(self, prefix: str, count: int, scheduler: str) -> list[str]:
        """The names of that many new pods."""
        names = [f"{prefix}-{n:05}" for n in range(count)]
        sizes = {name: SIZES[n % len(SIZES)] for n, name in enumerate(names)}

        async def make() -> None:
            async with self._each(names) as each:
                await each(
                    lambda client, name: client.create(
                        PODS, manifest(name, sizes[name], scheduler), namespace=NAMESPACE
                    )
                )

        asyncio.run(make())
        return names

    def make_paced(self, prefix: str, count: int, scheduler: str, *, per_second: float) -> dict[str, float]:
        """New pods, one after another; when each was asked for."""
        begun: dict[str, float] = {}

        async def make() -> None:
            async with client_of(self.kubeconfig) as client, asyncio.TaskGroup() as group:
                start = time.monotonic()
                for n in range(count):
                    await asyncio.sleep(max(0.0, start + n / per_second - time.monotonic()))
                    name = f"{prefix}-{n:05}"
                    begun[name] = time.monotonic()
                    pod = manifest(name, SIZES[n % len(SIZES)], scheduler)
                    group.create_task(client.create(PODS, pod, namespace=NAMESPACE))

        asyncio.run(make())
        return begun

    def remove_pods(self) -> None:
        """Delete all pods."""

        async def remove() -> None:
            async with client_of(self.kubeconfig) as client:
                listing = await client.list(_POD_NAMES, namespace=NAMESPACE)
            async with self._each([pod.metadata.name for pod in listing.items]) as each:
                await each(lambda client, name: client.delete(PODS, name, namespace=NAMESPACE, grace_seconds=0))

        asyncio.run(remove())

    @asynccontextmanager
    async def _each(
        self, names: Sequence[str]
    ) -> AsyncIterator[Callable[[Callable[[Client, str], Awaitable[object]]], Awaitable[None]]]:
        async with client_of(self.kubeconfig) as client:

            async def each(action: Callable[[Client, str], Awaitable[object]]) -> None:
                await in_flight(names, lambda name: action(client, name))

            yield each


async def in_flight(names: Sequence[str], action: Callable[[str], Awaitable[object]]) -> None:
    """One action for every name, many at a time."""
    todo = iter(names)

    async def work() -> None:
        for name in todo:
            await action(name)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


class Observer:
    """When each pod got its node, as a watch of bound pods shows it. Use it in `with`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.bound: dict[str, float] = {}
        self._kubeconfig = kubeconfig
        self._watching = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def __enter__(self) -> Observer:
        self._thread.start()
        self._watching.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch())
        finally:
            self._loop.close()

    async def _watch(self) -> None:
        async with client_of(self._kubeconfig) as client:
            watch = Reflector(
                client, _POD_NAMES, namespace=NAMESPACE, fields="spec.nodeName!=", consumers=[self._on_pod]
            )
            async with watch:
                await watch.wait_synced()
                self._watching.set()
                await self._stop.wait()

    def _on_pod(self, change: Change[Object]) -> None:
        if change.kind is ChangeType.ADDED:
            self.bound[change.object.metadata.name] = time.monotonic()

    def wait(self, count: int, processes: Sequence[Process]) -> None:
        """Until so many pods are bound."""
        last, since = -1, time.monotonic()
        while (seen := len(self.bound)) < count:
            if seen != last:
                last, since = seen, time.monotonic()
            for process in processes:
                if not process.alive:
                    raise TestbedError(f"{process.name} ended with {seen} of {count} pods bound:\n{process.tail()}")
            if time.monotonic() - since > STUCK_SECONDS:
                tails = "\n".join(f"{process.name}:\n{process.tail()}" for process in processes)
                raise TestbedError(f"no pod was bound for a minute, {seen} of {count} are:\n{tails}")
            time.sleep(0.01)


@dataclass
class Meter:
    """CPU time and memory of some processes, between two looks."""

    processes: Sequence[Process]
    _begun: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self._begun = [cpu_seconds(process.pid) for process in self.processes]

    def cpu(self) -> list[float]:
        """Seconds since `begin`, by process."""
        return [cpu_seconds(process.pid) - begun for process, begun in zip(self.processes, self._begun, strict=True)]

    def megabytes(self) -> list[float]:
        """What each holds in memory now."""
        return [resident(process.pid) for process in self.processes]
