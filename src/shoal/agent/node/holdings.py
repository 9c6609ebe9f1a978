"""What the pods of a node hold of its cards, read from their specs and annotations. Pure.

A pod holds its cards from the moment it is bound until it is over; one that is being deleted still holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shoal.agent.nvidia import replicas
from shoal.agent.nvidia.replicas import Cut, Slicing
from shoal.model import quantity
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.bound import allocation_of
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, QuantityError, RequestError, shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import PodContainer, PodManifest, read_pod
from shoal.model.pod import FULL_COMPUTE, gpus_of_manifest
from shoal.model.request import NO_SHARE, ContainerRequest, Request, Share, mixes

RESOURCES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED)


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
    #: The containers that ask for replicas, and the cut of those they have. Their number stands in the request, and
    #: no share: that is another one on each card.
    sliced: frozenset[str] = frozenset()
    cut: Cut | None = None
    #: What `held` has answered: each count of a node's devices asks every pod again.
    _held: dict[str | None, dict[str, Share]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def entry(self, container: str) -> ContainerAllocation | None:
        """The cards of a container."""
        found = () if self.allocation is None else self.allocation.containers
        return next((one for one in found if one.name == container), None)

    def held(self, resource: str | None = None) -> dict[str, Share]:
        """What the pod holds of each card at most at one time, by UUID; by one resource only if that is named."""
        if resource not in self._held:
            self._held[resource] = self._peak(resource)
        return self._held[resource]

    def _peak(self, resource: str | None) -> dict[str, Share]:
        if self.allocation is None:
            return {}
        if resource is None:
            return self.allocation.held()
        ours = tuple(one for one in self.allocation.containers if self.resources.get(one.name) == resource)
        return Allocation(self.allocation.node, ours).held() if ours else {}


def holding_of(
    manifest: Mapping[str, Any],
    *,
    node: NodeGpus,
    unit: MemoryUnit,
    slicing: Slicing | None = None,
    begun: Collection[str] = (),
) -> Holding:
    """What a pod on the node holds.

    `slicing` is how cards are cut now. A pod of whose containers with cards none has `begun` has no replicas of another
    cut: they are chosen again.
    """
    try:
        pod = read_pod(manifest)
        request = gpus_of_manifest(pod, unit=unit)
        asked = {one.name: found for one in pod.containers if (found := _asked(one)) is not None}
    except RequestError as error:
        return Holding(Request(), problem=str(error))
    resources = {name: resource for name, (resource, _) in asked.items()}
    counts = {name: count for name, (_, count) in asked.items()}
    plain = Holding(request, resources=resources, counts=counts, app_names=pod.app_names())
    if not resources and not request.containers:
        return Holding(request)
    try:
        allocation = allocation_of(manifest, node=node, unit=unit)
        selector = shoal.decode_selector(pod.annotations)
    except CodecError as error:
        return replace(plain, problem=str(error))
    cut = None if allocation is None else replicas.read_label(allocation.policy)
    if cut is not None and resources.keys().isdisjoint(begun) and (slicing is None or cut != slicing.cut):
        allocation = None
    if allocation is None:
        names = {name for name, resource in resources.items() if slicing is not None and resource == slicing.resource}
        cut = None if slicing is None else slicing.cut
    else:
        names = set() if cut is None else _replicas_in(allocation, resources)
    request = replace(request, containers=_with_replicas(pod, request, counts, names), selector=selector)
    problem = "" if allocation is None else mismatch(request, allocation, node, cut=cut, sliced=names)
    return replace(
        plain,
        request=request,
        allocation=allocation,
        problem=problem,
        sliced=frozenset(names),
        cut=cut if names else None,
    )


def _asked(container: PodContainer) -> tuple[str, int] | None:
    """The resource by which a container asks for cards, and how much."""
    found: dict[str, int] = {}
    for name in RESOURCES:
        try:
            amount = quantity.whole(container.limits.get(name, container.requests.get(name, 0)))
        except QuantityError as error:
            raise RequestError(f"container {shown(container.name)}: {name} cannot be read: {error}") from error
        if amount > 0:
            found[name] = amount
    if len(found) > 1:
        raise RequestError(
            f"container {shown(container.name)} asks for {' and '.join(found)}: keep one kind of GPU per container"
        )
    return next(iter(found.items()), None)


def _replicas_in(allocation: Allocation, resources: Mapping[str, str]) -> set[str]:
    """The containers that an allocation with a cut gives replicas."""
    return {
        entry.name
        for entry in allocation.containers
        if resources.get(entry.name) in replicas.RESOURCES and not any(card.share.exclusive for card in entry.cards)
    }


def _with_replicas(
    pod: PodManifest, request: Request, counts: Mapping[str, int], sliced: Collection[str]
) -> tuple[ContainerRequest, ...]:
    """The request with the containers that ask for replicas, in the order of the pod."""
    asked = {container.name: container for container in request.containers}
    for one in pod.containers:
        if one.name in sliced:
            asked[one.name] = ContainerRequest(one.name, counts[one.name], NO_SHARE, one.kind)
    return tuple(asked[one.name] for one in pod.containers if one.name in asked)


def mismatch(
    request: Request,
    allocation: Allocation,
    node: NodeGpus,
    *,
    cut: Cut | None = None,
    sliced: Collection[str] = (),
) -> str:
    """Why an allocation is not one of this pod on this node; empty if it is. Annotations can be copied or forged."""
    cards = {gpu.uuid: gpu for gpu in node.gpus}
    asked = {container.name: container for container in request.containers}
    for entry in allocation.containers:
        wanted = asked.get(entry.name)
        if wanted is None:
            return f"{shoal.ANNOTATION_ALLOCATION} gives cards to container {shown(entry.name)}, which asks for none"
        if missing := [card.uuid for card in entry.cards if card.uuid not in cards]:
            return (
                f"container {shown(entry.name)} is given card {shown(missing[0])}, which node {shown(node.name)} does "
                "not have: delete the pod so that it is placed again"
            )
        if cut is not None and entry.name in sliced:
            given = [cut.count(cards[card.uuid], card.share) for card in entry.cards]
            if None in given or sum(one or 0 for one in given) != wanted.gpus:
                return (
                    f"{shoal.ANNOTATION_ALLOCATION} does not give container {shown(entry.name)} the {wanted.gpus} "
                    "replicas it asks for: if it was copied, remove it"
                )
            continue
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
    if taken.exclusive or (more.exclusive and taken != NO_SHARE) or mixes(taken, more):
        return False
    total = taken + more
    if more.clients and total.clients > gpu.mps_clients:
        return False
    return total.memory_mib <= gpu.memory_mib and total.compute <= FULL_COMPUTE
