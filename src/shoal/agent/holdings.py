"""What the pods of a node hold of its cards, read from their specs and annotations. Pure.

A pod holds its cards from the moment it is bound until it is over; one that is being deleted still holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.model import quantity
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.bound import allocation_of
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError, shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import PodContainer, read_pod
from shoal.model.pod import FULL_COMPUTE, gpus_of_manifest
from shoal.model.request import NO_SHARE, Request, Share

RESOURCES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU)


@dataclass(frozen=True, slots=True)
class Holding:
    """One pod. Without an allocation nobody has placed it, or `problem` says why its record cannot be used."""

    request: Request
    allocation: Allocation | None = None
    problem: str = ""
    #: By container, the resource by which it asks for cards. One that asks for compute alone has none.
    resources: Mapping[str, str] = field(default_factory=dict)
    #: By container, how many units of that.
    counts: Mapping[str, int] = field(default_factory=dict)
    app_names: tuple[str, ...] = ()

    def entry(self, container: str) -> ContainerAllocation | None:
        """The cards of a container."""
        found = () if self.allocation is None else self.allocation.containers
        return next((one for one in found if one.name == container), None)

    def held(self, resource: str | None = None) -> dict[str, Share]:
        """What the pod holds of each card at most at one time, by UUID; by one resource only if that is named."""
        if self.allocation is None:
            return {}
        if resource is None:
            return self.allocation.held()
        ours = tuple(one for one in self.allocation.containers if self.resources.get(one.name) == resource)
        return Allocation(self.allocation.node, ours).held() if ours else {}


def holding_of(manifest: Mapping[str, Any], *, node: NodeGpus, unit: MemoryUnit) -> Holding:
    """What a pod on the node holds."""
    try:
        pod = read_pod(manifest)
        request = gpus_of_manifest(pod, unit=unit)
    except RequestError as error:
        return Holding(Request(), problem=str(error))
    asked = {one.name: found for one in pod.containers if (found := _asked(one)) is not None}
    resources = {name: resource for name, (resource, _) in asked.items()}
    counts = {name: count for name, (_, count) in asked.items()}
    if not request.containers:
        return Holding(request)
    names = pod.app_names()
    try:
        allocation = allocation_of(manifest, node=node, unit=unit)
    except CodecError as error:
        return Holding(request, problem=str(error), resources=resources, counts=counts, app_names=names)
    problem = "" if allocation is None else mismatch(request, allocation, node)
    return Holding(request, allocation, problem, resources, counts, names)


def _asked(container: PodContainer) -> tuple[str, int] | None:
    """The resource by which a container asks for cards, and how much. The request was read: the amount is a number."""
    for name in RESOURCES:
        amount = quantity.whole(container.limits.get(name, container.requests.get(name, 0)))
        if amount > 0:
            return name, amount
    return None


def mismatch(request: Request, allocation: Allocation, node: NodeGpus) -> str:
    """Why an allocation is not one of this pod on this node; empty if it is. Annotations can be copied or forged."""
    cards = {gpu.uuid for gpu in node.gpus}
    asked = {container.name: container for container in request.containers}
    for entry in allocation.containers:
        wanted = asked.get(entry.name)
        if wanted is None:
            return f"{shoal.ANNOTATION_ALLOCATION} gives cards to container {shown(entry.name)}, which asks for none"
        total = sum((card.share for card in entry.cards), NO_SHARE)
        share = wanted.share
        each = (share.memory_mib, share.compute, share.clients)
        if (total.memory_mib, total.compute, total.clients) != tuple(amount * wanted.gpus for amount in each) or any(
            card.share.exclusive is not share.exclusive for card in entry.cards
        ):
            return (
                f"{shoal.ANNOTATION_ALLOCATION} gives container {shown(entry.name)} another amount than it asks for: "
                "is the memory unit of scheduler and agent the same? If the annotation was copied, remove it"
            )
        if len(entry.cards) != wanted.gpus:
            return f"container {shown(entry.name)} asks for {wanted.gpus} cards and is given {len(entry.cards)}"
        if missing := [card.uuid for card in entry.cards if card.uuid not in cards]:
            return (
                f"container {shown(entry.name)} is given card {shown(missing[0])}, which node {shown(node.name)} does "
                "not have: delete the pod so that it is placed again"
            )
    return ""


def used(holdings: Iterable[Holding], resource: str | None = None) -> dict[str, Share]:
    """What all these pods hold of each card, by UUID; by one resource only if that is named."""
    total: dict[str, Share] = {}
    for holding in holdings:
        for uuid, share in holding.held(resource).items():
            total[uuid] = total.get(uuid, NO_SHARE) + share
    return total


def fits(gpu: Gpu, taken: Share, more: Share) -> bool:
    """Whether a card that is taken so far has room for a share more."""
    if taken.exclusive or (more.exclusive and taken != NO_SHARE):
        return False
    total = taken + more
    if more.clients and total.clients > gpu.mps_clients:
        return False
    return total.memory_mib <= gpu.memory_mib and total.compute <= FULL_COMPUTE
