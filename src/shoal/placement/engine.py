"""Decide: for a request the node and the cards, under a policy, in well under a millisecond.

Pods of one template are one class. For each class and policy the engine keeps columns over all nodes: does it fit,
what is it worth there, which cards would it take. A booking changes one node, so only that node is tried again. What
the cluster as a whole makes dear (`pressures`) is added when deciding, for the nodes that can still win.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from shoal.model.allocation import Allocation
from shoal.model.request import Request
from shoal.placement import stacking
from shoal.placement.books.columns import BoolArray, FloatArray, Rows
from shoal.placement.books.ledger import Booking, Ledger
from shoal.placement.classes import PodClass
from shoal.placement.errors import PolicyError
from shoal.placement.policies import POLICIES
from shoal.placement.policy import CARD_FIT, Policy
from shoal.placement.trial import UNKNOWN_SLOT, CardRules, ClassTables, Score, Trial
from shoal.placement.weights import SPLIT
from shoal.placement.worth.demand import DemandCounter, demand_of
from shoal.placement.worth.pressures import Candidates, Cost
from shoal.placement.worth.valuation import Valuation

#: Memory for the columns of all classes; the ones unused for longest are dropped beyond it.
COLUMN_BYTES = 32 << 20
#: Classes remembered before those with no pod left are forgotten.
_CLASSES = 10_000
#: Nodes that are looked at first because they won lately.
_GUESSES = 4
#: Past this part of all nodes changed, a class is tried on all of them again.
_MOST = 0.5


class Engine:
    """One ledger, one demand, and the policies that choose on them."""

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy = POLICIES["fragmentation"],
        *,
        policies: Sequence[Policy] = tuple(POLICIES.values()),
        rng: Random | None = None,
    ) -> None:
        self.ledger = ledger
        self.policy = policy
        self.demand = DemandCounter()
        self.valuation = Valuation(ledger.columns)
        self._policies = {known.name: known for known in (*policies, policy)}
        self._rng = rng or Random(0)
        self._classes: dict[Request, PodClass] = {}
        self._columns: dict[tuple[PodClass, str], ClassColumns] = {}
        self._next_refresh = self.demand.next_refresh()

    # The life of a pod

    def place(self, pod: str, request: Request) -> Allocation | None:
        """Decide and book. A pod that does not fit counts as waiting until it is placed or removed."""
        policy = self.policy_for(request)
        pod_class = self.class_of(request)
        self.demand.arrive(pod, pod_class)
        allocation = self._decide(pod_class, policy, None)
        if allocation is not None:
            self.ledger.assume(Booking(pod, allocation, request.cpu_milli, request.memory_mib))
            self.demand.place(pod)
        if self.demand.arrivals >= self._next_refresh:
            self.refresh()
        return allocation

    def remove(self, pod: str) -> None:
        """The pod is gone, placed or not."""
        self.ledger.release(pod)
        self.demand.depart(pod)

    def decide(self, request: Request, *, among: BoolArray | None = None) -> Allocation | None:
        """Where the pod would go, nothing booked; `among` limits the nodes, by row."""
        return self._decide(self.class_of(request), self.policy_for(request), among)

    def refresh(self) -> None:
        """Make the demand anew from the pods that are there."""
        if any(policy.learns for policy in self._policies.values()):
            self.valuation.adopt(demand_of(self.demand.counts, self.ledger.columns, cpu_milli=self.ledger.cpu_milli()))
            self.forget()
        self._next_refresh = self.demand.next_refresh()

    def forget(self) -> None:
        """Drop what is kept about classes: each is tried on all nodes again, with the same result."""
        self._columns.clear()

    # Parts

    def class_of(self, request: Request) -> PodClass:
        """The one class of all equal requests."""
        known = self._classes.get(request)
        if known is None:
            if len(self._classes) >= _CLASSES:
                self._classes = {
                    request: known for request, known in self._classes.items() if known in self.demand.counts
                }
            known = self._classes[request] = PodClass(request)
        return known

    def policy_for(self, request: Request) -> Policy:
        if request.policy is None:
            return self.policy
        try:
            return self._policies[request.policy]
        except KeyError:
            raise PolicyError(
                f"no policy {request.policy!r}: choose one of {', '.join(sorted(self._policies))}"
            ) from None

    def _rules_for(self, pod_class: PodClass, policy: Policy) -> CardRules:
        """A pod's own policy comes before a node's, a node's before the configured one."""
        if pod_class.request.policy is not None:
            return CardRules(policy.cards, {})
        return CardRules(policy.cards, {name: known.cards for name, known in self._policies.items()})

    def _decide(self, pod_class: PodClass, policy: Policy, among: BoolArray | None) -> Allocation | None:
        if self.valuation.catch_up():
            self.forget()
        columns = self._columns_of(pod_class, policy)
        row = columns.best(self._rng, among)
        if row is None:
            return None
        node = self.ledger.node_at(row)
        return stacking.allocation(node, pod_class, columns.deal(row, self._rng), policy.name)

    def _columns_of(self, pod_class: PodClass, policy: Policy) -> ClassColumns:
        key = (pod_class, policy.name)
        columns = self._columns.pop(key, None)
        if columns is None:
            columns = ClassColumns(pod_class, policy, self._rules_for(pod_class, policy), self.ledger, self.valuation)
            while self._columns and columns.nbytes * (len(self._columns) + 1) > COLUMN_BYTES:
                del self._columns[next(iter(self._columns))]
        self._columns[key] = columns
        columns.catch_up()
        return columns


class ClassColumns:
    """One class under one policy, over all nodes."""

    #: What is kept of a node: the sum of scores, what decides among equals, worth lost, untouched cards used up, and
    #: the slot of the card taken where it is one card and known.
    SUM, TIES, WORTH_LOST, UNTOUCHED, SLOT = range(5)

    def __init__(
        self, pod_class: PodClass, policy: Policy, rules: CardRules, ledger: Ledger, valuation: Valuation
    ) -> None:
        self._class = pod_class
        self._policy = policy
        self._rules = rules
        self._ledger = ledger
        self._valuation = valuation
        self._tables = ClassTables(pod_class, ledger.columns, valuation, policy)
        size = len(ledger.columns.cpu_free)
        #: What the node would be worth if nothing were dear: an upper bound, -inf where the pod does not fit.
        self._bound = np.full(size, -np.inf)
        self._kept = np.zeros((size, 5))
        self._kept[:, self.SLOT] = UNKNOWN_SLOT
        #: Nodes on which the containers fit only apart, and how they would be dealt out.
        self._apart: dict[int, stacking.Deal] = {}
        #: Nodes that won lately: likely to be good again, so they tell early which others cannot be.
        self._winners: list[int] = []
        self._seen = -1
        self.nbytes = self._bound.nbytes + self._kept.nbytes

    def catch_up(self) -> None:
        """Try the nodes that changed."""
        columns = self._ledger.columns
        changed = columns.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None or len(changed) > _MOST * columns.rows:
            self._try(np.arange(columns.rows))
        elif changed:
            self._try(np.array(changed))
        self._seen = columns.version

    def _try(self, rows: Rows) -> None:
        policy = self._policy
        trial = Trial(self._tables, rows, self._ledger, self._valuation, self._rules)
        beside = policy.filters[0].passes(trial)
        for rule in policy.filters[1:]:
            beside &= rule.passes(trial)
        fits = beside & CARD_FIT.passes(trial)
        if not self._class.splittable and not np.count_nonzero(fits):
            self._bound[rows] = -np.inf
            return
        total = np.where(fits, _weighted(trial.card_score, policy.scores, trial), -np.inf)
        if self._class.splittable:
            self._deal_apart(trial, beside & ~fits, total)
        ties = _weighted(trial.card_tie, policy.ties, trial)
        self._bound[rows] = self._value(total, ties)
        if policy.pressures:
            self._kept[rows] = np.array((total, ties, trial.worth_lost, trial.untouched_used, trial.slot)).T

    def _deal_apart(self, trial: Trial, short: BoolArray, total: FloatArray) -> None:
        """Where the cards are short of the containers together, these may fit apart; a node that holds them wins."""
        for i, row in enumerate(trial.rows.tolist()):
            self._apart.pop(row, None)
            deal = stacking.spread(self._ledger.node_at(row), self._class) if short[i] else None
            if deal is not None:
                self._apart[row] = deal
                total[i] = SPLIT - len({slot for slots in deal for slot in slots})

    def _value(self, total: FloatArray, ties: FloatArray) -> FloatArray:
        """The sum of scores in whole grains, then what decides among equals."""
        if not self._policy.grain:
            return total + ties
        value = total / self._policy.grain
        np.rint(value, out=value)
        value *= self._policy.grain
        value += ties
        return value

    def best(self, rng: Random, among: BoolArray | None) -> int | None:
        """The best node's row, or None when the pod fits nowhere."""
        bound = self._bound[: self._ledger.columns.rows]
        if among is not None:
            bound = np.where(among, bound, -np.inf)
        if not len(bound):
            return None
        first = int(bound.argmax())
        if bound[first] == -np.inf:
            return None
        if self._policy.random or self._policy.rank:
            return self._other_than_best(bound, rng)
        if self._spared(first):
            return first
        costs = [
            (weight, cost)
            for weight, pressure in self._policy.pressures
            if (cost := pressure.at_present(self._valuation, self._tables)) is not None
        ]
        if not costs:
            return first
        guesses = np.array([first, *self._winners])
        value = np.maximum.reduce(self._exact(guesses, costs, bound))
        candidates = np.flatnonzero(bound >= value)
        winner = first
        if len(candidates) > 1:
            winner = int(candidates[self._exact(candidates, costs, bound).argmax()])
        if winner not in self._winners:
            self._winners = [winner, *self._winners[: _GUESSES - 1]]
        return winner

    def _spared(self, row: int) -> bool:
        """No pressure can cost anything on this node, so its bound is its worth."""
        untouched = int(self._kept[row, self.UNTOUCHED])
        return all(
            pressure.spares(self._valuation, self._tables, row, untouched) for _, pressure in self._policy.pressures
        )

    def _exact(self, rows: Rows, costs: list[tuple[float, Cost]], bound: FloatArray) -> FloatArray:
        """The worth of these nodes, pressures included; -inf where the bound says that the pod may not go there."""
        kept = self._kept.take(rows, axis=0).T
        cpu, _, _, whole, model, _ = self._ledger.columns.node.take(rows, axis=0).T
        nodes = Candidates(
            model, kept[self.WORTH_LOST], whole, whole - kept[self.UNTOUCHED], cpu, cpu - self._class.cpu
        )
        total = kept[self.SUM]
        for weight, cost in costs:
            total += weight * cost(nodes)
        return np.where(bound[rows] > -np.inf, self._value(total, kept[self.TIES]), -np.inf)

    def _other_than_best(self, bound: FloatArray, rng: Random) -> int:
        """Any node that fits, or the one of the policy's rank."""
        fitting = np.flatnonzero(bound > -np.inf)
        if self._policy.random:
            return int(fitting[rng.randrange(len(fitting))])
        order = fitting[np.argsort(-bound[fitting], kind="stable")]
        return int(order[min(self._policy.rank, len(order) - 1)])

    def deal(self, row: int, rng: Random) -> stacking.Deal:
        """The cards each container would get on this node."""
        apart = self._apart.get(row)
        if apart is not None:
            return apart
        node = self._ledger.node_at(row)
        if self._class.only_whole or not self._class.needs:
            return stacking.stacked(node, self._class, ())
        slot = int(self._kept[row, self.SLOT])
        if slot != UNKNOWN_SLOT:
            return stacking.stacked(node, self._class, (slot,))
        trial = Trial(self._tables, np.array([row]), self._ledger, self._valuation, self._rules, rng)
        return stacking.stacked(node, self._class, trial.stack(0))


def _weighted(start: FloatArray, scores: Sequence[tuple[float, Score]], trial: Trial) -> FloatArray:
    total = start
    for weight, score in scores:
        total = total + weight * score.score(trial)
    return total
