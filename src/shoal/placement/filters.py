"""Filters: which nodes can take a pod. Each says so for many nodes by the arrays, and for one node in words."""

from __future__ import annotations

import numpy as np

from shoal.model.request import Share, accepts, share_words
from shoal.placement import assignment
from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.columns import BoolArray, Fact
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.placement.trial import ClassTables, NodeFilter, NodeRefusal, OneFilter, Trial

#: The names under which their refusals stand beside those of kube-scheduler's filters.
NODE_RESOURCES = "NodeResourcesFit"
CARD_FIT = "Cards"


class NodeResources(NodeFilter):
    """The node is there and has the pod's CPU and memory. A pod that asks for none of either fits in any case.

    A node that is there for some pods only (`columns.alive`) is passed over here; why, `CardFit` tells.
    """

    name = NODE_RESOURCES

    def passes(self, trial: Trial) -> BoolArray:
        enough: BoolArray = np.logical_and.reduce(trial.facts[Fact.RESOURCES] >= trial.tables.node_needs, axis=0)
        return enough

    def plain(self, tables: ClassTables) -> OneFilter:
        cpu, ram, alive = tables.node_needs[:, 0].tolist()
        return lambda node: node.cpu_free >= cpu and node.ram_free >= ram and node.alive >= alive

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> NodeRefusal | None:
        if node.inventory is None:
            return NodeRefusal(self.name, "the node is gone")
        short = [
            f"{free}{unit} {name} free, {wanted}{unit} wanted"
            for name, unit, free, wanted in (
                ("CPU", "m", node.inventory.cpu_milli - node.cpu_used, pod_class.cpu),
                ("memory", " MiB", node.inventory.memory_mib - node.memory_used, pod_class.ram),
            )
            if wanted and wanted > free
        ]
        return NodeRefusal(self.name, "; ".join(short)) if short else None


class CardFit(NodeFilter):
    """The node has cards for every need of the pod, each on cards of its own, or each container on its own cards."""

    name = CARD_FIT

    def passes(self, trial: Trial) -> BoolArray:
        if not trial.apart:
            return trial.found
        found = trial.found.copy()
        found[list(trial.apart)] = True
        return found

    def plain(self, tables: ClassTables) -> None:
        """Where no cards are found the class is refused anyway."""

    def fits(self, node: NodeLedger, pod_class: PodClass) -> bool:
        if pod_class.several or len(pod_class.needs) > 1:
            return self.refusal(node, pod_class) is None
        if not pod_class.needs:
            return True
        (need,), selector = pod_class.needs, pod_class.selector
        missing = need.gpus
        for card in node.slots:
            if card.holds(need.share) and accepts(selector, card.inventory):
                missing -= 1
                if not missing:
                    return True
        return False

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> NodeRefusal | None:
        if not pod_class.needs:
            return None
        if not node.slots:
            return NodeRefusal(self.name, "the node has no GPU", resolvable=False)
        if pod_class.several and node.inventory is not None and node.inventory.one_container:
            words = "its device plugin gives one container a share of one card: run Shoal's agent there"
            return NodeRefusal(self.name, words)
        fitting = {need: self._fitting(node, pod_class, need) for need in pod_class.needs}
        if all(len(fitting[need]) >= need.gpus for need in pod_class.needs) and self._apart(pod_class, fitting):
            return None
        if pod_class.splittable and assignment.spread(node, pod_class) is not None:
            return None
        short = next((need for need in pod_class.needs if len(fitting[need]) < need.gpus), None)
        if short is None:
            wanted = " and ".join(f"{need.gpus} with {_words(need.share)}" for need in pod_class.needs)
            usable = len({slot for slots in fitting.values() for slot in slots})
            words = f"{usable} of {len(node.slots)} cards can be used, {wanted} wanted at the same time"
            return NodeRefusal(self.name, words)
        says = {
            card.inventory.uuid: reason
            for card in node.slots
            if (reason := self._card(card, pod_class, short.share)) is not None
        }
        words = f"{len(fitting[short])} of {len(node.slots)} cards fit {_words(short.share)}, {short.gpus} wanted"
        return NodeRefusal(self.name, words, says)

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
    return share_words(share)
