"""The scenario of a run with departures, the same for every policy: which pods arrive when, and how long each stays.

Arrivals are Poisson, each a uniform draw from the trace's pods. Time is in units of the mean lifetime. The rate is
load × GPUs / mean GPU demand, so that `load` is the part of the cluster the pods would hold if none were refused.

Lifetimes are exponential with mean 1 (`exp`), or the pod's own, at least a minute (`trace`). The longest of those are
hundreds of times the mean, so an empty cluster would not come near its stationary state: such a run starts with as
many pods as arrive in one unit of time, drawn in proportion to lifetime, each with a uniform part of its life left;
and the mean GPU demand is weighted by lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from shoal.simulate.errors import SettingsError
from shoal.simulate.trace import TracePod, Workload

#: No pod of a trace lives shorter, in seconds: the traces round to minutes.
SHORTEST = 60.0
DEFAULT_LOAD = 0.95


class Lifetimes(StrEnum):
    """How long pods stay."""

    EXP = "exp"
    TRACE = "trace"


class ChurnMode(StrEnum):
    """What becomes of a pod that does not fit: it leaves, or it waits."""

    LOSS = "loss"
    QUEUE = "queue"


class Start(StrEnum):
    """The pods that are there at the start: all that the policy admits, or those that every compared policy admits."""

    OWN = "own"
    SAME = "same"


HORIZON = {Lifetimes.EXP: 6.0, Lifetimes.TRACE: 3.0}


@dataclass(frozen=True, slots=True)
class Churn:
    """The settings of a run with departures."""

    lifetimes: Lifetimes
    load: float = DEFAULT_LOAD
    mode: ChurnMode = ChurnMode.LOSS
    start: Start = Start.OWN

    @property
    def horizon(self) -> float:
        return HORIZON[self.lifetimes]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that arrives; `number` counts them in the order of arrival."""

    number: int
    time: float
    pod: TracePod
    lifetime: float

    @property
    def key(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The pods that are there at the start, in the order in which they are placed, and those that come later."""

    start: tuple[Arrival, ...]
    later: tuple[Arrival, ...]


def draw(workload: Workload, gpus: int, churn: Churn, rng: Random) -> Scenario:
    """A scenario for a cluster of so many GPUs."""
    lives = _lives(workload, churn.lifetimes)
    rate = arrival_rate(workload, lives, gpus, churn.load)
    start: list[Arrival] = []
    if churn.lifetimes is Lifetimes.TRACE:
        picked = rng.choices(range(len(lives)), weights=lives, k=round(rate))
        start = [Arrival(i, 0.0, workload.pods[pod], lives[pod] * rng.random()) for i, pod in enumerate(picked)]
    later: list[Arrival] = []
    time = rng.expovariate(rate)
    while time < churn.horizon:
        pod = rng.randrange(len(lives))
        life = lives[pod] if churn.lifetimes is Lifetimes.TRACE else rng.expovariate(1.0)
        later.append(Arrival(len(start) + len(later), time, workload.pods[pod], life))
        time += rng.expovariate(rate)
    return Scenario(tuple(start), tuple(later))


def arrival_rate(workload: Workload, lives: Sequence[float], gpus: int, load: float) -> float:
    """Arrivals per mean lifetime at which the pods, if none were refused, would hold `load` of the GPUs."""
    weighted = sum(pod.gpu_milli / 1000 * life for pod, life in zip(workload.pods, lives, strict=True))
    return load * gpus * sum(lives) / weighted


def _lives(workload: Workload, lifetimes: Lifetimes) -> list[float]:
    """The pods' mean lifetimes, in units of the mean over all pods."""
    if lifetimes is Lifetimes.EXP:
        return [1.0] * len(workload.pods)
    seconds = [_seconds(pod, workload) for pod in workload.pods]
    mean = sum(seconds) / len(seconds)
    return [life / mean for life in seconds]


def check_lifetimes(workload: Workload, lifetimes: Lifetimes) -> None:
    """Refuse a trace that does not tell how long its pods lived, when that is what is asked for."""
    if lifetimes is Lifetimes.TRACE:
        for pod in workload.pods:
            _seconds(pod, workload)


def _seconds(pod: TracePod, workload: Workload) -> float:
    if pod.lifetime is None:
        raise SettingsError(
            f"workload {workload.name}: pod {pod.name} has no creation_time and deletion_time:"
            " add them, or use --lifetimes exp"
        )
    return max(SHORTEST, pod.lifetime)
