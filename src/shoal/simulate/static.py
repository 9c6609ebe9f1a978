"""The protocol without departures: fill the cluster past its capacity and see how much of it gets used.

The pods, sorted by name, are shuffled; then clones, drawn uniformly, are appended until the GPU demand would pass 1.3
times the capacity. They arrive one by one, each is placed at once or lost, none leaves. What is allocated when x % of
the capacity has arrived is the mean over the arrivals at which the arrived demand, in %, rounds to x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from shoal.model.gpu import NodeGpus
from shoal.simulate.cluster import Idle, idle_now, new_engine, policy_for
from shoal.simulate.trace import TracePod, Workload, capacity_milli

#: The arrived demand, in % of capacity, at which the allocation is reported; the replay ends after the last.
MARKS = (100, 130)


@dataclass(frozen=True, slots=True)
class Fill:
    """What was allocated while the arrived demand rounded to `arrived`, and what was idle at the last such arrival."""

    arrived: int
    allocated: float
    last_allocated: float
    idle: Idle


@dataclass(frozen=True, slots=True)
class StaticResult:
    """One run; all in % of the cluster's GPUs."""

    workload: str
    policy: str
    seed: int
    alloc_100: float
    alloc_130: float
    fills: tuple[Fill, ...]


def arrivals(workload: Workload, capacity: int, rng: Random) -> list[TracePod]:
    """The pods in the order of their arrival, clones included."""
    pods = list(workload.pods)
    rng.shuffle(pods)
    limit = MARKS[-1] * capacity
    demand = sum(pod.gpu_milli for pod in pods)
    while True:
        clone = workload.pods[rng.randrange(len(workload.pods))]
        demand += clone.gpu_milli
        if 100 * demand > limit:
            return pods
        pods.append(clone)


def run_static(nodes: Sequence[NodeGpus], workload: Workload, policy: str, seed: int) -> StaticResult:
    """Replay one workload under one policy."""
    fills = tuple(fill_up(nodes, workload, policy, seed))
    at_100, at_130 = (allocation_at(fills, mark) for mark in MARKS)
    return StaticResult(workload.name, policy, seed, at_100, at_130, fills)


def fill_up(nodes: Sequence[NodeGpus], workload: Workload, policy: str, seed: int) -> Iterator[Fill]:
    """What is allocated for each percent of the capacity that arrives, replayed as far as somebody reads on."""
    rng = Random(seed)
    capacity = capacity_milli(nodes)
    pods = arrivals(workload, capacity, rng)
    engine = new_engine(nodes, policy_for(policy, workload), rng)
    cores = workload.cores_per_card
    # Halves round to the even number, as they do in the published evaluations.
    percents = [round(100 * arrived / capacity) for arrived in accumulate(pod.gpu_milli for pod in pods)]
    allocated = total = count = 0
    for i, (pod, percent, following) in enumerate(zip(pods, percents, [*percents[1:], -1], strict=True)):
        if percent > MARKS[-1]:
            return
        if engine.place(str(i), pod.request) is not None:
            allocated += pod.gpu_milli
        total += allocated
        count += 1
        if following != percent:
            part = 100 / capacity
            yield Fill(percent, part * total / count, part * allocated, idle_now(engine.ledger, cores))
            total = count = 0


def allocation_at(fills: Sequence[Fill], mark: int) -> float:
    """What was allocated when `mark` % had arrived.

    In a cluster so small that one pod leaps over the mark, nothing arrives there: then it is what the last one left.
    """
    before = [fill for fill in fills if fill.arrived <= mark]
    if not before:
        return 0.0
    return before[-1].allocated if before[-1].arrived == mark else before[-1].last_allocated
