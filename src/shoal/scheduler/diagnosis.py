"""What a person reads about a pod that waits: which nodes refused it and why, how much was free, what would help.

The shape is kube-scheduler's ("0/5 nodes are available: …"), so that people and tools that read it find what they know.
Behind it stand the nodes that came closest, card by card. Built from the arrays: the words for thousands of nodes cost
little more than those for three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import gpushare
from shoal.model.errors import RequestError
from shoal.model.gpu import Gpu
from shoal.model.pod import check_fits_some_card
from shoal.model.request import Request, accepts_model
from shoal.placement.classes import PodClass
from shoal.placement.columns import BoolArray
from shoal.placement.engine import Engine
from shoal.placement.filters import CARD_FIT, NODE_RESOURCES
from shoal.placement.ledger import Ledger, NodeLedger
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.feasibility.feasibility import Verdict
from shoal.scheduler.state.cluster_state import ClusterState

#: Nodes that are described card by card, and cards of each.
_CLOSEST: Final = 3
_CARDS: Final = 8
#: Nodes with memory used beyond requests that are looked at.
_LOADED: Final = 64
#: Templates whose diagnosis is kept.
_DIAGNOSES: Final = 1000

#: What may lift a refusal, by the filter that made it; anything may lift one that is not listed.
_HELPS: Final[Mapping[str, ClusterEvent]] = {
    "NodeAffinity": ClusterEvent.NODE_LABELS,
    "NodeName": ClusterEvent.NODE_ADDED,
    "NodeUnschedulable": ClusterEvent.NODE_TAINTS,
    "TaintToleration": ClusterEvent.NODE_TAINTS,
    NODE_RESOURCES: ClusterEvent.NODE_RESOURCES,
    "NodePorts": ClusterEvent.PODS,
    "InterPodAffinity": ClusterEvent.PODS | ClusterEvent.NODE_LABELS,
    "PodTopologySpread": ClusterEvent.PODS | ClusterEvent.NODE_LABELS | ClusterEvent.NODE_TAINTS,
    "VolumeBinding": ClusterEvent.VOLUMES | ClusterEvent.NODE_LABELS,
    "VolumeZone": ClusterEvent.VOLUMES | ClusterEvent.NODE_LABELS,
    "VolumeRestrictions": ClusterEvent.VOLUMES | ClusterEvent.PODS,
    CARD_FIT: ClusterEvent.CARDS_FREED | ClusterEvent.NODE_RESOURCES | ClusterEvent.LIVE_LOAD,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod fits nowhere now."""

    #: For the pod's condition; an event carries the first part of it.
    message: str
    #: What could change that.
    helps: ClusterEvent
    #: The nodes where it could fit if pods gave way.
    candidates: BoolArray
    #: Some card could take it, were it free.
    possible: bool = True

    @property
    def may_help(self) -> bool:
        """Whether the pod could fit when others have left."""
        return self.possible and bool(self.candidates.any())


class Diagnoses:
    """Diagnoses of the cluster's present state, each made once for pods that fit in the same places."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._known: BoundedCache[object, tuple[tuple[int, int], Diagnosis]] = BoundedCache(_DIAGNOSES)

    def of(self, template: object, request: Request, verdict: Verdict) -> Diagnosis:
        """Why the pods of this template fit nowhere."""
        version = self._state.version()
        known = self._known.get(template)
        if known is not None and known[0] == version:
            return known[1]
        diagnosis = diagnose(self._state.engine, request, verdict)
        self._known.put(template, (version, diagnosis))
        return diagnosis


def diagnose(engine: Engine, request: Request, verdict: Verdict) -> Diagnosis:
    """Why the request fits on none of the nodes."""
    ledger, pod_class = engine.ledger, engine.class_of(request)
    columns = ledger.columns
    rows = columns.rows
    alive = columns.alive[:rows] > 0
    allowed = verdict.allowed[:rows] & alive
    counts: dict[str, int] = {}
    helps = ClusterEvent.NODE_ADDED | ClusterEvent.POLICY
    candidates = allowed.copy()
    for refused in verdict.rejections:
        hit = int(np.count_nonzero(refused.rows[:rows]))
        _add(counts, refused.reason, hit)
        if hit:
            helps |= _HELPS.get(refused.filter, ~ClusterEvent(0))
            if refused.resolvable:
                candidates |= refused.rows[:rows] & alive
    total = int(np.count_nonzero(alive))
    detail = never = _never(ledger, pod_class)
    if np.count_nonzero(allowed):
        for rule in engine.policy_for(request).filters:
            helps |= _HELPS.get(rule.name, ~ClusterEvent(0))
        bare = allowed & (columns.code[:rows].max(axis=1) == 0)
        _add(counts, "node(s) had no GPU", int(np.count_nonzero(bare)))
        short = allowed & ~bare
        for reason, others in other_refusals(engine, request):
            _add(counts, reason, int(np.count_nonzero(short & others)))
            short &= ~others
        _add(counts, shortage(pod_class), int(np.count_nonzero(short)))
        candidates &= ~bare
        detail = _sentences(_by_load(engine, request, allowed), detail or _closest(engine, pod_class, allowed & ~bare))
    message = f"0/{total} nodes are available"
    if counts:
        message += ": " + ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return Diagnosis(_sentences(message, detail), helps, candidates, not never)


def _add(counts: dict[str, int], reason: str, nodes: int) -> None:
    if nodes:
        counts[reason] = counts.get(reason, 0) + nodes


def _sentences(*parts: str) -> str:
    return " ".join(part.rstrip(".") + "." for part in parts if part)


def shortage(pod_class: PodClass) -> str:
    """What the cards are short of, in the words of the family that asks."""
    if not pod_class.needs:
        return "Insufficient cpu or memory"
    share = pod_class.needs[0].share
    cards = sum(need.gpus for need in pod_class.needs)
    if share.exclusive:
        return "Insufficient whole GPUs"
    if share.clients:
        return "Insufficient MPS clients or GPU memory"
    return gpushare.REASON_INSUFFICIENT if cards == 1 else f"Insufficient GPU Memory in {cards} devices"


def other_refusals(engine: Engine, request: Request) -> Iterator[tuple[str, BoolArray]]:
    """In words, the nodes that a filter of the policy refuses for other reasons than cards, CPU and memory, by row."""
    for rule in engine.policy_for(request).filters:
        if rule.name not in (CARD_FIT, NODE_RESOURCES):
            yield f"node(s) refused by {rule.name}", ~engine.passes(request, rule)


def _closest(engine: Engine, pod_class: PodClass, short: BoolArray) -> str:
    """The nodes with the most free on one card, described card by card."""
    if not pod_class.needs:
        return ""
    columns = engine.ledger.columns
    found = np.flatnonzero(short)
    if pod_class.needs[0].share.exclusive:
        key = columns.whole[found]
    else:
        key = columns.memory_free[found].max(axis=1)
    best = found[np.argsort(-key, kind="stable")[:_CLOSEST]]
    nodes = (engine.ledger.node_at(row) for row in best.tolist())
    told = [text for node in nodes if (text := node_refusal(engine, node, pod_class.request))]
    return "Closest: " + "; ".join(told) if told else ""


def _by_load(engine: Engine, request: Request, allowed: BoolArray) -> str:
    """How many nodes would take the pod were nothing used beyond what is booked."""
    ledger = engine.ledger
    nodes = (node for name in ledger.lowered if (node := ledger.node(name)) is not None and allowed[node.row])
    found = engine.refused_by_load(request, islice(nodes, _LOADED))
    if not found:
        return ""
    count = "1 of them has" if len(found) == 1 else f"{len(found)} of them have"
    return f"{count} room by requests: memory there is used by nobody's pod, or beyond requests"


def node_refusal(engine: Engine, node: NodeLedger, request: Request) -> str:
    """Why a node cannot take the pod, card by card; empty when only CPU or memory are short, which the counts show."""
    refusal = next((one for one in engine.explain(request, node) if one.filter != NODE_RESOURCES), None)
    if refusal is None:
        return ""
    indices = {card.inventory.uuid: card.inventory.index for card in node.slots}
    says = sorted((indices[uuid], reason) for uuid, reason in refusal.cards.items())
    cards = [f"GPU{index} {reason}" for index, reason in says[:_CARDS]]
    if len(says) > _CARDS:
        cards.append(f"and {len(says) - _CARDS} more")
    return f"{node.name} ({refusal.reason}{': ' if cards else ''}{', '.join(cards)})"


def _never(ledger: Ledger, pod_class: PodClass) -> str:
    """What to change in the request when no card of the cluster could take it even if it were empty."""
    selector = pod_class.selector
    if selector.uuids or selector.not_uuids:
        return ""
    counts = ledger.columns.cards_by_kind()
    cards = [
        Gpu(uuid=str(number), index=number, memory_mib=kind.memory_mib, model=kind.model, mps_clients=kind.mps_clients)
        for number, kind in enumerate(ledger.columns.kinds)
        if counts[number] and accepts_model(selector, kind.model)
    ]
    try:
        check_fits_some_card(pod_class.request, cards)
    except RequestError as error:
        return str(error)
    return ""


def placed(node: str, cards: Sequence[tuple[int, str]]) -> str:
    """Where a pod was placed, in words: the node, and the cards by index and UUID."""
    where = ", ".join(f"GPU{index} ({uuid})" for index, uuid in cards)
    return f"{node}, {where}" if where else node
