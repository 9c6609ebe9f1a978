"""The card whose free share loses the least: the rule of the `fragmentation` policy."""

from __future__ import annotations

import numpy as np

from shoal.placement.columns import WHOLE, BoolArray, FloatArray, Rows
from shoal.placement.trial import NeedTables, Trial, take_lowest
from shoal.placement.weights import CARD_LEFT

#: Makes the smaller of two equally good free shares win, far below any other difference.
_SMALLER_FIRST = 1e-9


class LeastRegret:
    """Lowest max(0, w(g) - w(g-z) - price(z)) + CARD_LEFT·(g-z)/100; the smaller free share g among equals."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        if need.keys is None:
            need.keys = _keys(need)
        return take_lowest(need.keys.take(trial.code), fits, need.need.gpus)


def _keys(need: NeedTables) -> FloatArray:
    share = np.arange(len(need.left)) % (WHOLE + 1)
    regret = np.maximum(0.0, need.outcome[need.WORTH_LOST] - need.outcome[need.PRICE])
    keys: FloatArray = regret + CARD_LEFT * need.left / WHOLE + _SMALLER_FIRST * share
    return keys
