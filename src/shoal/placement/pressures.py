"""Costs that follow the whole cluster: a model or a block of free cards that runs short everywhere.

A pressure keeps what a class would take away from each node, and prices it by the state of the cluster at the moment
of the decision. A price is never negative, so a node's cost without pressures is a bound on its cost with them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.placement.columns import FloatArray, Rows
from shoal.placement.demand import ModelSet
from shoal.placement.trial import Trial
from shoal.placement.valuation import Valuation

#: What a class takes away from each node: one line per thing that can run short.
Takings = npt.NDArray[np.float64] | npt.NDArray[np.float32]


class Pressure(Protocol):
    """A cost whose price is set by the cluster."""

    def lines(self, valuation: Valuation) -> int:
        """How many lines of takings it keeps."""

    def takings(self, trial: Trial) -> Takings:
        """What the class would take from the trial's nodes, [line, row]."""

    def prices(self, valuation: Valuation, models: ModelSet) -> FloatArray | None:
        """The present prices for a pod allowed on these models; None when nothing is short."""

    def cost(self, prices: FloatArray, takings: Takings, rows: Rows, valuation: Valuation) -> FloatArray:
        """The cost on these nodes."""


class ScarceModel:
    """pM·(K - K'): worth taken from models that confined pods will lack (`Valuation.scarcity`)."""

    def lines(self, valuation: Valuation) -> int:
        return 1 if valuation.demand.model_sets else 0

    def takings(self, trial: Trial) -> Takings:
        return trial.worth_lost[None, :]

    def prices(self, valuation: Valuation, models: ModelSet) -> FloatArray | None:
        prices = valuation.scarcity(models)
        return prices if prices.any() else None

    def cost(self, prices: FloatArray, takings: Takings, rows: Rows, valuation: Valuation) -> FloatArray:
        cost: FloatArray = prices.take(valuation.model(rows)) * takings[0]
        return cost


class BrokenBlock:
    """max over multi-GPU classes j of pB_j·k_j·(cap_j - cap_j'), leaving out those the pod is at least as hard as.

    Whole cards together with the CPU they need are worth more than the cards one by one.
    """

    def lines(self, valuation: Valuation) -> int:
        return len(valuation.demand.blocks.models)

    def takings(self, trial: Trial) -> Takings:
        lost = trial.valuation.blocks[:, trial.rows]
        lost -= trial.valuation.block_count(trial.whole_after, trial.cpu_after, trial.model)
        lost *= trial.tables.block_gpus
        return lost

    def prices(self, valuation: Valuation, models: ModelSet) -> FloatArray | None:
        prices = valuation.block_pressure()
        return prices if prices.any() else None

    def cost(self, prices: FloatArray, takings: Takings, rows: Rows, valuation: Valuation) -> FloatArray:
        pressed = prices > 0
        cost: FloatArray = (takings[pressed] * prices[pressed, None]).max(axis=0)
        return cost
