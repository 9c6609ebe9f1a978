"""Card rules: which card of a node a share goes to. Whole cards are alike to them; `topology` chooses among those."""

from __future__ import annotations

import numpy as np

from shoal.placement.columns import WHOLE, BoolArray, FloatArray, Rows
from shoal.placement.scores import Regret
from shoal.placement.trial import NeedTables, Trial, take_lowest
from shoal.placement.weights import CARD_LEFT

#: Makes the smaller of two equally good free shares win, far below any other difference.
_SMALLER_FIRST = 1e-9


class LeastRegret:
    """Lowest max(0, w(g) - w(g-z) - price(z)) + CARD_LEFT·(g-z)/100; the smaller free share g among equals."""

    def keys(self, need: NeedTables) -> FloatArray:
        keys: FloatArray = Regret().by_card(need) + CARD_LEFT / WHOLE * need.left + _SMALLER_FIRST * need.share
        return keys

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        keys = self.keys(need) if need.keys is None else need.keys
        return take_lowest(keys.take(trial.code), fits, need.need.gpus)


def _free(trial: Trial, need: NeedTables) -> FloatArray:
    """How much of what the pod asks for is free: memory if it asks for any, else MPS clients, else compute."""
    share = need.need.share
    columns = trial.columns
    if share.memory_mib:
        return columns.memory_free[trial.rows].T.astype(np.float64)
    if share.clients:
        return columns.clients_free[trial.rows].T.astype(np.float64)
    return columns.compute_free[trial.rows].T.astype(np.float64)


class LeastFree:
    """The card with the least free that still fits; the lowest index among equals."""

    def keys(self, need: NeedTables) -> None:
        """By exact amounts: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        return take_lowest(_free(trial, need), fits, need.need.gpus)


class MostFree:
    """The card with the most free; the lowest index among equals."""

    def keys(self, need: NeedTables) -> None:
        """By exact amounts: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        return take_lowest(-_free(trial, need), fits, need.need.gpus)


class AnyCard:
    """Each card that fits is as likely as the others."""

    def keys(self, need: NeedTables) -> None:
        """Chance decides: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        lots = np.zeros(fits.shape)
        if trial.rng is not None:
            lots[:] = np.array([trial.rng.random() for _ in range(fits.size)]).reshape(fits.shape)
        return take_lowest(lots, fits, need.need.gpus)
