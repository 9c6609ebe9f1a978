"""The typed answers of the API, made of a picture for a view. Pages show the same ones.

A function here takes a picture and a view, and gives structs that encode to the JSON of docs/dashboard.md. Memory is in
MiB; what is not known is None, and never 0. Pods that the view does not show are amounts without a name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from shoal.analysis.doctor.setup import NodeStep, SetUp
from shoal.analysis.inspect.document import document
from shoal.analysis.inspect.use import PodUse, natural, printable, taken
from shoal.analysis.inspect.used import PodOnCard, UsedCard, mib, total
from shoal.analysis.joined_clusters import ToldReading
from shoal.analysis.past import SERIES, Past, PastQuestion
from shoal.analysis.waste import IdleCard, IdleCause, demand_of, idle_cards
from shoal.dashboard.answers import Refusal, instant
from shoal.dashboard.events import SeenEvent
from shoal.dashboard.picture import MeasuredState, Measurement, NodePicture, Picture
from shoal.dashboard.queries import ListQuery, Name, Page, Query, Sorts, found, page_of
from shoal.dashboard.views import PodState, ViewClass, pod_state
from shoal.dashboard.waste import UNUSED_SECONDS, WasteLog, WastePoint, measured_cards, point_of
from shoal.model.contract import clusters as clusters_contract
from shoal.model.contract import shoal


class Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Root of the answers; every field is there, null when it is not known."""


class NodeCounts(Document, frozen=True, kw_only=True):
    """Nodes with cards."""

    total: int
    ready: int
    cordoned: int


class CardCounts(Document, frozen=True, kw_only=True):
    """Cards; `unknown` are those that no inventory tells of, `free` those of which nothing is requested."""

    total: int
    broken: int
    unknown: int
    free: int


class PodCounts(Document, frozen=True, kw_only=True):
    """Pods that the viewer may read, by state."""

    total: int
    running: int
    starting: int
    waiting: int
    ending: int
    #: Sent to a joined cluster.
    elsewhere: int


class MemoryTotals(Document, frozen=True, kw_only=True):
    """Memory of the cards. `usedMiB` is of the cards that tell, which have `measuredMiB`; null when none does."""

    total_mib: int = msgspec.field(name="totalMiB")
    requested_mib: int = msgspec.field(name="requestedMiB")
    used_mib: int | None = msgspec.field(name="usedMiB")
    measured_mib: int = msgspec.field(name="measuredMiB")


class CollectorCounts(Document, frozen=True, kw_only=True):
    """Nodes by what their collector says; `why` nothing is known of any, null when something is."""

    measured: int
    stale: int
    missing: int
    why: str | None


class Overview(Document, frozen=True, kw_only=True):
    """Counts and totals of all that the viewer sees."""

    number: int
    time: str
    #: Since when the API server has not been heard, and why; null while it is.
    old_since: str | None
    trouble: str | None
    user: str
    #: Whether pods of all namespaces and all nodes are shown.
    sees_all_pods: bool
    sees_all_nodes: bool
    nodes: NodeCounts
    cards: CardCounts
    pods: PodCounts
    memory: MemoryTotals
    collectors: CollectorCounts
    #: Joined clusters; null without a manager.
    clusters: int | None


def overview(picture: Picture, view: ViewClass, *, user: str, clusters: int | None = None) -> Overview:
    """What `/overview` says."""
    made = picture.prepared.whole(("overview", view), picture.number, lambda: _overview(picture, view))
    return msgspec.structs.replace(made, user=user, clusters=clusters)


def _overview(picture: Picture, view: ViewClass) -> Overview:
    nodes = list(view.of_nodes(picture))
    cards = [(node, card) for node in nodes for card in view.cards(node)]
    states = Counter(pod_state(pod) for pod in view.pods(picture))
    measured = Counter(node.measurement.state for node in nodes)
    return Overview(
        number=picture.number,
        time=instant(picture.time),
        old_since=None if picture.old_since is None else instant(picture.old_since),
        trouble=(picture.trouble or None) if view.nodes else ("the cluster is not heard" if picture.trouble else None),
        user="",
        sees_all_pods=view.namespaces is None,
        sees_all_nodes=view.nodes,
        nodes=NodeCounts(
            total=len(nodes),
            ready=sum(node.use.ready for node in nodes),
            cordoned=sum(node.use.cordoned for node in nodes),
        ),
        cards=_card_counts([card for _, card in cards]),
        pods=PodCounts(
            total=sum(states.values()),
            running=states["running"],
            starting=states["starting"],
            waiting=states["waiting"],
            ending=states["ending"] + states["gone"],
            elsewhere=states["elsewhere"],
        ),
        memory=_memory(cards),
        collectors=CollectorCounts(
            measured=measured[MeasuredState.FRESH],
            stale=measured[MeasuredState.STALE],
            missing=measured[MeasuredState.MISSING],
            why=(picture.unmeasured or None) if view.nodes else None,
        ),
        clusters=None,
    )


def _card_counts(cards: list[UsedCard]) -> CardCounts:
    unknown = sum(shoal.is_made_up(card.gpu.uuid) for card in cards)
    return CardCounts(
        total=len(cards),
        broken=sum(not card.gpu.healthy for card in cards),
        unknown=unknown,
        free=sum(card.gpu.uuid not in card.node.held for card in cards),
    )


def _memory(cards: list[tuple[NodePicture, UsedCard]]) -> MemoryTotals:
    told = [
        (card.reading.used_bytes, card.gpu.memory_mib)
        for node, card in cards
        if node.measurement.state is MeasuredState.FRESH
        and card.reading is not None
        and card.reading.used_bytes is not None
    ]
    return MemoryTotals(
        total_mib=sum(card.gpu.memory_mib for _, card in cards),
        requested_mib=sum(card.requested_mib for _, card in cards),
        used_mib=mib(sum(used for used, _ in told)) if told else None,
        measured_mib=sum(memory for _, memory in told),
    )


# Nodes


MeasuredWord = Literal["measured", "stale", "missing"]
_MEASURED: Final[dict[MeasuredState, MeasuredWord]] = {
    MeasuredState.FRESH: "measured",
    MeasuredState.STALE: "stale",
    MeasuredState.MISSING: "missing",
}


class CollectorDocument(Document, frozen=True, kw_only=True):
    """What a node's collector says: `since` is when it last measured, `why` it says nothing now."""

    state: MeasuredWord
    since: str | None
    why: str | None


class NodeDocument(Document, frozen=True, kw_only=True):
    """A node with cards. `pods` are those that the viewer may read; amounts are those of all."""

    name: str
    ready: bool
    cordoned: bool
    address: str
    #: Whether its agent tells of its cards; otherwise they are what the node offers.
    inventory: bool
    models: tuple[str, ...]
    cards: int
    broken: int
    free: int
    total_mib: int = msgspec.field(name="totalMiB")
    requested_mib: int = msgspec.field(name="requestedMiB")
    #: Asked for by pods on the node of which no card is known.
    pending_mib: int = msgspec.field(name="pendingMiB")
    used_mib: int | None = msgspec.field(name="usedMiB")
    #: The mean of its cards, in percent.
    utilisation: float | None
    pods: int
    collector: CollectorDocument


class NodeQuery(ListQuery, frozen=True, kw_only=True):
    """Parameters of `/nodes`."""

    sort: Literal[
        "name", "-name", "used", "-used", "requested", "-requested", "utilisation", "-utilisation", "pods", "-pods"
    ] = "name"
    ready: bool | None = None
    cordoned: bool | None = None
    measured: MeasuredWord | None = None
    model: Annotated[str, msgspec.Meta(max_length=200)] = ""


_NODE_SORTS: Final[Sorts[NodeDocument]] = {
    "name": lambda node: None,
    "used": lambda node: node.used_mib,
    "requested": lambda node: node.requested_mib,
    "utilisation": lambda node: node.utilisation,
    "pods": lambda node: node.pods,
}


def nodes(picture: Picture, view: ViewClass, query: NodeQuery | None = None) -> Page[NodeDocument]:
    """What `/nodes` says."""
    query = query or NodeQuery()
    chosen = (
        node
        for node in (node_document(one, view) for one in view.of_nodes(picture))
        if found(query.search, node.name, node.address, *node.models)
        and query.ready in (None, node.ready)
        and query.cordoned in (None, node.cordoned)
        and query.measured in (None, node.collector.state)
        and (not query.model or query.model in node.models)
    )
    by_name = {**_NODE_SORTS, "name": _node_name}
    return page_of(chosen, query, query.sort, by_name, lambda node: node.name)


def _node_name(node: NodeDocument) -> Any:
    return _natural(node.name)


@lru_cache(maxsize=16_384)
def _natural(name: str) -> tuple[Any, ...]:
    parts, whole = natural(name)
    return (tuple(parts), whole)


def node_document(node: NodePicture, view: ViewClass) -> NodeDocument:
    """One node, of whose cards only those count that are shown."""
    cards = view.cards(node)
    utilisations = [card.reading.utilisation if card.reading else None for card in cards]
    known = [one for one in utilisations if one is not None]
    return NodeDocument(
        name=node.name,
        ready=node.use.ready,
        cordoned=node.use.cordoned,
        address=node.use.address,
        inventory=not any(shoal.is_made_up(card.gpu.uuid) for card in cards),
        models=tuple(sorted({card.gpu.model for card in cards if card.gpu.model})),
        cards=len(cards),
        broken=sum(not card.gpu.healthy for card in cards),
        free=sum(card.gpu.uuid not in node.use.held for card in cards),
        total_mib=sum(card.gpu.memory_mib for card in cards),
        requested_mib=sum(card.requested_mib for card in cards),
        pending_mib=node.use.pending_mib,
        used_mib=mib(total(card.reading.used_bytes if card.reading else None for card in cards)),
        utilisation=round(sum(known) / len(known), 1) if known and len(known) == len(cards) else None,
        pods=sum(view.shows(pod.namespace) for pod in (*node.use.pods, *node.use.pending)),
        collector=collector(node.measurement, view),
    )


def collector(measurement: Measurement, view: ViewClass) -> CollectorDocument:
    """How what is used is known. Why it is not may tell of the network: who sees nodes sees that."""
    return CollectorDocument(
        state=_MEASURED[measurement.state],
        since=None if measurement.at is None else instant(measurement.at),
        why=(measurement.why or None) if view.nodes else None,
    )


# Cards


class Holder(Document, frozen=True, kw_only=True):
    """Who has part of a card; without a name, all pods together that the viewer may not read.

    `requestedMiB` 0: a pod that uses the card without having any of it.
    """

    namespace: str | None
    pod: str | None
    requested_mib: int = msgspec.field(name="requestedMiB")
    used_mib: int | None = msgspec.field(name="usedMiB")
    utilisation: int | None


class CardDocument(Document, frozen=True, kw_only=True):
    """A card."""

    uuid: str
    node: str
    index: int
    model: str | None
    #: Null for a card that no inventory tells of.
    healthy: bool | None
    fault: str | None
    isolation: str | None
    mig: bool
    exclusive: bool
    total_mib: int = msgspec.field(name="totalMiB")
    requested_mib: int = msgspec.field(name="requestedMiB")
    requested_compute: int
    mps_clients: int
    used_mib: int | None = msgspec.field(name="usedMiB")
    unattributed_mib: int | None = msgspec.field(name="unattributedMiB")
    utilisation: int | None
    temperature_celsius: float | None
    power_watts: float | None
    collector: CollectorDocument
    holders: tuple[Holder, ...]


class CardQuery(ListQuery, frozen=True, kw_only=True):
    """Parameters of `/cards`."""

    sort: Literal[
        "node",
        "-node",
        "model",
        "-model",
        "requested",
        "-requested",
        "used",
        "-used",
        "utilisation",
        "-utilisation",
        "temperature",
        "-temperature",
        "power",
        "-power",
    ] = "node"
    node: Name = ""
    model: Annotated[str, msgspec.Meta(max_length=200)] = ""
    health: Literal["good", "broken", "unknown"] | None = None
    measured: MeasuredWord | None = None
    #: Whether something of it is requested.
    held: bool | None = None


def _card_place(card: CardDocument) -> Any:
    return (*_natural(card.node), card.index)


_CARD_SORTS: Final[Sorts[CardDocument]] = {
    "node": _card_place,
    "model": lambda card: card.model,
    "requested": lambda card: card.requested_mib,
    "used": lambda card: card.used_mib,
    "utilisation": lambda card: card.utilisation,
    "temperature": lambda card: card.temperature_celsius,
    "power": lambda card: card.power_watts,
}
_HEALTH: Final = {True: "good", False: "broken", None: "unknown"}


def cards(picture: Picture, view: ViewClass, query: CardQuery | None = None) -> Page[CardDocument]:
    """What `/cards` says."""
    query = query or CardQuery()
    made = picture.prepared.of_nodes(
        ("cards", view),
        view.of_nodes(picture),
        lambda node: tuple(card_document(node, card, view) for card in view.cards(node)),
    )
    chosen = (
        card
        for some in made
        for card in some
        if query.node in ("", card.node)
        and found(query.search, card.uuid, card.node, card.model or "", *_holder_names(card))
        and (not query.model or query.model == card.model)
        and query.health in (None, _HEALTH[card.healthy])
        and query.measured in (None, card.collector.state)
        and query.held in (None, bool(card.requested_mib or card.exclusive or card.mps_clients))
    )
    return page_of(chosen, query, query.sort, _CARD_SORTS, lambda card: card.uuid)


def _holder_names(card: CardDocument) -> Iterable[str]:
    return (f"{one.namespace}/{one.pod}" for one in card.holders if one.pod is not None)


def card_document(node: NodePicture, card: UsedCard, view: ViewClass) -> CardDocument:
    """One card."""
    gpu, reading, share = card.gpu, card.reading, card.node.share(card.gpu)
    unlisted = shoal.is_made_up(gpu.uuid)
    named, others = view.holders(card)
    return CardDocument(
        uuid=gpu.uuid,
        node=node.name,
        index=gpu.index,
        model=gpu.model or None,
        healthy=None if unlisted else gpu.healthy,
        fault=gpu.fault or None,
        isolation=None if unlisted else str(gpu.limited_by),
        mig=gpu.mig,
        exclusive=share.exclusive,
        total_mib=gpu.memory_mib,
        requested_mib=card.requested_mib,
        requested_compute=100 if share.exclusive else share.compute,
        mps_clients=share.clients,
        used_mib=mib(reading.used_bytes) if reading else None,
        unattributed_mib=mib(reading.unattributed_bytes) if reading else None,
        utilisation=reading.utilisation if reading else None,
        temperature_celsius=reading.temperature_celsius if reading else None,
        power_watts=reading.power_watts if reading else None,
        collector=collector(node.measurement, view),
        holders=(*(_holder(pod) for pod in named), *((_nobody(others),) if others else ())),
    )


def _holder(pod: PodOnCard) -> Holder:
    return Holder(
        namespace=pod.namespace,
        pod=pod.name,
        requested_mib=pod.requested_mib,
        used_mib=mib(pod.used_bytes),
        utilisation=pod.utilisation,
    )


def _nobody(pod: PodOnCard) -> Holder:
    return Holder(
        namespace=None,
        pod=None,
        requested_mib=pod.requested_mib,
        used_mib=mib(pod.used_bytes),
        utilisation=pod.utilisation,
    )


def find_card(picture: Picture, view: ViewClass, uuid: str) -> tuple[NodePicture, UsedCard] | None:
    """A card that is shown; None for others, whether they are there or not."""
    for node in view.of_nodes(picture):
        for card in view.cards(node):
            if card.gpu.uuid == uuid:
                return node, card
    return None


# Pods


class PodCard(Document, frozen=True, kw_only=True):
    """What a pod has of a card."""

    uuid: str
    node: str
    index: int
    model: str | None
    requested_mib: int = msgspec.field(name="requestedMiB")
    compute: int
    mps_clients: int
    exclusive: bool
    used_mib: int | None = msgspec.field(name="usedMiB")
    utilisation: int | None


class PodDocument(Document, frozen=True, kw_only=True):
    """A pod that has part of cards, waits for it, or was sent to another cluster."""

    namespace: str
    name: str
    state: PodState
    phase: str
    node: str | None
    created: str | None
    cards: tuple[PodCard, ...]
    requested_mib: int = msgspec.field(name="requestedMiB")
    #: What it asks for while it has none.
    asked_mib: int = msgspec.field(name="askedMiB")
    used_mib: int | None = msgspec.field(name="usedMiB")
    #: Why it waits, or where it is in the cluster that it was sent to.
    why: str | None
    #: The joined cluster that it was sent to; null for pods of this one.
    cluster: str | None
    #: The claims of devices by which it has its cards; none for shares by number.
    claims: tuple[str, ...]
    #: How what is used is known; null without a node.
    collector: CollectorDocument | None


class PodQuery(ListQuery, frozen=True, kw_only=True):
    """Parameters of `/pods`."""

    sort: Literal[
        "name",
        "-name",
        "state",
        "-state",
        "created",
        "-created",
        "requested",
        "-requested",
        "used",
        "-used",
        "node",
        "-node",
    ] = "name"
    state: PodState | None = None
    namespace: Name = ""
    node: Name = ""


_PODS_BY: Final[Sorts[PodDocument]] = {
    "name": lambda pod: (pod.namespace, pod.name),
    "state": lambda pod: pod.state,
    "created": lambda pod: pod.created,
    "requested": lambda pod: pod.requested_mib or pod.asked_mib,
    "used": lambda pod: pod.used_mib,
    "node": lambda pod: pod.node,
}


def pods(picture: Picture, view: ViewClass, query: PodQuery | None = None) -> Page[PodDocument]:
    """What `/pods` says."""
    query = query or PodQuery()
    on_nodes = picture.prepared.of_nodes(
        ("pods", view),
        picture.nodes.values(),
        lambda node: tuple(
            pod_document(picture, pod, view) for pod in (*node.use.pods, *node.use.pending) if view.shows(pod.namespace)
        ),
    )
    on_none = (*picture.cluster.waiting, *picture.cluster.elsewhere)
    others = (pod_document(picture, pod, view) for pod in on_none if view.shows(pod.namespace))
    chosen = (
        pod
        for some in (*on_nodes, others)
        for pod in some
        if found(query.search, f"{pod.namespace}/{pod.name}", pod.node or "")
        and query.state in (None, pod.state)
        and query.namespace in ("", pod.namespace)
        and query.node in ("", pod.node)
    )
    return page_of(chosen, query, query.sort, _PODS_BY, lambda pod: (pod.namespace, pod.name))


def find_pod(picture: Picture, view: ViewClass, namespace: str, name: str) -> PodUse | None:
    """A pod that is shown; None for others, whether they are there or not."""
    if not view.shows(namespace):
        return None
    return next((pod for pod in picture.pods() if (pod.namespace, pod.name) == (namespace, name)), None)


def pod_document(picture: Picture, pod: PodUse, view: ViewClass) -> PodDocument:
    """One pod."""
    node = picture.nodes.get(pod.node)
    on_cards = {} if node is None else _on_cards(node, pod)
    shown = tuple(
        _pod_card(node, card, pod, used) for card, used in on_cards.values() if node is not None and used is not None
    )
    return PodDocument(
        namespace=pod.namespace,
        name=pod.name,
        state=pod_state(pod),
        phase=pod.phase,
        node=pod.node or None,
        created=pod.created or None,
        cards=shown,
        requested_mib=sum(card.requested_mib for card in shown),
        asked_mib=pod.asked_mib,
        used_mib=mib(total(used.used_bytes for _, used in on_cards.values())) if shown else None,
        why=pod.why or None,
        cluster=pod.cluster or None,
        claims=pod.claims,
        collector=None if node is None else collector(node.measurement, view),
    )


def _on_cards(node: NodePicture, pod: PodUse) -> dict[str, tuple[UsedCard, PodOnCard]]:
    found: dict[str, tuple[UsedCard, PodOnCard]] = {}
    for card in node.used.cards:
        for used in card.pods:
            if (used.namespace, used.name) == (pod.namespace, pod.name) and card.gpu.uuid in pod.held:
                found[card.gpu.uuid] = (card, used)
    return found


def _pod_card(node: NodePicture, card: UsedCard, pod: PodUse, used: PodOnCard) -> PodCard:
    share = pod.held[card.gpu.uuid]
    return PodCard(
        uuid=card.gpu.uuid,
        node=node.name,
        index=card.gpu.index,
        model=card.gpu.model or None,
        requested_mib=taken(share, card.gpu),
        compute=share.compute,
        mps_clients=share.clients,
        exclusive=share.exclusive,
        used_mib=mib(used.used_bytes),
        utilisation=used.utilisation,
    )


# What the commands print


def inspect(picture: Picture, view: ViewClass) -> dict[str, Any]:
    """The document of `kubectl inspect gpushare -o json`; of nodes and pods, those that are shown."""
    return document(view.cluster(picture))


# Events


class EventDocument(Document, frozen=True, kw_only=True):
    """An Event of a pod or a node."""

    time: str | None
    type: str
    reason: str
    message: str
    kind: Literal["Pod", "Node"]
    namespace: str | None
    name: str
    count: int
    by: str | None


class EventQuery(ListQuery, frozen=True, kw_only=True):
    """Parameters of `/events`; the newest come first."""

    kind: Literal["Pod", "Node"] | None = None
    namespace: Name = ""
    name: Name = ""
    type: Literal["Normal", "Warning"] | None = None


class EventPage(Page[EventDocument], frozen=True, kw_only=True):
    """A page of Events. `complete` is false when older ones were let go, since the server keeps 10,000 at most."""

    complete: bool


def events(
    seen: Iterable[SeenEvent],
    picture: Picture,
    view: ViewClass,
    readable: Readable,
    query: EventQuery | None = None,
    *,
    complete: bool = True,
) -> EventPage:
    """What `/events` says. `readable` are the namespaces whose Events the viewer may list."""
    query = query or EventQuery()
    chosen = (
        (event.metadata.uid, event_document(event))
        for event in seen
        if _shows_event(event, picture, view, readable)
        and query.kind in (None, event.involved_object.kind)
        and query.namespace in ("", event.involved_object.namespace)
        and query.name in ("", event.involved_object.name)
        and query.type in (None, event.type)
        and found(query.search, event.reason, event.message, event.involved_object.name)
    )
    page = page_of(chosen, query, "-time", {"time": lambda one: one[1].time}, lambda one: one[0])
    items = tuple(event for _, event in page.items)
    return EventPage(items=items, total=page.total, next=page.next, complete=complete)


#: Whether Events of a namespace may be listed.
Readable = Callable[[str], bool]


def _shows_event(event: SeenEvent, picture: Picture, view: ViewClass, readable: Readable) -> bool:
    target = event.involved_object
    if target.kind == "Node":
        node = picture.nodes.get(target.name)
        return view.nodes and node is not None and readable(event.metadata.namespace)
    return view.shows(target.namespace) and readable(target.namespace)


def event_document(event: SeenEvent) -> EventDocument:
    """One Event."""
    target = event.involved_object
    return EventDocument(
        time=event.when or None,
        type=event.type,
        reason=printable(event.reason),
        message=event.message,
        kind="Node" if target.kind == "Node" else "Pod",
        namespace=target.namespace or None if target.kind == "Pod" else None,
        name=target.name,
        count=max(1, event.series.count if event.series is not None else event.count),
        by=event.reporting_component or event.source.component or None,
    )


# The past


class HistoryLine(Document, frozen=True, kw_only=True):
    """The values of one card, one for each step; null where nothing was measured."""

    card: str
    index: int | None
    values: tuple[float | None, ...]


class HistoryDocument(Document, frozen=True, kw_only=True):
    """A series over time, from `since` on; `source` is who was asked."""

    of: Literal["card", "node", "pod"]
    name: str
    series: str
    unit: str
    source: str
    since: str
    step: float
    lines: tuple[HistoryLine, ...]


class HistoryQuery(Query, frozen=True, kw_only=True):
    """Parameters of `/history`. `name` is a card's UUID, a node, or NAMESPACE/POD."""

    of: Literal["card", "node", "pod"]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=510)]
    series: Literal["used", "unattributed", "utilisation", "temperature", "power"] = "used"
    last: Annotated[float, msgspec.Meta(ge=60, le=31 * 86400, description="seconds")] = 3600.0
    step: Annotated[float, msgspec.Meta(ge=5, le=86400, description="seconds; null: 240 steps")] | None = None


_MOST_STEPS: Final = 1000


def past_question(picture: Picture, view: ViewClass, query: HistoryQuery, now: float) -> PastQuestion | None:
    """What is asked of the past; None when the viewer sees no such thing. Raises Refusal."""
    step = query.step or max(5.0, float(math.ceil(query.last / 240)))
    if query.last / step > _MOST_STEPS:
        raise Refusal(400, f"step: {query.last / step:.0f} steps are more than {_MOST_STEPS}: make it longer")
    # Whole steps, so that those who ask shortly after each other ask the same.
    until = math.floor(now / step) * step
    if query.of == "pod":
        if query.series not in ("used", "utilisation"):
            raise Refusal(400, "series: of pods there are used and utilisation")
        namespace, _, name = query.name.partition("/")
        pod = find_pod(picture, view, namespace, name)
        if pod is None:
            return None
        return PastQuestion(pod.node, tuple(pod.held), query.series, until, query.last, step, namespace, name)
    if query.of == "card":
        card = find_card(picture, view, query.name)
        if card is None:
            return None
        return PastQuestion(card[0].name, (card[1].gpu.uuid,), query.series, until, query.last, step)
    node = picture.nodes.get(query.name)
    if node is None or not view.shows_node(node):
        return None
    uuids = tuple(card.gpu.uuid for card in view.cards(node))
    return PastQuestion(node.name, uuids, query.series, until, query.last, step)


def history(picture: Picture, query: HistoryQuery, past: Past) -> HistoryDocument:
    """What `/history` says."""
    index = {card.gpu.uuid: card.gpu.index for node in picture.nodes.values() for card in node.used.cards}
    lines = sorted(past.lines.items(), key=lambda line: index.get(line[0], -1))
    return HistoryDocument(
        of=query.of,
        name=query.name,
        series=query.series,
        unit=SERIES[query.series].unit,
        source=past.source,
        since=instant(past.since),
        step=past.step,
        lines=tuple(HistoryLine(card=card, index=index.get(card), values=tuple(values)) for card, values in lines),
    )


# Waste


class FragmentationPoint(Document, frozen=True, kw_only=True):
    """The cluster at one moment; `percent` of what is free cannot be used by a pod like those there, on the average."""

    time: str
    percent: float | None
    free_mib: int = msgspec.field(name="freeMiB")
    free_cards: int
    requested_mib: int = msgspec.field(name="requestedMiB")
    used_mib: int | None = msgspec.field(name="usedMiB")


class IdleCardDocument(Document, frozen=True, kw_only=True):
    """A card that is idle, or a part of one."""

    uuid: str
    node: str
    index: int
    model: str | None
    memory_mib: int = msgspec.field(name="memoryMiB")
    since: str | None


class IdleDocument(Document, frozen=True, kw_only=True):
    """Idle cards of one cause; `shown` are the first of them."""

    cause: IdleCause
    cards: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    shown: tuple[IdleCardDocument, ...]


class WasteDocument(Document, frozen=True, kw_only=True):
    """Fragmentation now and since the server began, null for who may not see all nodes; idle cards by cause."""

    now: FragmentationPoint | None
    points: tuple[FragmentationPoint, ...]
    idle: tuple[IdleDocument, ...]
    #: A card counts as unused after so many seconds.
    unused_seconds: float


class WasteQuery(Query, frozen=True, kw_only=True):
    """Parameters of `/waste`."""

    last: Annotated[float, msgspec.Meta(ge=60, le=86400, description="seconds of the past")] = 86400.0
    shown: Annotated[int, msgspec.Meta(ge=0, le=500, description="cards of each cause")] = 100


def waste(picture: Picture, view: ViewClass, log: WasteLog, query: WasteQuery | None = None) -> WasteDocument:
    """What `/waste` says."""
    query = query or WasteQuery()
    demand = demand_of(picture.cluster)
    shown_cards = {card.gpu.uuid for node in view.of_nodes(picture) for card in view.cards(node)}
    cards = [(card, told) for card, told in measured_cards(picture) if card.gpu.uuid in shown_cards]
    by_cause: dict[IdleCause, list[IdleCard]] = {}
    for one in idle_cards(cards, demand, log.unused.known(picture.time)):
        by_cause.setdefault(one.cause, []).append(one)
    points = [point for point in log.points if picture.time - point.time <= query.last] if view.nodes else []
    return WasteDocument(
        now=_waste_point(point_of(picture)) if view.nodes else None,
        points=tuple(_waste_point(point) for point in points),
        idle=tuple(_idle(cause, by_cause.get(cause, []), query.shown) for cause in IdleCause),
        unused_seconds=UNUSED_SECONDS,
    )


def _waste_point(point: WastePoint) -> FragmentationPoint:
    return FragmentationPoint(
        time=instant(point.time),
        percent=point.fragmentation.percent,
        free_mib=point.fragmentation.free_mib,
        free_cards=point.fragmentation.free_cards,
        requested_mib=point.requested_mib,
        used_mib=point.used_mib,
    )


def _idle(cause: IdleCause, cards: list[IdleCard], most: int) -> IdleDocument:
    return IdleDocument(
        cause=cause,
        cards=len(cards),
        memory_mib=sum(card.memory_mib for card in cards),
        shown=tuple(
            IdleCardDocument(
                uuid=card.gpu.uuid,
                node=card.node,
                index=card.gpu.index,
                model=card.gpu.model or None,
                memory_mib=card.memory_mib,
                since=None if card.since is None else instant(card.since),
            )
            for card in cards[:most]
        ),
    )


# The set-up, and the joined clusters


class SetupNode(Document, frozen=True, kw_only=True):
    """A GPU node of the operator; without `step` it serves."""

    name: str
    step: str | None
    grade: Literal["fails", "waits", "begins"] | None
    since: str | None
    why: str | None
    fix: str | None


class SetupDocument(Document, frozen=True, kw_only=True):
    """How the operator brings nodes to serving; `policy` is null without a ClusterPolicy."""

    policy: str | None
    state: str | None
    problems: tuple[str, ...]
    ready: int
    nodes: tuple[SetupNode, ...]


def setup(found: SetUp) -> SetupDocument:
    """What `/setup` says."""
    return SetupDocument(
        policy=found.policy or None,
        state=found.state or None,
        problems=found.problems,
        ready=sum(not node.step for node in found.nodes),
        nodes=tuple(setup_node(node) for node in found.nodes),
    )


def setup_node(node: NodeStep) -> SetupNode:
    """One node."""
    grades: dict[str, Literal["fails", "waits", "begins"]] = {"fails": "fails", "waits": "waits", "begins": "begins"}
    return SetupNode(
        name=node.node,
        step=node.step or None,
        grade=grades.get(node.grade),
        since=node.since or None,
        why=node.why or None,
        fix=node.fix or None,
    )


class NodeDetail(Document, frozen=True, kw_only=True):
    """One node, and how it is set up; null where no operator does that."""

    node: NodeDocument
    setup: SetupNode | None


#: The manager has missed so many of its times to tell.
_TOLD_LATE: Final = 3


class ClusterDocument(Document, frozen=True, kw_only=True):
    """A joined cluster: its state, and its room and queue as its scheduler tells them.

    `silentSince`: since when its manager has not heard of it.
    """

    name: str
    uid: str | None
    version: str | None
    state: str
    own: bool
    nodes: int | None
    cards: int | None
    free: int | None
    queue: int | None
    #: Models of cards with how many there are, how many are wholly free, and the largest free piece.
    models: tuple[ClusterModel, ...]
    problem: str | None
    silent_since: str | None


class ClusterModel(Document, frozen=True, kw_only=True):
    """Cards of one model in a cluster."""

    model: str
    cards: int
    free: int
    largest_mib: int = msgspec.field(name="largestMiB")


class ClustersDocument(Document, frozen=True, kw_only=True):
    """All joined clusters as their manager told of them at `time`; `managed` is false, with `why`, where it did not.

    `staleSince` is that time when the manager should have told something newer since.
    """

    managed: bool
    why: str | None
    time: str | None
    stale_since: str | None
    items: tuple[ClusterDocument, ...]
    problems: dict[str, str]


def clusters(found: ToldReading, now: float) -> ClustersDocument:
    """What `/clusters` says."""
    told = found.told
    if told is None:
        return ClustersDocument(managed=False, why=found.why, time=None, stale_since=None, items=(), problems={})
    return ClustersDocument(
        managed=True,
        why=None,
        time=told.time,
        stale_since=told.time if _is_late(told.time, now) else None,
        items=tuple(_cluster(one) for one in told.clusters),
        problems=told.problems,
    )


def _is_late(time: str, now: float) -> bool:
    try:
        return now - datetime.fromisoformat(time).timestamp() > _TOLD_LATE * clusters_contract.TOLD_SECONDS
    except ValueError:
        return True


def _cluster(told: clusters_contract.ToldCluster) -> ClusterDocument:
    return ClusterDocument(
        name=told.name,
        uid=told.uid or None,
        version=told.version or None,
        state=told.state,
        own=told.own,
        nodes=told.nodes,
        cards=told.cards,
        free=told.free,
        queue=told.queue,
        models=tuple(
            ClusterModel(model=one.model, cards=one.cards, free=one.free, largest_mib=one.largest_mib)
            for one in told.models
        ),
        problem=told.problem or None,
        silent_since=told.since or None,
    )
