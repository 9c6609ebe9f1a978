"""GPU packing: used cards first, then used nodes, then empty nodes."""

from __future__ import annotations

import numpy as np

from shoal.placement.baselines.common import MILLI
from shoal.placement.books.columns import SHARES, FloatArray
from shoal.placement.trial import Trial


class GpuPacking:
    """An empty node 33 - its cards; untouched cards needed 50 - their number (at least 33); else 100 - free/10."""

    def score(self, trial: Trial) -> FloatArray:
        if not trial.pod_class.wants_gpu:
            return np.zeros(len(trial.rows))
        cards = (trial.code >= SHARES).sum(axis=0)
        untouched = trial.untouched_used
        index = np.arange(len(trial.rows))
        used = sum((trial.code % SHARES)[slots, index].sum(axis=0) for slots in trial.picks[0])
        score = np.maximum(100 - used * MILLI // 10 // 10, 50)
        score = np.where(untouched > 0, np.maximum(50 - untouched, 33), score)
        packed: FloatArray = np.where(trial.whole_free == cards, np.maximum(33 - cards, cards), score).astype(
            np.float64
        )
        return packed
