"""Empty nodes first, or full nodes first."""

from __future__ import annotations

from shoal.placement.books.columns import SHARES, FloatArray
from shoal.placement.trial import Trial


class FreeShare:
    """The mean free share of the node's cards before the pod comes, 0..1."""

    def score(self, trial: Trial) -> FloatArray:
        cards = (trial.code >= SHARES).sum(axis=0)
        free: FloatArray = (trial.code % SHARES).sum(axis=0) / (SHARES - 1)
        free /= cards.clip(1)
        return free
