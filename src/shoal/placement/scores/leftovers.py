"""What decides among nodes that are equally good: leave little behind."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import WHOLE, FloatArray
from shoal.placement.trial import NeedTables, Trial
from shoal.placement.weights import CPU_BOUND


class NodeWorth:
    """K': the worth left on the node."""

    def score(self, trial: Trial) -> FloatArray:
        return trial.worth_after


class CardLeft:
    """The share left on the card taken, 0..1."""

    def by_card(self, need: NeedTables) -> FloatArray:
        left: FloatArray = need.left / WHOLE
        return left


class CpuLeft:
    """The cores left on the node: for pods that take a GPU, and CPU_BOUND times as much for all where CPU runs out."""

    def score(self, trial: Trial) -> FloatArray:
        worth = trial.pod_class.wants_gpu + CPU_BOUND * trial.valuation.demand.cpu_bound
        return trial.cpu_after.astype(np.float64) * (0.001 * worth)
