"""KETI's scores of measured load, with its faults corrected: a hot or crowded card is worth less, a card that draws no
power divides nothing, and nodes and cards are on one scale, 0 to 100.

KETI's engine adds, for a card, its pods, its temperature in °C, 11 where no pod is and else a tenth of its utilisation,
and the power of all cards of the node divided by its own; so hot and crowded cards win. Here the same terms count in
the right direction. Its terms for speed (flops, bandwidth) are no load, and left to who knows them. A term that was not
measured counts as its middle, so that a card which tells less is neither preferred nor avoided for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.placement.columns import FloatArray

#: The most that each term adds.
IDLE: Final = 11.0
COOL: Final = 100.0
POWER: Final = 100.0
#: The best sum of terms: an idle, cold card that draws nothing.
BEST: Final = IDLE + COOL + POWER


def node_score(*used: float | None) -> float | None:
    """The mean of 100·(1 - use) over CPU, memory and storage, as far as they were measured; None where none was."""
    known = [1.0 - min(max(part, 0.0), 1.0) for part in used if part is not None]
    return 100.0 * sum(known) / len(known) if known else None


def idle_term(pods: int, utilisation: float | None) -> float:
    """11 where no pod is, else a tenth of the idle percentage less one per pod, at least 0."""
    if not pods:
        return IDLE
    busy = 50.0 if utilisation is None else min(max(utilisation, 0.0), 100.0)
    return max(0.0, (100.0 - busy) / 10.0 - pods)


def load_terms(celsius: float | None, watts: float | None, watts_of_all: float) -> float:
    """What the temperature and the power of a card add: those terms that do not depend on its pods."""
    cool = COOL / 2 if celsius is None else min(max(COOL - celsius, 0.0), COOL)
    if watts is None:
        return cool + POWER / 2
    power = POWER if watts <= 0 else min(POWER, watts_of_all / watts)
    return cool + power


def card_score(
    *, pods: int, utilisation: float | None, celsius: float | None, watts: float | None, watts_of_all: float
) -> float:
    """The score of a card, 0 to 100."""
    return 100.0 / BEST * (idle_term(pods, utilisation) + load_terms(celsius, watts, watts_of_all))


def card_scores(pods: npt.NDArray[np.signedinteger[Any]], utilisation: FloatArray, terms: FloatArray) -> FloatArray:
    """`card_score` of many cards, by what `load_terms` gave each; NaN is not measured."""
    busy = np.where(np.isnan(utilisation), 50.0, utilisation).clip(0.0, 100.0)
    idle = np.where(pods == 0, IDLE, np.maximum(0.0, (100.0 - busy) / 10.0 - pods))
    scores: FloatArray = 100.0 / BEST * (idle + terms)
    return scores


def watts_together(watts: Sequence[float | None]) -> float:
    """The power of all cards of a node, as far as it was measured."""
    return sum(each for each in watts if each is not None and each > 0)
