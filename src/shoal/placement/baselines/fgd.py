"""Fragmentation gradient descent: the node and card on which the free GPUs stay the most useful to typical pods.

The typical pods are given beforehand: an oracle that the project's own policy does without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from shoal.model.request import Request
from shoal.placement.baselines.common import MILLI
from shoal.placement.books.columns import SHARES, WHOLE, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.classes import PodClass
from shoal.placement.policy import Policy
from shoal.placement.trial import NeedTables, Trial, take_lowest
from shoal.placement.worth.demand import allowed_models

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
        for slots, tables in zip(trial.picks[0], trial.tables.needs, strict=True):
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


def fgd_policy(requests: Iterable[Request]) -> Policy:
    """FGD for a workload whose pods are known."""
    gradient = Gradient(TypicalPods(requests))
    return Policy("fgd", gradient, ((1.0, gradient),))
