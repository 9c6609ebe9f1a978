"""Decides where a pod with claims goes and which devices they get, by the policy that places all other pods.

Claims become a `Request` on cards: what selectors refuse is kept out by node or by card, and the engine chooses. Where
wishes of one pod differ in what they accept, or must have attributes in common, the engine says how good each node is
for what they take, and the cards of the best node that can serve all are searched (`choice`). Alternatives of a request
are tried in their order, each on all nodes before the next. Partitions of MIG are no cards that the engine knows: they
are searched where cards alone cannot serve all wishes. A claim that is allocated already binds the pod to its node. No
I/O, and nothing is booked here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

import numpy as np

from shoal.kube.claim_excess import excess
from shoal.kube.objects.claims import DeviceClass, DeviceConstraint, ResourceClaim, ResourceSlice
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import dra, shoal
from shoal.model.errors import CodecError, RequestError, shown
from shoal.model.request import ANY_CARD, CardSelector, ContainerRequest, Request, Share
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.ledger import NodeLedger
from shoal.placement.weights import FAVOUR
from shoal.placement.without import FitsWithout
from shoal.scheduler.claims.acceptance import Acceptance, Acceptances, Fit
from shoal.scheduler.claims.choice import Chosen, chosen_on
from shoal.scheduler.claims.costs import ClaimCosts, Meter
from shoal.scheduler.claims.devices import DeviceTable
from shoal.scheduler.claims.errors import (
    NamespaceCostError,
    NotReadyError,
    OwnClaimError,
    PodCostError,
    SelectorError,
)
from shoal.scheduler.claims.selectors import Selectors
from shoal.scheduler.claims.wishes import MAX_WAYS, ClaimWish, ClaimWishes, DeviceWish, claims_of
from shoal.scheduler.state.claim_bookings import allocated_node
from shoal.scheduler.state.cluster_state import CardsFit, ClusterState, of_length

#: Needs kept; the ones unused for longest are forgotten beyond it.
_NEEDS: Final = 256
#: Units for a node that is looked at for one wish.
_NODE_COST: Final = 8
#: As many pods may use one claim.
MAX_CONSUMERS: Final = 256


@dataclass(frozen=True, slots=True)
class ClaimDecision:
    """The devices of one claim."""

    claim: ResourceClaim
    #: In the order of the claim's requests.
    results: tuple[tuple[DeviceWish, Fit], ...]

    def allocation(self, node: str) -> Allocation:
        """What it takes of cards, as it is booked. Admin access takes nothing."""
        return Allocation(
            node,
            tuple(
                ContainerAllocation(wish.name, (CardShare(fit.device.uuid, 0, fit.share),))
                for wish, fit in self.results
                if not wish.admin
            ),
        )


@dataclass(frozen=True, slots=True)
class ClaimsPlan:
    """Where a pod goes, the claims that are to be allocated for it, and those that it shares or has already."""

    node: str
    decisions: tuple[ClaimDecision, ...] = ()
    allocated: tuple[ResourceClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceServing:
    """How wishes could be served: by cards alone, or by partitions of MIG too."""

    partitions: bool
    #: Nodes that publish devices for all of them, by row.
    nodes: BoolArray
    #: What they take of cards at least, as a request; exact when `simple`.
    request: Request
    simple: bool = False


@dataclass(slots=True)
class ClaimsNeed:
    """What the unallocated claims of a pod take in one way to combine their alternatives."""

    #: Each beside the number of its claim.
    wishes: tuple[tuple[int, DeviceWish], ...]
    acceptances: tuple[Acceptance, ...]
    constraints: tuple[tuple[int, DeviceConstraint], ...]
    #: The better first; at least one.
    servings: tuple[DeviceServing, ...] = ()
    version: tuple[object, ...] = ()

    @property
    def nodes(self) -> BoolArray:
        """Nodes that publish devices for all of them, by row."""
        return functools.reduce(np.logical_or, [one.nodes for one in self.servings])

    @property
    def request(self) -> Request:
        """What they take of cards in the best case."""
        return self.servings[0].request


class ClaimsAllocator:
    """Claims, classes and devices as the watch shows them, and decisions on them."""

    def __init__(self, state: ClusterState, clock: Callable[[], float] | None = None) -> None:
        self._state = state
        self._selectors = Selectors()
        self._wishes = ClaimWishes(self._selectors)
        self.devices = DeviceTable()
        self.costs = ClaimCosts(clock, lambda: self.devices.count)
        self._acceptances = Acceptances(self.devices, self._selectors)
        self._classes: dict[str, DeviceClass] = {}
        self._needs: BoundedCache[object, ClaimsNeed] = BoundedCache(_NEEDS)
        #: The need that was looked at last, for the words on a pod that fits nowhere.
        self._last: tuple[str, ClaimsNeed | None] = ("", None)

    # The watch

    def on_class(self, change: Change[DeviceClass]) -> None:
        """A device class appeared, changed or went away."""
        if change.kind is ChangeType.DELETED:
            self._classes.pop(change.object.metadata.name, None)
        else:
            self._classes[change.object.metadata.name] = change.object

    def on_slice(self, change: Change[ResourceSlice]) -> None:
        """A slice appeared, changed or went away."""
        self.devices.on_slice(change)

    # Questions

    def claims(self, pod: Pod) -> list[ResourceClaim]:
        """The pod's claims. Raises NotReadyError and RequestError."""
        return claims_of(pod, self._state.claims.find)

    def request(self, pod: Pod) -> Request:
        """What the pod asks for of cards, its claims included, in the best way.

        Raises NotReadyError, RequestError and NamespaceCostError.
        """
        claims = self.claims(pod)
        meter = self.costs.begin(pod.metadata.namespace)
        return self._need(pod, claims, next(self._ways(claims, meter)), meter).request

    def demand(self, pod: Pod) -> Request | None:
        """What `request` says, which is how the pod counts as demand; None when that is not known."""
        try:
            return self.request(pod)
        except (NotReadyError, RequestError, NamespaceCostError):
            return None

    def decide(self, pod: Pod, *, among: BoolArray, favour: FloatArray | None = None) -> ClaimsPlan | None:
        """Where the pod and its claims would go; None when there is no place.

        Raises NotReadyError, RequestError and NamespaceCostError.
        """
        claims = self.claims(pod)
        rows = self._state.engine.ledger.columns.rows
        among = of_length(among, rows)
        favour = None if favour is None else of_length(favour, rows)
        allocated = tuple(claim for claim in claims if claim.status.allocation is not None)
        todo = [claim for claim in claims if claim.status.allocation is None]
        for claim in allocated:
            among = among & self.only(pod, claim)
        if not todo:
            placed = self._state.engine.decide(self._state.request(pod), among=among, favour=favour)
            return None if placed is None else ClaimsPlan(placed.node, (), allocated)
        meter = self.costs.begin(pod.metadata.namespace)
        for way in self._ways(todo, meter):
            need = self._need(pod, todo, way, meter)
            self._last = (pod.metadata.uid, need)
            for serving in need.servings:
                found = self._place(need, serving, among & serving.nodes, favour, meter)
                if found is not None:
                    node, fits = found
                    return ClaimsPlan(node, _decisions(todo, need, fits), allocated)
        return None

    def fits_without(self, pod: Pod) -> CardsFit:
        """A question about one node at a time: would `decide` find a place there, were some pods (UIDs) not there?

        Claims that only those use are free then. Raises NotReadyError, RequestError and NamespaceCostError; the
        question raises PodCostError when all questions together cost too much.
        """
        claims = self.claims(pod)
        meter = self.costs.begin(pod.metadata.namespace)
        rows = self._state.engine.ledger.columns.rows
        among = np.ones(rows, np.bool_)
        for claim in claims:
            if claim.status.allocation is not None:
                among &= self.only(pod, claim)
        todo = [claim for claim in claims if claim.status.allocation is None]
        if todo:
            needs = [self._need(pod, todo, way, meter) for way in self._ways(todo, meter)]
        else:
            every = DeviceServing(False, np.ones(rows, np.bool_), self._state.request(pod))
            needs = [ClaimsNeed((), (), (), (every,))]
        engine = self._state.engine
        trials = [(need, one, engine.fits_without(one.request)) for need in needs for one in need.servings]

        def fits(name: str, gone: frozenset[str]) -> bool:
            row = self._state.row(name)
            if row is None or row >= rows or not among[row]:
                return False
            away = gone | self._state.claims.freed_by(name, gone)
            return any(
                self._serves(need, one, books, name, away, meter) for need, one, books in trials if one.nodes[row]
            )

        return fits

    def _serves(
        self,
        need: ClaimsNeed,
        serving: DeviceServing,
        books: FitsWithout,
        name: str,
        away: frozenset[str],
        meter: Meter,
    ) -> bool:
        meter.spend(_NODE_COST)
        node = books.node(name, away) if books(name, away) else None
        return node is not None and self._chosen(need, serving, node, meter) is not None

    def wish(self, claim: ResourceClaim) -> ClaimWish:
        """What a claim asks for. Raises RequestError."""
        return self._wishes.of(claim, Meter())

    def last_need(self, pod: Pod) -> ClaimsNeed | None:
        """The need that `decide` looked at last for this pod."""
        uid, need = self._last
        return need if uid == pod.metadata.uid else None

    def problem(self, need: ClaimsNeed) -> str:
        """What selectors could not answer, in words; empty when all is well."""
        return next((one.problem for one in need.acceptances if one.problem), "")

    # Parts

    def only(self, pod: Pod, claim: ResourceClaim) -> BoolArray:
        """The node on which an allocated claim can be used."""
        if exceeds := excess(claim):
            raise OwnClaimError(exceeds)
        node = allocated_node(claim)
        if node is None:
            raise RequestError(
                f"claim {claim.metadata.namespace}/{claim.metadata.name} has devices of other drivers than "
                f"{dra.DRIVER}: schedule the pod with the stock scheduler"
            )
        reserved = claim.status.reserved_for
        if len(reserved) >= MAX_CONSUMERS and not any(one.uid == pod.metadata.uid for one in reserved):
            raise RequestError(f"claim {claim.metadata.name} is used by {MAX_CONSUMERS} pods already: use another")
        only = np.zeros(self._state.engine.ledger.columns.rows, np.bool_)
        row = self._state.row(node)
        if row is not None:
            only[row] = True
        return only

    def _ways(self, claims: Sequence[ResourceClaim], meter: Meter) -> Iterator[tuple[tuple[int, DeviceWish], ...]]:
        """The ways to combine alternatives, those with the better ones first."""
        slots = [
            [(number, wish) for wish in alternatives]
            for number, claim in enumerate(claims)
            for alternatives in self._wishes.of(claim, meter).requests
        ]
        return islice(product(*slots), MAX_WAYS)

    def _class_selectors(self, wish: DeviceWish) -> tuple[str, ...]:
        known = self._classes.get(wish.device_class)
        if known is None:
            raise RequestError(f"there is no device class {shown(wish.device_class)}: create it, or name another")
        return tuple(one.cel.expression for one in known.spec.selectors if one.cel is not None)

    def _need(
        self, pod: Pod, claims: Sequence[ResourceClaim], way: tuple[tuple[int, DeviceWish], ...], meter: Meter
    ) -> ClaimsNeed:
        base = self._base(pod)
        try:
            acceptances = tuple(self._acceptances.of(wish, self._class_selectors(wish), meter) for _, wish in way)
        except SelectorError as error:
            raise RequestError(str(error)) from error
        constraints = tuple(
            (number, one) for number, claim in enumerate(claims) for one in self._wishes.of(claim, meter).constraints
        )
        key = (base, tuple((number, id(wish)) for number, wish in way), tuple(map(id, acceptances)))
        need = self._needs.of(key, lambda: ClaimsNeed(way, acceptances, constraints))
        version = (tuple(one.version for one in acceptances), self._state.inventory_version)
        if need.version != version:
            meter.spend(_NODE_COST * sum(1 + len(one.nodes) for one in acceptances))
            self._work_out(need, base)
            need.version = version
        return need

    def _base(self, pod: Pod) -> Request:
        base = self._state.request(pod)
        if base.containers:
            raise RequestError(
                f"container {shown(base.containers[0].name)} asks for GPUs by number, and the pod has claims: "
                "ask for all of them in one way"
            )
        try:
            policy = shoal.decode_policy(pod.metadata.annotations)
        except CodecError as error:
            raise RequestError(str(error)) from error
        return Request((), base.cpu_milli, base.memory_mib, ANY_CARD, policy)

    def _work_out(self, need: ClaimsNeed, base: Request) -> None:
        """The nodes, and the requests on cards: by cards alone where that is possible, then with partitions."""
        pairs = [(wish, one) for (_, wish), one in zip(need.wishes, need.acceptances, strict=True)]
        partitions = any(one.by_partition for _, one in pairs)
        servings = []
        if not partitions or all(one.by_card for _, one in pairs):
            servings.append(self._serving(need, base, [(wish, one) for wish, one in pairs if not wish.admin]))
        if partitions:
            cards = [(wish, one) for wish, one in pairs if not wish.admin and not one.by_partition]
            servings.append(self._serving(need, base, cards, partitions=True))
        need.servings = tuple(servings)

    def _serving(
        self, need: ClaimsNeed, base: Request, counted: list[tuple[DeviceWish, Acceptance]], *, partitions: bool = False
    ) -> DeviceServing:
        """`counted` are the wishes that take something of cards for certain."""
        simple = (
            not partitions
            and not need.constraints
            and len(counted) == len(need.wishes)
            and all(wish.count is not None and one.share is not None for wish, one in counted)
            and len({id(one) for _, one in counted}) <= 1
        )
        nodes, refused = self._nodes_of(need, partitions=partitions)
        request = Request(
            tuple(ContainerRequest(wish.name, wish.count or 1, _least(one)) for wish, one in counted),
            base.cpu_milli,
            base.memory_mib,
            CardSelector(not_uuids=refused) if refused and counted else ANY_CARD,
            base.policy,
        )
        return DeviceServing(partitions, nodes, request, simple)

    def _nodes_of(self, need: ClaimsNeed, *, partitions: bool) -> tuple[BoolArray, frozenset[str]]:
        """The nodes that publish enough devices for each wish, and the cards there that no wish accepts."""
        ledger = self._state.engine.ledger
        nodes = np.zeros(ledger.columns.rows, np.bool_)
        refused: set[str] = set()
        if not need.acceptances:
            nodes[list(self._state.rows.values())] = True
            return nodes, frozenset()
        for name in need.acceptances[0].nodes:
            books = ledger.node(name)
            found = [one.on(name, partitions=partitions) for one in need.acceptances]
            if books is None or books.inventory is None or name not in self._state.rows:
                continue
            accepted: set[str] = set()
            for (_, wish), on_node in zip(need.wishes, found, strict=True):
                if on_node is None or len(on_node.fits) < (wish.count or 1):
                    break
                accepted |= {fit.device.uuid for fit in on_node.fits}
            else:
                nodes[books.row] = True
                refused.update(card.inventory.uuid for card in books.slots if card.inventory.uuid not in accepted)
        return nodes, frozenset(refused)

    def _place(
        self, need: ClaimsNeed, serving: DeviceServing, among: BoolArray, favour: FloatArray | None, meter: Meter
    ) -> tuple[str, list[tuple[Fit, ...]]] | None:
        if not serving.simple:
            return self._search(need, serving, among, favour, meter)
        placed = self._state.engine.decide(serving.request, among=among, favour=favour)
        if placed is None:
            return None
        chosen = [
            tuple(
                next(fit for fit in one.nodes[placed.node].fits if fit.device.uuid == card.uuid)
                for card in container.cards
            )
            for one, container in zip(need.acceptances, placed.containers, strict=True)
        ]
        if self._can_be_booked(placed.node, chosen):
            return placed.node, chosen
        return self._search(need, serving, among, favour, meter)

    def _can_be_booked(self, node: str, chosen: list[tuple[Fit, ...]]) -> bool:
        """Whether cards of which all memory is taken are nobody else's: they are booked as whole ones."""
        books = self._state.engine.ledger.node(node)
        whole = [fit.device.uuid for fits in chosen for fit in fits if fit.share.exclusive]
        return books is not None and all(books.cards[uuid].untouched for uuid in whole)

    def _search(
        self, need: ClaimsNeed, serving: DeviceServing, among: BoolArray, favour: FloatArray | None, meter: Meter
    ) -> tuple[str, list[tuple[Fit, ...]]] | None:
        """The cards of the best node that can serve all wishes as they are; none when the meter runs out before."""
        engine = self._state.engine
        worths = engine.worths(serving.request)
        worths = np.where(among, worths if favour is None else worths + FAVOUR * favour, -np.inf)
        for row in np.argsort(-worths, kind="stable").tolist():
            if worths[row] == -np.inf:
                return None
            node = engine.ledger.node_at(row)
            try:
                chosen = self._chosen(need, serving, node, meter)
            except PodCostError:
                return None  # the pod waits as if there were no place, and others may give way to it
            if chosen is not None:
                return node.name, chosen
        return None

    def _chosen(self, need: ClaimsNeed, serving: DeviceServing, node: NodeLedger, meter: Meter) -> Chosen | None:
        """Devices of a node that publishes some for all wishes."""
        found = [
            on_node
            for one in need.acceptances
            if (on_node := one.on(node.name, partitions=serving.partitions)) is not None
        ]
        counters = self.devices.counters(node.name)
        return chosen_on(node, need.wishes, found, need.constraints, counters, meter)


def _least(one: Acceptance) -> Share:
    """What a wish takes of a card at least."""
    if one.share is not None:
        return one.share
    fits = {id(fit.consumed): fit for found in one.nodes.values() for fit in found.fits if not fit.device.partition}
    amounts = [fit.amounts for fit in fits.values()]
    return Share(
        min((share.memory_mib for share in amounts), default=0), min((share.compute for share in amounts), default=0)
    )


def _decisions(
    claims: Sequence[ResourceClaim], need: ClaimsNeed, fits: list[tuple[Fit, ...]]
) -> tuple[ClaimDecision, ...]:
    return tuple(
        ClaimDecision(
            claim,
            tuple(
                (wish, fit) for (one, wish), own in zip(need.wishes, fits, strict=True) if one == number for fit in own
            ),
        )
        for number, claim in enumerate(claims)
    )
