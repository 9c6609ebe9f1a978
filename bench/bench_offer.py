"""An offer at 1,000 nodes with 8 cards each: pods of forty templates, on books in which pods come and go in between.

Bytes in, bytes out on the engine, with score and everything else that is told; then the same over TLS from a process of
its own, one request after another on one connection, with its token checked. Beside it the longest that one offer can
keep the scheduler from its own pods. Machines are shared, so each case is measured in several rounds and the quietest
round is reported; and by CPU time, in which nobody waits for a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

import bench.results as results
from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import clusters, gpushare, shoal
from shoal.model.contract.clusters import Offer
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.binder import Binder
from shoal.scheduler.certificates import BundleSecret
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.offer.departures import Departures
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.offer.offers import Offers
from shoal.scheduler.offer.server import OfferAddress, OfferServer
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.tls import OwnTls

NODES = 1_000
CARDS = 8
TEMPLATES = 40
ROUNDS = 3
CALLS = 120
P99_MS = 15.0
#: Cards in use before the first offer.
FILLED = 0.7
MODELS = (("NVIDIA A30", 24_576), ("NVIDIA A100-SXM4-40GB", 40_960), ("NVIDIA H100 80GB", 81_920))
NAMESPACE = "kube-system"
ACCOUNT = "bench"


def templates(rng: Random) -> list[dict[str, Any]]:
    """Specs as they come: shares of memory and whole cards, with CPU and memory, some for one model alone."""
    made = []
    for i in range(TEMPLATES):
        if rng.random() < 0.6:
            gpus, limits = 1, {gpushare.RESOURCE_MEMORY: str(rng.choice((1, 2, 4, 6, 8, 12, 16, 20)))}
        else:
            gpus = rng.choice((1, 1, 1, 2, 4, 8))
            limits = {"nvidia.com/gpu": str(gpus)}
        amounts = {**limits, "cpu": str(rng.choice((1, 2, 4)) * gpus), "memory": f"{4 * gpus}Gi"}
        container = {"name": f"app-{i}", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
        spec: dict[str, Any] = {"containers": [container]}
        if i % 10 == 9:
            spec["nodeSelector"] = {"pool": str(i % 4)}
        made.append(spec)
    return made


class Bench:
    """Books of a whole cluster, most cards in use, and who offers what is left."""

    def __init__(self, client: Client | None = None) -> None:
        self.rng = Random(7)
        client = client or Client(Access(server="http://127.0.0.1:1", credentials=StoredCredential()))
        self.state = ClusterState(
            Engine(Ledger(), POLICIES["fragmentation"], rng=self.rng),
            ClusterTables(),
            unit=MemoryUnit.GIB,
            news=lambda _: None,
            report=lambda *_: None,
        )
        self.metrics = Metrics()
        context = SchedulingContext(
            client=client,
            state=self.state,
            feasibility=Feasibility(self.state.tables),
            binder=Binder(client, self.state, may_write=lambda: False, now_ns=time.time_ns),
            reporter=Reporter(
                client, Recorder(client, "bench"), now=lambda: datetime.now(UTC), may_write=lambda: False
            ),
            metrics=self.metrics,
            offer_holds=OfferHolds(self.state, clock=time.monotonic, metrics=self.metrics),
            may_write=lambda: False,
            clock=time.monotonic,
        )
        self.offers = Offers(
            context,
            keep_clear=lambda allowed, standing: allowed,
            departures=Departures(self.state, clock=time.monotonic),
            cluster="",
        )
        self._uids = itertools.count()
        self.specs = templates(self.rng)
        for number in range(NODES):
            self.state.on_node(Change(ChangeType.ADDED, None, self._node(number)))
        self.live: list[str] = []
        while np.count_nonzero(self.state.engine.ledger.columns.pods) < FILLED * NODES * CARDS:
            self._arrive()

    def _node(self, number: int) -> Node:
        model, mib = self.rng.choice(MODELS)
        cards = tuple(Gpu(f"GPU-{number}-{index}", index, mib, model) for index in range(CARDS))
        amounts = {"cpu": "128", "memory": "1Ti", "pods": "250"}
        amounts |= {"nvidia.com/gpu": str(CARDS), gpushare.RESOURCE_MEMORY: str(mib * CARDS // 1024)}
        metadata = {
            "name": f"node-{number}",
            "labels": {"pool": str(number % 4)},
            "annotations": {shoal.ANNOTATION_GPUS: shoal.encode_gpus(cards)},
        }
        return msgspec.convert({"metadata": metadata, "status": {"capacity": amounts, "allocatable": amounts}}, Node)

    def _arrive(self) -> None:
        uid = f"uid-{next(self._uids)}"
        metadata = {"name": uid, "namespace": "bench", "uid": uid}
        pod = msgspec.convert({"metadata": metadata, "spec": self.rng.choice(self.specs)}, Pod)
        self.state.on_pod(Change(ChangeType.ADDED, None, pod))
        if self.state.place(pod) is not None:
            self.live.append(uid)
        else:
            self.state.take_out(uid)

    def churn(self) -> None:
        """A pod leaves and others come."""
        i = self.rng.randrange(len(self.live))
        self.live[i], self.live[-1] = self.live[-1], self.live[i]
        self.state.take_out(self.live.pop())
        self._arrive()

    def anew(self) -> None:
        """A pod leaves and others come, and nothing is known of any template."""
        self.churn()
        self.state.engine.forget()

    def bodies(self, **asked: Any) -> list[bytes]:
        """Requests for pods of all templates."""
        made = []
        for number in range(CALLS):
            metadata = {"name": f"p{number}", "namespace": "bench", "annotations": {"padding": "x" * 1500}}
            pod = {"metadata": metadata, "spec": self.specs[number % TEMPLATES]}
            origin = {"origin": f"u{number % 40}"} if asked.get("hold") else {}
            made.append(json.dumps({"pod": pod, **origin, **asked}).encode())
        return made

    def refused(self) -> list[bytes]:
        """Requests that fit nowhere, each another one."""
        made = []
        for number in range(CALLS):
            limits = {"nvidia.com/gpu": "8", "cpu": "129"}
            container = {"name": f"c{number % TEMPLATES}", "resources": {"limits": limits, "requests": limits}}
            made.append(json.dumps({"pod": {"metadata": {"name": "p"}, "spec": {"containers": [container]}}}).encode())
        return made


#: Milliseconds of every call, round by round: by the clock, and of the CPU.
Rounds = list[tuple[list[float], list[float]]]


def timed(call: Callable[[bytes], object], bodies: list[bytes], between: Callable[[], None]) -> Rounds:
    """The times of all calls."""
    rounds: Rounds = []
    for _ in range(ROUNDS):
        wall: list[float] = []
        busy: list[float] = []
        for body in bodies:
            between()
            start, began = time.perf_counter_ns(), time.process_time_ns()
            call(body)
            busy.append((time.process_time_ns() - began) / 1e6)
            wall.append((time.perf_counter_ns() - start) / 1e6)
        rounds.append((wall, busy))
    return rounds


def rows(name: str, rounds: list[list[float]], *, limit: float | None = None) -> list[results.Row]:
    quietest = min(rounds, key=lambda times: float(np.median(times)))
    p99 = float(np.percentile(quietest, 99))
    last = results.Row(f"{name} p99", p99, "ms") if limit is None else results.below(f"{name} p99", p99, "ms", limit)
    return [results.Row(f"{name} p50", float(np.median(quietest)), "ms"), last]


@contextlib.asynccontextmanager
async def offering(bench: Bench, client: Client) -> AsyncIterator[dict[str, Any]]:
    """Answer over TLS; gives what a caller has to know: port, authority and token."""
    secret = BundleSecret(client, namespace=NAMESPACE, name="bench-tls", now=lambda: datetime.now(UTC))
    tls = await OwnTls.begun(secret, clients=False)
    server = OfferServer(
        bench.offers,
        client,
        namespace=NAMESPACE,
        audience="",
        metrics=bench.metrics,
        not_ready=lambda: "",
        clock=time.monotonic,
    )
    async with server.serve(OfferAddress("127.0.0.1", 0, tls)) as port:
        authority = (await secret.ensure()).authority.certificate.decode()
        yield {"port": port, "authority": authority, "token": await _token(client)}


async def over_tls(folder: Path) -> Rounds:
    """The times of a caller in a process of its own, on a server whose API server is the embedded one."""
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(EmbeddedApi(folder / "embedded"))
        access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
        client = await stack.enter_async_context(Client(access))
        bench = Bench(client)
        question = await stack.enter_async_context(offering(bench, client))
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.bench_offer", "caller"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        bodies = [body.decode() for body in bench.bodies()]
        out, _ = await caller.communicate(json.dumps({**question, "bodies": bodies}).encode())
    times: Rounds = json.loads(out)
    return times


async def _token(client: Client) -> str:
    """The token of an account that may ask."""
    meta = {"metadata": {"name": ACCOUNT}}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    rule = {"apiGroups": [clusters.OFFER_GROUP], "resources": [clusters.OFFER_RESOURCE], "verbs": ["create"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    await client.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", body=meta)
    await client.request("POST", f"{rbac}/roles", body={**meta, "rules": [rule]})
    await client.request("POST", f"{rbac}/rolebindings", body={**meta, "roleRef": role, "subjects": [subject]})
    return (await client.token(ACCOUNT, namespace=NAMESPACE, seconds=3600)).token


def call() -> None:
    """The process that asks."""
    asked = json.loads(sys.stdin.buffer.read())
    context = ssl.create_default_context(cadata=asked["authority"])
    connection = http.client.HTTPSConnection("127.0.0.1", asked["port"], context=context)
    headers = {"Content-Type": "application/json", clusters.HEADER_TOKEN: asked["token"]}

    def ask(body: bytes) -> None:
        connection.request("POST", clusters.PATH_OFFER, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, (answer.status, content)

    # A caller that asked without any pause would be told to wait (429).
    pause = partial(time.sleep, 0.003)
    print(json.dumps(timed(ask, [body.encode() for body in asked["bodies"]], pause)))


def main() -> None:
    if sys.argv[1:2] == ["caller"]:
        call()
        return
    bench = Bench()

    def answer(body: bytes) -> Offer:
        return msgspec.json.decode(bench.offers.answer("bench", body), type=Offer)

    table: list[results.Row] = []
    cases: list[tuple[str, list[bytes], float | None]] = [
        ("offer for one pod", bench.bodies(), P99_MS),
        ("offer for one pod, held", bench.bodies(hold=60), P99_MS),
        ("offer for 20 pods", bench.bodies(count=20), None),
        ("offer, nothing fits", bench.refused(), P99_MS),
    ]
    for name, bodies, limit in cases:
        rounds = timed(answer, bodies, bench.churn)
        table += rows(name, [wall for wall, _ in rounds], limit=limit)
        table += rows(f"{name}, CPU", [busy for _, busy in rounds], limit=limit)
    rounds = timed(answer, bench.bodies(), bench.anew)
    table += rows("offer for a template not seen before", [wall for wall, _ in rounds], limit=P99_MS)
    longest = min(max(busy) for _, busy in timed(answer, bench.bodies(count=1000)[:TEMPLATES], bench.churn))
    table.append(results.Row("offer for 1,000 pods, CPU, longest", longest, "ms"))
    with tempfile.TemporaryDirectory() as folder:
        table += rows("offer over TLS", [wall for wall, _ in asyncio.run(over_tls(Path(folder)))], limit=P99_MS)
    results.report("offer", table)


if __name__ == "__main__":
    main()
