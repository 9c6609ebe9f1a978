"""Which untouched cards go together: the most NVLink lanes among them, then one NUMA node, then the lowest indices.

A pod of one card takes one whose links would not be missed. Exact for up to `_SETS` sets of cards, greedy beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from math import comb
from operator import ge

from shoal.model.gpu import Gpu

#: 8 cards of 16 make 12,870 sets; a node with 8 cards never has more than 70.
_SETS = 2000


def closest(cards: Sequence[Gpu], sizes: Sequence[int]) -> list[int]:
    """The positions of the cards that belong together the most, one for each size of memory, the largest size first.

    Empty when there are not cards for all of them.
    """
    alike = sizes[0] == sizes[-1]
    usable = [i for i, card in enumerate(cards) if card.memory_mib >= sizes[-1]]
    if not _enough(usable, cards, sizes):
        return []
    no_matter = alike and not any(cards[i].links or cards[i].numa is not None for i in usable)
    if no_matter or len(usable) == len(sizes):
        return usable[: len(sizes)]
    lanes = lane_matrix(cards)
    if comb(len(usable), len(sizes)) <= _SETS:
        sets = (chosen for chosen in combinations(usable, len(sizes)) if alike or _enough(chosen, cards, sizes))
        return list(max(sets, key=lambda chosen: _rank(tuple(chosen), usable, cards, lanes)))
    chosen: list[int] = []
    for size in sizes:
        rest = (i for i in usable if i not in chosen and cards[i].memory_mib >= size)
        chosen.append(max(rest, key=lambda i: _rank((*chosen, i), usable, cards, lanes)))
    return sorted(chosen)


def _enough(chosen: Sequence[int], cards: Sequence[Gpu], sizes: Sequence[int]) -> bool:
    """There is a card for each size."""
    have = sorted((cards[i].memory_mib for i in chosen), reverse=True)
    return len(have) >= len(sizes) and all(map(ge, have, sizes))


def lane_matrix(cards: Sequence[Gpu]) -> list[list[int]]:
    """NVLink lanes between each two of the cards."""
    place = {card.uuid: i for i, card in enumerate(cards)}
    lanes = [[0] * len(cards) for _ in cards]
    for i, card in enumerate(cards):
        for link in card.links:
            j = place.get(link.peer)
            if j is not None and j != i:
                lanes[i][j] = lanes[j][i] = max(lanes[i][j], link.lanes)
    return lanes


def _rank(
    chosen: Sequence[int], usable: Sequence[int], cards: Sequence[Gpu], lanes: list[list[int]]
) -> tuple[int, int, int, list[int]]:
    """Lanes inside, lanes cut (fewer is better), NUMA nodes spanned (fewer is better), then the lowest indices."""
    inside = sum(lanes[i][j] for i, j in combinations(chosen, 2))
    cut = sum(lanes[i][j] for i in chosen for j in usable if j not in chosen)
    numa = len({cards[i].numa for i in chosen})
    return inside, -cut, -numa, [-i for i in chosen]


def closeness(cards: Sequence[Gpu], sizes: Sequence[int]) -> float:
    """How well the closest set hangs together, 0..1: the part of its pairs that are linked, or on one NUMA node."""
    chosen = closest(cards, sizes)
    if len(chosen) < 2:
        return 0.0
    lanes = lane_matrix(cards)
    pairs = list(islice(combinations(chosen, 2), _SETS))
    linked = sum(1.0 if lanes[i][j] else 0.5 * _same_numa(cards[i], cards[j]) for i, j in pairs)
    return linked / len(pairs)


def _same_numa(one: Gpu, other: Gpu) -> bool:
    return one.numa is not None and one.numa == other.numa
