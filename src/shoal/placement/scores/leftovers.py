"""What decides among nodes that are equally good: leave little behind."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import WHOLE, FloatArray
from shoal.placement.classes import PodClass
from shoal.placement.trial import ClassTables, NeedTables, OneScore, Trial
from shoal.placement.weights import CPU_BOUND
from shoal.placement.worth.valuation import Valuation


class NodeWorth:
    """K': the worth left on the node."""

    def score(self, trial: Trial) -> FloatArray:
        return trial.worth_after

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        return lambda node, worth_after, cpu_after: worth_after


class CardLeft:
    """The share left on the card taken, 0..1."""

    def by_card(self, need: NeedTables) -> FloatArray:
        left: FloatArray = need.left / WHOLE
        return left


class CpuLeft:
    """The cores left on the node: for pods that take a GPU, and CPU_BOUND times as much for all where CPU runs out."""

    def score(self, trial: Trial) -> FloatArray:
        return trial.cpu_after.astype(np.float64) * _cpu_worth(trial.pod_class, trial.valuation)

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        worth = _cpu_worth(tables.pod_class, valuation)
        return lambda node, worth_after, cpu_after: cpu_after * worth


def _cpu_worth(pod_class: PodClass, valuation: Valuation) -> float:
    """What a thousandth of a core counts."""
    return 0.001 * (pod_class.wants_gpu + CPU_BOUND * valuation.demand.cpu_bound)
