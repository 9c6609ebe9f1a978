"""Scores: how good a node, or a card of it, is for a pod. Docstrings give the formulas, `weights` the weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.model.request import matches_model
from shoal.placement.assignment import untouched
from shoal.placement.classes import PodClass
from shoal.placement.columns import SHARES, WHOLE, FloatArray, PlainNode
from shoal.placement.topology import closeness
from shoal.placement.trial import ClassTables, NeedTables, OneScore, Trial
from shoal.placement.weights import CPU_BOUND
from shoal.placement.worth.valuation import Valuation


class Regret:
    """max(0, w(g) - w(g-z) - price(z)): the free share becomes less useful than by the pod's own size."""

    def by_card(self, need: NeedTables) -> FloatArray:
        regret: FloatArray = np.maximum(0.0, need.worth_lost - need.price)
        return regret


class Stranding:
    """S' - S: how many more GPU equivalents of the node are expected to lack CPU (`Valuation.stranding`)."""

    def score(self, trial: Trial) -> FloatArray:
        after = trial.valuation.stranding(trial.worth_after, trial.cpu_after)
        after -= trial.valuation.stranded[trial.rows]
        return after

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        def score(node: PlainNode, worth_after: float, cpu_after: int) -> float:
            return valuation.stranding_at(worth_after, cpu_after) - valuation.stranded_at[node.row]

        return score


class NodeWorth:
    """K': the worth left on the node."""

    def score(self, trial: Trial) -> FloatArray:
        return trial.worth_after

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        return lambda node, worth_after, cpu_after: worth_after


class CardLeft:
    """The share left on the card taken, 0..1."""

    def by_card(self, need: NeedTables) -> FloatArray:
        left: FloatArray = need.left / WHOLE
        return left


class CpuLeft:
    """The cores left on the node: for pods that take a GPU, and CPU_BOUND times as much for all where CPU runs out."""

    def score(self, trial: Trial) -> FloatArray:
        return trial.cpu_after.astype(np.float64) * _cpu_worth(trial.pod_class, trial.valuation)

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        worth = _cpu_worth(tables.pod_class, valuation)
        return lambda node, worth_after, cpu_after: cpu_after * worth


def _cpu_worth(pod_class: PodClass, valuation: Valuation) -> float:
    """What a thousandth of a core counts."""
    return 0.001 * (pod_class.wants_gpu + CPU_BOUND * valuation.demand.cpu_bound)


class FreeShare:
    """The mean free share of the node's cards before the pod comes, 0..1."""

    def score(self, trial: Trial) -> FloatArray:
        cards = (trial.code >= SHARES).sum(axis=0)
        free: FloatArray = (trial.code % SHARES).sum(axis=0) / (SHARES - 1)
        free /= cards.clip(1)
        return free


class Topology:
    """How well the pod's whole cards would hang together on the node, 0..1 (`topology.closeness`)."""

    def score(self, trial: Trial) -> FloatArray:
        score = np.zeros(len(trial.rows))
        sizes, selector = trial.pod_class.whole_sizes, trial.pod_class.selector
        if len(sizes) < 2:
            return score
        for i, row in enumerate(trial.rows):
            node = trial.ledger.node_at(int(row))
            score[i] = closeness([node.slots[slot].inventory for slot in untouched(node, selector)], sizes)
        return score


class ModelPreference:
    """1 for nodes with the first model of the list, falling evenly to 0 for those with none of them."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = tuple(models)

    def score(self, trial: Trial) -> FloatArray:
        by_model = np.array([self._rank(model) for model in trial.columns.models])
        score: FloatArray = by_model[trial.model]
        return score

    def plain(self, tables: ClassTables, valuation: Valuation) -> OneScore:
        by_model = [self._rank(model) for model in tables.models]
        return lambda node, worth_after, cpu_after: by_model[node.model]

    def _rank(self, model: str) -> float:
        for i, wanted in enumerate(self._models):
            if any(matches_model(part, wanted) for part in model.split("+")):
                return 1.0 - i / len(self._models)
        return 0.0
