"""The extender at 5,000 nodes with 8 cards each: filter and prioritize as kube-scheduler asks them, by node names.

Filter offers the best node alone, as it does by default with so many; then, for pods with preferences, all that fit.
Bytes in, bytes out, without HTTP; then the same filter over HTTP, one request after another on one connection, from a
process of its own, as kube-scheduler does. Machines are shared, so each case is measured in several rounds and the
quietest round is reported; and by CPU time, in which nobody waits for a core.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import numpy as np

import bench.results as results
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import gpushare, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.binder import Binder
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.extender.filtering import OFFER_ALL
from shoal.scheduler.extender.inspect import inspect
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.metrics import LedgerSource, Metrics
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.state.cluster_state import ClusterState

NODES = 5_000
CARDS = 8
CARD_MIB = 16_384
ROUNDS = 6
CALLS = 60
P99_MS = 5.0
#: What kube-scheduler sends along in managedFields and the like.
PADDING = 1_500


class Bench:
    """Books of a whole cluster, every second node full, and the verbs on them."""

    def __init__(self, *, all_up_to: int = OFFER_ALL) -> None:
        self.names = [f"gpu-node-{n:05}.example.internal" for n in range(NODES)]
        self.state = ClusterState(
            Engine(Ledger(), POLICIES["fragmentation"]),
            ClusterTables(),
            unit=MemoryUnit.GIB,
            news=lambda _: None,
            report=lambda *_: None,
        )
        nobody = Client(Access(server="http://127.0.0.1:1", credentials=StoredCredential()))
        self.metrics = Metrics()
        context = SchedulingContext(
            client=nobody,
            state=self.state,
            feasibility=Feasibility(self.state.tables),
            binder=Binder(nobody, self.state, may_write=lambda: False, now_ns=time.time_ns),
            reporter=Reporter(
                nobody, Recorder(nobody, "bench"), now=lambda: datetime.now(UTC), may_write=lambda: False
            ),
            metrics=self.metrics,
            offer_holds=OfferHolds(self.state, clock=time.monotonic, metrics=self.metrics),
            may_write=lambda: False,
            clock=time.monotonic,
        )
        self.metrics.registry.add(LedgerSource(self.state.engine.ledger))
        self.verbs = Verbs(context, plan=lambda pod, nodes: None, try_again=lambda _: None, offer_all_up_to=all_up_to)
        self._uids = itertools.count()
        for name in self.names:
            self.state.on_node(Change(ChangeType.ADDED, None, node(name)))
        for name in self.names[::2]:
            for card in range(CARDS):
                self.state.on_pod(Change(ChangeType.ADDED, None, bound(name, card)))

    def body(self, gib: int, names: list[str]) -> bytes:
        """The request for a new pod."""
        uid = f"uid-{next(self._uids)}"
        metadata = {"name": uid, "namespace": "bench", "uid": uid, "annotations": {"padding": "x" * PADDING}}
        pod = {"metadata": metadata, "spec": spec(gib)}
        self.state.on_pod(Change(ChangeType.ADDED, None, msgspec.convert(pod, Pod)))  # as the watch has shown it
        return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def bodies(bench: Bench, names: list[str]) -> list[bytes]:
    return [bench.body(4, names) for _ in range(CALLS)]


def spec(gib: int) -> dict[str, object]:
    limits = {gpushare.RESOURCE_MEMORY: str(gib)}
    return {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}]}


def node(name: str) -> Node:
    cards = tuple(Gpu(f"GPU-{name}-{index}", index, CARD_MIB, "Bench B16") for index in range(CARDS))
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "250"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "annotations": {shoal.ANNOTATION_GPUS: shoal.encode_gpus(cards)}},
            "status": {"capacity": amounts, "allocatable": amounts},
        },
        Node,
    )


def bound(name: str, card: int) -> Pod:
    uid = f"on-{name}-{card}"
    annotations = {gpushare.NAME_INDEX: str(card), gpushare.NAME_POD: "14"}
    metadata = {"name": uid, "namespace": "bench", "uid": uid, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": name, **spec(14)}}, Pod)


def timed(
    call: Callable[[bytes], object], bodies: list[bytes], clock: Callable[[], int] = time.perf_counter_ns
) -> list[list[float]]:
    """Milliseconds of every call, round by round."""
    rounds = []
    for _ in range(ROUNDS):
        times = []
        for body in bodies:
            start = clock()
            call(body)
            times.append((clock() - start) / 1e6)
        rounds.append(times)
    return rounds


def rows(name: str, rounds: list[list[float]], *, limit: float | None = None) -> list[results.Row]:
    quietest = min(rounds, key=lambda times: float(np.median(times)))
    p99 = float(np.percentile(quietest, 99))
    last = results.Row(f"{name} p99", p99, "ms") if limit is None else results.below(f"{name} p99", p99, "ms", limit)
    return [results.Row(f"{name} p50", float(np.median(quietest)), "ms"), last]


async def over_http(bench: Bench) -> list[list[float]]:
    extender = Extender(bench.verbs, bench.state, metrics=bench.metrics, not_ready=lambda: "", clock=time.monotonic)
    async with extender.serve(Address("127.0.0.1", 0)) as port:
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.bench_extender", "caller", str(port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await caller.communicate(bench.body(4, bench.names))
    times: list[list[float]] = json.loads(out)
    return times


def call(port: int) -> None:
    """The process that asks: one body, over and over."""
    body = sys.stdin.buffer.read()
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(body: bytes) -> None:
        connection.request("POST", gpushare.PATH_FILTER, body, {"Content-Type": "application/json"})
        connection.getresponse().read()

    print(json.dumps(timed(ask, [body] * CALLS)))


def scrape(bench: Bench) -> tuple[float, float]:
    """Milliseconds of a whole scrape, and of its longest piece, during which nobody else is answered."""
    longest = 0.0
    begin = last = time.perf_counter_ns()
    for _ in bench.metrics.registry.pieces():
        now = time.perf_counter_ns()
        longest, last = max(longest, (now - last) / 1e6), now
    return (last - begin) / 1e6, longest


def main() -> None:
    if sys.argv[1:2] == ["caller"]:
        call(int(sys.argv[2]))
        return
    bench, offering_all = Bench(), Bench(all_up_to=NODES)
    free, full = bench.names[1::2], bench.names[::2]
    cases: list[tuple[str, Callable[[bytes], object], list[bytes], float | None]] = [
        ("filter, half fit", bench.verbs.filter, bodies(bench, bench.names), P99_MS),
        ("filter, none fits", bench.verbs.filter, bodies(bench, full + full), P99_MS),
        ("filter offering all, all fit", offering_all.verbs.filter, bodies(offering_all, free + free), P99_MS),
        ("filter offering all, half fit", offering_all.verbs.filter, bodies(offering_all, bench.names), P99_MS),
        ("prioritize", offering_all.verbs.prioritize, bodies(offering_all, free), None),
    ]
    found: list[results.Row] = [results.Row("request", len(cases[0][2][0]) / 1e3, "kB")]
    for name, verb, asked, limit in cases:
        found += rows(f"{name}:", timed(verb, asked), limit=limit)
        found += rows(f"{name}, CPU time:", timed(verb, asked, time.thread_time_ns))
    found += rows("filter over HTTP, half fit:", asyncio.run(over_http(bench)), limit=P99_MS)
    found += rows("the same offering all:", asyncio.run(over_http(offering_all)), limit=P99_MS)
    whole, longest = min(scrape(bench) for _ in range(3))
    found += [results.Row("scrape of 40,000 cards", whole, "ms"), results.Row("its longest piece", longest, "ms")]
    start = time.perf_counter_ns()
    size = sum(map(len, inspect(bench.state)))
    found.append(
        results.Row(f"inspect of all nodes ({size / 1e6:.1f} MB)", (time.perf_counter_ns() - start) / 1e6, "ms")
    )
    results.report("extender", found)


if __name__ == "__main__":
    main()
