"""GPUs that will lack CPU."""

from __future__ import annotations

from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import Trial


class Stranding:
    """S' - S: how many more GPU equivalents of the node are expected to lack CPU (`Valuation.stranding`)."""

    def score(self, trial: Trial) -> FloatArray:
        after = trial.valuation.stranding(trial.worth_after, trial.cpu_after)
        after -= trial.valuation.stranded[trial.rows]
        return after
