"""Fragmentation gradient descent: the node and card on which the free GPUs stay the most useful to typical pods.

The typical pods are given beforehand: an oracle that the project's own policy does without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from shoal.model.request import Request
from shoal.placement.baselines.common import MILLI
from shoal.placement.classes import PodClass
from shoal.placement.columns import SHARES, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.demand import allowed_models
from shoal.placement.policy import Policy
from shoal.placement.trial import NeedTables, Trial, take_lowest

#: The typical pods are the most frequent ones that make up this part of all.
TYPICAL = 0.95


class TypicalPods:
    """The most frequent pods, as arrays over their classes."""

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
        self.classes = [pod_class for pod_class, _ in kept]
        self.part = np.array([count for _, count in kept]) / max(covered, 1)
        self.cpu = np.array([pod_class.cpu for pod_class in self.classes])
        self.gpus = np.array([sum(need.gpus for need in pod_class.needs) for pod_class in self.classes])
        milli = [_milli(pod_class) for pod_class in self.classes]
        #: The distinct sizes, and for each class the number of its size.
        self.sizes = np.array(sorted(set(milli)))
        self.size_of = np.searchsorted(self.sizes, milli)
        self._allowed = np.zeros((0, 0), np.bool_)
        self._models: list[str] = []

    def allowed(self, columns: Columns) -> BoolArray:
        """Which models each class may use, [class, model]; CPU-only classes use no GPU at all."""
        if self._models != columns.models:
            self._models = list(columns.models)
            masks = [allowed_models(pod_class, columns) if pod_class.needs else 0 for pod_class in self.classes]
            self._allowed = np.array([[mask >> i & 1 for i in range(len(columns.models))] for mask in masks], np.bool_)
        return self._allowed

    def fragments(self, free: IntArray, cpu: IntArray, model: Rows, columns: Columns) -> FloatArray:
        """F: the free GPU thousandths that a typical pod cannot use, on the average; `free` is [card, ..., row]."""
        inner = [1] * (free.ndim - 2)
        large = free[None] >= self.sizes.reshape(len(self.sizes), *([1] * free.ndim))
        enough = large.sum(axis=1)
        small = (free[None] * ~large).sum(axis=1)
        usable = self.allowed(columns)[:, model] & (self.cpu[:, None] <= cpu)
        usable = usable.reshape(len(self.cpu), *inner, len(cpu))
        usable = usable & (enough[self.size_of] >= self.gpus.reshape(len(self.cpu), *inner, 1))
        wasted = np.where(usable, small[self.size_of], free.sum(axis=0))
        result: FloatArray = np.tensordot(self.part, wasted, axes=1)
        return result


def _milli(pod_class: PodClass) -> int:
    return max((need.share.compute * MILLI or 1000 for need in pod_class.needs), default=0)


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
