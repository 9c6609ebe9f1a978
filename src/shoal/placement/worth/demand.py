"""The demand, counted from the pods that are there: no forecast, no oracle.

Every pod counts from its arrival, placed or waiting, until it leaves. A pod that was refused and went away stays
counted until the first pod placed after it departs. So the counts follow GPU time, which is what has to be packed, and
not the frequency of arrivals. `Demand` is what the counts say, made anew from time to time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.columns import WHOLE, Columns, FloatArray, IntArray
from shoal.placement.weights import (
    CPU_AMPLE,
    FIRST_REFRESH,
    LAST_DOUBLING,
    REFRESH_EVERY,
    START_CORES_PER_GPU,
    START_CORES_SPREAD,
    START_POD_SIZE,
    WATCHED_BLOCKS,
    WATCHED_MODEL_SETS,
)
from shoal.placement.worth.prices import Worth, flat_worth, worth_of

#: A set of models as a bit mask over `Columns.models`.
ModelSet = int


class DemandCounter:
    """How many pods of each class are there."""

    def __init__(self) -> None:
        self.counts: dict[PodClass, int] = {}
        self.arrivals = 0
        self._counted: dict[str, PodClass] = {}
        self._placed_at: dict[str, int] = {}
        self._refused: deque[tuple[int, PodClass]] = deque()
        self._clock = 0

    def arrive(self, pod: str, pod_class: PodClass) -> None:
        """A pod is there. Seen again it counts once, as what it was seen last."""
        known = self._counted.get(pod)
        if known is pod_class:
            return
        self._counted[pod] = pod_class
        self.counts[pod_class] = self.counts.get(pod_class, 0) + 1
        if known is None:
            self.arrivals += 1
        else:
            self._forget(known)

    def place(self, pod: str) -> None:
        """A pod that is there got its node; said again, nothing changes."""
        if pod in self._counted and pod not in self._placed_at:
            self._clock += 1
            self._placed_at[pod] = self._clock

    def displace(self, pod: str) -> None:
        """A pod that is there lost its node, and waits."""
        self._placed_at.pop(pod, None)

    def depart(self, pod: str) -> None:
        """A pod left: a placed one is forgotten, a waiting one counts as refused."""
        pod_class = self._counted.pop(pod, None)
        if pod_class is None:
            return
        placed = self._placed_at.pop(pod, None)
        if placed is None:
            self._refused.append((self._clock, pod_class))
            return
        self._forget(pod_class)
        while self._refused and self._refused[0][0] < placed:
            self._forget(self._refused.popleft()[1])

    @property
    def waiting(self) -> int:
        """Pods that are there and have no node."""
        return len(self._counted) - len(self._placed_at)

    def _forget(self, pod_class: PodClass) -> None:
        left = self.counts[pod_class] - 1
        if left:
            self.counts[pod_class] = left
        else:
            del self.counts[pod_class]

    def next_refresh(self) -> int:
        """The number of arrivals at which the demand is made anew."""
        due = FIRST_REFRESH
        while due <= self.arrivals and due < LAST_DOUBLING:
            due *= 2
        while due <= self.arrivals:
            due = (due // REFRESH_EVERY + 1) * REFRESH_EVERY
        return due


@dataclass(frozen=True)
class Blocks:
    """The multi-GPU classes: whole cards, CPU and models of each, and the part of the demand at least as hard."""

    gpus: IntArray
    cpu: IntArray
    models: tuple[ModelSet, ...]
    part: FloatArray


@dataclass(frozen=True)
class Demand:
    """What the counts say."""

    worth: Worth
    cores_per_gpu: float
    cores_spread: float
    pod_size: float
    #: Sets of models that some demand is confined to, and the part of all demand confined to each.
    model_sets: tuple[ModelSet, ...]
    confined: FloatArray
    blocks: Blocks
    #: How far CPU rather than GPUs will run out, 0..1: all pods' CPU when the cards are full, against what there is.
    cpu_bound: float = 0.0


NO_BLOCKS = Blocks(np.zeros(0, np.int64), np.zeros(0, np.int64), (), np.zeros(0))
NO_DEMAND = Demand(flat_worth(), START_CORES_PER_GPU, START_CORES_SPREAD, START_POD_SIZE, (), np.zeros(0), NO_BLOCKS)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A class as the demand model sees it."""

    count: int
    cpu: int
    whole: int
    size: float
    models: ModelSet


def demand_of(counts: Mapping[PodClass, int], columns: Columns, *, cpu_milli: int = 0) -> Demand:
    """The demand behind these counts, on the cards that are there; `cpu_milli` is the CPU of all nodes together."""
    cards = columns.cards_by_kind()
    classes = [(pod_class, count) for pod_class, count in counts.items() if pod_class.wants_gpu]
    if not classes or not cards.sum():
        return NO_DEMAND
    present = columns.present
    pieces: dict[int, float] = {}
    for pod_class, count in classes:
        for need in pod_class.needs:
            size = _typical_size(need, columns, cards)
            pieces[size] = pieces.get(size, 0.0) + count * need.gpus
    worth = worth_of(pieces, float(cards.sum()))
    wanted = [
        _Wanted(
            count,
            pod_class.cpu,
            pod_class.whole,
            sum(need.gpus * float(worth.price[_typical_size(need, columns, cards)]) for need in pod_class.needs),
            allowed_models(pod_class, columns) & present,
        )
        for pod_class, count in classes
    ]
    demand = _summary(worth, wanted, present)
    gpus = sum(item.count * item.size for item in wanted)
    if not gpus or not cpu_milli:
        return demand
    cpu = sum(count * pod_class.cpu for pod_class, count in counts.items())
    load = cpu / gpus * float(cards.sum()) / cpu_milli
    return replace(demand, cpu_bound=min(1.0, max(0.0, (load - CPU_AMPLE) / (1 - CPU_AMPLE))))


def _typical_size(need: CardNeed, columns: Columns, cards: FloatArray) -> int:
    """The part of a card that a need takes, on the average over the makes of card that can hold it."""
    held = [
        (float(count), need.size_on(kind))
        for kind, count in zip(columns.kinds, cards, strict=True)
        if count and need.share.memory_mib <= kind.memory_mib
    ]
    total = sum(count for count, _ in held)
    return round(sum(count * size for count, size in held) / total) if total else WHOLE


def allowed_models(pod_class: PodClass, columns: Columns) -> ModelSet:
    """The models of nodes the class may go to."""
    if not pod_class.selector:
        return (1 << len(columns.models)) - 1
    return sum(
        1 << i
        for i, model in enumerate(columns.models)
        if any(pod_class.accepts_model(part) for part in model.split("+"))
    )


def _summary(worth: Worth, wanted: list[_Wanted], every_model: ModelSet) -> Demand:
    weight = np.array([item.count for item in wanted], np.float64)
    size = np.array([item.size for item in wanted])
    cores = np.array([item.cpu for item in wanted]) / 1000
    total = float(weight @ size)
    if total <= 0:
        return NO_DEMAND
    per_gpu = float(weight @ cores) / total
    spread = math.sqrt(float(weight @ (cores - per_gpu * size) ** 2) / total)
    model_sets = _model_sets({item.models for item in wanted}, every_model)
    confined = np.array(
        [sum(i.count * i.size for i in wanted if i.models | models == models) / total for models in model_sets]
    )
    return Demand(
        worth,
        per_gpu,
        spread,
        float(weight @ size**2) / total,
        tuple(model_sets),
        confined,
        _blocks(wanted, total),
    )


def _model_sets(confinements: Iterable[ModelSet], every_model: ModelSet) -> list[ModelSet]:
    """All unions of the sets that pods are confined to, short of every model."""
    sets = sorted(models for models in set(confinements) if models and models != every_model)
    unions = set(sets)
    for models in sets:
        if len(unions) > 16 * WATCHED_MODEL_SETS:
            break
        unions |= {models | union for union in unions}
    unions.discard(every_model)
    return sorted(unions, key=lambda models: (models.bit_count(), models))[:WATCHED_MODEL_SETS]


def _blocks(wanted: list[_Wanted], total: float) -> Blocks:
    weights: dict[tuple[int, int, ModelSet], float] = {}
    for item in wanted:
        if item.whole > 1:
            key = (item.whole, item.cpu, item.models)
            weights[key] = weights.get(key, 0.0) + item.count * item.size
    kept = sorted(weights, key=lambda key: (-weights[key], key))[:WATCHED_BLOCKS]
    if not kept:
        return NO_BLOCKS
    part = [
        sum(
            weight
            for (gpus, cpu, models), weight in weights.items()
            if gpus >= key[0] and cpu >= key[1] and models | key[2] == key[2]
        )
        / total
        for key in kept
    ]
    return Blocks(
        np.array([key[0] for key in kept], np.int64),
        np.array([key[1] for key in kept], np.int64),
        tuple(key[2] for key in kept),
        np.array(part),
    )
