"""A pod against every node of a dry run: which filter refused it, what each card has free, what the node is worth."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from shoal.analysis.dry_run import DryRun
from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.placement.classes import PodClass
from shoal.placement.columns import WHOLE, BoolArray, FloatArray
from shoal.placement.filters import CARD_FIT
from shoal.placement.ledger import CardLedger, NodeLedger
from shoal.placement.trial import NodeRefusal
from shoal.scheduler.feasibility.feasibility import Verdict

#: A node that is kept for a more important pod.
CLEARED = "Preemption"


class Answer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Root of the answers; fields that hold their default are left out of JSON."""


class CardAnswer(Answer, frozen=True):
    """One card of a node: what is free of it, and why it cannot take the pod; `why` is empty when it can."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    free_mib: int
    free_compute: int
    free_clients: int
    pods: int
    why: str = ""
    #: Memory used by nobody's pod, or by pods beyond their requests, where that lowers what is free.
    beyond_requests_mib: int = 0


class NodeAnswer(Answer, frozen=True):
    """One node: the filter that refused the pod and its words, or what the node is worth to the policy."""

    node: str
    refused_by: str = ""
    why: str = ""
    #: Whether it could fit if pods gave way.
    resolvable: bool = False
    #: Refused, though its cards, CPU and memory would be enough.
    has_room: bool = False
    #: Refused only because memory of its cards is used by nobody's pod or beyond requests.
    by_live_load: bool = False
    score: float | None = None
    #: Preferred affinity and taints to avoid, 0 to 100, compared before the score; None where nothing is preferred.
    preference: float | None = None
    #: The cards it would take there, by index.
    takes: tuple[int, ...] = ()
    cards: tuple[CardAnswer, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the pod fits there now."""
        return not self.refused_by


def by_node(dry_run: DryRun, pod: Pod, *, details: int) -> list[NodeAnswer]:
    """Every node: those that fit first, the best before the others, then those whose cards come closest.

    `details` is for how many nodes the cards are told, and which would be taken. Raises RequestError and PolicyError.
    """
    request = dry_run.check(pod)
    engine, rows = dry_run.engine, dry_run.engine.ledger.columns.rows
    verdict = dry_run.verdict(pod)
    allowed = dry_run.allowed(pod, verdict)[:rows]
    worths = engine.worths(request)
    favour = None if verdict.favour is None else verdict.favour[:rows]
    order = _order(dry_run, engine.class_of(request), allowed, allowed & engine.fits(request), worths, favour)
    told = _NodeAnswers(dry_run, pod, verdict, worths, favour)
    return [told.node(row, cards=place < details) for place, row in enumerate(order)]


class _NodeAnswers:
    """The answers of the nodes to one pod."""

    def __init__(
        self, dry_run: DryRun, pod: Pod, verdict: Verdict, worths: FloatArray, favour: FloatArray | None
    ) -> None:
        self._dry_run = dry_run
        self._request = dry_run.check(pod)
        self._verdict = verdict
        self._worths = worths
        self._favour = favour
        self._promised = dict(dry_run.promised(pod))

    def node(self, row: int, *, cards: bool) -> NodeAnswer:
        node = self._dry_run.engine.ledger.node_at(row)
        refusals = self._dry_run.engine.explain(self._request, node)
        told = card_answers(node, refusals) if cards else ()
        refused = self._refused(row, node, refusals)
        if refused is not None:
            by, why, resolvable = refused
            loaded = by == CARD_FIT and bool(self._dry_run.engine.refused_by_load(self._request, [node]))
            return NodeAnswer(node.name, by, why, resolvable, not refusals, loaded, cards=told)
        return NodeAnswer(
            node.name,
            score=round(float(self._worths[row]), 6),
            preference=None if self._favour is None else round(float(self._favour[row]), 3),
            takes=self._takes(row) if cards else (),
            cards=told,
        )

    def _refused(self, row: int, node: NodeLedger, refusals: Sequence[NodeRefusal]) -> tuple[str, str, bool] | None:
        reasons = [one for one in self._verdict.rejections if one.rows[row]]
        if reasons:
            return reasons[0].filter, ", ".join(one.reason for one in reasons), reasons[0].resolvable
        if node.name in self._promised:
            return CLEARED, f"is being cleared for {self._promised[node.name]}", False
        if refusals:
            return refusals[0].filter, refusals[0].reason, refusals[0].resolvable
        return None

    def _takes(self, row: int) -> tuple[int, ...]:
        only = np.zeros(self._dry_run.engine.ledger.columns.rows, np.bool_)
        only[row] = True
        allocation = self._dry_run.engine.decide(self._request, among=only)
        return () if allocation is None else indices(allocation)


def indices(allocation: Allocation) -> tuple[int, ...]:
    """The cards of a decision, by index."""
    return tuple(sorted({card.index for container in allocation.containers for card in container.cards}))


def card_answers(node: NodeLedger, refusals: Sequence[NodeRefusal]) -> tuple[CardAnswer, ...]:
    """Every card of a node, and what it says where cards are why the node is refused."""
    says = {uuid: why for refusal in refusals for uuid, why in refusal.cards.items()}
    return tuple(_card(card, says.get(card.inventory.uuid, "")) for card in node.slots)


def _card(card: CardLedger, why: str) -> CardAnswer:
    gpu, taken = card.inventory, card.exclusive > 0
    return CardAnswer(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        free_mib=0 if taken else card.free_mib,
        free_compute=0 if taken else WHOLE - card.compute,
        free_clients=0 if taken else gpu.mps_clients - card.clients,
        pods=card.pods,
        why=why,
        beyond_requests_mib=card.beyond_mib,
    )


def _order(
    dry_run: DryRun,
    pod_class: PodClass,
    allowed: BoolArray,
    fits: BoolArray,
    worths: FloatArray,
    favour: FloatArray | None,
) -> list[int]:
    columns = dry_run.engine.ledger.columns
    alive = np.flatnonzero(columns.alive[: columns.rows] > 0)
    exclusive = bool(pod_class.needs) and pod_class.needs[0].share.exclusive
    free = columns.whole[: columns.rows] if exclusive else columns.memory_free[: columns.rows].max(axis=1)
    preferred = np.zeros(columns.rows) if favour is None else favour
    worth = np.where(fits, worths, 0.0)
    # The last key comes first.
    keys = (alive, -free[alive], -worth[alive], -(preferred * fits)[alive], ~allowed[alive], ~fits[alive])
    return [int(row) for row in alive[np.lexsort(keys)]]
