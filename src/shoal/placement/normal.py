"""The normal distribution as tables: numpy has no error function, and a decision needs it for thousands of nodes."""

from __future__ import annotations

import math

import numpy as np

from shoal.placement.columns import FloatArray

_REACH = 6.0
_STEPS = 6000
_GRID = np.linspace(0.0, _REACH, _STEPS + 1)
_UPPER = np.array([0.5 * math.erfc(t / math.sqrt(2)) for t in _GRID])
_DENSITY = np.exp(-(_GRID**2) / 2) / math.sqrt(2 * math.pi)
_LOSS = _DENSITY - _GRID * _UPPER


def cdf(t: FloatArray) -> FloatArray:
    """The probability that a standard normal variable is below t."""
    upper = np.interp(np.abs(t), _GRID, _UPPER)
    below: FloatArray = np.where(t > 0, 1.0 - upper, upper)
    return below


def loss(t: FloatArray) -> FloatArray:
    """The expected amount by which a standard normal variable exceeds t."""
    result: FloatArray = np.interp(np.abs(t), _GRID, _LOSS)
    result -= np.minimum(t, 0.0)
    return result
