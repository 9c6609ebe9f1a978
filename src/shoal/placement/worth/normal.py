"""The normal distribution as tables: numpy has no error function, and a decision needs it for thousands of nodes."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.placement.books.columns import FloatArray

_REACH = 8.0
_STEPS = 8000
_GRID = np.linspace(-_REACH, _REACH, 2 * _STEPS + 1)
_CDF = np.array([0.5 * math.erfc(-t / math.sqrt(2)) for t in _GRID])
_LOSS = np.exp(-(_GRID**2) / 2) / math.sqrt(2 * math.pi) - _GRID * (1 - _CDF)
#: Far to the left the loss is -t: two more points make the interpolation follow it, the nearer one exactly enough.
_FAR = (-1e15, -1e6)
_LOSS_GRID = np.concatenate([_FAR, _GRID])
_LOSS = np.concatenate([np.negative(_FAR), np.maximum(_LOSS, 0.0)])


def cdf(t: FloatArray) -> FloatArray:
    """The probability that a standard normal variable is below t."""
    below: FloatArray = np.interp(t, _GRID, _CDF)
    return below


def loss(t: npt.NDArray[np.floating[Any]]) -> FloatArray:
    """The expected amount by which a standard normal variable exceeds t."""
    beyond: FloatArray = np.interp(t, _LOSS_GRID, _LOSS)
    return beyond


_LOSS_GRID_LIST: list[float] = _LOSS_GRID.tolist()
_LOSS_LIST: list[float] = _LOSS.tolist()
_LOSS_SLOPES: list[float] = (np.diff(_LOSS) / np.diff(_LOSS_GRID)).tolist()


def loss_at(t: float) -> float:
    """`loss` of one number: the same arithmetic, to the last bit."""
    if t >= _REACH:
        return _LOSS_LIST[-1]
    i = bisect_right(_LOSS_GRID_LIST, t) - 1
    return _LOSS_SLOPES[i] * (t - _LOSS_GRID_LIST[i]) + _LOSS_LIST[i]
