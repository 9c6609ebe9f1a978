"""What a policy is: a card rule and weighted scores. The policies by name are in `policies`."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.placement.filters.card_fit import CardFit
from shoal.placement.filters.node_resources import NodeResources
from shoal.placement.trial import CardRule, CardScore, Filter, Score
from shoal.placement.worth.pressures import Pressure

#: What a node must have besides cards.
FILTERS: tuple[Filter, ...] = (NodeResources(),)
#: Asked last, under every policy.
CARD_FIT: Filter = CardFit()


@dataclass(frozen=True)
class Policy:
    """A named way to choose."""

    name: str
    cards: CardRule
    scores: tuple[tuple[float, Score], ...] = ()
    card_scores: tuple[tuple[float, CardScore], ...] = ()
    pressures: tuple[tuple[float, Pressure], ...] = ()
    grain: float = 0.0
    ties: tuple[tuple[float, Score], ...] = ()
    card_ties: tuple[tuple[float, CardScore], ...] = ()
    filters: tuple[Filter, ...] = FILTERS
    #: The policy looks at what is in demand; the others do without.
    learns: bool = False
    #: Take the best node (0), or the second best (1) where there is one.
    rank: int = 0
    #: Any node that fits will do.
    random: bool = False
