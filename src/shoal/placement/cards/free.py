"""The fullest or the emptiest card, by the very amounts: gpushare's rule and its opposite."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import BoolArray, FloatArray, Rows
from shoal.placement.trial import NeedTables, Trial, take_lowest


def _free(trial: Trial, need: NeedTables) -> FloatArray:
    """How much of what the pod asks for is free: memory if it asks for any, else MPS clients, else compute."""
    share = need.need.share
    columns = trial.columns
    if share.memory_mib:
        return columns.memory_free[trial.rows].T.astype(np.float64)
    if share.clients:
        return columns.clients_free[trial.rows].T.astype(np.float64)
    return columns.compute_free[trial.rows].T.astype(np.float64)


class LeastFree:
    """The card with the least free that still fits; the lowest index among equals."""

    def keys(self, need: NeedTables) -> None:
        """By exact amounts: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        return take_lowest(_free(trial, need), fits, need.need.gpus)


class MostFree:
    """The card with the most free; the lowest index among equals."""

    def keys(self, need: NeedTables) -> None:
        """By exact amounts: the code does not tell."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        return take_lowest(-_free(trial, need), fits, need.need.gpus)
