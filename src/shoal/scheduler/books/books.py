"""The scheduler's picture of the cluster, kept true to the watch: what is free, who holds what.

Nodes become inventories, bound pods bookings, in the engine's ledger and in the arrays the filters read. Both are
written here and nowhere else, and always together. What the watch shows wins over what was assumed; an assumption whose
outcome is open stays booked until it is known.

No I/O: the watch calls `on_node`, `on_pod` and `on_config_map`; what somebody should hear goes through `report`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.kube.objects.node import Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import manifest_of
from shoal.kube.store import Change, Kind
from shoal.model.allocation import Allocation
from shoal.model.bound import on_cards
from shoal.model.contract import gpushare
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import NodeGpus
from shoal.model.node import node_gpus
from shoal.model.request import Request
from shoal.placement.books.columns import BoolArray, FloatArray
from shoal.placement.books.ledger import Booking
from shoal.placement.engine import Engine
from shoal.placement.errors import BookingError, PolicyError
from shoal.scheduler.books.bookings import Origin, decision_in, holding_of, on_emptiest_cards, on_its_cards
from shoal.scheduler.books.node_news import node_news
from shoal.scheduler.books.requests import Requests
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.queue.wake import Wake

log = logging.getLogger(__name__)

#: Told to whoever watches events: the object, the event's reason, the message.
Report = Callable[[Node | Pod, str, str], None]

REASON_NODE: Final = "GPUInventoryUnreadable"
REASON_POD: Final = "GPUDecisionUnreadable"
REASON_OVER: Final = "GPUOverBooked"

#: Higher than any pod's.
MAX_PRIORITY: Final = 2**31
_FINISHED: Final = ("Succeeded", "Failed")
#: What a pod that leaves may make room for.
_LEFT: Final = Wake.CARDS_FREED | Wake.NODE_RESOURCES | Wake.PODS


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was understood of a bound pod, so that the same is not read twice."""

    node: str
    decision: tuple[str | None, ...]
    origin: Origin
    priority: int = 0


class Books:
    """Engine and filters on one truth."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        *,
        unit: MemoryUnit,
        news: Callable[[Wake], None],
        report: Report,
    ) -> None:
        self.engine = engine
        self.cluster = cluster
        self.unit = unit
        #: The rows of the nodes that can be used, by name. To be read only.
        self.rows: dict[str, int] = {}
        self._news = news
        self._report = report
        self._requests = Requests(unit)
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._seen: dict[str, _Seen] = {}
        #: The words in which decisions of here are written, until the watch shows them.
        self._written: dict[str, tuple[str | None, ...]] = {}
        self._sick: dict[str, frozenset[int]] = {}
        self._priorities: Counter[int] = Counter()
        self._over: set[tuple[str, str]] = set()

    # Questions

    def request(self, pod: Pod) -> Request:
        """What the pod asks for. Raises RequestError when it cannot be met as written."""
        return self._requests.of(pod)

    def pod(self, uid: str) -> Pod | None:
        """The pod as last seen; None when it is gone or finished."""
        return self._pods.get(uid)

    def node(self, name: str) -> Node | None:
        """The node as last seen."""
        return self._nodes.get(name)

    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def row(self, node: str) -> int | None:
        """The node's row in the arrays."""
        return self.engine.ledger.row_of(node)

    def lowest_priority(self) -> int:
        """That of the least important pod that holds anything."""
        return min(self._priorities, default=MAX_PRIORITY)

    def version(self) -> tuple[int, int]:
        """Grows whenever a decision could come out differently."""
        return self.engine.ledger.columns.version, self.cluster.version

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
            among=None if among is None else _of_length(among, rows),
            favour=None if favour is None else _of_length(favour, rows),
        )
        if allocation is not None:
            self._pods.setdefault(uid, pod)
            self._add_to_filters(pod, allocation.node)
        return allocation

    def write(self, uid: str, annotations: Mapping[str, str]) -> None:
        """The booked decision is about to be written in these words: when the watch shows them, it is as booked."""
        self._written[uid] = decision_in(annotations)

    def cancel(self, uid: str, *, quietly: bool = False) -> None:
        """The decision is void: what the watch showed last is true. Quietly: it was never more than a try."""
        self._written.pop(uid, None)
        pod = self._pods.get(uid)
        if pod is not None and pod.spec.node_name:
            self._unsee(uid)
            self._hold(pod)
        elif self.engine.ledger.is_assumed(uid):
            self._leave(uid, self.engine.release, quietly=quietly)

    def wait(self, pod: Pod) -> None:
        """The pod waits for a place: it counts as demand. Raises RequestError."""
        self.engine.wait(pod.metadata.uid, self.request(pod))

    # The watch

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        pod = change.object
        uid = pod.metadata.uid
        if change.kind is Kind.DELETED or pod.status.phase in _FINISHED:
            self._written.pop(uid, None)
            if self._pods.pop(uid, None) is not None or self.engine.ledger.booking(uid) is not None:
                self._leave(uid, self.engine.remove)
            return
        self._pods[uid] = pod
        if pod.spec.node_name:
            self._hold(pod)

    def on_node(self, change: Change[Node]) -> None:
        """A node appeared, changed or went away."""
        node = change.object
        name = node.metadata.name
        if change.kind is Kind.DELETED:
            self._nodes.pop(name, None)
            self._drop(name)
            self._news(Wake.NODE_ADDED)  # the domains of a spread constraint are fewer
            return
        news = node_news(self._nodes.get(name), node)
        self._nodes[name] = node
        if news:
            self._take_in(node)
            self._news(news)

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
                self._news(Wake.CARDS_FREED)

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
        books = ledger.node(name)
        assert books is not None
        self.rows[name] = books.row
        self.cluster.set_node(books.row, node)
        for uid, booking in list(books.pods.items()):
            seen, pod = self._seen.get(uid), self._pods.get(uid)
            if pod is None or seen is None:
                continue
            if seen.origin is not Origin.OWN or not on_its_cards(booking, books):
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
        row = self.row(name)
        if row is not None:
            self.cluster.remove_node(row)
            self.engine.ledger.remove_node(name)

    # Pods

    def _hold(self, pod: Pod) -> None:
        """Book what a bound pod holds."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        seen = _Seen(node, decision_in(pod.metadata.annotations), Origin.OWN, pod.spec.priority or 0)
        known = self._seen.get(uid)
        if known is None or (known.node, known.decision) != (seen.node, seen.decision):
            if known is None:
                self._priorities[seen.priority] += 1
            self._seen[uid] = seen if self._is_as_written(pod, seen) else replace(seen, origin=self._book(pod))
            self._news(Wake.PODS)
        self._add_to_filters(pod, node)

    def _is_as_written(self, pod: Pod, seen: _Seen) -> bool:
        """Whether the watch shows just what is booked; then it is confirmed, and nothing needs to be read."""
        uid = pod.metadata.uid
        booking = self.engine.ledger.booking(uid)
        if self._written.pop(uid, None) != seen.decision or booking is None or booking.node != seen.node:
            return False
        try:
            request = self.request(pod)
        except RequestError:
            return False
        same = (request.cpu_milli, request.memory_mib) == (booking.cpu_milli, booking.memory_mib)
        if not same or not on_its_cards(booking, self.engine.ledger.node(seen.node)):
            return False
        self.engine.confirm(booking, request)
        return True

    def _book(self, pod: Pod) -> Origin:
        uid, node = pod.metadata.uid, pod.spec.node_name
        try:
            request = self.request(pod)
        except RequestError as error:
            # Kubelet may have given it something; what, nobody can tell.
            self._report(pod, REASON_POD, f"runs and is not counted: {error}")
            self.engine.confirm(Booking(uid, Allocation(node, ())), Request())
            return Origin.GUESSED
        books = self.engine.ledger.node(node)
        holding = holding_of(
            pod,
            request,
            inventory=None if books is None else books.inventory,
            unit=self.unit,
            guess=lambda: self._guess(pod, request),
        )
        if holding.problem:
            self._report(pod, REASON_POD, f"its cards are guessed: {holding.problem}")
        left = self.engine.ledger.booking(uid)
        self.engine.confirm(holding.booking, request)
        if left is not None and left != holding.booking:
            self._news(_LEFT)
        self._look_for_over_booking(node)
        return holding.origin

    def _guess(self, pod: Pod, request: Request) -> Allocation:
        uid, node = pod.metadata.uid, pod.spec.node_name
        held = self.engine.ledger.booking(uid)
        books = self.engine.ledger.node(node)
        if held is not None and held.node == node:
            inventory = None if books is None else books.inventory
            return held.allocation if inventory is None else on_cards(held.allocation, inventory)
        row = self.row(node)
        if row is not None:
            try:
                allocation = self.engine.decide(request, among=self._only(node))
            except PolicyError:
                allocation = None  # told when somebody tries to place it
            if allocation is not None:
                return allocation
        return on_emptiest_cards(books, node, request)

    def _leave(self, uid: str, leave: Callable[[str], None], *, quietly: bool = False) -> None:
        """The pod holds nothing any more: it is gone (`engine.remove`), or waits again (`engine.release`)."""
        self._unsee(uid)
        self.cluster.remove_pod(uid)
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
            self.cluster.make_room(self.engine.ledger.columns.rows)
            self.cluster.add_pod(pod, row)

    def _only(self, node: str) -> BoolArray:
        among = np.zeros(self.engine.ledger.columns.rows, np.bool_)
        row = self.row(node)
        if row is not None:
            among[row] = True
        return among

    def _look_for_over_booking(self, name: str) -> None:
        """Tell of each over-booked card once, until it is sound again."""
        books = self.engine.ledger.node(name)
        if books is None:
            self._over = {card for card in self._over if card[0] != name} if self._over else self._over
            return
        for uuid, card in books.cards.items():
            over = card.over()
            if over and (name, uuid) not in self._over:
                self._over.add((name, uuid))
                self._tell_over(name, uuid)
            elif not over and self._over:
                self._over.discard((name, uuid))

    def _tell_over(self, name: str, uuid: str) -> None:
        node, books = self._nodes.get(name), self.engine.ledger.node(name)
        if node is None or books is None:
            return
        card = books.cards[uuid]
        pods = [self._pods.get(uid) for uid, held in books.pods.items() if uuid in held.allocation.held()]
        names = ", ".join(sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods if pod is not None))
        self._report(
            node,
            REASON_OVER,
            f"card {card.inventory.index} ({uuid}) holds {card.memory_mib} of {card.inventory.memory_mib} MiB for "
            f"{names}: it takes nothing new; delete or move one of them",
        )


A = TypeVar("A", bound=np.generic)


def _of_length(values: npt.NDArray[A], rows: int) -> npt.NDArray[A]:
    """The filters keep room for more rows than there are, and may not have met the newest."""
    if len(values) >= rows:
        return values[:rows]
    return np.concatenate((values, np.zeros(rows - len(values), values.dtype)))
