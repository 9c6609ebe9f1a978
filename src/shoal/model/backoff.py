"""How long to wait after failures in a row: the one rule for all who try again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` seconds after the first failure, twice as long after each further one, up to `longest`."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row; none after none."""
        # The bound on the exponent only keeps the number finite.
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 64)) if failures > 0 else 0.0

    def longer(self, pause: float) -> float:
        """The pause after one of this length."""
        return min(self.longest, pause * 2.0) if pause else self.first

    def jittered(self, failures: int, rng: random.Random, *, least: float = 0.5, most: float = 1.0) -> float:
        """The pause times a random factor, so that many who failed at once do not come back at once."""
        return self.after(failures) * rng.uniform(least, most)
