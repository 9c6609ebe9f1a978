"""Filters: which nodes can take a pod. Each says so for many nodes by the arrays, and for one node in words."""

from __future__ import annotations

import numpy as np

from shoal.model.request import Share, accepts
from shoal.placement import stacking
from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.columns import BoolArray
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.placement.trial import Refusal, Trial


class NodeResources:
    """The node is there and has the pod's CPU and memory. A pod that asks for none of either fits in any case.

    A node that is there for some pods only (`columns.alive`) is passed over here; why, `CardFit` tells.
    """

    def passes(self, trial: Trial) -> BoolArray:
        enough: BoolArray = np.logical_and.reduce(trial.facts[:3] >= trial.tables.node_needs, axis=0)
        return enough

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> Refusal | None:
        if node.inventory is None:
            return Refusal("the node is gone")
        short = [
            f"{free}{unit} {name} free, {wanted}{unit} wanted"
            for name, unit, free, wanted in (
                ("CPU", "m", node.inventory.cpu_milli - node.cpu_used, pod_class.cpu),
                ("memory", " MiB", node.inventory.memory_mib - node.memory_used, pod_class.ram),
            )
            if wanted and wanted > free
        ]
        return Refusal("; ".join(short)) if short else None


class CardFit:
    """The node has cards for every need of the pod, each on cards of its own, or each container on its own cards."""

    def passes(self, trial: Trial) -> BoolArray:
        return trial.found

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> Refusal | None:
        if not pod_class.needs:
            return None
        if not node.slots:
            return Refusal("the node has no GPU")
        if pod_class.several and node.inventory is not None and node.inventory.one_container:
            return Refusal("its device plugin gives one container a share of one card: run Shoal's agent there")
        fitting = {need: self._fitting(node, pod_class, need) for need in pod_class.needs}
        if all(len(fitting[need]) >= need.gpus for need in pod_class.needs) and self._apart(pod_class, fitting):
            return None
        if pod_class.splittable and stacking.spread(node, pod_class) is not None:
            return None
        short = next((need for need in pod_class.needs if len(fitting[need]) < need.gpus), None)
        if short is None:
            wanted = " and ".join(f"{need.gpus} with {_words(need.share)}" for need in pod_class.needs)
            usable = len({slot for slots in fitting.values() for slot in slots})
            return Refusal(f"{usable} of {len(node.slots)} cards can be used, {wanted} wanted at the same time")
        says = {
            card.inventory.uuid: reason
            for card in node.slots
            if (reason := self._card(card, pod_class, short.share)) is not None
        }
        return Refusal(
            f"{len(fitting[short])} of {len(node.slots)} cards fit {_words(short.share)}, {short.gpus} wanted", says
        )

    def _fitting(self, node: NodeLedger, pod_class: PodClass, need: CardNeed) -> list[int]:
        return [slot for slot, card in enumerate(node.slots) if self._card(card, pod_class, need.share) is None]

    @staticmethod
    def _apart(pod_class: PodClass, fitting: dict[CardNeed, list[int]]) -> bool:
        """Each need on cards of its own: the larger choose first, whole cards take those that no share could use."""
        shared = [slots for need, slots in fitting.items() if not need.share.exclusive]
        taken: set[int] = set()
        for need in pod_class.needs:
            free = [slot for slot in fitting[need] if slot not in taken]
            if len(free) < need.gpus:
                return False
            if need.share.exclusive:
                free.sort(key=lambda slot: sum(slot in slots for slots in shared))
            taken |= set(free[: need.gpus])
        return True

    @staticmethod
    def _card(card: CardLedger, pod_class: PodClass, share: Share) -> str | None:
        if not accepts(pod_class.selector, card.inventory):
            return f"not accepted by the pod: {card.inventory.model or 'no model'}"
        return card.refusal(share)


def _words(share: Share) -> str:
    """A share as a person would say it."""
    if share.exclusive:
        return f"a whole card of {share.memory_mib} MiB" if share.memory_mib else "a whole card"
    parts = [
        f"{amount} {unit}"
        for amount, unit in (
            (share.memory_mib, "MiB"),
            (share.compute, "% compute"),
            (share.clients, "MPS clients"),
        )
        if amount
    ]
    return " with ".join(parts)
