"""Worth lost beyond what the pod itself is worth."""

from __future__ import annotations

import numpy as np

from shoal.placement.columns import FloatArray
from shoal.placement.trial import Trial


class Regret:
    """max(0, K - K' - q): free shares become less useful than by the pod's own size."""

    def score(self, trial: Trial) -> FloatArray:
        return np.maximum(0.0, trial.worth_lost - trial.price)
