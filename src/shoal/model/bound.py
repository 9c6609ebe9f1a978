"""The decision a bound pod carries, whoever made it.

Shoal's own record is the complete one and comes first; then gpushare's annotations, then KETI's, so that pods placed by
those schedulers are counted too. A record is not a proof, since others can write annotations: it must not claim more
than the pod's request, and what the node's agent has given counts more (`shoal.dev/held`). A record that cannot be
read, or claims what the pod did not ask for, is an error and never an empty answer: the pod holds cards, and it is not
known which.

While pods run, Shoal's agent, which knows UUIDs, can replace a plugin that only counts cards, or the other way round. A
card with a made-up name on one side is then found by its index.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, shoal, text
from shoal.model.contract.decisions import RECORD_ANNOTATIONS
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError, shown
from shoal.model.gpu import NodeGpus
from shoal.model.manifest import PodParts
from shoal.model.pod import gpus_of
from shoal.model.request import ContainerRequest, Request

# The longest that a record can be, with the longest names that Kubernetes allows.
_RECORD_LENGTH: Final = 512
_CONTAINER_LENGTH: Final = 400
_CARD_LENGTH: Final = 450


def allocation_of(
    pod: PodParts, *, node: NodeGpus, unit: MemoryUnit, request: Request | None = None
) -> Allocation | None:
    """The decision on a pod bound to `node`; None when the pod is not bound or carries none.

    Raises CodecError when the pod carries a decision that is broken, is bound to another node, or claims what the pod
    did not ask for. `request` is the pod's, if it is known. A node of which no cards are known is believed to have
    those that are named.
    """
    if not pod.node or not any(key in pod.annotations for key in RECORD_ANNOTATIONS):
        return None
    if request is None:
        try:
            request = gpus_of(pod, unit=unit)
        except RequestError as error:
            raise CodecError(f"the pod carries a decision, but its request is broken: {error}") from error
    if not request.containers:
        return None  # a pod that asks for no card holds none, whatever its annotations say
    allocation = recorded(pod, request=request, node=node, unit=unit)
    if allocation is None:
        return None
    problem = mismatch(request, allocation, node, whole=shoal.ANNOTATION_ALLOCATION in pod.annotations)
    if problem:
        raise CodecError(problem)
    return allocation


def recorded(pod: PodParts, *, request: Request, node: NodeGpus, unit: MemoryUnit) -> Allocation | None:
    """The decision in a bound pod's annotations, not yet compared with its request (see `mismatch`).

    A record that is longer than any record of the request can be is refused unread.
    """
    if pod.node != node.name:
        raise CodecError(f"the pod is bound to {shown(pod.node)}, not to {shown(node.name)}: give its own node")
    longest = _RECORD_LENGTH + sum(_CONTAINER_LENGTH + one.gpus * _CARD_LENGTH for one in request.containers)
    for key in RECORD_ANNOTATIONS:
        if len(text.value_of(pod.annotations, key) or "") > longest:
            raise CodecError(
                f"{key} is longer than any record of what the pod asks for: remove the annotation from the manifest "
                "and create the pod again"
            )
    own = text.value_of(pod.annotations, shoal.ANNOTATION_ALLOCATION)
    if own is not None:
        return on_cards(_belongs(shoal.decode_allocation(own), pod), node)
    return gpushare.decode(
        pod.annotations, request=request, container_names=pod.app_names(), node=node, unit=unit
    ) or keti.decode(pod.annotations, request=request, node=node)


def mismatch(request: Request, allocation: Allocation, node: NodeGpus, *, whole: bool = True) -> str:
    """What an allocation claims that the pod did not ask for, in words; empty if it fits the request and the node.

    Annotations can be copied or forged, so they must agree with the request: the same containers, and for each the
    same number of cards, share and limit. A record that is not `whole` may leave containers out, as those of other
    stacks do.
    """
    asked = {container.name: container for container in request.containers}
    for entry in allocation.containers:
        wanted = asked.pop(entry.name, None)
        problem = no_request(entry) if wanted is None else entry_mismatch(wanted, entry, node)
        if problem:
            return problem
    if asked and whole:
        return no_cards(next(iter(asked)))
    return ""


def entry_mismatch(wanted: ContainerRequest, entry: ContainerAllocation, node: NodeGpus) -> str:
    """What is wrong with the cards of one container; empty if they are what it asks for."""
    if len(entry.cards) != wanted.gpus:
        return f"container {shown(entry.name)} asks for {wanted.gpus} cards and is given {len(entry.cards)}"
    problem = missing_card(entry, node)
    if problem:
        return problem
    same = all(card.share == wanted.share for card in entry.cards)
    if not same or entry.memory_limit_mib != wanted.memory_limit_mib or entry.kind is not wanted.kind:
        return (
            f"the record gives container {shown(entry.name)} another amount than it asks for: is the memory unit of "
            "scheduler and agent the same? If the annotation was copied, remove it"
        )
    return ""


def missing_card(entry: ContainerAllocation, node: NodeGpus) -> str:
    """Which card of a container the node does not have, in words."""
    known = {gpu.uuid for gpu in node.gpus}
    missing = next((card.uuid for card in entry.cards if card.uuid not in known), None) if known else None
    if missing is None:
        return ""
    return (
        f"container {shown(entry.name)} is given card {shown(missing)}, which node {shown(node.name)} does not have: "
        "delete the pod so that it is placed again"
    )


def no_request(entry: ContainerAllocation) -> str:
    """The words about cards for a container that asks for none."""
    return f"the record gives cards to container {shown(entry.name)}, which asks for none"


def no_cards(container: str) -> str:
    """The words about a container that asks for cards and has none."""
    return (
        f"{shoal.ANNOTATION_ALLOCATION} has no cards for container {shown(container)}: delete the pod so that it is "
        "placed again"
    )


def _belongs(allocation: Allocation, pod: PodParts) -> Allocation:
    """The allocation, if it is for the pod's node and containers: annotations are copied with manifests."""
    if allocation.node != pod.node:
        raise CodecError(
            f"{shoal.ANNOTATION_ALLOCATION} is for node {shown(allocation.node)}, the pod is on {shown(pod.node)}: "
            "remove the annotation from the manifest and create the pod again"
        )
    kinds = {container.name: container.kind for container in pod.containers}
    for container in allocation.containers:
        if kinds.get(container.name) is not container.kind:
            raise CodecError(
                f"{shoal.ANNOTATION_ALLOCATION} names {container.kind.value} container {shown(container.name)}, which "
                "the pod does not have: remove the annotation from the manifest and create the pod again"
            )
    return allocation


def on_cards(allocation: Allocation, node: NodeGpus) -> Allocation:
    """The decision with the present names of the node's cards. A card that is gone keeps its name."""
    counted = any(shoal.is_made_up(gpu.uuid) for gpu in node.gpus)
    if all(shoal.is_made_up(card.uuid) is counted for one in allocation.containers for card in one.cards):
        return allocation
    names = {gpu.index: gpu.uuid for gpu in node.gpus}

    def named(card: CardShare) -> CardShare:
        changed = shoal.is_made_up(card.uuid) is not counted
        return replace(card, uuid=names.get(card.index, card.uuid)) if changed else card

    return replace(
        allocation, containers=tuple(replace(one, cards=tuple(map(named, one.cards))) for one in allocation.containers)
    )
