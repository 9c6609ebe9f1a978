"""Measured load as arrays, laid out as `columns`: what the policies that weigh it read. NaN is not measured.

There is a log of changes of its own, so that policies which do not weigh load need not look at a node again whenever a
card has become a little warmer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.placement.columns import FloatArray, RowLog, Rows
from shoal.placement.keti_load import load_terms, node_score, watts_together

_NAN: Final = float("nan")
#: Of a card the terms and the utilisation; of a node its score and its cards.
_Card = tuple[float, int | None]
_Written = tuple[float | None, tuple[_Card | None, ...]]
_NOTHING: Final[_Written] = (None, ())


class LoadColumns:
    """The measured load of all nodes and cards. Only the ledger writes."""

    def __init__(self) -> None:
        self.log = RowLog()
        #: The same in plain numbers: digests that tell nothing new are the rule.
        self._written: dict[int, _Written] = {}
        #: KETI's score of each node, 0 to 100.
        self.node: FloatArray = np.zeros(0)
        #: Of each card the terms of KETI's score for its temperature and power, and its utilisation, [row, slot].
        self.terms: FloatArray = np.zeros((0, 0))
        self.utilisation: FloatArray = np.zeros((0, 0))

    def write(self, row: int, digest: LoadDigest | None, cards: Sequence[CardDigest | None]) -> None:
        """Write a node anew, its cards by slot."""
        score = None if digest is None else _node(digest)
        of_all = watts_together([None if card is None else card.watts for card in cards])
        told = tuple(None if card is None else _terms(card, of_all) for card in cards)
        if self._written.get(row, _NOTHING) == (score, told):
            return
        self._written[row] = score, told
        self._make_room(row + 1, len(cards))
        self.node[row] = _NAN if score is None else score
        self.terms[row] = self.utilisation[row] = _NAN
        for slot, card in enumerate(told):
            if card is not None:
                self.terms[row, slot], utilisation = card
                self.utilisation[row, slot] = _NAN if utilisation is None else utilisation
        self.log.note(row)
        self.log.shorten(self._kept)

    def changed_since(self, version: int) -> list[int] | None:
        """The rows whose load changed since that version, each once; None when that is too long ago to tell."""
        return self.log.since(version, keep=self._kept)

    def of_nodes(self, rows: Rows) -> FloatArray:
        """KETI's scores of some nodes."""
        self._make_room(int(rows.max(initial=-1)) + 1, 0)
        return self.node.take(rows)

    def of_cards(self, rows: Rows, slots: int) -> tuple[FloatArray, FloatArray]:
        """Terms and utilisation of the cards of some nodes, [slot, row]."""
        self._make_room(int(rows.max(initial=-1)) + 1, slots)
        return self.terms.take(rows, axis=0).T[:slots], self.utilisation.take(rows, axis=0).T[:slots]

    @property
    def _kept(self) -> int:
        return 4 * len(self.node) + 4096

    def _make_room(self, rows: int, slots: int) -> None:
        length, width = self.terms.shape
        if rows <= length and slots <= width:
            return
        room = max(rows, 2 * length if rows > length else length, 64), max(slots, width, 8)
        self.node = _grown(self.node, room[:1])
        self.terms = _grown(self.terms, room)
        self.utilisation = _grown(self.utilisation, room)


def _grown(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    grown = np.full(shape, np.nan)
    grown[tuple(slice(0, length) for length in values.shape)] = values
    return grown


def _node(digest: LoadDigest) -> float | None:
    return node_score(*(None if part is None else part / 100 for part in (digest.cpu, digest.memory, digest.storage)))


def _terms(card: CardDigest, watts_of_all: float) -> _Card | None:
    if card.utilisation is card.celsius is card.watts is None:
        return None
    return load_terms(card.celsius, card.watts, watts_of_all), card.utilisation
