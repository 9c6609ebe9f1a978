"""The node as two numbers: CPU and GPU in thousandths, against the largest node of the openb trace."""

from __future__ import annotations

from statistics import fmean

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


def gpu_wanted(trial: Trial) -> float:
    """GPU thousandths of the pod; a share of memory counts as the part of a card it fills, on the average."""
    kinds = trial.columns.kinds[1:]
    sizes = (need.gpus * fmean(need.size_on(kind) for kind in kinds) for need in trial.pod_class.needs if kinds)
    return MILLI * sum(sizes)


def truncated(values: FloatArray) -> FloatArray:
    """Scores are whole numbers there."""
    return np.trunc(values)
