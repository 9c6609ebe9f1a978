"""Could a node take a pod if all its cards were empty? If not, no preemption helps there.

Asked for thousands of nodes at a time, of which most have the same cards: each set of cards is tried once per class.
Cards that are unhealthy or cut into partitions count as usable, so a yes may still turn out wrong; a no never does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.model.bounded_cache import BoundedCache
from shoal.model.gpu import Gpu
from shoal.placement.classes import PodClass
from shoal.placement.columns import ALIVE, SHARES, BoolArray, Rows
from shoal.placement.filters import CardFit
from shoal.placement.ledger import CardLedger, Ledger, NodeLedger

#: Classes, and sets of cards of each, that are remembered.
_CLASSES: Final = 1_000
_SETS: Final = 1_000
_MAX_KEY: Final = 2**62

#: How many makes of cards there were, and a node's cards as digits to that base.
_Key = tuple[int, int]


class EmptyNodes:
    """Remembers the answers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._card_fit = CardFit()
        self._known: BoundedCache[PodClass, BoundedCache[_Key, bool]] = BoundedCache(_CLASSES)

    def refuse(self, pod_class: PodClass, rows: Rows) -> BoolArray:
        """For each of these nodes, whether it could not take the pod even if nobody else were there."""
        refused = self._by_cards(pod_class, rows)
        if pod_class.several:
            refused = refused | (self._ledger.columns.alive[rows] < ALIVE)
        return refused

    def _by_cards(self, pod_class: PodClass, rows: Rows) -> BoolArray:
        columns, selector = self._ledger.columns, pod_class.selector
        base = len(columns.kinds)
        if selector.uuids or selector.not_uuids or base**columns.slots > _MAX_KEY:
            return np.zeros(len(rows), np.bool_)  # cards of one make are not alike then, or sets too many to tell apart
        # The makes of a node's cards, slot by slot, as the digits of one number.
        keys = columns.code[rows] // SHARES @ base ** np.arange(columns.slots, dtype=np.int64)
        known = self._known.of(pod_class, lambda: BoundedCache(_SETS))
        if len(keys) and (keys == keys[0]).all():
            return np.full(len(keys), self._answer(known, pod_class, (base, int(keys[0]))))
        sets, places = np.unique(keys, return_inverse=True)
        answers = [self._answer(known, pod_class, (base, key)) for key in sets.tolist()]
        return np.array(answers, np.bool_)[places]

    def _answer(self, known: BoundedCache[_Key, bool], pod_class: PodClass, key: _Key) -> bool:
        return known.of(key, lambda: not self._card_fit.fits(self._node(key), pod_class))

    def _node(self, key: _Key) -> NodeLedger:
        base, rest = key
        cards: list[CardLedger] = []
        while rest:
            rest, digit = divmod(rest, base)
            if digit:
                kind, slot = self._ledger.columns.kinds[digit], len(cards)
                gpu = Gpu(str(slot), slot, kind.memory_mib, kind.model, mps_clients=kind.mps_clients)
                cards.append(CardLedger(gpu, slot))
        return NodeLedger("", 0, slots=cards)
