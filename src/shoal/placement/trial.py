"""A class of pods, tried on some nodes: would it fit, on which cards, and what would be left.

Plugins read a `Trial`; none of them changes it. Everything is an array over `rows`, worked out when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.model.request import accepts, accepts_model
from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.columns import SHARES, WHOLE, BoolArray, Columns, FloatArray, IntArray, Rows
from shoal.placement.demand import allowed_models
from shoal.placement.lazy import lazy
from shoal.placement.ledger import Ledger, NodeBooks
from shoal.placement.valuation import Valuation


class CardRule(Protocol):
    """Chooses the cards of a node for one need."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        """The slots taken, [card, row], and the nodes that have enough; only cards in `fits` may be taken."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot take a pod; where cards decide it, what each card says, by UUID."""

    reason: str
    cards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardRules:
    """The policy's own rule, and those that nodes may ask for by label instead."""

    own: CardRule
    by_label: Mapping[str | None, CardRule]


class Filter(Protocol):
    """Says which nodes can take the pod."""

    def passes(self, trial: Trial) -> BoolArray:
        """The nodes that can, by the arrays."""

    def refusal(self, node: NodeBooks, pod_class: PodClass) -> Refusal | None:
        """Why this node cannot, in words, from the books themselves; None when it can. Asked for by people only."""


class Score(Protocol):
    """Says how good each node is; the policy's weight gives the direction."""

    def score(self, trial: Trial) -> FloatArray: ...


def take_lowest(keys: FloatArray, fits: BoolArray, gpus: int) -> tuple[Rows, BoolArray]:
    """Of the cards that fit, those with the lowest keys; the lowest slot among equals."""
    keys = np.where(fits, keys, np.inf)
    if gpus == 1:
        return keys.argmin(axis=0)[None, :], keys.min(axis=0) < np.inf
    if gpus > len(keys):
        return np.zeros((gpus, keys.shape[1]), np.intp), np.zeros(keys.shape[1], np.bool_)
    slots = keys.argsort(axis=0, kind="stable")[:gpus]
    return slots, keys[slots[-1], np.arange(keys.shape[1])] < np.inf


class NeedTables:
    """One need of a class against every make of card: looked up by a card's code (kind and free share)."""

    #: Lines of `outcome`: worth lost, price of the piece, untouched cards used up, share left (0..1).
    WORTH_LOST, PRICE, UNTOUCHED, LEFT = range(4)

    def __init__(self, need: CardNeed, columns: Columns, valuation: Valuation) -> None:
        self.need = need
        share = np.arange(SHARES)
        sizes = np.array([need.size_on(kind) for kind in columns.kinds])
        #: The free share left on the card, by code.
        self.left = np.maximum(share[None, :] - sizes[:, None], 0).ravel()
        first_code = np.repeat(np.arange(len(sizes)) * SHARES, SHARES)
        self.outcome = np.array(
            [
                valuation.code_worth - valuation.code_worth[first_code + self.left],
                valuation.demand.worth.price[np.repeat(sizes, SHARES)],
                np.tile(share == WHOLE, len(sizes)),
                np.zeros(len(self.left)) if need.share.exclusive else self.left / WHOLE,
            ]
        )
        #: Filled by card rules that need nothing but the code.
        self.keys: FloatArray | None = None


class ClassTables:
    """A class against every make of card, under one demand."""

    def __init__(self, pod_class: PodClass, columns: Columns, valuation: Valuation) -> None:
        self.pod_class = pod_class
        self.needs = tuple(NeedTables(need, columns, valuation) for need in pod_class.needs)
        self.models = allowed_models(pod_class, columns)
        #: Cards of a model the pod accepts, by code.
        self.accepted = np.repeat([accepts_model(pod_class.selector, kind.model) for kind in columns.kinds], SHARES)
        blocks = valuation.demand.blocks
        #: Whole cards of each watched multi-GPU class, 0 for those that this class is at least as hard as.
        self.block_gpus = np.array(
            [
                0 if pod_class.whole >= gpus and pod_class.cpu >= cpu and self.models | models == models else gpus
                for gpus, cpu, models in zip(blocks.gpus, blocks.cpu, blocks.models, strict=True)
            ],
            np.float64,
        ).reshape(-1, 1)


class Trial:
    """One class on some nodes."""

    def __init__(self, tables: ClassTables, rows: Rows, ledger: Ledger, valuation: Valuation, rules: CardRules) -> None:
        self.tables = tables
        self.pod_class = tables.pod_class
        self.rows = rows
        self.ledger = ledger
        self.columns = ledger.columns
        self.valuation = valuation
        self._rules = rules

    # Before

    @lazy
    def code(self) -> IntArray:
        """Kind and free share of every card, [slot, row]."""
        return self.columns.code[:, self.rows]

    @lazy
    def cpu_free(self) -> IntArray:
        return self.columns.cpu_free[self.rows]

    @lazy
    def whole_free(self) -> IntArray:
        """Untouched cards."""
        return self.columns.whole[self.rows]

    @lazy
    def model(self) -> Rows:
        return self.columns.model[self.rows]

    # The cards

    @lazy
    def found(self) -> BoolArray:
        """The nodes that have cards for every need."""
        if self.pod_class.only_whole:
            return self.whole_free >= self.pod_class.whole
        return self.picks[1]

    @lazy
    def picks(self) -> tuple[list[Rows], BoolArray]:
        """Per need the slots of its cards, [card, row], and the nodes on which every need found its cards."""
        found = np.ones(len(self.rows), np.bool_)
        picks: list[Rows] = []
        taken: BoolArray | None = None
        for tables in self.tables.needs:
            fits = self._fits(tables.need)
            if taken is not None:
                fits &= ~taken
            slots, enough = self._pick(tables, fits)
            found &= enough
            picks.append(slots)
            if len(self.tables.needs) > 1:
                taken = np.zeros(self.code.shape, np.bool_) if taken is None else taken
                taken[slots, np.arange(len(self.rows))] = True
        return picks, found

    def _fits(self, need: CardNeed) -> BoolArray:
        """Cards with this much of everything free and accepted by the pod, [slot, row]."""
        share, columns = need.share, self.columns
        fits: BoolArray
        if share.exclusive:
            fits = self.code % SHARES == WHOLE
        else:
            fits = columns.compute_free[:, self.rows] >= share.compute
            if share.memory_mib:
                fits &= columns.memory_free[:, self.rows] >= share.memory_mib
            if share.clients:
                fits &= columns.clients_free[:, self.rows] >= share.clients
        if self.pod_class.selector:
            fits &= self._accepted()
        return fits

    def _accepted(self) -> BoolArray:
        """Cards of a model and with a UUID the pod accepts, [slot, row]."""
        accepted: BoolArray = self.tables.accepted.take(self.code)
        selector = self.pod_class.selector
        if selector.uuids or selector.not_uuids:
            for column, row in enumerate(self.rows):
                for slot, card in enumerate(self.ledger.node_at(int(row)).slots):
                    accepted[slot, column] &= card.gpu is not None and accepts(selector, card.gpu)
        return accepted

    def _pick(self, tables: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        if tables.need.share.exclusive:
            return take_lowest(self._wanted_by_others(tables.need), fits, tables.need.gpus)
        slots, enough = self._rules.own.pick(self, tables, fits)
        if self._rules.by_label:
            labels = self.columns.policy[self.rows]
            for i in np.unique(labels[labels > 0]):
                rule = self._rules.by_label.get(self.columns.policies[i])
                if rule is not None:
                    slots[:, labels == i] = rule.pick(self, tables, fits)[0][:, labels == i]
        return slots, enough

    def _wanted_by_others(self, need: CardNeed) -> FloatArray:
        """Whole cards leave those alone that the pod's other needs could use."""
        wanted = np.zeros(self.code.shape)
        for tables in self.tables.needs:
            if tables.need is not need:
                wanted += self._fits(tables.need)
        return wanted

    # After

    @lazy
    def _outcome(self) -> FloatArray:
        """The lines of `NeedTables.outcome`, summed over the cards taken."""
        whole = float(self.pod_class.whole)
        if self.pod_class.only_whole:
            return np.repeat([[whole], [whole], [whole], [0.0]], len(self.rows), axis=1)
        total = np.zeros((4, len(self.rows)))
        index = np.arange(len(self.rows))
        for slots, tables in zip(self.picks[0], self.tables.needs, strict=True):
            for slot in slots:
                total += tables.outcome.take(self.code[slot, index], axis=1)
        return total

    @lazy
    def worth_lost(self) -> FloatArray:
        """K - K': the worth of free shares that goes."""
        line: FloatArray = self._outcome[NeedTables.WORTH_LOST]
        return line

    @lazy
    def price(self) -> FloatArray:
        """q: what the pod itself is worth, on the cards it would take."""
        line: FloatArray = self._outcome[NeedTables.PRICE]
        return line

    @lazy
    def left(self) -> FloatArray:
        """Free share left on the cards taken for shares, 0..1 each; whole cards leave nothing."""
        line: FloatArray = self._outcome[NeedTables.LEFT]
        return line

    @lazy
    def whole_after(self) -> IntArray:
        """Untouched cards left."""
        used: IntArray = self._outcome[NeedTables.UNTOUCHED].astype(np.int64)
        return self.whole_free - used

    @lazy
    def cpu_after(self) -> IntArray:
        return self.cpu_free - self.pod_class.cpu

    @lazy
    def worth_after(self) -> FloatArray:
        """K'."""
        return self.valuation.worth[self.rows] - self.worth_lost
