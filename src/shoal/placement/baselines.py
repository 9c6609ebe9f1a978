"""Scores of the literature, to compare with: as their authors' simulator computes them.

Node figures are theirs too: CPU and GPU in thousandths are measured against the largest node of the openb trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from shoal.model.allocation import Allocation
from shoal.model.request import Request
from shoal.placement.classes import PodClass
from shoal.placement.columns import SHARES, WHOLE, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.trial import NeedTables, Trial, take_lowest
from shoal.placement.worth.demand import allowed_models

LARGEST_CPU = 128_000.0
LARGEST_GPU = 8_000.0
#: GPU thousandths in one unit of share.
MILLI = 10


def gpu_free(trial: Trial) -> FloatArray:
    """Free GPU thousandths of the node."""
    free: FloatArray = (trial.code % SHARES).sum(axis=0) * float(MILLI)
    return free


def gpu_wanted(trial: Trial) -> FloatArray:
    """GPU thousandths of the pod; a share of memory counts as the part it fills of the node's cards, on the average."""
    kinds = trial.code // SHARES
    there = kinds > 0
    total = np.zeros(len(trial.rows))
    for tables in trial.tables.needs:
        total += tables.need.gpus * np.where(there, tables.sizes[kinds], 0).sum(axis=0)
    wanted: FloatArray = MILLI * total / np.maximum(there.sum(axis=0), 1)
    return wanted


def truncated(values: FloatArray) -> FloatArray:
    """Scores are whole numbers there."""
    return np.trunc(values)


class BestFit:
    """trunc(100·(1 - (CPU left / largest + GPU left / largest) / 2))."""

    def score(self, trial: Trial) -> FloatArray:
        cpu = trial.cpu_after / LARGEST_CPU
        gpu = (gpu_free(trial) - gpu_wanted(trial)) / LARGEST_GPU
        return truncated(100 * (1 - 0.5 * (cpu + gpu)))


class DotProduct:
    """trunc(100·(1 - (free CPU·pod CPU + free GPU·pod GPU) / 2)), each against the largest node."""

    def score(self, trial: Trial) -> FloatArray:
        cpu = trial.cpu_free / LARGEST_CPU * (trial.pod_class.cpu / LARGEST_CPU)
        gpu = gpu_free(trial) / LARGEST_GPU * (gpu_wanted(trial) / LARGEST_GPU)
        return truncated(100 * (1 - 0.5 * (cpu + gpu)))


class GpuPacking:
    """An empty node 33 - its cards; untouched cards needed 50 - their number (at least 33); else 100 - free/10."""

    def score(self, trial: Trial) -> FloatArray:
        if not trial.pod_class.wants_gpu:
            return np.zeros(len(trial.rows))
        cards = (trial.code >= SHARES).sum(axis=0)
        untouched = trial.untouched_used
        index = np.arange(len(trial.rows))
        used = sum((trial.code % SHARES)[slots, index].sum(axis=0) for slots in trial.picks.slots)
        score = np.maximum(100 - used * MILLI // 10 // 10, 50)
        score = np.where(untouched > 0, np.maximum(50 - untouched, 33), score)
        packed: FloatArray = np.where(trial.whole_free == cards, np.maximum(33 - cards, cards), score).astype(
            np.float64
        )
        return packed


def _kind_of(allocation: Allocation) -> int:
    """-1 for none, 0 for shares, else the number of whole cards."""
    shares = list(allocation.held().values())
    return -1 if not shares else sum(share.exclusive for share in shares)


class GpuClustering:
    """25 by how full the node is, plus 75, 50, 25 or 0: only this kind there, also this kind, nobody, only others."""

    def score(self, trial: Trial) -> FloatArray:
        if not trial.pod_class.wants_gpu:
            return np.zeros(len(trial.rows))
        full = 25 * (LARGEST_GPU - gpu_free(trial)) // LARGEST_GPU
        wanted = trial.pod_class.whole
        company: FloatArray = np.array([self._company(trial, int(row), wanted) for row in trial.rows])
        return company + full

    @staticmethod
    def _company(trial: Trial, row: int, wanted: int) -> float:
        kinds = {_kind_of(booking.allocation) for booking in trial.ledger.node_at(row).pods.values()} - {-1}
        if wanted in kinds:
            return 75.0 if len(kinds) == 1 else 50.0
        return 0.0 if kinds else 25.0


#: The typical pods are the most frequent ones that make up this part of all.
TYPICAL = 0.95
#: Room for the number of cards in a tally, and the mask that takes it back out.
_COUNT_BITS = 16
_COUNT_MASK = (1 << _COUNT_BITS) - 1


class TypicalPods:
    """The most frequent pods, grouped by cards and size: within a group only CPU and models tell them apart."""

    def __init__(self, requests: Iterable[Request]) -> None:
        counts = Counter((request.cpu_milli, request.containers, request.selector) for request in requests)
        total = sum(counts.values())
        kept: list[tuple[PodClass, int]] = []
        covered = 0
        for (cpu, containers, selector), count in counts.most_common():
            if covered >= TYPICAL * total:
                break
            kept.append((PodClass(Request(containers, cpu, 0, selector)), count))
            covered += count
        #: Typical pods that take a GPU, each with its part of all typical pods.
        self._pods = [(pod_class, count / covered) for pod_class, count in kept if pod_class.needs]
        groups = sorted({(_size(pod_class), _cards(pod_class)) for pod_class, _ in self._pods})
        self._group_of = {group: i for i, group in enumerate(groups)}
        self._cards = np.array([cards for _, cards in groups], np.int64)
        sizes = np.array(sorted({0, *(size for size, _ in groups)}), np.int64)
        self._size_of = np.searchsorted(sizes, np.array([size for size, _ in groups], np.int64))
        share = np.arange(SHARES)[:, None]
        #: What a card with this free share adds to each size it is large enough for, [share, size]: its thousandths,
        #: and below them 1 for the card itself.
        self._tallies = np.where(share >= sizes, share * MILLI << _COUNT_BITS | 1, 0)
        self._cpu_levels = np.array(sorted({pod_class.cpu for pod_class, _ in self._pods}), np.int64)
        self._parts = np.zeros((0, 0, 0))
        self._models: list[str] = []

    def _served(self, columns: Columns) -> FloatArray:
        """The part of all typical pods that a node can serve: by its model, the level of its CPU, and group."""
        if self._models != columns.models:
            self._models = list(columns.models)
            self._parts = np.zeros((len(columns.models), len(self._cpu_levels) + 1, len(self._cards)))
            for pod_class, part in self._pods:
                group = self._group_of[_size(pod_class), _cards(pod_class)]
                first = int(np.searchsorted(self._cpu_levels, pod_class.cpu)) + 1
                allowed = allowed_models(pod_class, columns)
                for model in range(len(columns.models)):
                    if allowed >> model & 1:
                        self._parts[model, first:, group] += part
        return self._parts

    def tally(self, share: IntArray) -> IntArray:
        """Cards with these free shares, [..., size]; the tally of a node is the sum of its cards'."""
        return self._tallies.take(share, axis=0)

    def fragments(self, tally: IntArray, cpu: IntArray, model: IntArray, columns: Columns) -> FloatArray:
        """F: the free GPU thousandths that a typical pod cannot use, on the average; `tally` is [..., row, size].

        All of them for pods that find no place here, else those on cards with less free than the pod takes.
        """
        served = self._served(columns)[model, np.searchsorted(self._cpu_levels, cpu, side="right")]
        large = tally.take(self._size_of, axis=-1)
        usable = np.where(large & _COUNT_MASK >= self._cards, large >> _COUNT_BITS, 0)
        result: FloatArray = (tally[..., 0] >> _COUNT_BITS) - np.add.reduce(served * usable, axis=-1)
        return result


def _size(pod_class: PodClass) -> int:
    return max(need.share.compute or WHOLE for need in pod_class.needs)


def _cards(pod_class: PodClass) -> int:
    return sum(need.gpus for need in pod_class.needs)


class Gradient:
    """trunc(100·sigmoid((F(before) - F(after)) / 1000)), both as card rule and as score."""

    def __init__(self, typical: TypicalPods) -> None:
        self._typical = typical

    def keys(self, need: NeedTables) -> None:
        """The choice depends on the whole node."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        scores = np.zeros(fits.shape)
        able = np.flatnonzero(np.logical_or.reduce(fits, axis=0))
        if len(able):
            scores[:, able] = self._by_card(trial, need, able)
        return take_lowest(-scores, fits, need.need.gpus)

    def score(self, trial: Trial) -> FloatArray:
        """Left at 0 where the pod does not fit."""
        scores = np.zeros(len(trial.rows))
        able = np.flatnonzero(trial.found)
        code = trial.code[:, able]
        before = np.add.reduce(self._typical.tally(code % SHARES), axis=0)
        after = before.copy()
        for slots, tables in zip(trial.picks.slots, trial.tables.needs, strict=True):
            taken = code[slots[:, able], np.arange(len(able))]
            more = self._typical.tally(tables.left.take(taken)) - self._typical.tally(taken % SHARES)
            after += np.add.reduce(more, axis=0)
        scores[able] = self._gain(trial, able, before, after)
        return scores

    def _by_card(self, trial: Trial, need: NeedTables, able: Rows) -> FloatArray:
        """The score of taking each card, [slot, able]."""
        code = trial.code[:, able]
        cards = self._typical.tally(code % SHARES)
        before = np.add.reduce(cards, axis=0)
        return self._gain(trial, able, before, before - cards + self._typical.tally(need.left.take(code)))

    def _gain(self, trial: Trial, able: Rows, before: IntArray, after: IntArray) -> FloatArray:
        """The score of what tallies say."""
        model, fragments = trial.model[able], self._typical.fragments
        return _score(
            fragments(before, trial.cpu_free[able], model, trial.columns),
            fragments(after, trial.cpu_after[able], model, trial.columns),
        )


def _score(before: FloatArray, after: FloatArray) -> FloatArray:
    """The truncation is part of the policy; a difference that is only rounding must not fall to the next number."""
    return np.trunc(100 / (1 + np.exp((after - before) / 1000)) + 1e-9)
