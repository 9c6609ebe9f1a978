"""Why a pod fits nowhere, or why not there: node by node, card by card, in words. Built only when somebody asks."""

from __future__ import annotations

from shoal.placement.classes import PodClass
from shoal.placement.ledger import Ledger
from shoal.placement.policies import CARD_FIT, Policy
from shoal.placement.trial import Refusal


def refusals(ledger: Ledger, policy: Policy, pod_class: PodClass) -> dict[str, Refusal]:
    """The nodes that cannot take the pod, with the first reason of each."""
    found: dict[str, Refusal] = {}
    for node in ledger.nodes():
        for rule in (*policy.filters, CARD_FIT):
            refusal = rule.refusal(node, pod_class)
            if refusal is not None:
                found[node.name] = refusal
                break
    return found
