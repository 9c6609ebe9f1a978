"""Any card that will do: what the policies that choose are compared with."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import BoolArray, Rows
from shoal.placement.trial import NeedTables, Trial, take_lowest


class AnyCard:
    """Each card that fits is as likely as the others."""

    def keys(self, need: NeedTables) -> None:
        """Chance decides: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        lots = np.zeros(fits.shape)
        if trial.rng is not None:
            lots[:] = np.array([trial.rng.random() for _ in range(fits.size)]).reshape(fits.shape)
        return take_lowest(lots, fits, need.need.gpus)
