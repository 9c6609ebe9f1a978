"""The node has cards for every need of the pod, each need on cards of its own, or each container on its own cards."""

from __future__ import annotations

from shoal.model.request import Share, accepts
from shoal.placement import stacking
from shoal.placement.books.columns import BoolArray
from shoal.placement.books.ledger import CardBooks, NodeBooks
from shoal.placement.classes import CardNeed, PodClass
from shoal.placement.trial import Refusal, Trial


class CardFit:
    def passes(self, trial: Trial) -> BoolArray:
        return trial.found

    def refusal(self, node: NodeBooks, pod_class: PodClass) -> Refusal | None:
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

    def _fitting(self, node: NodeBooks, pod_class: PodClass, need: CardNeed) -> list[int]:
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
    def _card(card: CardBooks, pod_class: PodClass, share: Share) -> str | None:
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
