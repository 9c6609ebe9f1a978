"""Some models rather than others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.model.request import matches_model
from shoal.placement.books.columns import FloatArray
from shoal.placement.trial import ClassTables, OneScore, Trial
from shoal.placement.worth.valuation import Valuation


class ModelPreference:
    """1 for nodes with the first model of the list, falling evenly to 0 for those with none of them."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = tuple(models)

    def score(self, trial: Trial) -> FloatArray:
        by_model = np.array([self._rank(model) for model in trial.columns.models])
        score: FloatArray = by_model[trial.model]
        return score

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        by_model = [self._rank(model) for model in tables.models]
        return lambda node, worth_after, cpu_after: by_model[node.model]

    def _rank(self, model: str) -> float:
        for i, wanted in enumerate(self._models):
            if any(matches_model(part, wanted) for part in model.split("+")):
                return 1.0 - i / len(self._models)
        return 0.0
