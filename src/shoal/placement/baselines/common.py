"""The node as two numbers: CPU and GPU in thousandths, against the largest node of the openb trace."""

from __future__ import annotations

import numpy as np

from shoal.placement.classes import PodClass
from shoal.placement.columns import SHARES, CardKind, FloatArray
from shoal.placement.trial import Trial

LARGEST_CPU = 128_000.0
LARGEST_GPU = 8_000.0
#: GPU thousandths in one unit of share.
MILLI = 10


def gpu_free(trial: Trial) -> FloatArray:
    """Free GPU thousandths of the node."""
    free: FloatArray = (trial.code % SHARES).sum(axis=0) * float(MILLI)
    return free


def gpu_wanted(pod_class: PodClass) -> float:
    """GPU thousandths of the pod; shares of memory count as parts of a card they would fill."""
    any_card = CardKind("", 0, 0)
    return float(sum(need.gpus * need.size_on(any_card) for need in pod_class.needs) * MILLI)


def truncated(values: FloatArray) -> FloatArray:
    """Scores are whole numbers there."""
    return np.trunc(values)
