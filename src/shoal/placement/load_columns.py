"""Measured load as arrays, laid out as `columns`: what the policies that weigh it read. NaN is not measured.

There is a log of changes of its own, so that policies which do not weigh load need not look at a node again whenever a
card has become a little warmer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.placement.columns import FloatArray, RowLog, Rows
from shoal.placement.keti_load import load_terms, node_score, watts_together


class LoadColumns:
    """The measured load of all nodes and cards. Only the ledger writes."""

    def __init__(self) -> None:
        self.log = RowLog()
        #: KETI's score of each node, 0 to 100.
        self.node: FloatArray = np.zeros(0)
        #: Of each card the terms of KETI's score for its temperature and power, and its utilisation, [row, slot].
        self.terms: FloatArray = np.zeros((0, 0))
        self.utilisation: FloatArray = np.zeros((0, 0))

    def write(self, row: int, digest: LoadDigest | None, cards: Sequence[CardDigest | None]) -> None:
        """Write a node anew, its cards by slot."""
        self._make_room(row + 1, len(cards))
        before = self.node[row], self.terms[row].copy(), self.utilisation[row].copy()
        self.node[row] = np.nan if digest is None else _node(digest)
        self.terms[row] = self.utilisation[row] = np.nan
        of_all = watts_together([None if card is None else card.watts for card in cards])
        for slot, card in enumerate(cards):
            if card is not None and not card.utilisation is card.celsius is card.watts is None:
                self.terms[row, slot] = load_terms(card.celsius, card.watts, of_all)
                self.utilisation[row, slot] = np.nan if card.utilisation is None else card.utilisation
        after = self.node[row], self.terms[row], self.utilisation[row]
        if not all(np.array_equal(old, new, equal_nan=True) for old, new in zip(before, after, strict=True)):
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


def _node(digest: LoadDigest) -> float:
    used = (None if part is None else part / 100 for part in (digest.cpu, digest.memory, digest.storage))
    score = node_score(*used)
    return np.nan if score is None else score
