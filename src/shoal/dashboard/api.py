"""`/api/v1`: JSON for the page and for programs, and the stream of the map.

What there is stands in one table, from which the routes and the OpenAPI document are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from shoal.analysis.why import PodExplanation, read_events, told_events
from shoal.dashboard import documents
from shoal.dashboard.access import VIEWERS, viewer_of
from shoal.dashboard.answers import PRIVATE, Refusal, json_answer, json_bytes
from shoal.dashboard.events import LiveEvents
from shoal.dashboard.picture import LivePicture, Picture
from shoal.dashboard.queries import Page, Query, query_of
from shoal.dashboard.questions import Questions, shown
from shoal.dashboard.stream import (
    GZIP_HEAD,
    MapOfView,
    Maps,
    StreamEvent,
    TooManyViewsError,
    packed,
    stream_event,
)
from shoal.dashboard.viewers import SignedOutError, Viewer
from shoal.dashboard.waste import WasteLog
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.reviews import CallerRefusedError

API: Final = "/api/v1"
LIVE: Final = web.AppKey("live", LivePicture)
MAPS: Final = web.AppKey("maps", Maps)
EVENTS: Final = web.AppKey("events", LiveEvents)
WASTE: Final = web.AppKey("waste", WasteLog)
QUESTIONS: Final = web.AppKey("questions", Questions)
CLIENT: Final = web.AppKey("client", Client)
#: Set when the server ends.
STOPPING: Final = web.AppKey("stopping", asyncio.Event)

#: A comment keeps a quiet stream open; a stream looks at its viewer's rights as often.
_KEEP_ALIVE: Final = 15.0
_LOOK: Final = 5.0
_STREAMS: Final = 400
_STREAMS_OF_ONE: Final = 40
_COMMENT: Final = StreamEvent(0, b": \n\n", packed(b": \n\n"))


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request: who asks, with which parameters, of which picture."""

    request: web.Request
    viewer: Viewer
    query: Any
    picture: Picture

    def part(self, name: str) -> str:
        """A part of the path."""
        return self.request.match_info[name]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One path of the API: what it tells, its parameters, the type of its answer, and how it is made."""

    path: str
    says: str
    answer: Any
    make: Callable[[ApiCall], Awaitable[Any]]
    query: type[Query] = Query


def picture_of(request: web.Request) -> Picture:
    """The picture as it is now; somebody looks at it."""
    live = request.app[LIVE]
    live.looked()
    return live.current


async def _overview(asked: ApiCall) -> documents.Overview:
    return overview_of(asked.request, asked.viewer)


def overview_of(request: web.Request, viewer: Viewer) -> documents.Overview:
    """Counts and totals for a viewer."""
    clusters = request.app[QUESTIONS].known_clusters if viewer.view.nodes else None
    return documents.overview(picture_of(request), viewer.view, user=viewer.name, clusters=clusters)


async def _inspect(asked: ApiCall) -> dict[str, Any]:
    return documents.inspect(asked.picture, asked.viewer.view)


async def _nodes(asked: ApiCall) -> Page[documents.NodeDocument]:
    return documents.nodes(asked.picture, asked.viewer.view, asked.query)


async def _node(asked: ApiCall) -> documents.NodeDetail:
    return await node_detail(asked.request, asked.viewer, asked.part("name"))


async def node_detail(request: web.Request, viewer: Viewer, name: str) -> documents.NodeDetail:
    """A node with its set-up. Raises Refusal."""
    node = picture_of(request).nodes.get(name)
    if node is None or not viewer.view.shows_node(node):
        raise Refusal(404, "there is no such node, or you may not see it")
    step = None
    if viewer.view.nodes:
        with contextlib.suppress(Refusal):  # the node is shown without it
            found = await request.app[QUESTIONS].set_up()
            step = next((one for one in found.nodes if one.node == name), None)
    told = documents.node_document(node, viewer.view)
    return documents.NodeDetail(node=told, setup=None if step is None else documents.setup_node(step))


async def _cards(asked: ApiCall) -> Page[documents.CardDocument]:
    return documents.cards(asked.picture, asked.viewer.view, asked.query)


async def _card(asked: ApiCall) -> documents.CardDocument:
    return card_detail(asked.picture, asked.viewer, asked.part("uuid"))


def card_detail(picture: Picture, viewer: Viewer, uuid: str) -> documents.CardDocument:
    """A card. Raises Refusal."""
    found = documents.find_card(picture, viewer.view, uuid)
    if found is None:
        raise Refusal(404, "there is no such card, or you may not see it")
    return documents.card_document(*found, viewer.view)


async def _pods(asked: ApiCall) -> Page[documents.PodDocument]:
    return documents.pods(asked.picture, asked.viewer.view, asked.query)


async def _pod(asked: ApiCall) -> documents.PodDocument:
    return pod_detail(asked.picture, asked.viewer, asked.part("namespace"), asked.part("name"))


def pod_detail(picture: Picture, viewer: Viewer, namespace: str, name: str) -> documents.PodDocument:
    """A pod. Raises Refusal."""
    pod = documents.find_pod(picture, viewer.view, namespace, name)
    if pod is None:
        raise Refusal(404, "there is no such pod, or you may not read it")
    return documents.pod_document(picture, pod, viewer.view)


class WhyQuery(Query, frozen=True, kw_only=True):
    """Parameters of `why`."""

    details: Annotated[int, msgspec.Meta(ge=0, le=1_000_000, description="nodes whose cards are told")] = 20


async def _why(asked: ApiCall) -> PodExplanation:
    return await explanation(
        asked.request, asked.viewer, asked.part("namespace"), asked.part("name"), details=asked.query.details
    )


async def explanation(
    request: web.Request, viewer: Viewer, namespace: str, name: str, *, details: int = 20
) -> PodExplanation:
    """Why a pod waits or is where it is, as a viewer may see it. Raises Refusal."""
    pod_detail(picture_of(request), viewer, namespace, name)
    found = shown(await request.app[QUESTIONS].why(namespace, name, details=details), viewer.view)
    readable = await request.app[VIEWERS].readable_events(viewer)
    if readable is not None and namespace not in readable:
        return found
    try:
        told = told_events(await read_events(request.app[CLIENT], name, namespace=namespace))
    except KubeError:
        raise Refusal(503, "the API server does not tell the Events of this pod now: try again") from None
    return msgspec.structs.replace(found, events=told)


async def _events(asked: ApiCall) -> documents.EventPage:
    return await events_of(asked.request, asked.viewer, asked.query)


async def events_of(
    request: web.Request, viewer: Viewer, query: documents.EventQuery | None = None
) -> documents.EventPage:
    """Events, the newest first, as a viewer may read them. Raises CallerRefusedError."""
    readable = await request.app[VIEWERS].readable_events(viewer)
    return documents.events(
        request.app[EVENTS].all(),
        picture_of(request),
        viewer.view,
        lambda namespace: readable is None or namespace in readable,
        query,
        complete=not request.app[EVENTS].left_out,
    )


async def _history(asked: ApiCall) -> documents.HistoryDocument:
    return await history_of(asked.request, asked.viewer, asked.query)


async def history_of(request: web.Request, viewer: Viewer, query: documents.HistoryQuery) -> documents.HistoryDocument:
    """The past of a card, a node or a pod. Raises Refusal."""
    picture = picture_of(request)
    question = documents.past_question(picture, viewer.view, query, time.time())
    if question is None:
        raise Refusal(404, f"there is no such {query.of}, or you may not see it")
    return documents.history(picture, query, await request.app[QUESTIONS].past(question))


async def _waste(asked: ApiCall) -> documents.WasteDocument:
    return documents.waste(asked.picture, asked.viewer.view, asked.request.app[WASTE], asked.query)


async def _setup(asked: ApiCall) -> documents.SetupDocument:
    return await setup_of(asked.request, asked.viewer)


async def setup_of(request: web.Request, viewer: Viewer) -> documents.SetupDocument:
    """The operator's progress. Raises Refusal."""
    _must_see_nodes(viewer)
    return documents.setup(await request.app[QUESTIONS].set_up())


async def _clusters(asked: ApiCall) -> documents.ClustersDocument:
    return await clusters_of(asked.request, asked.viewer)


async def clusters_of(request: web.Request, viewer: Viewer) -> documents.ClustersDocument:
    """The joined clusters. Raises Refusal."""
    _must_see_nodes(viewer)
    return documents.clusters(await request.app[QUESTIONS].clusters(), time.time())


def _must_see_nodes(viewer: Viewer) -> None:
    if not viewer.view.nodes:
        raise Refusal(403, "this is for those who may list nodes")


ENDPOINTS: Final = (
    ApiEndpoint("/overview", "Counts and totals", documents.Overview, _overview),
    ApiEndpoint("/inspect", "The document of `kubectl inspect gpushare -o json`", dict[str, Any], _inspect),
    ApiEndpoint("/nodes", "Nodes with cards", Page[documents.NodeDocument], _nodes, documents.NodeQuery),
    ApiEndpoint("/nodes/{name}", "One node", documents.NodeDetail, _node),
    ApiEndpoint("/cards", "Cards", Page[documents.CardDocument], _cards, documents.CardQuery),
    ApiEndpoint("/cards/{uuid}", "One card", documents.CardDocument, _card),
    ApiEndpoint("/pods", "Pods that have or want cards", Page[documents.PodDocument], _pods, documents.PodQuery),
    ApiEndpoint("/pods/{namespace}/{name}", "One pod", documents.PodDocument, _pod),
    ApiEndpoint("/pods/{namespace}/{name}/why", "Why a pod waits, or is where it is", PodExplanation, _why, WhyQuery),
    ApiEndpoint("/events", "Events, the newest first", documents.EventPage, _events, documents.EventQuery),
    ApiEndpoint("/history", "A series over time", documents.HistoryDocument, _history, documents.HistoryQuery),
    ApiEndpoint(
        "/waste", "Fragmentation, and idle cards by cause", documents.WasteDocument, _waste, documents.WasteQuery
    ),
    ApiEndpoint("/setup", "The operator's progress by node", documents.SetupDocument, _setup),
    ApiEndpoint("/clusters", "Joined clusters", documents.ClustersDocument, _clusters),
)


def add_api(app: web.Application) -> None:
    """The routes."""
    for endpoint in ENDPOINTS:
        app.router.add_get(API + endpoint.path, _answering(endpoint))
    app.router.add_get(f"{API}/map", _map)
    app.router.add_get(f"{API}/stream", _stream)


def _answering(endpoint: ApiEndpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        viewer = await viewer_of(request)
        query = query_of(endpoint.query, request.query)
        made = json_answer(await endpoint.make(ApiCall(request, viewer, query, picture_of(request))))
        made.enable_compression()
        return made

    return answer


async def _map(request: web.Request) -> web.StreamResponse:
    viewer = await viewer_of(request)
    query_of(Query, request.query)
    picture_of(request)
    answer = json_bytes(_map_of(request, viewer).content())
    answer.enable_compression()
    return answer


def _map_of(request: web.Request, viewer: Viewer) -> MapOfView:
    try:
        return request.app[MAPS].of(viewer.view)
    except TooManyViewsError:
        raise Refusal(503, "too many different views are open: try again in some minutes") from None


async def _stream(request: web.Request) -> web.StreamResponse:
    viewer = await viewer_of(request)
    maps = request.app[MAPS]
    if maps.readers >= _STREAMS:
        raise Refusal(503, "too many streams are open: try again in some minutes")
    if viewer.session is not None and len(viewer.session.readers) >= _STREAMS_OF_ONE:
        raise Refusal(429, f"your session has {_STREAMS_OF_ONE} streams open: close some pages")
    reader = _Reader(request, viewer, _map_of(request, viewer))
    return await reader.run()


class _Reader:
    """One open stream."""

    def __init__(self, request: web.Request, viewer: Viewer, shown: MapOfView) -> None:
        self._request = request
        self._viewer = viewer
        self._map = shown
        self._number = shown.place(request.headers.get("Last-Event-ID", ""))
        self._namespaces = request.app[LIVE].namespaces_seen
        self._wake = asyncio.Event()
        self._packed = "gzip" in request.headers.get("Accept-Encoding", "")
        encoding = {"Content-Encoding": "gzip"} if self._packed else {}
        kind = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        self._response = web.StreamResponse(headers={**kind, **PRIVATE, **encoding})

    async def run(self) -> web.StreamResponse:
        await self._response.prepare(self._request)
        if self._request.method == "HEAD":
            return self._response
        session = self._viewer.session
        self._map.readers.add(self._wake)
        if session is not None:
            session.readers.add(self._wake)
        try:
            if self._packed:
                await self._response.write(GZIP_HEAD)
            await self._send_all()
        except ConnectionError:
            pass  # the reader has gone
        finally:
            self._leave(self._map)
            if session is not None:
                session.readers.discard(self._wake)
        return self._response

    async def _send_all(self) -> None:
        looked = spoke = time.monotonic()
        while True:
            self._wake.clear()
            self._request.app[LIVE].looked()
            events = self._map.after(self._number)
            now = time.monotonic()
            if events:
                self._number = max(self._map.number, events[-1].number)
            elif now - spoke >= _KEEP_ALIVE:
                events = [_COMMENT]
            if events:
                spoke = now
                await self._write(events)
                continue
            new = self._request.app[LIVE].namespaces_seen
            look = now - looked >= _LOOK or new != self._namespaces
            if reason := await self._over(look=look):
                await self._write([stream_event("end", 0, "", msgspec.json.encode({"reason": reason}))])
                return
            if look:
                looked, self._namespaces = now, new
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._wake.wait()

    async def _over(self, *, look: bool) -> str:
        """Why the stream ends; empty when it goes on, perhaps with the map of another view."""
        if self._request.app[STOPPING].is_set():
            return "stopping"
        session = self._viewer.session
        if session is not None and session.over:
            return session.over
        if not look:
            return ""
        try:
            viewer = await viewer_of(self._request)
        except SignedOutError as error:
            return error.reason if error.reason != "unknown" else "expired"
        except CallerRefusedError as refusal:
            return "expired" if refusal.status == 401 else ""
        except Refusal:
            return "expired"
        if viewer.view != self._map.view:
            self._leave(self._map)
            try:
                self._map = _map_of(self._request, viewer)
            except Refusal:  # there is no room for one more view: the page tries again
                return "stopping"
            self._map.readers.add(self._wake)
            self._number = -1
            self._wake.set()
        return ""

    async def _write(self, events: list[StreamEvent]) -> None:
        await self._response.write(b"".join(one.packed if self._packed else one.plain for one in events))

    def _leave(self, shown: MapOfView) -> None:
        shown.readers.discard(self._wake)
        shown.left = time.monotonic()
