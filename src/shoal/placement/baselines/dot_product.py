"""Dot product: the node whose free resources point away from the pod's."""

from __future__ import annotations

from shoal.placement.baselines.common import LARGEST_CPU, LARGEST_GPU, gpu_free, gpu_wanted, truncated
from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import Trial


class DotProduct:
    """trunc(100·(1 - (free CPU·pod CPU + free GPU·pod GPU) / 2)), each against the largest node."""

    def score(self, trial: Trial) -> FloatArray:
        cpu = trial.cpu_free / LARGEST_CPU * (trial.pod_class.cpu / LARGEST_CPU)
        gpu = gpu_free(trial) / LARGEST_GPU * (gpu_wanted(trial) / LARGEST_GPU)
        return truncated(100 * (1 - 0.5 * (cpu + gpu)))
