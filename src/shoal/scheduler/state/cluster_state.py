"""The state of the cluster as the watch shows it: what is free, who holds what.

Nodes become inventories, bound pods bookings, in the engine's ledger and in the tables the filters read. Both are
written here and nowhere else, and always together. What the watch shows wins over what was assumed; an assumption whose
outcome is open stays booked until it is known. The annotations of a pod are not a proof: the pod's
request bounds them, the first that were believed stay, and what a node's agent says is held counts more. A pod that has
ended holds its cards until its node says that it has left them.

No I/O: the watch calls the methods `on_…`; what somebody should hear goes through `report`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.kube.objects.node import Namespace, Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from shoal.kube.resources import manifest_of
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation
from shoal.model.bound import on_cards
from shoal.model.contract import gpushare, kubernetes, mechanisms
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import NodeGpus
from shoal.model.node import node_gpus
from shoal.model.request import NO_SHARE, Request, Share, fits
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.engine import Engine
from shoal.placement.errors import BookingError, PolicyError
from shoal.placement.ledger import Booking
from shoal.scheduler.cluster_events import ClusterEvent, node_events
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.state.claim_bookings import ClaimBookings
from shoal.scheduler.state.holdings import (
    GRACE_SECONDS,
    HeldByNodes,
    Leaving,
    Origin,
    booking,
    claims_for_nothing,
    decision_in,
    given_by_node,
    has_all_cards,
    has_left,
    holding_of,
    on_emptiest_cards,
    on_its_cards,
)
from shoal.scheduler.state.requests import Requests

log = logging.getLogger(__name__)

#: Reports an event: the object, the event's reason, the message.
Report = Callable[[Node | Pod, str, str], None]

#: Whether the cards of a node can take a pod once some pods (UIDs) are gone.
CardsFit = Callable[[str, frozenset[str]], bool]

REASON_NODE: Final = "GPUInventoryUnreadable"
REASON_POD: Final = "GPUDecisionUnreadable"
REASON_OVER: Final = "GPUOverBooked"
REASON_CHANGED: Final = "GPUDecisionChanged"

#: Higher than the priority of any pod.
MAX_PRIORITY: Final = 2**31
#: The events that a pod's end is.
_LEFT: Final = ClusterEvent.CARDS_FREED | ClusterEvent.NODE_RESOURCES | ClusterEvent.PODS
#: Decisions read from the annotations of a pod.
_RECORDED: Final = (Origin.OWN, Origin.FOREIGN)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read of a bound pod, so that it is not read again."""

    node: str
    decision: tuple[str | None, ...]
    origin: Origin
    priority: int = 0


class ClusterState:
    """The engine's ledger and the filters' tables, which always agree."""

    def __init__(
        self,
        engine: Engine,
        tables: ClusterTables,
        *,
        unit: MemoryUnit,
        news: Callable[[ClusterEvent], None],
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.tables = tables
        self.unit = unit
        #: The rows of the nodes that can be used, by name. To be read only.
        self.rows: dict[str, int] = {}
        self._news = news
        self._report = report
        self._requests = Requests(unit)
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        #: By node, the resource names that it serves through claims.
        self._by_claims: dict[str, frozenset[str]] = {}
        self._seen: dict[str, _Seen] = {}
        #: The annotations in which decisions are being written, until the watch shows them.
        self._written: dict[str, tuple[str | None, ...]] = {}
        self._sick: dict[str, frozenset[int]] = {}
        self._priorities: Counter[int] = Counter()
        self._over: set[tuple[str, str]] = set()
        self._clock = clock
        self._held = HeldByNodes()
        #: Pods that have ended and may still hold their cards, by UID.
        self._leaving: dict[str, Leaving] = {}
        #: Claims of devices, and what they hold.
        self.claims = ClaimBookings(
            engine.ledger, news=news, look=self._look_for_over_booking, namespace=self._namespace_of
        )
        #: What a pod with claims asks for of cards, where somebody reads claims.
        self.demand_of: Callable[[Pod], Request | None] = lambda pod: None
        #: Changes whenever the cards of a node may have.
        self.inventory_version = 0

    # Questions

    def request(self, pod: Pod) -> Request:
        """What the pod asks for. Raises RequestError when it cannot be met as written."""
        return self._requests.of(pod)

    def _by_number(self, pod: Pod) -> Request:
        """What a bound pod has as devices. Raises RequestError.

        What it has through a claim is an entry of its own in the ledger.
        """
        return self._requests.of(pod, by_claims=self._by_claims.get(pod.spec.node_name, frozenset()))

    def pod(self, uid: str) -> Pod | None:
        """The pod as last seen; None when it is gone or finished."""
        return self._pods.get(uid)

    def _namespace_of(self, uid: str) -> str | None:
        pod = self._pods.get(uid)
        return None if pod is None else pod.metadata.namespace

    def node(self, name: str) -> Node | None:
        """The node as last seen."""
        return self._nodes.get(name)

    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def row(self, node: str) -> int | None:
        """The node's row in the arrays."""
        return self.engine.ledger.row_of(node)

    def mechanisms(self, node: str) -> Mapping[str, Mechanism]:
        """The names that a node does not serve by devices."""
        row = self.row(node)
        return {} if row is None else self.tables.nodes.mechanisms.get(row, {})

    def lowest_priority(self) -> int:
        """The lowest priority of all pods that have a booking."""
        return min(self._priorities, default=MAX_PRIORITY)

    def efficiency(self, request: Request, *, among: BoolArray) -> float:
        """How good the best place on these nodes is (`Engine.efficiency`). Raises PolicyError."""
        return self.engine.efficiency(request, among=of_length(among, self.engine.ledger.columns.rows))

    def cards_fit_without(self, request: Request) -> CardsFit:
        """A question about one node at a time: do its cards take the request once some pods (UIDs) are gone, and with
        them the claims that only they use?
        """
        fits = self.engine.fits_without(request)
        return lambda node, gone: fits(node, gone | self.claims.freed_by(node, gone))

    def version(self) -> tuple[int, int]:
        """Changes whenever a decision could come out differently."""
        return self.engine.ledger.columns.version, self.tables.version

    # Decisions

    def place(
        self, pod: Pod, *, among: BoolArray | None = None, favour: FloatArray | None = None, node: str | None = None
    ) -> Allocation | None:
        """Decide and book; None when the pod fits nowhere. Assumed until the watch shows it, or it is cancelled."""
        uid = pod.metadata.uid
        held = self.engine.ledger.booking(uid)
        if held is not None:
            raise BookingError(f"pod {pod.metadata.namespace}/{pod.metadata.name} is booked on {held.node} already")
        if node is not None:
            among = self._only(node)
        rows = self.engine.ledger.columns.rows
        allocation = self.engine.place(
            uid,
            self.request(pod),
            among=None if among is None else of_length(among, rows),
            favour=None if favour is None else of_length(favour, rows),
        )
        if allocation is not None:
            self._pods.setdefault(uid, pod)
            self._add_to_filters(pod, allocation.node)
        return allocation

    def place_as(self, pod: Pod, allocation: Allocation) -> bool:
        """Book a decision made before, as `place` does; False when its cards cannot take the pod any more."""
        try:
            self.engine.assume(pod.metadata.uid, self.request(pod), allocation)
        except BookingError:
            return False
        self._pods.setdefault(pod.metadata.uid, pod)
        self._add_to_filters(pod, allocation.node)
        return True

    def decide(
        self, pod: Pod, *, among: BoolArray | None = None, favour: FloatArray | None = None
    ) -> Allocation | None:
        """Where `reserve` would put the pod; nothing is booked."""
        rows = self.engine.ledger.columns.rows
        return self.engine.decide(
            self.request(pod),
            among=None if among is None else of_length(among, rows),
            favour=None if favour is None else of_length(favour, rows),
        )

    def reserve(
        self, pod: Pod, *, among: BoolArray | None = None, favour: FloatArray | None = None
    ) -> Allocation | None:
        """As `place`, for a pod that the API server does not show: it is booked and counted by the filters under its
        UID until `unreserve`, and is neither known as a pod nor counted as demand.
        """
        allocation = self.decide(pod, among=among, favour=favour)
        if allocation is not None:
            request = self.request(pod)
            booked = Booking(pod.metadata.uid, allocation, request.cpu_milli, request.memory_mib)
            self.engine.ledger.assume(booked)
            self._add_to_filters(pod, allocation.node)
        return allocation

    def unreserve(self, uid: str, *, quietly: bool = False) -> None:
        """End what `reserve` has booked. `quietly`: no event is told."""
        self._leave(uid, self.engine.ledger.release, quietly=quietly)

    def tell_freed(self) -> None:
        """What was taken out quietly is free for everybody after all."""
        self._news(_LEFT)

    def place_with_claims(self, pod: Pod, node: str, claims: tuple[Booking, ...]) -> None:
        """Book a decision on a pod and the claims that are to be allocated for it. Raises BookingError."""
        uid = pod.metadata.uid
        self.claims.assume(uid, claims)
        try:
            self.engine.assume(uid, self._demand(pod), Allocation(node, ()))
        except BookingError:
            self.claims.cancel(uid)
            raise
        self._pods.setdefault(uid, pod)
        self._add_to_filters(pod, node)

    def move_to_claims(self, pod: Pod, claims: tuple[Booking, ...]) -> None:
        """What is booked for a pod is booked for claims that are made for it from now on. Raises BookingError."""
        uid, ledger = pod.metadata.uid, self.engine.ledger
        held = ledger.booking(uid)
        if held is None or not ledger.is_assumed(uid):
            raise BookingError(f"pod {pod.metadata.namespace}/{pod.metadata.name} has no booking any more")
        ledger.release(uid)
        try:
            self.claims.assume(uid, claims)
        except BookingError:
            ledger.assume(held)
            raise
        ledger.assume(replace(held, allocation=Allocation(held.node, ())))

    def write(self, uid: str, annotations: Mapping[str, str]) -> None:
        """The decision is about to be written in these annotations; when the watch shows them, it is confirmed."""
        self._written[uid] = decision_in(annotations)

    def cancel(self, uid: str, *, quietly: bool = False) -> None:
        """Cancel a decision that was not written: what the watch showed last counts. `quietly`: no event is told."""
        self._written.pop(uid, None)
        self.claims.cancel(uid)
        pod = self._pods.get(uid)
        if pod is not None and pod.spec.node_name:
            self._unsee(uid)
            self._hold(pod)
        elif self.engine.ledger.is_assumed(uid):
            self._leave(uid, self.engine.release, quietly=quietly)

    def take_out(self, uid: str) -> None:
        """Remove the pod and what it holds, to find out what would be without it."""
        self._written.pop(uid, None)
        self._pods.pop(uid, None)
        self._leave(uid, self.engine.remove)

    def wait(self, pod: Pod) -> None:
        """The pod waits for a place: it counts as demand. Raises RequestError."""
        self.engine.wait(pod.metadata.uid, self._demand(pod))

    def _demand(self, pod: Pod) -> Request:
        """What the pod asks for, claims that can be read included. Raises RequestError."""
        if pod.spec.resource_claims:
            return self.demand_of(pod) or self.request(pod)
        return self.request(pod)

    # The watch

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        pod = change.object
        uid = pod.metadata.uid
        if change.kind is ChangeType.DELETED or pod.status.phase in kubernetes.FINISHED_PHASES:
            self._written.pop(uid, None)
            known = self._pods.pop(uid, None) is not None or self.engine.ledger.booking(uid) is not None
            if known and uid not in self._leaving:
                self._end(pod, _number(change.version or pod.metadata.resource_version), unseen=change.unseen)
            return
        self._pods[uid] = pod
        if self._leaving.pop(uid, None) is not None:
            self._come_back(pod)
        if pod.spec.node_name:
            self._hold(pod)

    def on_node(self, change: Change[Node]) -> None:
        """A node appeared, changed or went away."""
        node = change.object
        name = node.metadata.name
        if change.kind is ChangeType.DELETED:
            self._nodes.pop(name, None)
            self._by_claims.pop(name, None)
            self._forget_held(name)
            self._drop(name)
            self._news(ClusterEvent.NODE_ADDED)  # the domains of a spread constraint are fewer
            return
        news = node_events(self._nodes.get(name), node)
        self._nodes[name] = node
        if news:
            self._by_claims[name] = mechanisms.by_claims(node.metadata.annotations)
            self._take_in(node)
            self._news(news)
        self._take_held(node)

    def on_namespace(self, change: Change[Namespace]) -> None:
        """A namespace appeared, changed or went away."""
        if change.new is None:
            self.tables.remove_namespace(change.object.metadata.name)
        else:
            self.tables.set_namespace(change.new)
        self._news(ClusterEvent.PODS)

    def on_volume(self, change: Change[PersistentVolume]) -> None:
        """A volume appeared, changed or went away."""
        if change.new is None:
            self.tables.remove_volume(change.object.metadata.name)
        else:
            self.tables.set_volume(change.new)
        self._news(ClusterEvent.VOLUMES)

    def on_claim(self, change: Change[PersistentVolumeClaim]) -> None:
        """A claim appeared, changed or went away."""
        if change.new is None:
            meta = change.object.metadata
            self.tables.remove_claim(meta.namespace, meta.name)
        else:
            self.tables.set_claim(change.new)
        self._news(ClusterEvent.VOLUMES)

    def on_storage_class(self, change: Change[StorageClass]) -> None:
        """A storage class appeared, changed or went away."""
        if change.new is None:
            self.tables.remove_storage_class(change.object.metadata.name)
        else:
            self.tables.set_storage_class(change.new)
        self._news(ClusterEvent.VOLUMES)

    def sweep(self) -> None:
        """Release the cards of pods that vanished and of which no agent tells, when their time is over."""
        now = self._clock()
        for uid, leaving in list(self._leaving.items()):
            if leaving.is_over(uid, self._held.of(leaving.node), now):
                self._let_go(uid)

    def on_config_map(self, change: Change[ConfigMap]) -> None:
        """gpushare's list of cards to keep out of use, one ConfigMap per node; any other is passed over."""
        meta = change.object.metadata
        prefix = gpushare.UNHEALTHY_CONFIGMAP_PREFIX
        if meta.namespace != gpushare.UNHEALTHY_CONFIGMAP_NAMESPACE or not meta.name.startswith(prefix):
            return
        name = meta.name.removeprefix(prefix)
        try:
            sick = frozenset() if change.new is None else gpushare.decode_unhealthy(change.new.data)
        except CodecError as error:
            log.warning("ConfigMap %s/%s: %s", meta.namespace, meta.name, error)
            return
        if self._sick.get(name, frozenset()) != sick:
            self._sick[name] = sick
            if name in self._nodes:
                self._take_in(self._nodes[name])
                self._news(ClusterEvent.CARDS_FREED)

    # Nodes

    def _take_in(self, node: Node) -> None:
        name = node.metadata.name
        ledger = self.engine.ledger
        try:
            inventory = self._inventory(node)
            ledger.set_inventory(inventory)
        except (CodecError, BookingError) as error:
            self._report(node, REASON_NODE, f"takes no GPU pods until its inventory can be read: {error}")
            self._drop(name)
            return
        node_ledger = ledger.node(name)
        assert node_ledger is not None
        self.rows[name] = node_ledger.row
        self.tables.set_node(node_ledger.row, node)
        self.inventory_version += 1
        self.claims.on_inventory(name)
        for uid, held in list(node_ledger.pods.items()):
            seen, pod = self._seen.get(uid), self._pods.get(uid)
            if pod is None or seen is None:
                continue
            if seen.origin not in (Origin.OWN, Origin.NODE) or not on_its_cards(held, node_ledger):
                self._unsee(uid)
                self._hold(pod)
        self._look_for_over_booking(name)

    def _inventory(self, node: Node) -> NodeGpus:
        inventory = node_gpus(manifest_of(node), unit=self.unit)
        sick = self._sick.get(node.metadata.name)
        if not sick:
            return inventory
        why = f"listed in ConfigMap {gpushare.unhealthy_configmap(node.metadata.name)}"
        gpus = tuple(replace(gpu, healthy=False, fault=why) if gpu.index in sick else gpu for gpu in inventory.gpus)
        return replace(inventory, gpus=gpus)

    def _drop(self, name: str) -> None:
        self.rows.pop(name, None)
        self.inventory_version += 1
        row = self.row(name)
        if row is not None:
            self.tables.remove_node(row)
            self.engine.ledger.remove_node(name)

    # What nodes say is held

    def _take_held(self, node: Node) -> None:
        name = node.metadata.name
        try:
            changed = self._held.take(node)
        except CodecError as error:
            self._report(node, REASON_NODE, f"what is held of its cards stays as it was: {error}")
            return
        if changed is None:
            return
        said = self._held.of(name)
        self.claims.on_held(name, {} if said is None else said.claims)
        for uid in changed:
            pod = self._pods.get(uid)
            if pod is not None and pod.spec.node_name == name:
                self._unsee(uid)
                self._hold(pod)
            else:
                self._keep_for_nobody(name, uid)
        held = self._held.of(name)
        for uid, leaving in list(self._leaving.items()):
            if leaving.node == name and held is not None and held.releases(uid, leaving.version):
                self._let_go(uid)
        self._look_for_over_booking(name)

    def _keep_for_nobody(self, node: str, uid: str) -> None:
        """Book cards that a node says are held by a pod which the API server does not show there.

        The key is the node's own, so that a node can say nothing about pods of other nodes.
        """
        cards, ledger = self._held.cards(node, uid), self.engine.ledger
        known = ledger.booking(uid)
        if known is not None and known.node == node:
            if cards and uid in self._leaving:  # it was given cards just before its end, maybe others than were thought
                ledger.confirm(Booking(uid, given_by_node(node, cards)))
            return  # it is leaving, or on its way here
        if cards is not None:
            ledger.confirm(Booking(_for_nobody(node, uid), given_by_node(node, cards)))
        elif ledger.booking(_for_nobody(node, uid)) is not None:
            ledger.release(_for_nobody(node, uid))
            self._news(_LEFT)

    def _forget_held(self, node: str) -> None:
        """The node is gone, and with it what its containers held."""
        for uid in self._held.pods(node):
            self.engine.ledger.release(_for_nobody(node, uid))
        self._held.drop(node)
        self.claims.on_held(node, {})
        for uid, leaving in list(self._leaving.items()):
            if leaving.node == node:
                self._let_go(uid)

    # Pods

    def _end(self, pod: Pod, version: int, *, unseen: bool) -> None:
        """The pod has ended: its cards are free now, or when its node has said so."""
        uid = pod.metadata.uid
        held = self.engine.ledger.booking(uid)
        node = pod.spec.node_name
        gone = held is None or held.node != node or node not in self._nodes or not held.allocation.containers
        if gone or has_left(pod, version, self._held.of(node)):
            self._leave(uid, self.engine.remove)
            return
        assert held is not None
        self._leave(uid, self.engine.remove)  # no more CPU, no demand, no pod; but its cards
        self.engine.ledger.confirm(Booking(uid, held.allocation))
        self._leaving[uid] = Leaving(node, version, self._clock() + GRACE_SECONDS, unseen)

    def _come_back(self, pod: Pod) -> None:
        """The pod has not ended after all: it has the cards that it had."""
        held = self.engine.ledger.booking(pod.metadata.uid)
        assert held is not None
        try:
            request = self._by_number(pod)
        except RequestError:
            return  # reported when it is booked
        seen = _Seen(held.node, decision_in(pod.metadata.annotations), Origin.OWN, pod.spec.priority or 0)
        self._seen[pod.metadata.uid] = seen
        self._priorities[seen.priority] += 1
        self.engine.confirm(booking(pod, request, held.allocation), request)

    def _let_go(self, uid: str) -> None:
        """A pod that has ended has left its cards."""
        del self._leaving[uid]
        self._leave(uid, self.engine.remove)

    def _hold(self, pod: Pod) -> None:
        """Book what a bound pod holds."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        seen = _Seen(node, decision_in(pod.metadata.annotations), Origin.OWN, pod.spec.priority or 0)
        known = self._seen.get(uid)
        if known is None:
            self._priorities[seen.priority] += 1
            if self._held.cards(node, uid) is not None:
                self.engine.ledger.release(_for_nobody(node, uid))
            self._seen[uid] = seen if self._is_as_written(pod, seen) else replace(seen, origin=self._book(pod))
            self._news(ClusterEvent.PODS)
        elif (known.node, known.decision) != (seen.node, seen.decision):
            self._seen[uid] = replace(seen, origin=self._book_changed(pod, known))
            self._news(ClusterEvent.PODS)
        self._add_to_filters(pod, node)

    def _book_changed(self, pod: Pod, known: _Seen) -> Origin:
        """The decision in a bound pod's annotations has changed. A decision that was believed before stays booked."""
        booked = self.engine.ledger.booking(pod.metadata.uid)
        if booked is not None and booked.node == pod.spec.node_name and known.origin in _RECORDED:
            self._report(pod, REASON_CHANGED, "its record of cards was changed after it was bound: that has no effect")
            return known.origin
        return self._book(pod)

    def _is_as_written(self, pod: Pod, seen: _Seen) -> bool:
        """Whether the watch shows just what is booked; then it is confirmed, and nothing needs to be read."""
        uid = pod.metadata.uid
        booked = self.engine.ledger.booking(uid)
        if self._written.pop(uid, None) != seen.decision or booked is None or booked.node != seen.node:
            return False
        try:
            request = self._by_number(pod)
        except RequestError:
            return False
        same = (request.cpu_milli, request.memory_mib) == (booked.cpu_milli, booked.memory_mib)
        if not same or not on_its_cards(booked, self.engine.ledger.node(seen.node)):
            return False
        self.engine.confirm(booked, request)
        return True

    def _book(self, pod: Pod) -> Origin:
        uid, node = pod.metadata.uid, pod.spec.node_name
        try:
            request = self._by_number(pod)
        except RequestError as error:
            return self._book_unread(pod, error)
        node_ledger = self.engine.ledger.node(node)
        holding = holding_of(
            pod,
            request,
            inventory=None if node_ledger is None else node_ledger.inventory,
            unit=self.unit,
            given=self._held.cards(node, uid),
            guess=lambda: self._guess(pod, request),
            no_room=lambda allocation: self._no_room(uid, allocation),
        )
        if holding.problem:
            self._report(pod, REASON_POD, f"its cards are guessed: {holding.problem}")
        elif claims_for_nothing(pod, request):
            self._report(pod, REASON_POD, "its record claims cards, and it asks for none: that has no effect")
        left = self.engine.ledger.booking(uid)
        self.engine.confirm(holding.booking, self._demand(pod))
        if left is not None and left != holding.booking:
            self._news(_LEFT)
        self._look_for_over_booking(node)
        return holding.origin

    def _book_unread(self, pod: Pod, error: RequestError) -> Origin:
        """Book a pod of which nobody can tell what it asks for: what its node says, or what it had before."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        given, before = self._held.cards(node, uid), self.engine.ledger.booking(uid)
        if given is not None:
            allocation, origin = given_by_node(node, given), Origin.NODE
        elif before is not None and before.node == node:
            allocation, origin = before.allocation, Origin.GUESSED
        else:
            # Kubelet may have given it something; what, nobody can tell.
            allocation, origin = Allocation(node, ()), Origin.GUESSED
        counted = "its cards are counted as before" if allocation.containers else "runs and is not counted"
        self._report(pod, REASON_POD, f"{counted}: {error}")
        self.engine.confirm(Booking(uid, allocation), Request())
        return origin

    def _no_room(self, uid: str, allocation: Allocation) -> str:
        """Which card of a record has no room beside what containers on its node have been given, in words."""
        node_ledger = self.engine.ledger.node(allocation.node)
        if node_ledger is None or self._held.of(allocation.node) is None:
            return ""
        for uuid, share in allocation.held().items():
            card = node_ledger.cards.get(uuid)
            others = self._given_of(allocation.node, uuid, beside=uid)
            if card is not None and card.gpu is not None and not fits(card.gpu, others, share):
                return (
                    f"card {card.gpu.index} ({uuid}) has no room for it beside what the node's containers have been "
                    "given: delete the pod so that it is placed again"
                )
        return ""

    def _given_of(self, node: str, uuid: str, *, beside: str) -> Share:
        """What containers of other pods that are there have been given of a card."""
        taken = NO_SHARE
        for uid, cards in self._held.pods(node).items():
            if uid != beside and (uid in self._pods or uid in self._leaving):
                taken = sum((card.share for card in cards if card.uuid == uuid), taken)
        return taken

    def _guess(self, pod: Pod, request: Request) -> Allocation:
        uid, node = pod.metadata.uid, pod.spec.node_name
        held = self.engine.ledger.booking(uid)
        node_ledger = self.engine.ledger.node(node)
        if held is not None and held.node == node and has_all_cards(held.allocation, request):
            inventory = None if node_ledger is None else node_ledger.inventory
            return held.allocation if inventory is None else on_cards(held.allocation, inventory)
        row = self.row(node)
        if row is not None:
            try:
                allocation = self.engine.decide(request, among=self._only(node))
            except PolicyError:
                allocation = None  # reported when somebody tries to place it
            if allocation is not None:
                return allocation
        return on_emptiest_cards(node_ledger, node, request)

    def _leave(self, uid: str, leave: Callable[[str], None], *, quietly: bool = False) -> None:
        """The pod holds nothing any more: it is gone (`engine.remove`), or waits again (`engine.release`)."""
        self._unsee(uid)
        self.tables.remove_pod(uid)
        held = self.engine.ledger.booking(uid)
        leave(uid)
        if held is not None:
            self._look_for_over_booking(held.node)
            if not quietly:
                self._news(_LEFT)

    def _unsee(self, uid: str) -> None:
        seen = self._seen.pop(uid, None)
        if seen is not None:
            self._priorities[seen.priority] -= 1
            if not self._priorities[seen.priority]:
                del self._priorities[seen.priority]

    def _add_to_filters(self, pod: Pod, node: str) -> None:
        row = self.row(node)
        if row is not None:
            self.tables.make_room(self.engine.ledger.columns.rows)
            self.tables.add_pod(pod, row)

    def _only(self, node: str) -> BoolArray:
        among = np.zeros(self.engine.ledger.columns.rows, np.bool_)
        row = self.row(node)
        if row is not None:
            among[row] = True
        return among

    def _look_for_over_booking(self, name: str) -> None:
        """Report each over-booked card once, until it is over-booked no more."""
        node_ledger = self.engine.ledger.node(name)
        if node_ledger is None:
            self._over = {card for card in self._over if card[0] != name} if self._over else self._over
            return
        for uuid, card in node_ledger.cards.items():
            over = card.over()
            if over and (name, uuid) not in self._over:
                self._over.add((name, uuid))
                self._tell_over(name, uuid)
            elif not over and self._over:
                self._over.discard((name, uuid))

    def _tell_over(self, name: str, uuid: str) -> None:
        node, node_ledger = self._nodes.get(name), self.engine.ledger.node(name)
        if node is None or node_ledger is None:
            return
        card = node_ledger.cards[uuid]
        # How many, and not whose: the event of a node can be read by others than those who may see the pods.
        self._report(
            node,
            REASON_OVER,
            f"card {card.inventory.index} ({uuid}) holds {card.memory_mib} of {card.inventory.memory_mib} MiB for "
            f"{card.pods} pods: it takes nothing new; delete or move one of those that kubectl inspect gpushare -d "
            "lists",
        )


def _for_nobody(node: str, uid: str) -> str:
    """The key of a booking for a pod that a node says holds cards and the API server does not show there."""
    return f"{node}/{uid}"


def _number(version: str) -> int:
    """A version of the API server's as a number, by which versions can be compared."""
    return int(version) if version.isascii() and version.isdigit() else 0


A = TypeVar("A", bound=np.generic)


def of_length(values: npt.NDArray[A], rows: int) -> npt.NDArray[A]:
    """An array of the tables with as many rows as the ledger: tables have spare rows, or lack the newest."""
    if len(values) >= rows:
        return values[:rows]
    return np.concatenate((values, np.zeros(rows - len(values), values.dtype)))
