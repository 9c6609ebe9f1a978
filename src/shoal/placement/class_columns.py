"""One class of pods under one policy, over all nodes: does it fit, what is it worth there, which card would it take.

Kept from decision to decision: only nodes that changed are tried again. The costs of what runs short in the whole
cluster (`pressures`) change with every booking, so they are added for each decision, on the nodes that can still win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from struct import Struct

import numpy as np

from shoal.placement import assignment
from shoal.placement.classes import PodClass
from shoal.placement.columns import BoolArray, Fact, FloatArray, Rows, one_by_one
from shoal.placement.ledger import Ledger
from shoal.placement.policies import Policy
from shoal.placement.single import SingleTrial, single_trial
from shoal.placement.trial import UNKNOWN_SLOT, CardRules, ClassTables, Score, Trial
from shoal.placement.weights import SPLIT
from shoal.placement.worth.pressures import Candidates, Cost
from shoal.placement.worth.valuation import Valuation

#: Nodes that are looked at first because they won lately.
_GUESSES = 4
#: Past this part of all nodes changed, a class is tried on all of them again.
_MOST = 0.5
#: Up to this many changed nodes are tried one by one, and up to so many on which the class fits.
_SEVERAL = 96
_FEW = 32
#: How many numbers are kept of a node, and all of them at once.
_KEPT = 5
_LINE = Struct(f"{_KEPT}d")


class ClassColumns:
    """One class under one policy, over all nodes."""

    #: What is kept of a node: the sum of scores, what decides among equals, worth lost, untouched cards used up, and
    #: the slot of the card taken where it is one card and known.
    SUM, TIES, WORTH_LOST, UNTOUCHED, SLOT = range(_KEPT)

    def __init__(
        self, pod_class: PodClass, policy: Policy, rules: CardRules, ledger: Ledger, valuation: Valuation
    ) -> None:
        self._class = pod_class
        self._policy = policy
        self._ledger = ledger
        self._valuation = valuation
        self.tables = ClassTables(pod_class, policy, rules, ledger, valuation)
        self._single = single_trial(self.tables, policy)
        size = len(ledger.columns.cpu_free)
        #: What the node is worth without pressures: an upper bound, -inf where the pod does not fit.
        self._bound = np.full(size, -np.inf)
        self._kept = np.zeros((size, _KEPT))
        self._kept[:, self.SLOT] = UNKNOWN_SLOT
        self._bound_at, self._kept_at = one_by_one(self._bound), one_by_one(self._kept)
        #: Nodes on which the containers fit only apart, and the cards each would get.
        self._apart: dict[int, assignment.CardAssignment] = {}
        #: Nodes that won lately: probably good again, so that others are ruled out early.
        self._winners: list[int] = []
        self._seen = -1
        #: What was seen of the measured load, by a policy that weighs it.
        self._measured = 0
        self.nbytes = self._bound.nbytes + self._kept.nbytes

    def catch_up(self) -> None:
        """Try the nodes that changed."""
        columns = self._ledger.columns
        changed = columns.changed_since(self._seen) if self._seen >= 0 else None
        if self._policy.measures:
            changed = self._and_measured(changed)
        if changed is None or len(changed) > _MOST * columns.rows:
            self._try(np.arange(columns.rows))
        elif changed:
            rest = changed if self._single is None else self._try_singly(self._single, changed)
            if rest:
                self._try(np.array(rest))
        self._seen = columns.version

    def _and_measured(self, changed: list[int] | None) -> list[int] | None:
        """These rows, and those whose measured load changed."""
        load = self._ledger.load
        if load is None:
            return changed
        measured = load.changed_since(self._measured)
        self._measured = load.log.version
        return None if changed is None or measured is None else list({*changed, *measured})

    def _try_singly(self, single: SingleTrial, rows: list[int]) -> list[int]:
        """`_try`, node by node; the rows that are left to it: where cards go by a label, and after `_FEW` that fit."""
        if len(rows) > _SEVERAL:
            return rows
        plain, grain = self._ledger.columns.plain, self._policy.grain
        asks_labels, try_on, keeps = single.asks_labels, single.on, bool(self._policy.pressures)
        rest: list[int] = []
        fits = 0
        for i, row in enumerate(rows):
            node = plain[row]
            if asks_labels and node.policy:
                rest.append(row)
                continue
            found = try_on(node)
            if found is None:
                self._bound_at[row] = -math.inf
                continue
            total, ties, _, _, _ = found
            self._bound_at[row] = (round(total / grain) * grain if grain else total) + ties
            if keeps:
                _LINE.pack_into(self._kept_at, row * _LINE.size, *found)
            fits += 1
            if fits == _FEW:
                return rest + rows[i + 1 :]
        return rest

    def _try(self, rows: Rows) -> None:
        policy = self._policy
        trial = Trial(self.tables, rows)
        fits = trial.passing(policy.filters)
        if self._class.splittable:
            for row in rows.tolist():
                self._apart.pop(row, None)
        if not np.count_nonzero(fits):
            self._bound[rows] = -np.inf
            return
        total = np.where(fits, _weighted(trial.card_score, policy.scores, trial), -np.inf)
        for i, cards in trial.apart.items():
            if fits[i]:
                self._apart[int(rows[i])] = cards
                total[i] = SPLIT - len({slot for slots in cards for slot in slots})
        ties = _weighted(trial.card_tie, policy.ties, trial)
        self._bound[rows] = self._value(total, ties)
        if policy.pressures:
            self._kept[rows] = np.array((total, ties, trial.worth_lost, trial.untouched_used, trial.slot)).T

    def _value(self, total: FloatArray, ties: FloatArray) -> FloatArray:
        """The sum of scores in whole grains, then what decides among equals."""
        if not self._policy.grain:
            return total + ties
        value = total / self._policy.grain
        np.rint(value, out=value)
        value *= self._policy.grain
        value += ties
        return value

    def best(self, rng: Random, among: BoolArray | None, favour: FloatArray | None) -> int | None:
        """The best node's row, or None when the pod fits nowhere."""
        bound = self._bound[: self._ledger.columns.rows]
        if favour is not None:
            bound = bound + favour
        if among is not None:
            bound = np.where(among, bound, -np.inf)
        if not len(bound):
            return None
        first = int(bound.argmax())
        if bound.item(first) == -np.inf:
            return None
        if self._policy.random or self._policy.rank:
            return self._other_than_best(bound, favour, rng)
        if self._spared(first):
            return first
        costs = self._costs()
        if not costs:
            return first
        guesses = np.array([first, *self._winners])
        value = np.maximum.reduce(self._exact(guesses, costs, bound, favour))
        candidates = np.flatnonzero(bound >= value)
        winner = first
        if len(candidates) > 1:
            winner = int(candidates[self._exact(candidates, costs, bound, favour).argmax()])
        if winner not in self._winners:
            self._winners = [winner, *self._winners[: _GUESSES - 1]]
        return winner

    def fits(self) -> BoolArray:
        """The nodes that can take the pod."""
        fits: BoolArray = self._bound[: self._ledger.columns.rows] > -np.inf
        return fits

    def worths(self) -> FloatArray:
        """What every node is worth, pressures included; -inf where the pod does not fit."""
        worths = self._bound[: self._ledger.columns.rows].copy()
        costs = self._costs()
        fitting = np.flatnonzero(self.fits())
        if costs and len(fitting):
            worths[fitting] = self._exact(fitting, costs, worths, None)
        return worths

    def _costs(self) -> list[tuple[float, Cost]]:
        """The pressures that cost this class anything at present."""
        return [
            (weight, cost)
            for weight, pressure in self._policy.pressures
            if (cost := pressure.at_present(self._valuation, self.tables)) is not None
        ]

    def _spared(self, row: int) -> bool:
        """No pressure can cost anything on this node, so its bound is its worth."""
        untouched = int(self._kept_at[row * _KEPT + self.UNTOUCHED])
        return all(
            pressure.spares(self._valuation, self.tables, row, untouched) for _, pressure in self._policy.pressures
        )

    def _exact(
        self, rows: Rows, costs: list[tuple[float, Cost]], bound: FloatArray, favour: FloatArray | None
    ) -> FloatArray:
        """The worth of these nodes, pressures and favour included; -inf where the bound says the pod may not go."""
        kept = self._kept.take(rows, axis=0).T
        facts = self._ledger.columns.node.take(rows, axis=0).T
        cpu, whole = facts[Fact.CPU_FREE], facts[Fact.WHOLE]
        nodes = Candidates(
            facts[Fact.MODEL], kept[self.WORTH_LOST], whole, whole - kept[self.UNTOUCHED], cpu, cpu - self._class.cpu
        )
        total = kept[self.SUM]
        for weight, cost in costs:
            total += weight * cost(nodes)
        value = self._value(total, kept[self.TIES])
        if favour is not None:
            value += favour[rows]
        return np.where(bound[rows] > -np.inf, value, -np.inf)

    def _other_than_best(self, bound: FloatArray, favour: FloatArray | None, rng: Random) -> int:
        """Any node that fits, of the most favoured ones; or the one of the policy's rank."""
        fitting = np.flatnonzero(bound > -np.inf)
        if self._policy.random:
            if favour is not None:
                fitting = fitting[favour[fitting] == favour[fitting].max()]
            return int(fitting[rng.randrange(len(fitting))])
        order = fitting[np.argsort(-bound[fitting], kind="stable")]
        return int(order[min(self._policy.rank, len(order) - 1)])

    def cards_on(self, row: int, rng: Random) -> assignment.CardAssignment:
        """The cards each container would get on this node."""
        apart = self._apart.get(row)
        if apart is not None:
            return apart
        node = self._ledger.node_at(row)
        if self._class.only_whole or not self._class.needs:
            return assignment.stacked(node, self._class, ())
        slot = int(self._kept_at[row * _KEPT + self.SLOT])
        if slot != UNKNOWN_SLOT:
            return assignment.stacked(node, self._class, (slot,))
        trial = Trial(self.tables, np.array([row]), rng)
        if not trial.picks.found.item(0):
            # Chance gave the only card for clients without sizes to a share; without it the node was found to do.
            trial = Trial(self.tables, np.array([row]))
        return assignment.stacked(node, self._class, trial.stack(0))


def _weighted(start: FloatArray, scores: Sequence[tuple[float, Score]], trial: Trial) -> FloatArray:
    total = start
    for weight, score in scores:
        total = total + weight * score.score(trial)
    return total
