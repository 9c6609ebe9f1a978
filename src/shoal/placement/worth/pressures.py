"""Costs that follow the whole cluster: a model or a block of free cards that runs short everywhere.

A pressure prices what a class would take from a node by the state of the cluster at the moment of the decision. Its
cost is never negative, so what a node is worth without pressures is a bound on what it is worth with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.placement.columns import FloatArray, IntArray, Rows
from shoal.placement.trial import ClassTables
from shoal.placement.worth.valuation import Valuation


@dataclass(frozen=True, slots=True)
class Candidates:
    """Some nodes, and what a class would leave of them."""

    model: Rows
    worth_lost: FloatArray
    whole: IntArray
    whole_after: FloatArray
    cpu: IntArray
    cpu_after: IntArray


#: The cost of a pressure at its present prices, on some nodes.
Cost = Callable[[Candidates], FloatArray]


class Pressure(Protocol):
    """A cost whose prices are set by the cluster."""

    def spares(self, valuation: Valuation, tables: ClassTables, row: int, untouched_used: int) -> bool:
        """On this node the class takes nothing that could be short: whatever the prices, the cost is 0."""

    def at_present(self, valuation: Valuation, tables: ClassTables) -> Cost | None:
        """The cost for this class at the present prices; None when nothing it takes is short."""


class ScarceModel:
    """pM·(K - K'): worth taken from models that confined pods will lack (`Valuation.scarcity`)."""

    def spares(self, valuation: Valuation, tables: ClassTables, row: int, untouched_used: int) -> bool:
        return not tables.confining

    def at_present(self, valuation: Valuation, tables: ClassTables) -> Cost | None:
        prices = valuation.scarcity(tables.confining)
        if prices is None:
            return None

        def cost(nodes: Candidates) -> FloatArray:
            return prices.take(nodes.model) * nodes.worth_lost

        return cost


class BrokenBlock:
    """max over multi-GPU classes j of pB_j·k_j·(cap_j - cap_j'), leaving out those the pod is at least as hard as.

    Whole cards together with the CPU they need are worth more than the cards one by one.
    """

    def spares(self, valuation: Valuation, tables: ClassTables, row: int, untouched_used: int) -> bool:
        return valuation.keeps_blocks(row, untouched_used, tables.pod_class.cpu)

    def at_present(self, valuation: Valuation, tables: ClassTables) -> Cost | None:
        if not len(tables.block_gpus):
            return None
        prices = valuation.block_pressure() * tables.block_gpus
        pressed = np.flatnonzero(prices)
        if not len(pressed):
            return None
        price = prices[pressed, None]

        def cost(nodes: Candidates) -> FloatArray:
            lost = valuation.block_count(nodes.whole, nodes.cpu, nodes.model, pressed)
            lost -= valuation.block_count(nodes.whole_after, nodes.cpu_after, nodes.model, pressed)
            lost *= price
            worst: FloatArray = np.maximum.reduce(lost, axis=0)
            return worst

        return cost
