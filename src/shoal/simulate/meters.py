"""Time-weighted means of a quantity that changes in steps."""

from __future__ import annotations

from collections.abc import Sequence


class TimeMeans:
    """The means of a quantity over equal spans of the time from 0 to `horizon`."""

    def __init__(self, horizon: float, spans: int) -> None:
        self.width = horizon / spans
        self._areas = [0.0] * spans

    def hold(self, value: float, start: float, end: float) -> None:
        """The quantity was `value` from `start` to `end`."""
        last = len(self._areas) - 1
        span = min(int(start / self.width), last)
        while span < last and end > (edge := (span + 1) * self.width):
            self._areas[span] += value * (edge - start)
            start = edge
            span += 1
        self._areas[span] += value * (end - start)

    def means(self) -> list[float]:
        return [area / self.width for area in self._areas]

    def mean_from(self, span: int) -> float:
        """The mean over all spans from this one on."""
        return sum(self._areas[span:]) / (self.width * (len(self._areas) - span))


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of all do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -int(-part * len(ordered) // 1)
    return ordered[min(max(rank, 1), len(ordered)) - 1]
