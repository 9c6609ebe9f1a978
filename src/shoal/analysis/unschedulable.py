"""Why a pod fits nowhere, and the smallest changes that would help: pods that leave, or a smaller request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from shoal.analysis.dry_run import DryRun, full_name
from shoal.analysis.node_fit import Answer, NodeAnswer, by_node
from shoal.analysis.words import counted, listed
from shoal.kube.objects.pod import Container, Pod, Resources
from shoal.model.contract import gpushare
from shoal.model.errors import RequestError
from shoal.model.request import ContainerRequest, Share, accepts
from shoal.placement.columns import BoolArray
from shoal.placement.ledger import NodeLedger
from shoal.scheduler.claims.errors import PodCostError
from shoal.scheduler.diagnosis import diagnose
from shoal.scheduler.preemption import PodOnNode, candidate_limit, choose, may_preempt


class Unschedulable(Answer, frozen=True):
    """A pod that fits nowhere now."""

    #: What the scheduler would write on the pod.
    message: str
    nodes: tuple[NodeAnswer, ...] = ()
    #: The pods that the scheduler would preempt by itself.
    preempts: NodeVictims | None = None
    #: The pods that somebody would have to delete by hand, where the scheduler preempts none.
    clearing: NodeVictims | None = None
    #: The memory per card with which it would fit now.
    would_fit_mib: int | None = None


def unschedulable(dry_run: DryRun, pod: Pod, *, details: int) -> Unschedulable:
    """Why each node refuses a pod that fits nowhere, and what would help. Raises RequestError and PolicyError."""
    verdict = dry_run.verdict(pod)
    diagnosis = diagnose(dry_run.engine, dry_run.check(pod), verdict)
    giving_way = fewest = None
    with contextlib.suppress(PodCostError):  # nobody gives way to claims that are too hard to serve
        giving_way = preempts(dry_run, pod, diagnosis.candidates)
        fewest = None if giving_way else fewest_victims(dry_run, pod, diagnosis.candidates)
    return Unschedulable(
        message=diagnosis.message,
        nodes=tuple(by_node(dry_run, pod, details=details)),
        preempts=giving_way,
        clearing=fewest,
        would_fit_mib=None if pod.spec.resource_claims else would_fit_mib(dry_run, pod),
    )


#: Nodes with room for the pod that are named.
_ROOMY: Final = 3


def what_helps(lacking: Unschedulable) -> list[str]:
    """The smallest changes that would let the pod in, a sentence each. A node without a name is not told."""
    lines = []
    if lacking.preempts is not None:
        room = lacking.preempts
        where = f" on {room.node}" if room.node else ""
        lines.append(f"The scheduler makes room{where}: {listed(room.pods)} must give way.")
    if lacking.would_fit_mib:
        lines.append(f"With {lacking.would_fit_mib} MiB per card or less it would fit now.")
    if lacking.clearing is not None:
        room = lacking.clearing
        where = f" on {room.node}" if room.node else ""
        lines.append(f"Were {listed(room.pods)} gone, it would fit{where}; the scheduler sends nobody away.")
    loaded = [node.node for node in lacking.nodes if node.by_live_load]
    if loaded:
        have = "has" if len(loaded) == 1 else "have"
        lines.append(f"{listed(loaded)} {have} room by requests: when less is used beyond them, it is tried again.")
    roomy = [node for node in lacking.nodes if node.has_room]
    lines += [f"{one.node} has room, were it not for {one.refused_by}: {one.why}." for one in roomy[:_ROOMY]]
    if len(roomy) > _ROOMY:
        lines.append(f"So {'has' if len(roomy) == _ROOMY + 1 else 'have'} {counted(len(roomy) - _ROOMY, 'more node')}.")
    return lines or ["No pod's leaving would help: it takes another node, or another request."]


Fits = Callable[[str, frozenset[str]], bool]


class NodeVictims(Answer, frozen=True):
    """A node and the pods that would have to leave it."""

    node: str
    pods: tuple[str, ...]
    #: How many of them break a disruption budget.
    breaks_budgets: int = 0


def preempts(dry_run: DryRun, pod: Pod, candidates: BoolArray) -> NodeVictims | None:
    """The pods that the scheduler would preempt, on one of several equal nodes; None when it would preempt none."""
    level = pod.spec.priority or 0
    if not may_preempt(pod.spec.preemption_policy) or dry_run.state.lowest_priority() >= level:
        return None
    plan = choose(
        _names(dry_run, candidates),
        pods_on=lambda node: _on_node(dry_run, node),
        fits=_fits(dry_run, pod),
        priority=level,
        budgets=dry_run.budgets.allowances(),
        limit=candidate_limit(dry_run.state.nodes()),
    )
    if plan is None:
        return None
    return NodeVictims(plan.node, _named(dry_run, [victim.uid for victim in plan.victims]), plan.violations)


def fewest_victims(dry_run: DryRun, pod: Pod, candidates: BoolArray) -> NodeVictims | None:
    """The fewest pods of one node whose end would make room, whatever their priority; large ones before small ones.

    As many nodes are looked at as the scheduler looks at for victims, those with the most free first.
    """
    fits, ledger = _fits(dry_run, pod), dry_run.engine.ledger
    limit = candidate_limit(dry_run.state.nodes())
    best: list[str] | None = None
    where = ""
    for name in _names(dry_run, candidates)[:limit]:
        node = ledger.node(name)
        if node is None:
            continue
        # The smallest are spared first, so that few large ones are left.
        there = [uid for uid in node.pods if dry_run.state.pod(uid) is not None]
        pods = sorted(there, key=lambda uid: _size(dry_run, uid))
        away = set(pods)
        if not away or not fits(name, frozenset(away)):
            continue
        for uid in pods:
            if fits(name, frozenset(away - {uid})):
                away.remove(uid)
        if best is None or len(away) < len(best):
            best, where = [uid for uid in pods if uid in away], name
    return None if best is None else NodeVictims(where, _named(dry_run, best))


def _fits(dry_run: DryRun, pod: Pod) -> Fits:
    cards_fit = dry_run.cards_fit_without(pod)

    def fits(node: str, gone: frozenset[str]) -> bool:
        row = dry_run.state.row(node)
        return row is not None and cards_fit(node, gone) and dry_run.feasibility.fits_without(pod, row, gone)

    return fits


def _names(dry_run: DryRun, candidates: BoolArray) -> list[str]:
    columns = dry_run.engine.ledger.columns
    rows = np.flatnonzero(candidates[: columns.rows])
    free = columns.memory_free[rows].max(axis=1) if len(rows) else rows
    order = rows[np.argsort(-free, kind="stable")]
    return [dry_run.engine.ledger.node_at(int(row)).name for row in order]


def _on_node(dry_run: DryRun, name: str) -> list[PodOnNode]:
    node = dry_run.engine.ledger.node(name)
    return [
        PodOnNode(
            uid=uid,
            priority=pod.spec.priority or 0,
            started=pod.status.start_time,
            disruption_budgets=dry_run.budgets.of(pod),
        )
        for uid in (() if node is None else node.pods)
        if (pod := dry_run.state.pod(uid)) is not None
    ]


def _size(dry_run: DryRun, uid: str) -> tuple[int, int, int, str]:
    """How much a pod holds: cards taken whole, memory of cards, CPU."""
    booking = dry_run.engine.ledger.booking(uid)
    assert booking is not None
    shares = booking.allocation.held().values()
    return sum(s.exclusive for s in shares), sum(s.memory_mib for s in shares), booking.cpu_milli, uid


def _named(dry_run: DryRun, uids: list[str]) -> tuple[str, ...]:
    pods = (dry_run.state.pod(uid) for uid in uids)
    return tuple(sorted(full_name(pod) for pod in pods if pod is not None))


#: Amounts that are tried, the largest first.
_TRIES: Final = 8


def would_fit_mib(dry_run: DryRun, pod: Pod) -> int | None:
    """The largest share of memory, in MiB per card, with which the pod would fit now.

    None when no smaller share helps, or when several containers ask for cards.
    """
    request = dry_run.check(pod)
    unit = dry_run.state.unit
    containers = [one for one in pod.spec.containers if gpushare.RESOURCE_MEMORY in one.resources.limits]
    if len(request.containers) != 1 or len(containers) != 1 or request.containers[0].share.exclusive:
        return None
    asked = request.containers[0]
    rooms = {unit.floor(_room(node, dry_run, pod, asked)) for node in dry_run.engine.ledger.nodes()}
    fewer = sorted((room for room in rooms if 0 < room < unit.ceil(asked.share.memory_mib)), reverse=True)
    for room in fewer[:_TRIES]:
        if _can_place(dry_run, _asking(pod, containers[0], room * asked.gpus)):
            return unit.to_mib(room)
    return None


def _room(node: NodeLedger, dry_run: DryRun, pod: Pod, asked: ContainerRequest) -> int:
    """Free memory of the fullest card that the pod would get, were it given the emptiest cards of the node."""
    least = Share(1, asked.share.compute, asked.share.clients)
    selector = dry_run.check(pod).selector
    free = sorted(
        (card.free_mib for card in node.slots if accepts(selector, card.inventory) and card.refusal(least) is None),
        reverse=True,
    )
    return free[asked.gpus - 1] if len(free) >= asked.gpus else 0


def _asking(pod: Pod, container: Container, units: int) -> Pod:
    """The pod with so many units of GPU memory."""
    amount = {gpushare.RESOURCE_MEMORY: units}
    given = container.resources
    resources = Resources(limits={**given.limits, **amount}, requests={**given.requests, **amount})
    smaller = msgspec.structs.replace(container, resources=resources)
    containers = tuple(smaller if one is container else one for one in pod.spec.containers)
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, uid=f"{pod.metadata.uid}-smaller"),
        spec=msgspec.structs.replace(pod.spec, containers=containers),
    )


def _can_place(dry_run: DryRun, pod: Pod) -> bool:
    try:
        placed = dry_run.place(pod) is not None
    except RequestError:
        return False
    dry_run.state.take_out(pod.metadata.uid)
    return placed
