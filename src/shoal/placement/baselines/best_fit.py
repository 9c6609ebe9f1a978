"""Best fit: the least CPU and GPU left over."""

from __future__ import annotations

from shoal.placement.baselines.common import LARGEST_CPU, LARGEST_GPU, gpu_free, gpu_wanted, truncated
from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import Trial


class BestFit:
    """trunc(100·(1 - (CPU left / largest + GPU left / largest) / 2))."""

    def score(self, trial: Trial) -> FloatArray:
        cpu = trial.cpu_after / LARGEST_CPU
        gpu = (gpu_free(trial) - gpu_wanted(trial)) / LARGEST_GPU
        return truncated(100 * (1 - 0.5 * (cpu + gpu)))
