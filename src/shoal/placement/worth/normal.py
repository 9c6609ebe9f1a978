"""The normal distribution as tables: numpy has no error function, and a decision needs it for thousands of nodes."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.placement.columns import FloatArray

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


#: For `loss_at`, side by side for each step of the grid: where it begins, the slope, and the loss there.
_WIDTH = 3
_SLOPES = np.append(np.diff(_LOSS) / np.diff(_LOSS_GRID), 0.0)
_STEP = array("d", np.stack([_LOSS_GRID, _SLOPES, _LOSS], axis=1).tobytes())
_FIRST_NEAR = _WIDTH * len(_FAR)
_PER_UNIT = _STEPS / _REACH


def loss_at(t: float) -> float:
    """`loss` of one number: the same arithmetic, to the last bit."""
    if t >= _REACH:
        return _STEP[-1]
    if t >= -_REACH:
        i = _FIRST_NEAR + _WIDTH * int((t + _REACH) * _PER_UNIT)
        if _STEP[i] > t:
            i -= _WIDTH
        elif _STEP[i + _WIDTH] <= t:
            i += _WIDTH
    else:
        t = max(t, _FAR[0])
        i = _WIDTH * (t >= _FAR[1])
    return _STEP[i + 1] * (t - _STEP[i]) + _STEP[i + 2]
