"""The cluster as arrays: one column per fact, laid out [row, slot], a row being a node and a slot one of its cards.

The ledger writes here whenever a booking or an inventory changes and notes the row in a log of changes. Readers keep
their own place in that log, so that a decision recomputes the few nodes that changed and none of the others.

The *free share* of a card is the smallest free fraction among its memory, compute and MPS clients, in whole hundredths.
It guides the choice only; whether a pod fits is decided on the exact amounts. An untouched card has share 100, a card
with anything booked at most 99, an unusable one 0. A card with clients without sizes (`Share.unsized`) has neither
memory nor compute for anybody: their like find it by its free clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.model.gpu import NodeGpus

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Row numbers.
Rows = npt.NDArray[np.intp]

#: A whole card in share units, and the number of distinct free shares.
WHOLE = 100
SHARES = WHOLE + 1

#: A node that is there; and one that is there only for pods with no more than one share, for one ordinary container.
ALIVE = 2
ALIVE_FOR_ONE = 1


class Fact:
    """The columns of `Columns.node`: what is known of a node besides its cards."""

    CPU_FREE, RAM_FREE, ALIVE, WHOLE, MODEL, POLICY = range(6)
    COUNT = 6
    #: What `NodeResources` compares with what a class needs.
    RESOURCES = slice(CPU_FREE, ALIVE + 1)


#: A card that must not be used has this much of everything free, so that no request fits it.
UNUSABLE = -1


@dataclass(frozen=True, slots=True)
class CardKind:
    """What cards of one make have in common."""

    model: str
    memory_mib: int
    mps_clients: int


#: Kind 0 stands for a slot without a card.
NO_CARD = CardKind("", 0, 0)


class CardFigures(NamedTuple):
    """What the ledger knows of one card, ready to be written into its slot."""

    kind: int
    memory_free: int
    compute_free: int
    clients_free: int
    share: int
    pods: int


def one_by_one(values: FloatArray) -> memoryview[float]:
    """The same numbers, flat, to be read and written one at a time: several times faster than through the array."""
    return values.data.cast("B").cast("d")


def alive(inventory: NodeGpus | None) -> int:
    """Whether a node is there, and for which pods."""
    if inventory is None:
        return 0
    return ALIVE_FOR_ONE if inventory.one_container else ALIVE


class PlainCard(NamedTuple):
    """A card in plain numbers."""

    code: int
    memory_free: int
    compute_free: int
    clients_free: int
    slot: int


class PlainNode(NamedTuple):
    """A row in plain numbers, for those who look at few nodes: to get one number out of an array costs more."""

    row: int
    cpu_free: int
    ram_free: int
    alive: int
    whole: int
    model: int
    policy: int
    #: The most that any card has free.
    memory_most: int
    compute_most: int
    clients_most: int
    #: The codes of all cards, by slot, and the cards with anything free.
    codes: tuple[int, ...]
    cards: tuple[PlainCard, ...]


class RowLog:
    """The rows that changed, in order. Readers keep their own place in it."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._start = 0
        self.note = self._rows.append

    @property
    def version(self) -> int:
        """Grows with every change; a reader's place in the log."""
        return self._start + len(self._rows)

    def since(self, version: int, *, keep: int) -> list[int] | None:
        """The rows changed since that version, each once; None when that is too long ago to tell."""
        if version < self._start:
            return None
        changed = self._rows[version - self._start :]
        self.shorten(keep)
        return changed if len(changed) < 2 else list(set(changed))

    def shorten(self, keep: int) -> None:
        """Forget the older half when there are more changes than that."""
        if len(self._rows) > keep:
            drop = len(self._rows) // 2
            del self._rows[:drop]
            self._start += drop


_NO_CARD = PlainCard(0, UNUSABLE, UNUSABLE, UNUSABLE, 0)


class Columns:
    """Arrays over all nodes and cards. Only the ledger writes."""

    def __init__(self, *, rows: int = 64, slots: int = 8) -> None:
        self.rows = 0
        self.kinds: list[CardKind] = [NO_CARD]
        self.models: list[str] = []
        #: Policies named by node labels; 0 stands for none.
        self.policies: list[str | None] = [None]
        #: The models of the nodes that have cards now, as a bit mask over `models`.
        self.present = 0
        self._nodes_of: dict[int, int] = {}
        self._kind_ids: dict[CardKind, int] = {NO_CARD: 0}
        self._model_ids: dict[str, int] = {}
        self._log = RowLog()
        #: The same as the arrays in plain numbers, by row; the cards of each row by slot, those that are there.
        self.plain: list[PlainNode] = []
        self._cards: list[list[PlainCard]] = []
        #: A node without cards, or one whose cards are not known yet.
        self.model_id("")
        self._allocate(rows, slots)

    def _allocate(self, rows: int, slots: int) -> None:
        self.slots = slots
        self._capacity = rows
        #: kind * SHARES + free share: one number that looks up any per-class table.
        self.code = np.zeros((rows, slots), np.intp)
        self.memory_free = np.full((rows, slots), UNUSABLE, np.int64)
        self.compute_free = np.full((rows, slots), UNUSABLE, np.int32)
        self.clients_free = np.full((rows, slots), UNUSABLE, np.int32)
        #: Pods on each card.
        self.pods = np.zeros((rows, slots), np.int32)
        #: The facts about a node side by side (`Fact`), so that all of them are read at once.
        self.node = np.zeros((rows, Fact.COUNT), np.int64)
        self.cpu_free, self.ram_free = self.node[:, Fact.CPU_FREE], self.node[:, Fact.RAM_FREE]
        #: Whether the node is there (`alive`), and its untouched cards.
        self.alive, self.whole = self.node[:, Fact.ALIVE], self.node[:, Fact.WHOLE]
        #: The make of its cards (an index into `models`), and the policy its label asks for (one into `policies`).
        self.model, self.policy = self.node[:, Fact.MODEL], self.node[:, Fact.POLICY]
        self.cpu_free[:] = self.ram_free[:] = UNUSABLE

    def _grow(self, rows: int, slots: int) -> None:
        names = ("code", "memory_free", "compute_free", "clients_free", "pods", "node")
        old = {name: getattr(self, name) for name in names}
        self._allocate(rows, slots)
        for name, values in old.items():
            length, width = values.shape
            getattr(self, name)[:length, :width] = values

    def add_row(self) -> int:
        """A new row, dead until it is written."""
        if self.rows == self._capacity:
            self._grow(self._capacity * 2, self.slots)
        self.rows += 1
        self._cards.append([])
        self.plain.append(self._plain_node(self.rows - 1, UNUSABLE, UNUSABLE, 0))
        return self.rows - 1

    def kind_id(self, kind: CardKind) -> int:
        """The number of a make of card; new ones are appended, none is ever removed."""
        known = self._kind_ids.get(kind)
        if known is None:
            known = self._kind_ids[kind] = len(self.kinds)
            self.kinds.append(kind)
        return known

    def model_id(self, model: str) -> int:
        """The number of a node's make of cards."""
        known = self._model_ids.get(model)
        if known is None:
            known = self._model_ids[model] = len(self.models)
            self.models.append(model)
        return known

    def write_node(self, row: int, *, alive: int, model: str, policy: str | None, cards: Sequence[CardFigures]) -> None:
        """Write a node anew: its make and all of its cards. What is free of it is written by `write_free`."""
        if len(cards) > self.slots:
            self._grow(self._capacity, max(len(cards), self.slots * 2))
        self._count_model(int(self.model[row]), -int(self.code[row].max() >= SHARES))
        self._count_model(self.model_id(model), int(bool(cards)))
        self.alive[row] = alive
        self.model[row] = self.model_id(model)
        if policy not in self.policies:
            self.policies.append(policy)
        self.policy[row] = self.policies.index(policy)
        self.code[row] = self.pods[row] = 0
        self._cards[row] = [_NO_CARD] * len(cards)
        for column in (self.memory_free, self.compute_free, self.clients_free):
            column[row] = UNUSABLE
        for slot, card in enumerate(cards):
            self.write_card(row, slot, card)

    def _count_model(self, model: int, more: int) -> None:
        nodes = self._nodes_of[model] = self._nodes_of.get(model, 0) + more
        self.present = self.present | 1 << model if nodes else self.present & ~(1 << model)

    def write_card(self, row: int, slot: int, card: CardFigures) -> None:
        """Write one card; the caller also says through `write_free` that the row changed."""
        code = card.kind * SHARES + card.share
        self._cards[row][slot] = PlainCard(code, card.memory_free, card.compute_free, card.clients_free, slot)
        self.code[row, slot] = code
        self.memory_free[row, slot] = card.memory_free
        self.compute_free[row, slot] = card.compute_free
        self.clients_free[row, slot] = card.clients_free
        self.pods[row, slot] = card.pods

    def write_free(self, row: int, *, cpu: int, ram: int, whole: int) -> None:
        """Write what is free of a node, and note that it changed."""
        self.cpu_free[row] = cpu
        self.ram_free[row] = ram
        self.whole[row] = whole
        self._log.note(row)
        self.plain[row] = self._plain_node(row, cpu, ram, whole)

    def _plain_node(self, row: int, cpu: int, ram: int, whole: int) -> PlainNode:
        memory_most = compute_most = clients_most = UNUSABLE
        codes: list[int] = []
        cards: list[PlainCard] = []
        for card in self._cards[row]:
            code, memory, compute, clients, _ = card
            codes.append(code)
            if memory > 0 or compute > 0 or clients > 0:
                cards.append(card)
                if memory > memory_most:
                    memory_most = memory
                if compute > compute_most:
                    compute_most = compute
                if clients > clients_most:
                    clients_most = clients
        facts = int(self.alive[row]), whole, int(self.model[row]), int(self.policy[row])
        most = memory_most, compute_most, clients_most
        return PlainNode(row, cpu, ram, *facts, *most, tuple(codes), tuple(cards))

    @property
    def version(self) -> int:
        """Grows with every change; a reader's place in the log."""
        return self._log.version

    def changed_since(self, version: int) -> list[int] | None:
        """The rows changed since that version, each once; None when that is too long ago to tell."""
        return self._log.since(version, keep=4 * self._capacity + 4096)

    def cards_by_kind(self) -> FloatArray:
        """How many cards of each make there are."""
        kinds = self.code[: self.rows].ravel() // SHARES
        count = np.bincount(kinds, minlength=len(self.kinds)).astype(np.float64)
        count[0] = 0.0
        return count
