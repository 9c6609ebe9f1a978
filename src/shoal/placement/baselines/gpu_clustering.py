"""GPU clustering: pods of a kind beside pods of the same kind (shares, one card, two cards, …)."""

from __future__ import annotations

import numpy as np

from shoal.model.allocation import Allocation
from shoal.placement.baselines.common import LARGEST_GPU, gpu_free
from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import Trial


def _kind_of(allocation: Allocation) -> int:
    """-1 for none, 0 for shares, else the number of whole cards."""
    shares = list(allocation.held().values())
    return -1 if not shares else sum(share.exclusive for share in shares)


class GpuClustering:
    """25 by how full the node is, plus 75, 50, 25 or 0: only this kind there, also this kind, nobody, only others."""

    def score(self, trial: Trial) -> FloatArray:
        if not trial.pod_class.wants_gpu:
            return np.zeros(len(trial.rows))
        full = 25 * (LARGEST_GPU - gpu_free(trial)) // LARGEST_GPU
        wanted = trial.pod_class.whole
        company: FloatArray = np.array([self._company(trial, int(row), wanted) for row in trial.rows])
        return company + full

    @staticmethod
    def _company(trial: Trial, row: int, wanted: int) -> float:
        kinds = {_kind_of(booking.allocation) for booking in trial.ledger.node_at(row).pods.values()} - {-1}
        if wanted in kinds:
            return 75.0 if len(kinds) == 1 else 50.0
        return 0.0 if kinds else 25.0
