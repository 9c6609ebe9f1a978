"""KETI's way to choose: a node score and a GPU score, weighed against each other, and NVLink pairs.

Scores are on a scale of 0 to 100: from measured load where it is known (`keti_load`), else from what is booked, so that
nothing stops where nobody measures. How they are combined, and which cards are taken, is KETI's own rule.
"""

from __future__ import annotations

import numpy as np

from shoal.model.contract.keti import GpuPreference, KetiPolicy
from shoal.placement.columns import SHARES, WHOLE, BoolArray, FloatArray, Rows
from shoal.placement.keti_load import card_scores
from shoal.placement.ledger import NodeLedger
from shoal.placement.topology import lane_matrix
from shoal.placement.trial import NeedTables, Trial, take_lowest

#: What a pod on a card costs it, and what it gains it when cards are packed.
POD_PENALTY = 10
POD_BONUS = 100
#: What is left of a linked card's score for a pod of one card, once per link.
LINKED = 0.3


class KetiScores:
    """Scores of cards and nodes, and the choice of cards by them."""

    def __init__(self, settings: KetiPolicy) -> None:
        self._settings = settings

    def cards(self, trial: Trial, gpus: int) -> FloatArray:
        """Per card its score by measured load, else the mean of its free percentage and 100 - 10·pods, [slot, row].

        Packing adds 100·pods. A pod of one card sees linked cards at 0.3 of their score per link, if so configured.
        """
        pods = trial.columns.pods[trial.rows].T
        free = trial.code % SHARES * (100 / WHOLE)
        scores = (free + np.maximum(0, 100 - POD_PENALTY * pods)) / 2
        if trial.ledger.load is not None:
            terms, utilisation = trial.ledger.load.of_cards(trial.rows, len(scores))
            scores = np.where(np.isnan(terms), scores, card_scores(pods, utilisation, terms))
        if self._settings.prefer is GpuPreference.BINPACK:
            scores = scores + POD_BONUS * pods
        if gpus == 1 and self._settings.avoid_nvlink_for_one:
            for column, row in enumerate(trial.rows):
                for slot, card in enumerate(trial.ledger.node_at(int(row)).slots):
                    if card.gpu is not None:
                        scores[slot, column] *= LINKED ** len(card.gpu.links)
        return scores

    def keys(self, need: NeedTables) -> None:
        """The choice depends on the whole node."""

    def pick(self, trial: Trial, need: NeedTables, fits: BoolArray) -> tuple[Rows, BoolArray]:
        """The highest scores; for several cards NVLink pairs against the next two, a pair gaining its percentage."""
        gpus = need.need.gpus
        scores = self.cards(trial, gpus)
        slots, enough = take_lowest(-scores, fits, gpus)
        if gpus > 1:
            for column in np.flatnonzero(enough):
                node = trial.ledger.node_at(int(trial.rows[column]))
                chosen = self._paired(node, scores[:, column], np.flatnonzero(fits[:, column]), gpus)
                slots[:, column] = chosen
        return slots, enough

    def _paired(self, node: NodeLedger, scores: FloatArray, fitting: Rows, gpus: int) -> list[int]:
        cards = [card.gpu for card in node.slots if card.gpu is not None]
        lanes = lane_matrix(cards)
        rest = sorted((int(slot) for slot in fitting), key=lambda slot: (-scores[slot], slot))
        chosen: list[int] = []
        while gpus - len(chosen) >= 2:
            pairs = [(i, j) for n, i in enumerate(rest) for j in rest[n + 1 :] if lanes[i][j]]
            pair = max(
                pairs, key=lambda pair: (scores[pair[0]] + scores[pair[1]], [-slot for slot in pair]), default=None
            )
            bonus = 1 + self._settings.nvlink_percent / 100
            linked = round((scores[pair[0]] + scores[pair[1]]) / 2 * bonus) if pair else -1
            take = pair if pair and linked >= (scores[rest[0]] + scores[rest[1]]) / 2 else (rest[0], rest[1])
            chosen += take
            rest = [slot for slot in rest if slot not in take]
        return chosen + rest[: gpus - len(chosen)]

    def score(self, trial: Trial) -> FloatArray:
        """round(node·wN + gpu·wG): the node's score and the mean of those of the cards taken."""
        settings = self._settings
        total = settings.node_weight * self._nodes(trial)
        if trial.pod_class.needs:
            cards = [self.cards(trial, need.gpus) for need in trial.pod_class.needs]
            index = np.arange(len(trial.rows))
            taken = [scores[slots, index] for scores, slots in zip(cards, trial.picks.slots, strict=True)]
            total = total + settings.gpu_weight * np.concatenate(taken).mean(axis=0)
        return np.rint(total)

    @staticmethod
    def _nodes(trial: Trial) -> FloatArray:
        """By measured load, else the mean of the free parts of CPU and memory, 0..100."""
        scores = np.zeros(len(trial.rows))
        for i, row in enumerate(trial.rows):
            node = trial.ledger.node_at(int(row))
            if node.inventory is not None:
                cpu = 1 - node.cpu_used / node.inventory.cpu_milli if node.inventory.cpu_milli else 0.0
                memory = 1 - node.memory_used / node.inventory.memory_mib if node.inventory.memory_mib else 0.0
                scores[i] = 50 * (cpu + memory)
        if trial.ledger.load is not None:
            measured = trial.ledger.load.of_nodes(trial.rows)
            scores = np.where(np.isnan(measured), scores, measured)
        return scores
