"""One decision (filter, score, choice of cards, booking) on clusters of 100 to 10,000 nodes with 8 cards each.

The cluster is filled until a pod finds no room; then pods leave and arrive in turn, and every arrival is timed. Beside
it, in the same run and on the same states, the same policy without memory: every class tried on every node each time
(`full scan`), the worth of every node (`worths`, what an extender answers with), and a decision among half of the nodes
with favour for some. Machines are shared, so each size is measured in several rounds and the quietest one is reported.
"""

from __future__ import annotations

import gc
import sys
import time
from random import Random

import numpy as np

import bench.results as results
from bench.usage import resident
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ContainerRequest, Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES

SIZES = (100, 1_000, 5_000, 10_000)
CARDS = 8
TEMPLATES = 40
ROUNDS = 8
DECISIONS = 250
SCANS = 40
QUESTIONS = 50
MODELS = (("NVIDIA A30", 24_576), ("NVIDIA A100-SXM4-40GB", 40_960), ("NVIDIA H100 80GB", 81_920))


def templates(rng: Random) -> list[Request]:
    """Pods as they come: half of them shares of memory, some of compute, the rest whole cards, one to eight."""
    made = []
    for i in range(TEMPLATES):
        kind = rng.random()
        gpus = 1
        if kind < 0.5:
            share = Share(memory_mib=1024 * rng.choice((1, 2, 3, 4, 6, 8, 10, 12, 16, 20)))
        elif kind < 0.6:
            share = Share(compute=rng.choice((10, 20, 25, 50)))
        else:
            gpus, share = rng.choice((1, 1, 1, 2, 4, 8)), Share(exclusive=True)
        cpu, memory = rng.choice((500, 1_000, 2_000, 4_000, 8_000)), rng.choice((1_024, 4_096, 8_192))
        made.append(Request((ContainerRequest(f"app-{i}", gpus, share),), cpu * gpus, memory * gpus))
    return made


def cluster(nodes: int, rng: Random) -> Ledger:
    ledger = Ledger()
    for n in range(nodes):
        model, mib = rng.choice(MODELS)
        cards = tuple(Gpu(f"GPU-{n:05}-{i}", i, mib, model) for i in range(CARDS))
        ledger.set_inventory(NodeGpus(f"node-{n:05}", cards, 128_000, 1_048_576))
    return ledger


class Churn:
    """A cluster that is full, with pods leaving and arriving."""

    def __init__(self, nodes: int) -> None:
        self.rng = Random(7)
        self.engine = Engine(cluster(nodes, self.rng), POLICIES["fragmentation"], rng=self.rng)
        self.pods = templates(self.rng)
        #: A few templates make most of the pods, as in real clusters.
        self.weights = [1 / (i + 1) for i in range(TEMPLATES)]
        self.live: list[str] = []
        self.count = 0
        while self.arrive() is not None:
            pass

    def arrive(self) -> float | None:
        """One more pod: the time its decision took in µs, or None when it found no room."""
        request = self.rng.choices(self.pods, self.weights)[0]
        self.count += 1
        name = f"pod-{self.count}"
        start = time.perf_counter_ns()
        placed = self.engine.place(name, request)
        took = (time.perf_counter_ns() - start) / 1000
        if placed is None:
            self.engine.remove(name)
            return None
        self.live.append(name)
        return took

    def leave(self) -> None:
        i = self.rng.randrange(len(self.live))
        self.live[i], self.live[-1] = self.live[-1], self.live[i]
        self.engine.remove(self.live.pop())

    def round(self, decisions: int, *, forget: bool = False) -> list[float]:
        """Times of so many decisions, each after a departure; `forget` makes every one a full scan."""
        times: list[float] = []
        while len(times) < decisions:
            self.leave()
            if forget:
                self.engine.forget()
            took = self.arrive()
            if took is not None:
                times.append(took)
        return times

    def questions(self, *, wishes: bool) -> list[float]:
        """Times of questions for worths, or for a decision with wishes, each after a departure and an arrival."""
        times: list[float] = []
        while len(times) < QUESTIONS:
            self.round(1)
            request = self.rng.choices(self.pods, self.weights)[0]
            rows = self.engine.ledger.columns.rows
            among, favour = np.arange(rows) % 2 == 0, (np.arange(rows) % 100 == 0).astype(np.float64)
            start = time.perf_counter_ns()
            if wishes:
                self.engine.decide(request, among=among, favour=favour)
            else:
                self.engine.worths(request)
            times.append((time.perf_counter_ns() - start) / 1000)
        return times


def addition() -> float:
    """Time of one numpy addition of 40 numbers in µs: what everything else is made of, and how fast this machine is."""
    numbers = np.arange(40.0)
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(2_000):
            numbers + numbers
        rounds.append((time.perf_counter_ns() - start) / 2_000 / 1000)
    return min(rounds)


def measure(nodes: int) -> dict[str, float]:
    gc.collect()
    before = resident()
    churn = Churn(nodes)
    rounds = [churn.round(DECISIONS) for _ in range(ROUNDS)]
    used = resident() - before
    scans = [churn.round(SCANS // 4, forget=True) for _ in range(4)]
    worths = [churn.questions(wishes=False) for _ in range(4)]
    wishes = [churn.questions(wishes=True) for _ in range(4)]
    quietest = min(rounds, key=lambda times: float(np.median(times)))
    everything = [time for times in rounds for time in times]
    return {
        "p50": float(np.median(quietest)),
        "p99": float(np.percentile(everything, 99)),
        "rate": 1e6 / float(np.mean(quietest)),
        "scan": min(float(np.median(times)) for times in scans),
        "worths": min(float(np.median(times)) for times in worths),
        "wishes": min(float(np.median(times)) for times in wishes),
        "memory": used,
    }


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    rows: list[results.Row] = []
    p50: dict[int, float] = {}
    for nodes in sizes:
        print(f"{nodes} nodes × {CARDS} cards …", file=sys.stderr)
        got = measure(nodes)
        p50[nodes] = got["p50"]
        label = f"{nodes:>6} nodes"
        if nodes == 5_000:
            rows.append(results.below(f"{label}: decision p50", got["p50"], "µs", 200))
            rows.append(results.below(f"{label}: memory above the imports", got["memory"], "MB", 100))
            rows.append(results.below(f"{label}: worths of all nodes p50", got["worths"], "µs", 1_000))
        else:
            rows.append(results.Row(f"{label}: decision p50", got["p50"], "µs"))
            rows.append(results.Row(f"{label}: memory above the imports", got["memory"], "MB"))
            rows.append(results.Row(f"{label}: worths of all nodes p50", got["worths"], "µs"))
        rows += [
            results.Row(f"{label}: decision p99, all rounds", got["p99"], "µs"),
            results.Row(f"{label}: decision with among and favour p50", got["wishes"], "µs"),
            results.Row(f"{label}: decisions", got["rate"], "per second"),
            results.Row(f"{label}: memory", got["memory"] * 1e6 / (nodes * CARDS), "bytes/GPU"),
            results.Row(f"{label}: full scan p50", got["scan"], "µs"),
            results.Row(f"{label}: full scan / decision", got["scan"] / got["p50"], "×"),
        ]
    if 1_000 in p50 and 10_000 in p50:
        rows.append(results.below("decision p50 at 10,000 / at 1,000 nodes", p50[10_000] / p50[1_000], "×", 2.5))
    rows.append(results.Row("one numpy addition of 40 numbers", addition(), "µs"))
    results.report("decision", rows)


if __name__ == "__main__":
    main()
