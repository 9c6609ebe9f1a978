"""Claims of cards: pods bound per second by Shoal's scheduler and by the stock one, also beside a stream of hostile
claims, and what placing by claims costs in GPUs that are handed out.

The first is measured as in `bench_scheduler`: nodes are objects with 8 cards that publish them in a slice, every pod
has a claim of its own that is there before a scheduler starts, and the rate counts from the first pod bound to the
last.
The second replays a trace (`--traces DIR`) once by shares and once by claims, in the static protocol of
docs/placement.md; without a folder the made-up workload.
The third (`--only hostile`) is the first, while another namespace makes pods that fit nowhere: once with a selector
that is cheap, once with a different one each that costs as much as a selector may, on every device again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from types import TracebackType
from typing import Any

import yaml

from bench import results, traces
from bench.bench_scheduler import SHOAL, STOCK_NAME, rate
from bench.scheduling import CARDS, NAMESPACE, SIZES, Meter, Observer, Rig, client_of, in_flight
from shoal.kube.client import Client
from shoal.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from shoal.model.contract import dra, keti
from shoal.model.gpu import NodeGpus
from shoal.model.request import Request
from shoal.simulate.static import MARKS, arrivals, run_static
from shoal.simulate.trace import Workload, capacity_milli
from tests.scheduler.claims.world import CLASS, World, asks, slice_of
from tests.testbed.fake_nodes import made_up
from tests.testbed.processes import Process, Run, TestbedError

OURS, STOCK = "gpu-scheduler", "kube-scheduler"
HOSTILE, HARMLESS = "hostile", "harmless"
#: Pods of the other namespace that are there before the scheduler starts, and a second.
BACKLOG, PER_SECOND = 100, 20.0
POLICY = "fragmentation"


class ClaimRig(Rig):
    """Nodes that publish their cards, and pods with claims."""

    def publish(self) -> None:
        async def make() -> None:
            async with self._each(self.nodes) as each:
                await each(
                    lambda client, name: client.create(RESOURCE_SLICES.raw, slice_of(name, made_up(name, CARDS)))
                )
            async with self._each([dra.DEVICE_CLASS]) as each:
                await each(lambda client, name: client.create(DEVICE_CLASSES.raw, CLASS))

        asyncio.run(make())

    def make_claimants(self, count: int, scheduler: str) -> None:
        names = [f"pod-{n:05}" for n in range(count)]
        sizes = {name: SIZES[n % len(SIZES)] for n, name in enumerate(names)}

        async def make() -> None:
            async with self._each(names) as each:
                await each(
                    lambda client, name: client.create(
                        RESOURCE_CLAIMS.raw, _claim(name, sizes[name]), namespace=NAMESPACE
                    )
                )
                await each(lambda client, name: client.create(PODS.raw, _pod(name, scheduler), namespace=NAMESPACE))

        asyncio.run(make())

    def remove_claimants(self, count: int) -> None:
        self.remove_pods()

        async def remove() -> None:
            async with self._each([f"pod-{n:05}" for n in range(count)]) as each:
                # Nobody takes the finalizer off here: there are no controllers.
                patch = {"metadata": {"finalizers": None}}
                await each(lambda client, name: client.patch(RESOURCE_CLAIMS, name, patch, namespace=NAMESPACE))
                await each(lambda client, name: client.delete(RESOURCE_CLAIMS, name, namespace=NAMESPACE))

        asyncio.run(remove())

    def start(self, way: str) -> Process:
        if way == STOCK:
            return self.plane.start_scheduler(until_healthy=False)
        settings = self.plane.api.directory / "claims.yaml"
        settings.write_text(yaml.safe_dump({"claims": True, "liveLoad": {"source": "off"}}))
        ports = [str(self.run.reservations.port()) for _ in range(2)]
        flags = ["--port", ports[0], "--health-host", "127.0.0.1", "--health-port", ports[1], "--no-leader-elect"]
        command: list[str | Path] = [SHOAL, "scheduler", "--kubeconfig", self.kubeconfig, "--config", settings, *flags]
        process = self.run.process(f"shoal-{ports[0]}", command)
        process.start()
        return process


def _claim(name: str, gib: int) -> dict[str, object]:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [asks(memory=f"{gib}Gi")]}}}


def _pod(name: str, scheduler: str) -> dict[str, object]:
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    spec = {"schedulerName": scheduler, "containers": [container], "resourceClaims": claims}
    return {"metadata": {"name": name}, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


def measure(rig: ClaimRig, way: str, pods: int) -> tuple[float, float]:
    """Pods a second, and CPU seconds of the scheduler per 1,000 pods."""
    rig.make_claimants(pods, keti.SCHEDULER_NAME if way == OURS else STOCK_NAME)
    with Observer(rig.kubeconfig) as observer:
        process = rig.start(way)
        meter = Meter([process])
        observer.wait(1, [process])
        meter.begin()
        observer.wait(pods, [process])
        found = rate(list(observer.bound.values())), meter.cpu()[0] / pods * 1000
    process.kill()
    rig.remove_claimants(pods)
    return found


def bound_per_second(nodes: int, pods: int, rounds: int) -> list[results.Row]:
    with Run() as run:
        rig = ClaimRig(run, nodes)
        rig.publish()
        found: dict[str, list[tuple[float, float]]] = {OURS: [], STOCK: []}
        for number in range(rounds):
            for way, outcomes in found.items():
                outcomes.append(measure(rig, way, pods))
                print(f"{nodes:,} nodes, round {number + 1}: {way}: {outcomes[-1][0]:.0f} pods/s", flush=True)
    best = {way: max(outcomes) for way, outcomes in found.items()}
    size = f"{nodes:,} nodes, claims"
    rows = [results.Row(f"{size}: {way}", rate, "pods/s") for way, (rate, _) in best.items()]
    rows.append(results.above(f"{size}: {OURS} / {STOCK}", best[OURS][0] / best[STOCK][0], "×", 2.0))
    rows += [results.Row(f"{size}: {way}: CPU per 1,000 pods", cpu, "s") for way, (_, cpu) in best.items()]
    return rows


def hostile(number: int) -> str:
    """An expression that compares two lists of 2^20 numbers, and is asked of every device again."""
    text = "cel.bind(v0, [1], "
    for depth in range(20):
        text += f"cel.bind(v{depth + 1}, [v{depth}, v{depth}], "
    different = f'device.attributes["{dra.DRIVER}"].{dra.ATTRIBUTE_UUID} != "none-{number}"'
    return f"{different} && {text} v20 != v20{')' * 21}"


def harmless(number: int) -> str:
    """An expression that accepts nothing either."""
    return 'device.driver == "none"'


class Stream:
    """Pods with claims in a namespace of their own, as long as it is used. Use it in `with`."""

    def __init__(self, rig: ClaimRig, kind: str) -> None:
        self.made = 0
        self._namespace = kind
        self._kubeconfig = rig.kubeconfig
        self._expression: Callable[[int], str] = hostile if kind == HOSTILE else harmless
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._go_on()), name="stream", daemon=True)
        with contextlib.suppress(TestbedError):
            rig.plane.api.create_namespace(kind)
        asyncio.run(self._begin())

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        asyncio.run(self._remove())

    async def _begin(self) -> None:
        async with client_of(self._kubeconfig) as client:
            for _ in range(BACKLOG):
                await self._make(client)

    async def _go_on(self) -> None:
        async with client_of(self._kubeconfig) as client:
            start = time.monotonic()
            for number in itertools.count():
                await asyncio.sleep(max(0.0, start + number / PER_SECOND - time.monotonic()))
                if self._over.is_set():
                    return
                await self._make(client)

    async def _make(self, client: Client) -> None:
        self.made += 1
        name = f"pod-{self.made:05}"
        claim = {
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [asks(memory="1Gi", select=[self._expression(self.made)])]}},
        }
        await client.create(RESOURCE_CLAIMS.raw, claim, namespace=self._namespace)
        await client.create(PODS.raw, _pod(name, keti.SCHEDULER_NAME), namespace=self._namespace)

    async def _remove(self) -> None:
        names = [f"pod-{number + 1:05}" for number in range(self.made)]
        async with client_of(self._kubeconfig) as client:
            await in_flight(names, lambda name: client.delete(PODS, name, namespace=self._namespace, grace_seconds=0))
            await in_flight(names, lambda name: client.delete(RESOURCE_CLAIMS, name, namespace=self._namespace))


def beside_a_stream(nodes: int, pods: int, rounds: int) -> list[results.Row]:
    """Pods a second of one namespace, beside harmless and beside hostile claims of another."""
    found: dict[str, list[tuple[float, float]]] = {HARMLESS: [], HOSTILE: []}
    with Run() as run:
        rig = ClaimRig(run, nodes)
        rig.publish()
        for number in range(rounds):
            for kind, outcomes in found.items():
                with Stream(rig, kind) as stream:
                    outcomes.append(measure(rig, OURS, pods))
                    said = f"{nodes:,} nodes, round {number + 1}: beside {stream.made} {kind} pods"
                print("{}: {:.0f} pods/s, {:.2f} s CPU per 1,000".format(said, *outcomes[-1]), flush=True)
    size = f"{nodes:,} nodes, claims"
    rates, cpu = ({kind: median(each[n] for each in outcomes) for kind, outcomes in found.items()} for n in (0, 1))
    return [
        *(results.Row(f"{size}: beside {kind} ones", rate, "pods/s") for kind, rate in rates.items()),
        results.above(f"{size}: hostile / harmless", rates[HOSTILE] / rates[HARMLESS], "×", 0.8),
        *(results.Row(f"{size}: beside {kind} ones: CPU per 1,000 pods", used, "s") for kind, used in cpu.items()),
    ]


def handed_out(folder: Path | None, workload: str, seed: int) -> list[results.Row]:
    """What is allocated when all of the capacity has arrived, by shares and by claims."""
    nodes, (loaded,) = traces.load(folder, (workload,))
    shares = run_static(nodes, loaded, POLICY, seed).alloc_100
    claims = by_claims(nodes, loaded, seed)
    name = f"{loaded.name}, seed {seed}"
    return [
        results.Row(f"{name}: by shares", shares, "% allocated"),
        results.Row(f"{name}: by claims", claims, "% allocated"),
        results.below(f"{name}: difference", abs(shares - claims), "points", 0.1),
    ]


def by_claims(nodes: tuple[NodeGpus, ...], workload: Workload, seed: int) -> float:
    """The replay of `simulate.static`, every pod with GPUs by a claim; allocated at the first mark."""
    rng = Random(seed)
    capacity = capacity_milli(nodes)
    pods = arrivals(workload, capacity, rng)
    world = World(POLICY)
    for one in nodes:
        world.add_node(one.name, one.gpus, cpu_milli=one.cpu_milli, memory_mib=one.memory_mib)
    arrived = allocated = total = count = 0
    for pod in pods:
        arrived += pod.gpu_milli
        percent = round(100 * arrived / capacity)
        if percent > MARKS[0]:
            break
        if _placed(world, pod.request):
            allocated += pod.gpu_milli
        if percent == MARKS[0]:
            total, count = total + allocated, count + 1
    return 100 * total / count / capacity


def _placed(world: World, request: Request) -> bool:
    amounts = {"cpu": f"{request.cpu_milli}m", "memory": f"{request.memory_mib}Mi"}
    containers = [{"name": "main", "resources": {"requests": amounts}}]
    if not request.containers:
        return world.state.place(world.pod(containers=containers)) is not None
    (asked,) = request.containers
    body: dict[str, Any] = {"count": asked.gpus}
    if not asked.share.exclusive:
        # Traces know parts of a card; of its memory a claim takes the least there is.
        body |= {"memory": dra.MEMORY_STEP, "compute": asked.share.compute}
    if request.selector.models:
        models = ", ".join(f'"{model}"' for model in sorted(request.selector.models))
        body["select"] = [f'device.attributes["{dra.DRIVER}"].{dra.ATTRIBUTE_MODEL} in [{models}]']
    return world.place(world.pod(world.claim(asks(**body)), containers=containers)) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--workload", default="default")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", choices=("rate", "trace", "hostile"))
    options = parser.parse_args()
    rows: list[results.Row] = []
    if options.only in (None, "trace"):
        rows += handed_out(options.traces, options.workload, options.seed)
    if options.only in (None, "rate"):
        rows += bound_per_second(options.nodes, options.pods, options.rounds)
    if options.only in (None, "hostile"):
        rows += beside_a_stream(options.nodes, options.pods, options.rounds)
    results.report("claims", rows)


if __name__ == "__main__":
    main()
