"""Pods bound per second on a real API server: by the stock kube-scheduler, by it with our extender, by our own
scheduler, and by Bindings that nobody has to decide, which is the ceiling.

Nodes are objects with 8 cards each; the schedulers, etcd and the API server share the machine. The pods are there
before a scheduler starts, and its rate counts from the first pod bound to the last. Each way begins with an empty
cluster, and writes what it writes by itself, events included. Then, while it runs, pods come at a pace it can keep,
which gives the time from creation to node. Machines are shared: the ways take turns in several rounds, and the quietest
of each counts. Where others take what they want of the machine, CPU time says more than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import bench.results as results
from bench.scheduling import NAMESPACE, Meter, Observer, Rig, client_of, in_flight
from shoal.kube.resources import NODES, PODS
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import Share
from shoal.scheduler.binder import annotations_of
from shoal.scheduler.kube_scheduler import configuration
from tests.testbed import binaries
from tests.testbed.fake_nodes import made_up
from tests.testbed.processes import Process, Run

SHOAL = Path(sys.executable).with_name("shoal")
STOCK_NAME, NOBODY = "default-scheduler", "nobody"
RAW, STANDALONE, STOCK, EXTENDER = "raw Bindings", "gpu-scheduler", "kube-scheduler", "kube-scheduler + extender"
WAYS = (RAW, STANDALONE, STOCK, EXTENDER)
#: Pods that come while a scheduler runs, and how fast: slower than any of them binds.
PACED, PER_SECOND = 300, 30.0
#: Pods taken through the extender's verbs by hand.
ASKED = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in one round."""

    per_second: float
    #: CPU seconds per 1,000 pods, and MB in memory, by process.
    cpu: Sequence[float]
    memory: Sequence[float]
    #: CPU seconds per 1,000 pods of API server and etcd.
    server: float
    #: Milliseconds from creation to node.
    waits: Sequence[float] = ()
    #: Milliseconds of the extender's verbs.
    verbs: dict[str, list[float]] | None = None


class Ways:
    """Starts each way's processes on a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._count = 0

    def start(self, way: str) -> list[Process]:
        self._count += 1
        if way == RAW:
            return [self._process("raw", [sys.executable, "-m", "bench.bench_scheduler", "raw", self._rig.kubeconfig])]
        if way == STOCK:
            return [self._rig.plane.start_scheduler(until_healthy=False)]
        ours = self._ours()
        if way == STANDALONE:
            return [ours]
        port = int(ours.argv[ours.argv.index("--port") + 1])
        health = int(ours.argv[ours.argv.index("--health-port") + 1])
        ours.wait_until(lambda: ready(health), "ready")
        asking: dict[str, Any] = yaml.safe_load(configuration(binaries.kube_version(), url=f"http://127.0.0.1:{port}"))
        return [self._rig.plane.start_scheduler({"extenders": asking["extenders"]}, until_healthy=False), ours]

    def _ours(self) -> Process:
        ports = [str(self._rig.run.reservations.port()) for _ in range(2)]
        flags = ["--port", ports[0], "--health-host", "127.0.0.1", "--health-port", ports[1], "--no-leader-elect"]
        return self._process("shoal", [SHOAL, "scheduler", "--kubeconfig", self._rig.kubeconfig, *flags])

    def _process(self, name: str, command: Sequence[str | Path]) -> Process:
        process = self._rig.run.process(f"{name}-{len(self._rig.nodes)}-{self._count}", command)
        process.start()
        return process


def ready(port: int) -> bool:
    """Whether our scheduler decides."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", shoal.PATH_READY)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def measure(rig: Rig, ways: Ways, way: str, pods: int) -> Outcome:
    """One way, from an empty cluster."""
    name = {RAW: NOBODY, STANDALONE: keti.SCHEDULER_NAME}.get(way, STOCK_NAME)
    rig.make_pods("pod", pods, name)
    with Observer(rig.kubeconfig) as observer:
        processes = ways.start(way)
        meter, server = Meter(processes), Meter(rig.plane.api.processes)
        observer.wait(1, processes)
        meter.begin()
        server.begin()
        observer.wait(pods, processes)
        outcome = Outcome(
            per_second=rate(list(observer.bound.values())),
            cpu=[seconds / pods * 1000 for seconds in meter.cpu()],
            memory=meter.megabytes(),
            server=sum(server.cpu()) / pods * 1000,
        )
        if way != RAW:
            begun = rig.make_paced("paced", PACED, name, per_second=PER_SECOND)
            observer.wait(pods + PACED, processes)
            waits = [(observer.bound[pod] - since) * 1000 for pod, since in begun.items()]
            outcome = replace(outcome, waits=waits)
    if way == EXTENDER:
        outcome = replace(outcome, verbs=ask_extender(rig, processes))
    for process in processes:
        process.kill()
    rig.remove_pods()
    return outcome


def rate(times: Sequence[float]) -> float:
    """Pods a second from the first to the last."""
    return (len(times) - 1) / (max(times) - min(times))


def ask_extender(rig: Rig, processes: Sequence[Process]) -> dict[str, list[float]]:
    """filter, prioritize and bind as kube-scheduler would ask, by all names, one pod after another."""
    stock, ours = processes
    stock.kill()
    names = rig.make_pods("asked", ASKED, NOBODY)
    times: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
    connection = http.client.HTTPConnection("127.0.0.1", int(ours.argv[ours.argv.index("--port") + 1]))

    def ask(verb: str, path: str, body: object) -> Any:
        content = json.dumps(body).encode()
        start = time.perf_counter()
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        times[verb].append((time.perf_counter() - start) * 1000)
        return json.loads(answer)

    for name in names:
        pod = rig.plane.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        args = {"Pod": pod, "Nodes": None, "NodeNames": rig.nodes}
        fitting = ask("filter", gpushare.PATH_FILTER, args)["NodeNames"]
        scores = ask("prioritize", gpushare.PATH_PRIORITIZE, {**args, "NodeNames": fitting})
        best = max(scores, key=lambda score: score["Score"])["Host"]
        meta = pod["metadata"]
        binding = {"PodName": name, "PodNamespace": NAMESPACE, "PodUID": meta["uid"], "Node": best}
        error = ask("bind", gpushare.PATH_BIND, binding)["Error"]
        if error:
            raise RuntimeError(f"{name} was not bound to {best}: {error}")
    return times


async def bind_all(kubeconfig: Path) -> None:
    """The ceiling: a Binding for every pod, to one node after another, with annotations like a real decision's."""
    async with client_of(kubeconfig) as client:
        nodes = [node.metadata.name for node in (await client.list(NODES)).items]
        pods = {pod.metadata.name: pod for pod in (await client.list(PODS, namespace=NAMESPACE)).items}
        targets = {name: nodes[n % len(nodes)] for n, name in enumerate(pods)}
        cards = made_up(nodes[0], 1)
        share = CardShare(cards[0].uuid, 0, Share(memory_mib=4096))
        annotations = annotations_of(
            next(iter(pods.values())),
            Allocation(nodes[0], (ContainerAllocation("main", (share,)),)),
            inventory=NodeGpus(nodes[0], cards),
            unit=MemoryUnit.GIB,
            now_ns=time.time_ns(),
        )
        await in_flight(list(pods), lambda name: client.bind(pods[name], targets[name], annotations=annotations))


def table(nodes: int, rounds: dict[str, list[Outcome]]) -> list[results.Row]:
    """The quietest round of each way, and how they compare."""
    best = {way: max(outcomes, key=lambda outcome: outcome.per_second) for way, outcomes in rounds.items()}
    size = f"{nodes:,} nodes"
    rows = [results.Row(f"{size}: {way}", outcome.per_second, "pods/s") for way, outcome in best.items()]
    for way, other, least in ((STANDALONE, RAW, 0.6), (EXTENDER, STOCK, 0.8)):
        if way in best and other in best:
            ratio = best[way].per_second / best[other].per_second
            rows.append(results.above(f"{size}: {way} / {other}", ratio, "×", least))
            cost = sum(best[other].cpu) + best[other].server, sum(best[way].cpu) + best[way].server
            rows.append(results.Row(f"{size}: the same by CPU, servers included", cost[0] / cost[1], "×"))
    for way, outcome in best.items():
        parts = ("kube-scheduler", "extender") if len(outcome.cpu) > 1 else ("",)
        for part, cpu, memory in zip(parts, outcome.cpu, outcome.memory, strict=True):
            name = f"{size}: {way}{part and f', {part}'}"
            rows += [results.Row(f"{name}: CPU per 1,000 pods", cpu, "s"), results.Row(f"{name}: memory", memory, "MB")]
        rows.append(results.Row(f"{size}: {way}: CPU of API server and etcd per 1,000 pods", outcome.server, "s"))
    for way, outcomes in rounds.items():
        quietest = min((outcome.waits for outcome in outcomes), key=lambda waits: float(np.median(waits or [0])))
        if quietest:
            rows += percentiles(f"{size}: {way}: creation to node", quietest)
    for verb in ("filter", "prioritize", "bind"):
        asked = [outcome.verbs[verb] for outcome in rounds.get(EXTENDER, ()) if outcome.verbs]
        if asked:
            limit = 5.0 if verb == "filter" else None
            rows += percentiles(
                f"{size}: extender {verb}", min(asked, key=lambda times: float(np.median(times))), limit
            )
    return rows


def percentiles(name: str, times: Sequence[float], limit: float | None = None) -> list[results.Row]:
    p50, p99 = (float(value) for value in np.percentile(times, (50, 99)))
    tail = results.Row(f"{name} p99", p99, "ms") if limit is None else results.below(f"{name} p99", p99, "ms", limit)
    return [results.Row(f"{name} p50", p50, "ms"), tail]


def main() -> None:
    if sys.argv[1:2] == ["raw"]:
        asyncio.run(bind_all(Path(sys.argv[2])))
        signal.pause()  # until its CPU time has been read
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--pods", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    rows: list[results.Row] = []
    for nodes in options.nodes:
        with Run() as run:
            rig = Rig(run, nodes)
            ways = Ways(rig)
            rounds: dict[str, list[Outcome]] = {way: [] for way in options.ways}
            for number in range(options.rounds):
                for way in options.ways:
                    outcome = measure(rig, ways, way, options.pods)
                    rounds[way].append(outcome)
                    print(f"{nodes:,} nodes, round {number + 1}: {way}: {outcome.per_second:.0f} pods/s", flush=True)
            rows += table(nodes, rounds)
    results.report("scheduler", rows)


if __name__ == "__main__":
    main()
