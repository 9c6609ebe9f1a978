"""The card whose free share loses the least: the rule of the `fragmentation` policy."""

from __future__ import annotations

from shoal.placement.books.columns import WHOLE, BoolArray, FloatArray, Rows
from shoal.placement.scores.regret import Regret
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
