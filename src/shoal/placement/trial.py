"""A class of pods, tried on some nodes: would it fit, on which cards, and what would be left.

Plugins read a `Trial`; none of them changes it. Everything is an array over `rows`, worked out when first asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import numpy as np

from shoal.model.request import accepts
from shoal.placement import assignment
from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.columns import (
    ALIVE,
    ALIVE_FOR_ONE,
    SHARES,
    WHOLE,
    BoolArray,
    Columns,
    Fact,
    FloatArray,
    IntArray,
    PlainNode,
    Rows,
)
from shoal.placement.ledger import Ledger, NodeLedger
from shoal.placement.worth.demand import allowed_models
from shoal.placement.worth.valuation import Valuation

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class lazy(Generic[Owner, Value]):  # noqa: N801 - reads like the decorator it is
    """An attribute worked out when first asked for: `cached_property` without the lock it takes before Python 3.12."""

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> lazy[Owner, Value]: ...
    @overload
    def __get__(self, instance: Owner, owner: type[Any]) -> Value: ...
    def __get__(self, instance: Owner | None, owner: type[Any]) -> Value | lazy[Owner, Value]:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class CardRule(Protocol):
    """Chooses the cards of a node for one need."""

    def keys(self, need: NeedTables) -> FloatArray | None:
        """A key for every code, the lowest being taken, when the choice depends on nothing else."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        """The slots taken, [card, row], and the nodes that have enough; only cards in `fits` may be taken."""


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why a filter refuses a node; where cards decide it, what each card says, by UUID."""

    filter: str
    reason: str
    cards: Mapping[str, str] = field(default_factory=dict)
    #: Whether it might be lifted when pods leave the node.
    resolvable: bool = True


@dataclass(frozen=True, slots=True)
class CardRules:
    """The policy's own rule, and those that nodes may ask for by label instead."""

    own: CardRule
    by_label: Mapping[str | None, CardRule]


class NodeFilter(ABC):
    """Says which nodes can take the pod: by the arrays (`passes`) and by the ledger of one node (`refusal`).

    A filter in `Policy.filters` is obeyed wherever nodes are chosen, cleared or explained. It may look at the ledger
    and at the class: a node is asked about again when its part of the ledger has changed.
    """

    #: As people read it.
    name: str

    @abstractmethod
    def passes(self, trial: Trial) -> BoolArray:
        """The nodes that can; `trial.passed` are those that the filters before it in the list have passed."""

    @abstractmethod
    def refusal(self, node: NodeLedger, pod_class: PodClass) -> NodeRefusal | None:
        """Why this node cannot, in words; None when it can."""

    def fits(self, node: NodeLedger, pod_class: PodClass) -> bool:
        """Whether this node can: `refusal` without words, for filters that are faster without."""
        return self.refusal(node, pod_class) is None


#: A filter of one node.
OneFilter = Callable[[PlainNode], bool]


class PlainFilter(Protocol):
    """A filter that can be asked node by node as well (`single`)."""

    def plain(self, tables: ClassTables) -> OneFilter | None:
        """The filter for this class in plain numbers; None where it is enough that the cards are found."""


class Score(Protocol):
    """Says how good each node is; the policy's weight gives the direction."""

    def score(self, trial: Trial) -> FloatArray: ...


#: A score of one node, by the worth and the CPU that the pod would leave of it.
OneScore = Callable[[PlainNode, float, int], float]


class PlainScore(Score, Protocol):
    """A score that can be told node by node as well (`single`)."""

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        """The score for this class in plain numbers: the same ones, bit by bit."""


class CardScore(Protocol):
    """Says how good it is to take a card, by its code alone; summed over the cards taken for shares."""

    def by_card(self, need: NeedTables) -> FloatArray: ...


def take_lowest(keys: FloatArray, fits: BoolArray, gpus: int) -> tuple[Rows, BoolArray]:
    """Of the cards that fit, those with the lowest keys; the lowest slot among equals."""
    keys = np.where(fits, keys, np.inf)
    if gpus == 1:
        return keys.argmin(axis=0)[None, :], np.minimum.reduce(keys, axis=0) < np.inf
    if gpus > len(keys):
        return np.zeros((gpus, keys.shape[1]), np.intp), np.zeros(keys.shape[1], np.bool_)
    slots = keys.argsort(axis=0, kind="stable")[:gpus]
    return slots, keys[slots[-1], np.arange(keys.shape[1])] < np.inf


class NeedTables:
    """One need of a class against every make of card: looked up by a card's code (kind and free share)."""

    #: Lines of `outcome`: worth lost, untouched cards used up, the policy's card scores, its card ties.
    WORTH_LOST, UNTOUCHED, SCORE, TIE = range(4)

    def __init__(self, need: CardNeed, columns: Columns, valuation: Valuation, policy: CardPolicy) -> None:
        self.need = need
        share = np.arange(SHARES)
        #: The part that the need takes of a card, by its kind.
        self.sizes = sizes = np.array([need.size_on(kind) for kind in columns.kinds])
        #: The free share of the card before and after, what the pod's piece is worth itself, and what is lost.
        self.share = np.tile(share, len(sizes))
        self.left = np.maximum(share[None, :] - sizes[:, None], 0).ravel()
        self.price = valuation.demand.worth.price[np.repeat(sizes, SHARES)]
        first_code = np.repeat(np.arange(len(sizes)) * SHARES, SHARES)
        self.worth_lost = valuation.code_worth - valuation.code_worth[first_code + self.left]
        self.outcome = np.zeros((4, len(self.left)))
        self.outcome[self.WORTH_LOST] = self.worth_lost
        self.outcome[self.UNTOUCHED] = self.share == WHOLE
        if not need.share.exclusive:
            for line, scores in ((self.SCORE, policy.card_scores), (self.TIE, policy.card_ties)):
                for weight, score in scores:
                    self.outcome[line] += weight * score.by_card(self)
        self.keys = policy.cards.keys(self)
        #: The codes in the order of their keys: rank, room for the slot, and the code itself. The least one is taken.
        self.order: IntArray | None = None
        if self.keys is not None:
            ranks = np.unique(self.keys, return_inverse=True)[1]
            self.order = ranks.astype(np.int64) << CODE_BITS + SLOT_BITS | np.arange(len(ranks))


#: Room for the slot and the code below the rank in `NeedTables.order`, and the masks that take them back out.
CODE_BITS = 24
CODE_MASK = (1 << CODE_BITS) - 1
SLOT_BITS = 16
SLOT_MASK = (1 << SLOT_BITS) - 1
#: Several cards are taken, or whole ones: which they are is worked out when a node has won.
UNKNOWN_SLOT = -1
#: Above every number in `NeedTables.order`: the card does not fit.
NO_FIT = 1 << 62


class CardPolicy(Protocol):
    """What the tables need to know of a policy."""

    @property
    def cards(self) -> CardRule: ...
    @property
    def card_scores(self) -> tuple[tuple[float, CardScore], ...]: ...
    @property
    def card_ties(self) -> tuple[tuple[float, CardScore], ...]: ...


class ClassTables:
    """A class against every make of card, under one policy and one demand."""

    def __init__(
        self, pod_class: PodClass, policy: CardPolicy, rules: CardRules, ledger: Ledger, valuation: Valuation
    ) -> None:
        columns = ledger.columns
        self.pod_class = pod_class
        self.rules = rules
        self.ledger = ledger
        self.valuation = valuation
        self.needs = tuple(NeedTables(need, columns, valuation, policy) for need in pod_class.needs)
        #: The least CPU and memory a node must have free, and that it is there; a pod that asks for none fits anyway.
        least, alive = np.iinfo(np.int64).min, ALIVE if pod_class.several else ALIVE_FOR_ONE
        self.node_needs = np.array([[pod_class.cpu or least], [pod_class.ram or least], [alive]])
        self.models = columns.models
        models = allowed_models(pod_class, columns) & columns.present
        #: Sets of models that other pods are confined to and this one is not.
        self.confining = valuation.confining(models)
        #: Cards of a model the pod accepts, by code.
        self.accepted = np.repeat([pod_class.accepts_model(kind.model) for kind in columns.kinds], SHARES)
        blocks = valuation.demand.blocks
        #: Whole cards of each watched multi-GPU class, 0 for those that this class is at least as hard as.
        self.block_gpus = np.array(
            [
                0 if pod_class.whole >= gpus and pod_class.cpu >= cpu and models | theirs == theirs else gpus
                for gpus, cpu, theirs in zip(blocks.gpus, blocks.cpu, blocks.models, strict=True)
            ],
            np.float64,
        )


class Picks(NamedTuple):
    """The cards taken on every node of a trial."""

    #: Per need the slots of its cards, [card, row].
    slots: list[Rows]
    #: The nodes on which every need found its cards.
    found: BoolArray


class Trial:
    """One class on some nodes."""

    #: The nodes that the filters asked so far have passed; None before the first.
    passed: BoolArray | None = None

    def __init__(self, tables: ClassTables, rows: Rows, rng: Random | None = None) -> None:
        self.tables = tables
        self.pod_class = tables.pod_class
        self.rows = rows
        self.ledger = tables.ledger
        self.columns = tables.ledger.columns
        self.valuation = tables.valuation
        self._rules = tables.rules
        #: What a rule of chance draws from, once a node has won.
        self.rng = rng
        #: By `Fact`.
        self.facts: IntArray = self.columns.node.take(rows, axis=0).T
        self.cpu_free: IntArray = self.facts[Fact.CPU_FREE]
        self.whole_free: IntArray = self.facts[Fact.WHOLE]
        self.model: IntArray = self.facts[Fact.MODEL]
        self.labels: IntArray = self.facts[Fact.POLICY]

    def passing(self, filters: Sequence[NodeFilter]) -> BoolArray:
        """The nodes that pass all filters, asked one after another."""
        for rule in filters:
            passes = rule.passes(self)
            self.passed = passes if self.passed is None else self.passed & passes
        return np.ones(len(self.rows), np.bool_) if self.passed is None else self.passed

    # Before

    @lazy
    def code(self) -> IntArray:
        """Kind and free share of every card, [slot, row]."""
        return self.columns.code.take(self.rows, axis=0).T

    # The cards

    @lazy
    def found(self) -> BoolArray:
        """The nodes that have cards for every need, containers sharing cards where they may."""
        if self.pod_class.only_whole:
            return self.whole_free >= self.pod_class.whole
        if self._one_by_code:
            return self._least < NO_FIT
        return self.picks.found

    @lazy
    def apart(self) -> dict[int, assignment.CardAssignment]:
        """By position in `rows`, the nodes without cards for the containers together that have cards for them apart.

        Looked for on the nodes that passed the filters so far.
        """
        if not self.pod_class.splittable:
            return {}
        short = ~self.found if self.passed is None else self.passed & ~self.found
        found = {
            i: assignment.spread(self.ledger.node_at(int(self.rows[i])), self.pod_class)
            for i in np.flatnonzero(short).tolist()
        }
        return {i: cards for i, cards in found.items() if cards is not None}

    @lazy
    def _one_by_code(self) -> bool:
        """One card for a share, chosen by its code: which slot it is in need not be known yet."""
        needs = self.tables.needs
        return (
            len(needs) == 1
            and needs[0].need.gpus == 1
            and needs[0].order is not None
            and not needs[0].need.share.exclusive
            and not (self._rules.by_label and len(self.columns.policies) > 1 and self.labels.any())
        )

    @lazy
    def _slot_bits(self) -> IntArray:
        return np.arange(self.columns.slots)[:, None] << CODE_BITS

    @lazy
    def _least(self) -> IntArray:
        """Rank, slot and code of the card taken on each node."""
        need = self.tables.needs[0]
        assert need.order is not None
        order = need.order.take(self.code) + self._slot_bits
        least: IntArray = np.minimum.reduce(np.where(self._fits(need.need), order, NO_FIT), axis=0)
        return least

    @lazy
    def picks(self) -> Picks:
        """The cards taken, need by need."""
        found: BoolArray | None = None
        picks: list[Rows] = []
        taken: BoolArray | None = None
        for tables in self.tables.needs:
            fits = self._fits(tables.need)
            if taken is not None:
                fits &= ~taken
            slots, enough = self._pick(tables, fits)
            found = enough if found is None else found & enough
            picks.append(slots)
            if len(self.tables.needs) > 1:
                taken = np.zeros(self.code.shape, np.bool_) if taken is None else taken
                taken[slots, np.arange(len(self.rows))] = True
        return Picks(picks, np.ones(len(self.rows), np.bool_) if found is None else found)

    @lazy
    def slot(self) -> IntArray:
        """The slot of the card taken where it is one card chosen by its code, else `UNKNOWN_SLOT`."""
        if self._one_by_code:
            return self._least >> CODE_BITS & SLOT_MASK
        return np.full(len(self.rows), UNKNOWN_SLOT)

    def stack(self, column: int) -> list[int]:
        """The slots taken for shares on one of the nodes, need by need."""
        return [
            int(slot)
            for slots, tables in zip(self.picks.slots, self.tables.needs, strict=True)
            if not tables.need.share.exclusive
            for slot in slots[:, column]
        ]

    def _fits(self, need: CardNeed) -> BoolArray:
        """Cards with this much of everything free and accepted by the pod, [slot, row]."""
        share, columns = need.share, self.columns
        fits: BoolArray | None = None
        if share.exclusive:
            fits = self.code % SHARES == WHOLE
            if share.memory_mib:
                fits &= share.memory_mib <= columns.memory_free.take(self.rows, axis=0).T
        elif share.unsized:
            # Untouched, or with nobody but clients without sizes.
            fits = (self.code % SHARES == WHOLE) | (columns.memory_free.take(self.rows, axis=0).T < 0)
            fits &= share.clients <= columns.clients_free.take(self.rows, axis=0).T
        else:
            for free, wanted in (
                (columns.memory_free, share.memory_mib),
                (columns.compute_free, share.compute),
                (columns.clients_free, share.clients),
            ):
                if wanted:
                    enough = wanted <= free.take(self.rows, axis=0).T
                    fits = enough if fits is None else fits & enough
            if fits is None:
                fits = columns.compute_free.take(self.rows, axis=0).T >= 0
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
            return take_lowest(self._wanted_by_shares(), fits, tables.need.gpus)
        slots, enough = self._rules.own.pick(self, tables, fits)
        if self._rules.by_label:
            for i in set(self.labels.tolist()) - {0}:
                rule = self._rules.by_label.get(self.columns.policies[i])
                if rule is not None:
                    asking = self.labels == i
                    by_label, _ = rule.pick(self, tables, fits)
                    slots[:, asking] = by_label[:, asking]
        return slots, enough

    def _wanted_by_shares(self) -> FloatArray:
        """Whole cards leave those alone that the pod's shares could use."""
        wanted = np.zeros(self.code.shape)
        for tables in self.tables.needs:
            if not tables.need.share.exclusive:
                wanted += self._fits(tables.need)
        return wanted

    # After

    @lazy
    def _outcome(self) -> FloatArray:
        """The lines of `NeedTables.outcome`, summed over the cards taken."""
        if self.pod_class.only_whole:
            whole = float(self.pod_class.whole)
            return np.repeat([[whole], [whole], [0.0], [0.0]], len(self.rows), axis=1)
        if self._one_by_code:
            return self.tables.needs[0].outcome.take(self._least & CODE_MASK, axis=1, mode="clip")
        parts = [
            tables.outcome.take(self.code[slot, self._index], axis=1)
            for slots, tables in zip(self.picks.slots, self.tables.needs, strict=True)
            for slot in slots
        ]
        return sum(parts[1:], parts[0]) if parts else np.zeros((4, len(self.rows)))

    @lazy
    def _index(self) -> Rows:
        return np.arange(len(self.rows))

    @lazy
    def worth_lost(self) -> FloatArray:
        """K - K': the worth of free shares that goes."""
        line: FloatArray = self._outcome[NeedTables.WORTH_LOST]
        return line

    @lazy
    def card_score(self) -> FloatArray:
        """The policy's card scores of the cards taken."""
        line: FloatArray = self._outcome[NeedTables.SCORE]
        return line

    @lazy
    def card_tie(self) -> FloatArray:
        """The policy's card ties of the cards taken."""
        line: FloatArray = self._outcome[NeedTables.TIE]
        return line

    @lazy
    def untouched_used(self) -> FloatArray:
        """Untouched cards among those taken."""
        line: FloatArray = self._outcome[NeedTables.UNTOUCHED]
        return line

    @lazy
    def cpu_after(self) -> IntArray:
        return self.cpu_free - self.pod_class.cpu

    @lazy
    def worth_after(self) -> FloatArray:
        """K'."""
        return self.valuation.worth[self.rows] - self.worth_lost
