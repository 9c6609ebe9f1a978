"""The protocol with departures: pods come and go, and what counts is how full the cluster stays and what it refuses.

`scenario` says which pods arrive and how long they stay; a run places them under one policy. The first 40 % of the
time is discarded. A pod that does not fit leaves for good (`loss`) or waits (`queue`, see `queueing`); the life of a
waiting pod begins when it is placed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from shoal.model.gpu import NodeGpus
from shoal.simulate.cluster import Idle, idle_now, new_engine, policy_for
from shoal.simulate.queueing import WaitingPods
from shoal.simulate.scenario import Arrival, Churn, ChurnMode, Scenario, draw
from shoal.simulate.trace import GPU, Workload, capacity_milli

#: A run is looked at in so many spans of equal time, and the first of them are discarded.
SPANS = 100
WARM_UP = 40


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time: the mean allocation, and what was idle at its end."""

    end: float
    allocated: float
    idle: Idle


@dataclass(frozen=True, slots=True)
class Wait:
    """How long the pods of one size waited, in mean lifetimes. A pod that still waits counts with its wait so far."""

    size: str
    pods: int
    mean: float
    p95: float
    still_waiting: int


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """One run: allocation in % of the GPUs, refusals in % of the arriving GPU demand, waiting GPUs."""

    workload: str
    policy: str
    seed: int
    churn: Churn
    alloc_mean: float
    refused_pct: float
    pending_gpus_mean: float
    #: By size, in queue mode.
    waits: tuple[Wait, ...]
    spans: tuple[Span, ...]


def admitted(nodes: Sequence[NodeGpus], workload: Workload, policy: str, seed: int, churn: Churn) -> frozenset[int]:
    """The starting pods that this policy admits, by number."""
    rng = Random(seed)
    scenario = draw(workload, capacity_milli(nodes) // GPU, churn, rng)
    run = _Run(nodes, workload, policy, churn, rng)
    return run.begin(scenario.start)


def run_churn(
    nodes: Sequence[NodeGpus],
    workload: Workload,
    policy: str,
    seed: int,
    churn: Churn,
    start: Collection[int] | None = None,
) -> ChurnResult:
    """Run one workload under one policy; `start` limits the starting pods to those with these numbers."""
    rng = Random(seed)
    scenario = draw(workload, capacity_milli(nodes) // GPU, churn, rng)
    if start is not None:
        scenario = Scenario(tuple(pod for pod in scenario.start if pod.number in start), scenario.later)
    run = _Run(nodes, workload, policy, churn, rng)
    run.begin(scenario.start)
    run.go_on(scenario.later)
    return run.result(seed)


class _Run:
    """The state of one run."""

    def __init__(self, nodes: Sequence[NodeGpus], workload: Workload, policy: str, churn: Churn, rng: Random) -> None:
        self._name = workload.name
        self._policy = policy
        self._churn = churn
        self._engine = new_engine(nodes, policy_for(policy, workload), rng)
        self._capacity = capacity_milli(nodes)
        self._cores_per_card = workload.cores_per_card
        self._warm = churn.horizon * WARM_UP / SPANS
        self._now = 0.0
        self._departures: list[tuple[float, int, Arrival, str]] = []
        self._waiting = WaitingPods(sorted({gpu.model for node in nodes for gpu in node.gpus}))
        self._allocated = 0
        self._allocation = TimeMeans(churn.horizon, SPANS)
        self._pending = TimeMeans(churn.horizon, SPANS)
        self._idle: list[Idle] = []
        self._arrived_milli = 0
        self._refused_milli = 0
        self._waits: dict[str, list[float]] = {}

    def begin(self, start: Sequence[Arrival]) -> frozenset[int]:
        """Place the starting pods, and tell which of them were admitted."""
        return frozenset(pod.number for pod in start if self._arrive(pod))

    def go_on(self, later: Sequence[Arrival]) -> None:
        """Let the others come, and all leave in their time, up to the horizon."""
        for pod in later:
            self._depart_until(pod.time)
            self._arrive(pod)
        self._depart_until(self._churn.horizon)

    def _depart_until(self, time: float) -> None:
        while self._departures and self._departures[0][0] <= time:
            left, _, pod, node = heappop(self._departures)
            self._pass_to(left)
            self._engine.remove(pod.key)
            self._allocated -= pod.pod.gpu_milli
            if self._churn.mode is ChurnMode.QUEUE:
                self._serve(node)
        self._pass_to(time)

    def _pass_to(self, time: float) -> None:
        while len(self._idle) < SPANS and time >= (len(self._idle) + 1) * self._allocation.width:
            self._idle.append(idle_now(self._engine.ledger, self._cores_per_card))
        self._allocation.hold(self._allocated, self._now, time)
        self._pending.hold(self._waiting.gpu_milli, self._now, time)
        self._now = time

    def _arrive(self, pod: Arrival) -> bool:
        measured = pod.time >= self._warm
        if measured:
            self._arrived_milli += pod.pod.gpu_milli
        if self._place(pod):
            return True
        if self._churn.mode is ChurnMode.QUEUE:
            self._waiting.join(pod)
            return False
        self._engine.remove(pod.key)
        if measured:
            self._refused_milli += pod.pod.gpu_milli
        return False

    def _place(self, pod: Arrival) -> bool:
        allocation = self._engine.place(pod.key, pod.pod.request)
        if allocation is None:
            return False
        heappush(self._departures, (self._now + pod.lifetime, pod.number, pod, allocation.node))
        self._allocated += pod.pod.gpu_milli
        self._note_wait(pod)
        return True

    def _serve(self, name: str) -> None:
        node = self._engine.ledger.node(name)
        assert node is not None, f"a pod left node {name}, which the ledger does not know"
        self._waiting.retry(node, self._place)

    def _note_wait(self, pod: Arrival) -> None:
        if self._churn.mode is ChurnMode.QUEUE and pod.time >= self._warm:
            self._waits.setdefault(pod.pod.size_class, []).append(self._now - pod.time)

    def result(self, seed: int) -> ChurnResult:
        percent = 100 / self._capacity
        width = self._allocation.width
        return ChurnResult(
            self._name,
            self._policy,
            seed,
            self._churn,
            alloc_mean=percent * self._allocation.mean_from(WARM_UP),
            refused_pct=100 * self._refused_milli / max(self._arrived_milli, 1),
            pending_gpus_mean=self._pending.mean_from(WARM_UP) / GPU,
            waits=self._all_waits() if self._churn.mode is ChurnMode.QUEUE else (),
            spans=tuple(
                Span((i + 1) * width, percent * allocated, idle)
                for i, (allocated, idle) in enumerate(zip(self._allocation.means(), self._idle, strict=True))
            ),
        )

    def _all_waits(self) -> tuple[Wait, ...]:
        still: dict[str, int] = {}
        for pod in self._waiting:
            if pod.time >= self._warm:
                self._note_wait(pod)
                still[pod.pod.size_class] = still.get(pod.pod.size_class, 0) + 1
        return tuple(
            Wait(size, len(waits), mean(waits), quantile(waits, 0.95), still.get(size, 0))
            for size, waits in sorted(self._waits.items(), key=lambda item: _size_order(item[0]))
        )


def _size_order(size: str) -> tuple[int, str]:
    """CPU-only pods, shares, then by the number of GPUs."""
    return {"cpu": -2, "share": -1}.get(size) or int(size), size


class TimeMeans:
    """The means of a quantity over equal spans of the time from 0 to `horizon`."""

    def __init__(self, horizon: float, spans: int) -> None:
        self.width = horizon / spans
        self._areas = [0.0] * spans

    def hold(self, value: float, start: float, end: float) -> None:
        """The quantity was `value` from `start` to `end`."""
        last = len(self._areas) - 1
        span = min(int(start / self.width), last)
        while span < last and end > (edge := (span + 1) * self.width):
            self._areas[span] += value * (edge - start)
            start = edge
            span += 1
        self._areas[span] += value * (end - start)

    def means(self) -> list[float]:
        return [area / self.width for area in self._areas]

    def mean_from(self, span: int) -> float:
        """The mean over all spans from this one on."""
        return sum(self._areas[span:]) / (self.width * (len(self._areas) - span))


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of all do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -int(-part * len(ordered) // 1)
    return ordered[min(max(rank, 1), len(ordered)) - 1]
