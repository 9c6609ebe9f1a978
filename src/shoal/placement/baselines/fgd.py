"""Fragmentation gradient descent: the node and card on which the free GPUs stay the most useful to typical pods.

The typical pods are given beforehand: an oracle that the project's own policy does without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from shoal.model.request import Request
from shoal.placement.baselines.common import MILLI
from shoal.placement.books.columns import SHARES, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.classes import PodClass
from shoal.placement.policy import Policy
from shoal.placement.trial import NeedTables, Trial, take_lowest
from shoal.placement.worth.demand import allowed_models

#: The typical pods are the most frequent ones that make up this part of all.
TYPICAL = 0.95


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
        groups = sorted({(_milli(pod_class), _cards(pod_class)) for pod_class, _ in self._pods})
        self._group_of = {group: i for i, group in enumerate(groups)}
        self._cards = np.array([cards for _, cards in groups], np.int64)
        self._sizes = np.array(sorted({milli for milli, _ in groups}), np.int64)
        self._size_of = np.searchsorted(self._sizes, np.array([milli for milli, _ in groups], np.int64))
        self._cpu_levels = np.array(sorted({pod_class.cpu for pod_class, _ in self._pods}), np.int64)
        self._parts = np.zeros((0, 0, 0))
        self._models: list[str] = []

    def _served(self, columns: Columns) -> FloatArray:
        """The part of all typical pods that a node can serve: by its model, the level of its CPU, and group."""
        if self._models != columns.models:
            self._models = list(columns.models)
            self._parts = np.zeros((len(columns.models), len(self._cpu_levels) + 1, len(self._cards)))
            for pod_class, part in self._pods:
                group = self._group_of[_milli(pod_class), _cards(pod_class)]
                first = int(np.searchsorted(self._cpu_levels, pod_class.cpu)) + 1
                allowed = allowed_models(pod_class, columns)
                for model in range(len(columns.models)):
                    if allowed >> model & 1:
                        self._parts[model, first:, group] += part
        return self._parts

    def fragments(self, free: IntArray, cpu: IntArray, model: IntArray, columns: Columns) -> FloatArray:
        """F: the free GPU thousandths that a typical pod cannot use, on the average; `free` is [card, ..., row].

        All of them for pods that find no place here, else those on cards with less free than the pod takes.
        """
        level = np.searchsorted(self._cpu_levels, cpu, side="right")
        inner = [1] * (free.ndim - 2)
        served = self._served(columns)[model, level].T.reshape(len(self._cards), *inner, len(cpu))
        total = free.sum(axis=0)
        large = free[None] >= self._sizes.reshape(len(self._sizes), *([1] * free.ndim))
        enough = large.sum(axis=1)[self._size_of] >= self._cards.reshape(len(self._cards), *inner, 1)
        usable = (free[None] * large).sum(axis=1)[self._size_of]
        result: FloatArray = total - (served * enough * usable).sum(axis=0)
        return result


def _milli(pod_class: PodClass) -> int:
    return max(need.share.compute * MILLI or 1000 for need in pod_class.needs)


def _cards(pod_class: PodClass) -> int:
    return sum(need.gpus for need in pod_class.needs)


class Gradient:
    """trunc(100·sigmoid((F(before) - F(after)) / 1000)), both as card rule and as score."""

    def __init__(self, typical: TypicalPods) -> None:
        self._typical = typical

    def keys(self, need: NeedTables) -> None:
        """The choice depends on the whole node."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        return take_lowest(-self._by_card(trial, need), fits, need.need.gpus)

    def score(self, trial: Trial) -> FloatArray:
        free = self._free(trial)
        before = self._typical.fragments(free, trial.cpu_free, trial.model, trial.columns)
        after = free.copy()
        index = np.arange(len(trial.rows))
        for slots, tables in zip(trial.picks[0], trial.tables.needs, strict=True):
            after[slots, index] = tables.left.take(trial.code[slots, index]) * MILLI
        return _score(before, self._typical.fragments(after, trial.cpu_after, trial.model, trial.columns))

    def _by_card(self, trial: Trial, need: NeedTables) -> FloatArray:
        """The score of taking each card, [slot, row]."""
        free = self._free(trial)
        before = self._typical.fragments(free, trial.cpu_free, trial.model, trial.columns)
        slots = len(free)
        options = np.repeat(free[:, None, :], slots, axis=1)
        own = np.arange(slots)
        options[own, own] = need.left.take(trial.code) * MILLI
        return _score(before, self._typical.fragments(options, trial.cpu_after, trial.model, trial.columns))

    @staticmethod
    def _free(trial: Trial) -> IntArray:
        return trial.code % SHARES * MILLI


def _score(before: FloatArray, after: FloatArray) -> FloatArray:
    """The truncation is part of the policy; a difference that is only rounding must not fall to the next number."""
    return np.trunc(100 / (1 + np.exp((after - before) / 1000)) + 1e-9)


def fgd_policy(requests: Iterable[Request]) -> Policy:
    """FGD for a workload whose pods are known."""
    gradient = Gradient(TypicalPods(requests))
    return Policy("fgd", gradient, ((1.0, gradient),))
