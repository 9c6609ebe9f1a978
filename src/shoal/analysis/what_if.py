"""Whether workloads would fit: their pods are placed in a dry run one after another, until one does not fit."""

from __future__ import annotations

from shoal.analysis.dry_run import DryRun, full_name, waits
from shoal.analysis.manifests import ManifestWorkload
from shoal.analysis.node_fit import Answer
from shoal.analysis.unschedulable import Unschedulable, unschedulable
from shoal.analysis.words import asked
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import key_of
from shoal.model.allocation import Allocation
from shoal.model.contract.groups import PodGroup, decode_group
from shoal.model.errors import CodecError, RequestError
from shoal.model.request import share_words
from shoal.placement.errors import PolicyError


class PlacedCard(Answer, frozen=True):
    """A card that a container would get."""

    container: str
    index: int
    uuid: str
    model: str
    share: str


class PodPlacement(Answer, frozen=True):
    """A pod, its node and its cards."""

    pod: str
    node: str
    cards: tuple[PlacedCard, ...] = ()
    policy: str = ""

    @property
    def indices(self) -> tuple[int, ...]:
        """Its cards, by index."""
        return tuple(sorted({card.index for card in self.cards}))


class WorkloadFit(Answer, frozen=True, omit_defaults=False):
    """A workload: how many of its pods fit and where, and why the first one that does not fit is refused."""

    kind: str
    name: str
    pods: int
    asks: str
    fits: int
    placed: tuple[PodPlacement, ...] = ()
    #: Why none is placed, when that is not for lack of room: a bad request, or a group that is not complete.
    refused: str = ""
    unplaced: Unschedulable | None = None


def try_workload(dry_run: DryRun, workload: ManifestWorkload, *, details: int) -> WorkloadFit:
    """Place the pods of a workload in the dry run. A bad request is told in `refused`, in the scheduler's words."""
    known = {key_of(claim) for claim in dry_run.snapshot.claims}
    for claim in workload.claims:
        if key_of(claim) not in known:
            dry_run.state.tables.set_claim(claim)
    placed: list[PodPlacement] = []
    refused, lacking, asks = "", None, ""
    try:
        for pod in workload.pods:
            asks = asked(dry_run.check(pod))
            group = decode_group(pod.metadata.labels, pod.metadata.annotations)
            allocation = dry_run.place(pod)
            if allocation is None:
                lacking = unschedulable(dry_run, pod, details=details)
                break
            dry_run.promise_volumes(pod, allocation.node)
            placed.append(placed_as(dry_run, pod, allocation))
        if workload.pods:
            refused = _group_lacks(dry_run, workload, group, len(placed))
    except (RequestError, PolicyError, CodecError) as error:
        refused = str(error)
    if refused:
        _undo(dry_run, workload)
        placed = []
    return WorkloadFit(
        workload.kind, workload.name, len(workload.pods), asks, len(placed), tuple(placed), refused, lacking
    )


def placed_as(dry_run: DryRun, pod: Pod, allocation: Allocation) -> PodPlacement:
    """A decision with the model of each card, and each share in words."""
    node = dry_run.engine.ledger.node(allocation.node)
    models = {} if node is None else {card.inventory.uuid: card.inventory.model for card in node.slots}
    cards = tuple(
        PlacedCard(container.name, card.index, card.uuid, models.get(card.uuid, ""), share_words(card.share))
        for container in allocation.containers
        for card in container.cards
    )
    return PodPlacement(full_name(pod), allocation.node, cards, allocation.policy)


def _group_lacks(dry_run: DryRun, workload: ManifestWorkload, group: PodGroup | None, placed: int) -> str:
    """Why a group that must be placed together is not placed; empty when it is, or when there is none."""
    if group is None:
        return ""
    others = [pod for pod in dry_run.snapshot.pods if _is_of(pod, workload.pods[0].metadata.namespace, group)]
    bound = sum(bool(pod.spec.node_name) for pod in others)
    there = len(workload.pods) + bound + sum(waits(pod) for pod in others)
    if there < group.minimum:
        return f"pod group {group.name}: {there} of {group.minimum} pods are there"
    if bound + placed < group.minimum:
        return f"pod group {group.name}: {bound + placed} of {group.minimum} pods fit at once: none is placed"
    return ""


def _is_of(pod: Pod, namespace: str, group: PodGroup) -> bool:
    try:
        own = decode_group(pod.metadata.labels, pod.metadata.annotations)
    except CodecError:
        return False
    return own is not None and (pod.metadata.namespace, own.name) == (namespace, group.name)


def _undo(dry_run: DryRun, workload: ManifestWorkload) -> None:
    for pod in workload.pods:
        dry_run.state.cancel(pod.metadata.uid, quietly=True)
