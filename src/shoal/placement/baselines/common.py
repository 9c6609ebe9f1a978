"""The node as two numbers: CPU and GPU in thousandths, against the largest node of the openb trace."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import SHARES, FloatArray
from shoal.placement.trial import Trial

LARGEST_CPU = 128_000.0
LARGEST_GPU = 8_000.0
#: GPU thousandths in one unit of share.
MILLI = 10


def gpu_free(trial: Trial) -> FloatArray:
    """Free GPU thousandths of the node."""
    free: FloatArray = (trial.code % SHARES).sum(axis=0) * float(MILLI)
    return free


def gpu_wanted(trial: Trial) -> FloatArray:
    """GPU thousandths of the pod; a share of memory counts as the part it fills of the node's cards, on the average."""
    kinds = trial.code // SHARES
    there = kinds > 0
    total = np.zeros(len(trial.rows))
    for tables in trial.tables.needs:
        total += tables.need.gpus * np.where(there, tables.sizes[kinds], 0).sum(axis=0)
    wanted: FloatArray = MILLI * total / np.maximum(there.sum(axis=0), 1)
    return wanted


def truncated(values: FloatArray) -> FloatArray:
    """Scores are whole numbers there."""
    return np.trunc(values)
