"""A class of pods, tried on nodes one at a time, in plain numbers: `Trial` for the few nodes that changed.

Between two decisions for a class some twenty nodes change, and it fits on a few of them. Arrays that short cost more to
call than to fill, so plain arithmetic is several times faster. The numbers are those of `Trial`, bit by bit. It knows
one share of one card, whole cards and no cards, under policies whose filters and scores all have a plain form; the
rest is left to `Trial`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeGuard

import numpy as np

from shoal.placement.columns import SHARES, WHOLE, PlainNode
from shoal.placement.policies import Policy
from shoal.placement.trial import (
    CODE_BITS,
    CODE_MASK,
    NO_FIT,
    SLOT_MASK,
    UNKNOWN_SLOT,
    ClassTables,
    NeedTables,
    NodeFilter,
    OneFilter,
    OneScore,
    PlainFilter,
    PlainScore,
    Score,
)

#: The lines of `NeedTables.outcome` for the cards taken of a node, and the slot where it is one card and known.
Taken = tuple[Sequence[float], int]
#: What a class takes of a node's cards; None when they do not do.
Cards = Callable[[PlainNode], Taken | None]
#: A class on a node: the sum of scores, what decides among equals, worth lost, untouched cards used up, the slot.
Found = tuple[float, float, float, float, int]


def single_trial(tables: ClassTables, policy: Policy) -> SingleTrial | None:
    """The class, to be tried node by node; None where only `Trial` can."""
    cards = _cards_of(tables)
    filters = _plain_filters(policy.filters, tables)
    scores = _plain_scores(policy.scores, tables)
    ties = _plain_scores(policy.ties, tables)
    if cards is None or filters is None or scores is None or ties is None:
        return None
    return SingleTrial(tables, cards, filters, scores, ties)


class SingleTrial:
    """One class under one policy."""

    def __init__(
        self,
        tables: ClassTables,
        cards: Cards,
        filters: list[OneFilter],
        scores: list[tuple[float, OneScore]],
        ties: list[tuple[float, OneScore]],
    ) -> None:
        self._valuation = tables.valuation
        self._cards = cards
        self._passes = _all_of(filters)
        self._scores = scores
        self._ties = ties
        self._cpu = tables.pod_class.cpu
        #: Whether the cards depend on what the node's label asks for, which only `Trial` knows.
        self.asks_labels = isinstance(cards, _OneCard) and bool(tables.rules.by_label)

    def on(self, node: PlainNode) -> Found | None:
        """What the class finds on the node; None when it does not fit."""
        if not self._passes(node):
            return None
        taken = self._cards(node)
        if taken is None:
            return None
        (worth_lost, untouched, total, ties), slot = taken
        worth_after = self._valuation.worth_at[node.row] - worth_lost
        cpu_after = node.cpu_free - self._cpu
        for weight, score in self._scores:
            total += weight * score(node, worth_after, cpu_after)
        for weight, score in self._ties:
            ties += weight * score(node, worth_after, cpu_after)
        return total, ties, worth_lost, untouched, slot


def _all_of(filters: list[OneFilter]) -> OneFilter:
    """One filter of all: mostly it is one already, and a call less."""
    if len(filters) == 1:
        return filters[0]
    return lambda node: all(passes(node) for passes in filters)


def _plain_filters(filters: Sequence[NodeFilter], tables: ClassTables) -> list[OneFilter] | None:
    """The filters in their plain form; None when one has none."""
    plain: list[OneFilter] = []
    for rule in filters:
        if not _filters_plainly(rule):
            return None
        passes = rule.plain(tables)
        if passes is not None:
            plain.append(passes)
    return plain


def _plain_scores(scores: Sequence[tuple[float, Score]], tables: ClassTables) -> list[tuple[float, OneScore]] | None:
    """The scores in their plain form; None when one has none."""
    plain: list[tuple[float, OneScore]] = []
    for weight, score in scores:
        if not _scores_plainly(score):
            return None
        plain.append((weight, score.plain(tables, tables.valuation)))
    return plain


def _filters_plainly(rule: NodeFilter) -> TypeGuard[PlainFilter]:
    return _has_plain_form(type(rule), of="passes")


def _scores_plainly(score: Score) -> TypeGuard[PlainScore]:
    return _has_plain_form(type(score), of="score")


@cache
def _has_plain_form(kind: type, *, of: str) -> bool:
    """Whether the class has a plain form of that method, not older than the method itself.

    Kept by class: to look takes longer than to try a node.
    """
    plain, method = (
        next((i for i, base in enumerate(kind.__mro__) if name in vars(base)), None) for name in ("plain", of)
    )
    return plain is not None and method is not None and plain <= method


def _cards_of(tables: ClassTables) -> Cards | None:
    pod_class, needs = tables.pod_class, tables.needs
    if pod_class.only_whole or not needs:
        whole = pod_class.whole
        taken = (float(whole), float(whole), 0.0, 0.0), UNKNOWN_SLOT
        return lambda node: taken if node.whole >= whole else None
    selector, share = pod_class.selector, needs[0].need.share
    alone = len(needs) == 1 and needs[0].need.gpus == 1 and not share.exclusive and not pod_class.splittable
    asks = share.memory_mib or share.compute or share.clients
    if not alone or not asks or needs[0].order is None or selector.uuids or selector.not_uuids:
        return None
    order = array("q", np.where(tables.accepted, needs[0].order, NO_FIT).astype(np.int64).tobytes())
    return _OneUnsized(needs[0], order) if share.unsized else _OneCard(needs[0], order)


class _OneCard:
    """A share of the card whose code comes first in `NeedTables.order`, the lowest slot among equals."""

    def __init__(self, need: NeedTables, order: array[int]) -> None:
        share = need.need.share
        #: An amount that is not asked for is there on every card.
        self._memory, self._compute, self._clients = (
            amount or -1 for amount in (share.memory_mib, share.compute, share.clients)
        )
        self._order = order
        self._outcome = need.outcome
        self._known: dict[int, list[float]] = {}

    def __call__(self, node: PlainNode) -> Taken | None:
        memory, compute, clients = self._memory, self._compute, self._clients
        if node.memory_most < memory or node.compute_most < compute or node.clients_most < clients:
            return None
        order = self._order
        least = NO_FIT
        for code, memory_free, compute_free, clients_free, slot in node.cards:
            if memory_free >= memory and compute_free >= compute and clients_free >= clients:
                key = order[code] + (slot << CODE_BITS)
                if key < least:
                    least = key
        return self._taken(least)

    def _taken(self, least: int) -> Taken | None:
        if least >= NO_FIT:
            return None
        code = least & CODE_MASK
        outcome = self._known.get(code)
        if outcome is None:
            outcome = self._known[code] = self._outcome[:, code].tolist()
        return outcome, least >> CODE_BITS & SLOT_MASK


class _OneUnsized(_OneCard):
    """Clients without sizes: on an untouched card, or on one with nobody but their like, which has no memory free."""

    def __call__(self, node: PlainNode) -> Taken | None:
        clients, order = self._clients, self._order
        least = NO_FIT
        for code, memory_free, _, clients_free, slot in node.cards:
            if clients_free >= clients and (memory_free < 0 or code % SHARES == WHOLE):
                key = order[code] + (slot << CODE_BITS)
                if key < least:
                    least = key
        return self._taken(least)
