"""Worth lost beyond what the pod itself is worth."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import NeedTables


class Regret:
    """max(0, w(g) - w(g-z) - price(z)): the free share becomes less useful than by the pod's own size."""

    def by_card(self, need: NeedTables) -> FloatArray:
        regret: FloatArray = np.maximum(0.0, need.worth_lost - need.price)
        return regret
