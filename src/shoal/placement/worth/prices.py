"""What a free piece of a card is worth, from the sizes that are in demand.

One linear program: cut the cluster's cards (each `WHOLE` units long) into pieces of the sizes asked for, so that the
most demand is met. Demand beyond what is seen counts a little too (`BEYOND`), so that no size becomes worthless. The
dual value of a size is its price; the worth of a free piece is the best total price that can be cut from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import highspy
import numpy as np

from shoal.placement.columns import SHARES, WHOLE, FloatArray
from shoal.placement.weights import BEYOND


@dataclass(frozen=True)
class Worth:
    """`worth[g]`: value of a free share g, a whole card being 1. `price[z]`: value of a pod that takes z of a card."""

    worth: FloatArray
    price: FloatArray


def flat_worth() -> Worth:
    """Before any demand is known every unit is worth the same."""
    line = np.arange(SHARES) / WHOLE
    return Worth(line, line)


def worth_of(demand: Mapping[int, float], cards: float) -> Worth:
    """The worths under a demand of `demand[z]` pieces of size z, scaled to fill `cards` cards."""
    sizes = sorted(size for size, pieces in demand.items() if pieces > 0)
    total = sum(demand[size] * size for size in sizes) / WHOLE
    if not sizes or total <= 0 or cards <= 0:
        return flat_worth()
    wanted = np.array([demand[size] * cards / total for size in sizes])
    prices = _piece_prices(sizes, wanted, cards)
    worth = _best_cut(sizes, prices)
    if worth[WHOLE] <= 0:
        return flat_worth()
    return _normalised(dict(zip(sizes, prices, strict=True)), worth)


def _normalised(prices: Mapping[int, float], worth: FloatArray) -> Worth:
    """A size nobody asks for costs w(z): no card loses less by it, since two cuts side by side are a cut too."""
    scaled = worth / worth[WHOLE]
    price = scaled.copy()
    for size, value in prices.items():
        price[size] = value / worth[WHOLE]
    price[WHOLE] = 1.0
    return Worth(scaled, price)


def _best_cut(sizes: list[int], prices: FloatArray) -> FloatArray:
    """The best total price that fits into each length: an unbounded knapsack."""
    best = np.zeros(SHARES)
    for length in range(1, SHARES):
        best[length] = max(
            best[length - 1],
            max(
                (best[length - size] + price for size, price in zip(sizes, prices, strict=True) if size <= length),
                default=0.0,
            ),
        )
    return best


def _piece_prices(sizes: list[int], wanted: FloatArray, cards: float) -> FloatArray:
    """The dual prices of the cutting problem, written as flow along a card from position 0 to `WHOLE`.

    Columns: for each size its arcs (p, p+size), then the waste arcs (p, p+1), then per size the pieces that meet seen
    demand and those beyond it. Rows: flow kept at the inner positions, flow out of 0, and per size arcs = pieces.
    """
    starts = [np.arange(WHOLE - size + 1) for size in sizes]
    arcs = sum(len(start) for start in starts)
    waste = np.arange(WHOLE)
    tail = np.concatenate([*starts, waste])
    head = np.concatenate([*(start + size for start, size in zip(starts, sizes, strict=True)), waste + 1])
    count = len(sizes)
    columns = arcs + WHOLE + 2 * count
    piece_row = WHOLE  # rows 0..WHOLE-1: flow at positions; from here on: one row per size

    # Entries as (column, row, value): an arc takes flow from its tail, brings it to its head, and makes one piece.
    arc = np.arange(arcs + WHOLE)
    inner = head < WHOLE
    sized = np.concatenate([np.full(len(start), piece_row + i) for i, start in enumerate(starts)])
    pieces = arcs + WHOLE + np.arange(2 * count)
    column = np.concatenate([arc, arc[inner], arc[:arcs], pieces])
    row = np.concatenate([tail, head[inner], sized, piece_row + np.arange(2 * count) % count])
    value = np.concatenate([np.ones(len(arc)), -np.ones(int(inner.sum())), np.ones(arcs), -np.ones(2 * count)])
    order = np.lexsort((row, column))

    lp = highspy.HighsLp()
    lp.num_col_ = columns
    lp.num_row_ = WHOLE + count
    share = np.array(sizes) / WHOLE
    lp.col_cost_ = np.concatenate([np.zeros(arcs + WHOLE), -share, -BEYOND * share])
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.concatenate([np.full(arcs + WHOLE, np.inf), wanted, BEYOND * wanted])
    lp.row_lower_ = np.concatenate([[0.0], np.zeros(WHOLE - 1), np.zeros(count)])
    lp.row_upper_ = np.concatenate([[cards], np.zeros(WHOLE - 1), np.zeros(count)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=columns))])
    lp.a_matrix_.index_ = row[order]
    lp.a_matrix_.value_ = value[order]

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    duals: FloatArray = np.abs(np.array(solver.getSolution().row_dual)[WHOLE:])
    return duals
