"""The dashboard's process: the picture, the server, probes and metrics, wired together.

It has no global state and no signal handlers, so that it can run in a process with others. It writes nothing to the
cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from shoal.analysis.collectors import Collectors
from shoal.analysis.past import PrometheusPast
from shoal.dashboard.access import BODIES, DOOR, OTHER_SITE, VIEWERS, Door, add_signing_in, safe_path, sign_in_first
from shoal.dashboard.answers import HEADERS, HSTS, PRIVATE, Refusal, error_answer
from shoal.dashboard.api import API, CLIENT, EVENTS, LIVE, MAPS, QUESTIONS, STOPPING, WASTE, add_api
from shoal.dashboard.config import DashboardConfig
from shoal.dashboard.events import LiveEvents
from shoal.dashboard.metrics import DashboardMetrics, serving_metrics
from shoal.dashboard.openapi import add_openapi
from shoal.dashboard.pages import add_pages, error_page
from shoal.dashboard.picture import LivePicture, Measure
from shoal.dashboard.questions import Questions
from shoal.dashboard.self_made_tls import SelfMadeTls
from shoal.dashboard.stream import Maps
from shoal.dashboard.viewers import HOW, REVIEWED_SECONDS, SignedOutError, Viewers
from shoal.dashboard.waste import WasteLog
from shoal.http.probes import answering_probes
from shoal.http.server import Bodies, Bounds, serving_application
from shoal.http.tls import FileTls, TlsFiles
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.reviews import CallerRefusedError, Reviews

#: A form is the longest body. A reader on a slow line has half a minute for what is in the buffers.
_CLUSTERS_SECONDS: Final = 30.0
BOUNDS: Final = Bounds(connections=1024, per_peer=512, body=16 << 10, bodies=1 << 20, seconds=30.0)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a running dashboard tells: its port, and how to make a link that signs in once as a token's owner."""

    url: str
    port: int
    viewers: Viewers
    live: LivePicture
    events: LiveEvents

    def link(self, token: str) -> str:
        """An address that signs in once."""
        return f"{self.url}/sign-in/{self.viewers.link(token)}"


def make_app(
    live: LivePicture, viewers: Viewers, door: Door, *, client: Client, events: LiveEvents, questions: Questions
) -> web.Application:
    """The application over a picture and viewers."""
    app = web.Application(middlewares=[_refusals])
    app[LIVE] = live
    app[VIEWERS] = viewers
    app[CLIENT] = client
    app[EVENTS] = events
    app[QUESTIONS] = questions
    app[WASTE] = WasteLog()
    live.on_change(events.follow)
    live.on_change(app[WASTE].follow)
    app[DOOR] = door
    app[MAPS] = Maps(live, clock=time.monotonic)
    app[BODIES] = Bodies(BOUNDS)
    app[STOPPING] = asyncio.Event()
    add_api(app)
    add_openapi(app)
    add_signing_in(app)
    add_pages(app)
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(_end_streams)
    return app


async def run(
    config: DashboardConfig,
    access: Access,
    *,
    measure: Measure | None = None,
    serving: Callable[[Serving], None] = lambda serving: None,
) -> None:
    """Serve until cancelled. `measure` stands for the cluster's own collectors. Raises TlsError and OSError."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        collectors = Collectors(client, account=config.collectors_account)
        live = LivePicture(
            client,
            measure or collectors.snapshots,
            unit=config.memory_unit,
            measure_seconds=config.measure_seconds,
        )
        events = LiveEvents(client)
        questions = Questions(
            client,
            collectors,
            unit=config.memory_unit,
            prometheus=_prometheus(config),
            manager_namespace=config.manager_namespace,
        )
        stack.push_async_callback(questions.close)
        reviews = Reviews(client, clock=time.monotonic, how=HOW, remembered=REVIEWED_SECONDS)
        stack.push_async_callback(reviews.close)
        viewers = Viewers(reviews, lambda: live.namespaces, clock=time.monotonic, now=time.time)
        tls = _tls(config)
        # The cookie of a server without TLS has the port in its name, which is known only when it listens.
        door = Door(secure=tls is not None)
        app = make_app(live, viewers, door, client=client, events=events, questions=questions)
        port = await stack.enter_async_context(
            serving_application(app, config.host, config.port, BOUNDS, None if tls is None else tls.context)
        )
        door.port = port
        if config.probe_port is not None:
            await stack.enter_async_context(
                answering_probes(config.probe_host, config.probe_port, lambda: live.waiting_for)
            )
        if config.metrics_port is not None:
            await stack.enter_async_context(
                serving_metrics(config.probe_host, config.metrics_port, DashboardMetrics(app))
            )
        async with asyncio.TaskGroup() as group:
            group.create_task(live.run(), name="picture")
            group.create_task(events.run(), name="events")
            group.create_task(_look_at_clusters(live, questions), name="clusters")
            if tls is not None:
                group.create_task(tls.keep(), name="certificates")
            host = f"[{config.host}]" if ":" in config.host else config.host
            serving(Serving(f"{'http' if tls is None else 'https'}://{host}:{port}", port, viewers, live, events))


async def _look_at_clusters(live: LivePicture, questions: Questions) -> None:
    """How many clusters are joined, looked at while somebody looks at the page."""
    while True:
        if live.seen:
            with contextlib.suppress(Refusal):  # the next look may tell
                await questions.clusters()
        await asyncio.sleep(_CLUSTERS_SECONDS)


def _prometheus(config: DashboardConfig) -> PrometheusPast | None:
    told = config.prometheus
    if told is None:
        return None
    return PrometheusPast(
        told.url, ca_file=told.ca_file, authorization_file=told.authorization_file, matchers=told.matchers
    )


def _tls(config: DashboardConfig) -> FileTls | SelfMadeTls | None:
    if config.tls is None:
        return None
    if not config.tls.certificate:
        return SelfMadeTls(lambda: datetime.now(UTC))
    return FileTls(TlsFiles(Path(config.tls.certificate), Path(config.tls.key)))


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in (*HEADERS.items(), *(HSTS.items() if request.app[DOOR].secure else ())):
        response.headers.setdefault(name, value)
    response.headers["Server"] = "shoal"


async def _end_streams(app: web.Application) -> None:
    app[STOPPING].set()
    app[MAPS].wake()


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Errors as answers: JSON under /api, pages elsewhere; who is not signed in is sent to the form."""
    try:
        return await handler(request)
    except SignedOutError as error:
        return _said(request, HTTPStatus.UNAUTHORIZED, str(error))
    except CallerRefusedError as error:
        return _said(request, error.status, str(error))
    except Refusal as error:
        if error.code == OTHER_SITE and _is_followed_link(request):
            return _loaded_again(request)
        return _said(request, error.status, error.message, error.code)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        words = "there is nothing here" if error.status == HTTPStatus.NOT_FOUND else error.text or error.reason
        allow = error.headers.get("Allow")
        return _said(request, error.status, words, headers={"Allow": allow} if allow else None)


def _is_followed_link(request: web.Request) -> bool:
    """Whether somebody followed a link to a page, from a chat or a wiki."""
    followed = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
    return followed and not request.path.startswith(("/api/", "/sign-in/"))


def _loaded_again(request: web.Request) -> web.Response:
    """A page that loads itself: then this server asks for it, and the cookie comes along."""
    path = html.escape(safe_path(request.path_qs), quote=True)
    text = f'<!doctype html>\n<meta http-equiv="refresh" content="0; url={path}">\n<title>Shoal</title>\n'
    return web.Response(text=text, content_type="text/html", headers=PRIVATE)


def _said(
    request: web.Request, status: int, words: str, code: str = "", headers: dict[str, str] | None = None
) -> web.StreamResponse:
    if request.path.startswith(f"{API}/") or "application/json" in request.headers.get("Accept", ""):
        return error_answer(status, words, code, headers)
    if status == HTTPStatus.UNAUTHORIZED:
        raise sign_in_first(request)
    return error_page(request, status, words)
