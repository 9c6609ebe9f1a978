"""GPUs that will lack CPU."""

from __future__ import annotations

from shoal.placement.books.columns import FloatArray, PlainNode
from shoal.placement.trial import ClassTables, OneScore, Trial
from shoal.placement.worth.valuation import Valuation


class Stranding:
    """S' - S: how many more GPU equivalents of the node are expected to lack CPU (`Valuation.stranding`)."""

    def score(self, trial: Trial) -> FloatArray:
        after = trial.valuation.stranding(trial.worth_after, trial.cpu_after)
        after -= trial.valuation.stranded[trial.rows]
        return after

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        def score(node: PlainNode, worth_after: float, cpu_after: int) -> float:
            return valuation.stranding_at(worth_after, cpu_after) - valuation.stranded_at[node.row]

        return score
