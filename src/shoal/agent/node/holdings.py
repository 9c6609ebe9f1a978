"""What the pods of a node hold of its cards, read from their specs and annotations, and the sums over them. Pure.

A pod holds its cards from its binding until it is over; a pod that is being deleted still holds them. What its
containers were given counts more than its annotations. When a pod changes, the sums change by that pod alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.agent.nvidia import replicas
from shoal.agent.nvidia.replicas import Cut, Slicing
from shoal.model import quantity
from shoal.model.allocation import Allocation, ContainerAllocation
from shoal.model.bound import entry_mismatch, missing_card, no_cards, no_request, recorded
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, QuantityError, RequestError, shown
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import PodContainer, PodParts, PodStruct, pod_parts
from shoal.model.pod import gpus_of
from shoal.model.request import NO_SHARE, ContainerRequest, Request, Share

RESOURCES: Final = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED)
_NAMES: Final = frozenset((*RESOURCES, gpushare.RESOURCE_COMPUTE))


@dataclass(frozen=True, slots=True)
class PodHolding:
    """What one pod holds. Without an allocation it was not placed, or `problem` says why its record does not count."""

    request: Request
    allocation: Allocation | None = None
    problem: str = ""
    #: By container, the resource by which it asks for cards. Containers that ask for compute alone are not listed.
    resources: Mapping[str, str] = field(default_factory=dict)
    #: By container, how many units of that resource.
    counts: Mapping[str, int] = field(default_factory=dict)
    app_names: tuple[str, ...] = ()
    #: The containers that ask for replicas, and how their cards are cut. The request holds their number and no share,
    #: since a replica's share differs from card to card.
    sliced: frozenset[str] = frozenset()
    cut: Cut | None = None
    #: Answers of `held`, kept because every count of the node's devices asks for them.
    _held: dict[str | None, dict[str, Share]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def entry(self, container: str) -> ContainerAllocation | None:
        """The cards of a container."""
        found = () if self.allocation is None else self.allocation.containers
        return next((one for one in found if one.name == container), None)

    def held(self, resource: str | None = None) -> dict[str, Share]:
        """The most that the pod holds of each card at one time, by UUID; only what `resource` asked for, if given."""
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
    pod: PodStruct,
    *,
    node: NodeGpus,
    unit: MemoryUnit,
    slicing: Slicing | None = None,
    decided: Allocation | None = None,
    by_claims: Collection[str] = (),
) -> PodHolding:
    """What a pod on the node holds: by its annotations, or by an allocation that was `decided` before.

    `slicing` is how cards are cut now. Replicas of another cut that no container was given yet are chosen again.
    `by_claims` are the resource names that the node serves through claims: of these a pod holds no devices.
    """
    parts = pod_parts(pod, by_claims=by_claims)
    try:
        request = gpus_of(parts, unit=unit)
        asked = {one.name: found for one in parts.containers if (found := _asked(one)) is not None}
    except RequestError as error:
        return PodHolding(Request(), problem=str(error))
    resources = {name: resource for name, (resource, _) in asked.items()}
    counts = {name: count for name, (_, count) in asked.items()}
    plain = PodHolding(request, resources=resources, counts=counts, app_names=parts.app_names())
    if not resources and not request.containers:
        return PodHolding(request)
    sliceable = {name for name, resource in resources.items() if resource in replicas.RESOURCES}
    bounds = replace(request, containers=_with_replicas(parts, request, counts, sliceable))
    try:
        allocation = decided or recorded(parts, request=bounds, node=node, unit=unit)
        selector = shoal.decode_selector(parts.annotations)
    except CodecError as error:
        return replace(plain, problem=str(error))
    cut = None if allocation is None else replicas.read_label(allocation.policy)
    if cut is not None and (slicing is None or cut != slicing.cut):
        allocation = None
    if allocation is None:
        names = {name for name, resource in resources.items() if slicing is not None and resource == slicing.resource}
        cut = None if slicing is None else slicing.cut
    else:
        names = set() if cut is None else _replicas_in(allocation, resources)
    request = replace(request, containers=_with_replicas(parts, request, counts, names), selector=selector)
    whole = shoal.ANNOTATION_ALLOCATION in parts.annotations
    problem = "" if allocation is None else mismatch(request, allocation, node, cut=cut, sliced=names, whole=whole)
    return replace(
        plain,
        request=request,
        allocation=allocation,
        problem=problem,
        sliced=frozenset(names),
        cut=cut if names else None,
    )


def names_gpus(pod: PodStruct) -> bool:
    """Whether a container names a resource of GPUs in its spec, readable or not. That does not change with the pod."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(
        not _NAMES.isdisjoint(amounts)
        for one in containers
        for amounts in (one.resources.limits, one.resources.requests)
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
    """The containers to which an allocation with a cut gives replicas."""
    return {
        entry.name
        for entry in allocation.containers
        if resources.get(entry.name) in replicas.RESOURCES and not any(card.share.exclusive for card in entry.cards)
    }


def _with_replicas(
    pod: PodParts, request: Request, counts: Mapping[str, int], sliced: Collection[str]
) -> tuple[ContainerRequest, ...]:
    """The request with the containers that ask for replicas, in the order of the pod."""
    asked = {container.name: container for container in request.containers}
    for one in pod.containers:
        if one.name in sliced:
            asked[one.name] = ContainerRequest(one.name, counts[one.name], NO_SHARE, one.kind)
    return tuple(asked[one.name] for one in pod.containers if one.name in asked)


def given_holding(pod: PodStruct, allocation: Allocation) -> PodHolding:
    """What a pod holds whose containers were given this allocation; its annotations do not count."""
    parts = pod_parts(pod)
    try:
        asked = {one.name: found for one in parts.containers if (found := _asked(one)) is not None}
    except RequestError:  # its containers have their cards all the same
        return PodHolding(Request(), allocation)
    resources = {name: resource for name, (resource, _) in asked.items()}
    cut = replicas.read_label(allocation.policy)
    return PodHolding(
        Request(),
        allocation,
        resources=resources,
        counts={name: count for name, (_, count) in asked.items()},
        app_names=parts.app_names(),
        sliced=frozenset() if cut is None else frozenset(_replicas_in(allocation, resources)),
        cut=cut,
    )


def mismatch(
    request: Request,
    allocation: Allocation,
    node: NodeGpus,
    *,
    cut: Cut | None = None,
    sliced: Collection[str] = (),
    whole: bool = True,
) -> str:
    """Why an allocation cannot be this pod's on this node; empty if it can.

    `shoal.model.bound` says the same of pods without replicas.
    """
    cards = {gpu.uuid: gpu for gpu in node.gpus}
    asked = {container.name: container for container in request.containers}
    for entry in allocation.containers:
        wanted = asked.pop(entry.name, None)
        if wanted is None:
            problem = no_request(entry)
        elif cut is None or entry.name not in sliced:
            problem = entry_mismatch(wanted, entry, node)
        else:
            problem = missing_card(entry, node) or _replica_mismatch(wanted, entry, cards, cut)
        if problem:
            return problem
    return no_cards(next(iter(asked))) if asked and whole else ""


def _replica_mismatch(wanted: ContainerRequest, entry: ContainerAllocation, cards: Mapping[str, Gpu], cut: Cut) -> str:
    gpus = [cards[card.uuid] for card in entry.cards]
    given = [cut.count(gpu, card.share) for gpu, card in zip(gpus, entry.cards, strict=True)]
    limit = None if cut.limited else max((gpu.memory_mib for gpu in gpus), default=0)
    if None in given or sum(one or 0 for one in given) != wanted.gpus or entry.memory_limit_mib != limit:
        return (
            f"{shoal.ANNOTATION_ALLOCATION} does not give container {shown(entry.name)} the {wanted.gpus} replicas it "
            "asks for: if it was copied, remove it"
        )
    return ""


def used(holdings: Iterable[PodHolding], resource: str | None = None) -> dict[str, Share]:
    """What these pods together hold of each card, by UUID; only what `resource` asked for, if given."""
    total: dict[str, Share] = {}
    for holding in holdings:
        for uuid, share in holding.held(resource).items():
            total[uuid] = total.get(uuid, NO_SHARE) + share
    return total


@dataclass(slots=True)
class _Sum:
    """What is held of one card by one resource."""

    memory_mib: int = 0
    compute: int = 0
    clients: int = 0
    #: How many pods have the card as a whole.
    whole: int = 0
    #: The memory that was asked for, including that of whole cards.
    asked_mib: int = 0
    #: How often each share of each cut is held as replicas.
    cuts: Counter[tuple[Cut, Share]] = field(default_factory=Counter)

    def add(self, holding: PodHolding, share: Share, sign: int) -> None:
        self.memory_mib += sign * share.memory_mib
        self.compute += sign * share.compute
        self.clients += sign * share.clients
        self.whole += sign * share.exclusive
        self.asked_mib += sign * share.memory_mib
        if holding.cut is not None and not share.exclusive:
            self.cuts[holding.cut, share] += sign

    def share(self) -> Share:
        return Share(self.memory_mib, self.compute, self.clients, self.whole > 0)

    def units(self, gpu: Gpu) -> int:
        return self.whole + sum(count * (cut.count(gpu, share) or 0) for (cut, share), count in self.cuts.items())


class HeldTotals:
    """The sums over some pods, each known by its UID."""

    def __init__(self) -> None:
        #: Counts the changes.
        self.version = 0
        self._holdings: dict[str, PodHolding] = {}
        #: By resource and the card's UUID.
        self._sums: dict[tuple[str, str], _Sum] = {}

    @classmethod
    def of(cls, holdings: Iterable[PodHolding]) -> HeldTotals:
        """The sums over these pods."""
        totals = cls()
        for number, holding in enumerate(holdings):
            totals.put(str(number), holding)
        return totals

    def put(self, uid: str, holding: PodHolding | None) -> None:
        """Set what a pod holds from now on; None removes it."""
        before = self._holdings.get(uid)
        if holding is before or holding == before:
            return
        self.version += 1
        if before is not None:
            self._add(before, -1)
            del self._holdings[uid]
        if holding is not None:
            self._add(holding, 1)
            self._holdings[uid] = holding

    def _add(self, holding: PodHolding, sign: int) -> None:
        for resource in set(holding.resources.values()):
            for uuid, share in holding.held(resource).items():
                self._sum(resource, uuid).add(holding, share, sign)
        for uuid, memory in _asked_of_whole(holding):
            self._sum(gpushare.RESOURCE_MEMORY, uuid).asked_mib += sign * memory

    def _sum(self, resource: str, uuid: str) -> _Sum:
        return self._sums.setdefault((resource, uuid), _Sum())

    def held(self, resource: str, uuid: str) -> Share:
        """What is held of a card by a resource."""
        found = self._sums.get((resource, uuid))
        return NO_SHARE if found is None else found.share()

    def units(self, resource: str, gpu: Gpu) -> int:
        """How many units pods hold of a card by a resource that counts cards or replicas."""
        found = self._sums.get((resource, gpu.uuid))
        return 0 if found is None else found.units(gpu)

    def asked_mib(self, uuid: str) -> int:
        """The memory of a card that containers asked for by `aliyun.com/gpu-mem`, including whole cards."""
        found = self._sums.get((gpushare.RESOURCE_MEMORY, uuid))
        return 0 if found is None else found.asked_mib


def _asked_of_whole(holding: PodHolding) -> Iterable[tuple[str, int]]:
    """By card, the memory asked for by containers that got the whole card."""
    for entry in () if holding.allocation is None else holding.allocation.containers:
        if holding.resources.get(entry.name) == gpushare.RESOURCE_MEMORY:
            for card in entry.cards:
                if card.share.exclusive:
                    yield card.uuid, entry.memory_limit_mib or 0
