"""The HTTP server: the extender's routes as kube-scheduler and gpushare's clients know them, health and metrics.

Every answer of filter and bind is 200 with the error in words, since kube-scheduler tells people nothing of another
one. While this process is not ready (not synced, not leading) it decides nothing. Bodies are bounded in size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from shoal.model.contract import gpushare, shoal
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.inspect import inspect
from shoal.scheduler.extender.tls import TlsFiles
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.extender.wire import WireError
from shoal.scheduler.http.connection import Bounds
from shoal.scheduler.http.messages import HttpError, Request, Response, text
from shoal.scheduler.http.server import serving
from shoal.scheduler.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

Answer = Response | Coroutine[Any, Any, Response]
Route = Callable[[Request], Answer]

#: 5,000 whole nodes of 10 kB; with node names it is a hundredth.
MAX_BODY: Final = 64 << 20
#: A caller that is slower than this with its request is not kube-scheduler.
BODY_SECONDS: Final = 10.0
#: Answered to everyone, with or without a certificate.
_OPEN: Final = frozenset({shoal.PATH_HEALTH, shoal.PATH_READY, gpushare.PATH_VERSION})
_NODE_PREFIX: Final = gpushare.PATH_INSPECT + "/"
_ONE_NODE: Final = _NODE_PREFIX + "{node}"
_TEND_SECONDS: Final = 1.0
_TLS_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one. Without TLS the port must be kept from others by the network."""

    host: str
    port: int
    tls: TlsFiles | None = None
    max_body: int = MAX_BODY
    body_seconds: float = BODY_SECONDS


class Extender:
    """The routes. `not_ready` says why nothing may be decided now, or is empty."""

    def __init__(
        self,
        verbs: Verbs,
        books: Books,
        *,
        metrics: Metrics,
        not_ready: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._verbs = verbs
        self._books = books
        self._metrics = metrics
        self._not_ready = not_ready
        self._clock = clock
        #: With a client CA most is for callers who have shown a certificate.
        self._certificates = False
        #: By path, and the method each is asked with.
        self._routes: dict[str, tuple[str, Route]] = {
            gpushare.PATH_FILTER: ("POST", self._filter),
            gpushare.PATH_PRIORITIZE: ("POST", lambda request: self._asked(request, self._verbs.prioritize)),
            gpushare.PATH_PREEMPT: ("POST", lambda request: self._asked(request, self._verbs.preempt)),
            gpushare.PATH_BIND: ("POST", self._bind),
            gpushare.PATH_INSPECT: ("GET", lambda _: Response(pieces=inspect(self._books))),
            _ONE_NODE: ("GET", self._inspect_node),
            gpushare.PATH_VERSION: ("GET", lambda _: text(gpushare.VERSION)),
            shoal.PATH_HEALTH: ("GET", lambda _: text("ok")),
            shoal.PATH_READY: ("GET", self._ready),
            shoal.PATH_METRICS: ("GET", self._scrape),
        }

    @contextlib.asynccontextmanager
    async def serve(self, address: Address) -> AsyncIterator[int]:
        """Serve while the block runs; gives the port."""
        tls = address.tls
        context = None if tls is None else tls.context()
        self._certificates = tls is not None and tls.client_ca is not None
        chores = [asyncio.create_task(self._tend(), name="extender-tend")]
        if tls is not None and context is not None:
            chores.append(asyncio.create_task(_renew(tls, context), name="extender-tls"))
        bounds = Bounds(address.max_body, address.body_seconds)
        try:
            async with serving(self.answer, address.host, address.port, bounds, context) as port:
                log.info("extender on %s:%d%s", address.host, port, " with TLS" if context else "")
                yield port
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def _tend(self) -> None:
        """Holds end, and pods fit again, also when nobody asks."""
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            if not self._not_ready():
                self._verbs.tend()

    # One request

    def answer(self, request: Request) -> Answer:
        """The answer, counted and timed. Raises HttpError."""
        name = _ONE_NODE if request.path.startswith(_NODE_PREFIX) else request.path
        counted = (name if name in self._routes else "none", self._clock())
        try:
            answer = self._routed(request, name)
        except Exception as error:
            status = error.status if isinstance(error, HttpError) else HTTPStatus.INTERNAL_SERVER_ERROR
            self._count(*counted, status)
            raise
        if not isinstance(answer, Response):
            return self._later(answer, *counted)
        self._count(*counted, answer.status)
        return answer

    def _routed(self, request: Request, name: str) -> Answer:
        if self._certificates and not request.certified and request.path not in _OPEN:
            words = "show a client certificate that the extender's client CA has signed"
            raise HttpError(HTTPStatus.UNAUTHORIZED, words)
        if name not in self._routes:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is nothing here")
        method, route = self._routes[name]
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"ask {name} with {method}")
        return route(request)

    async def _later(self, answer: Coroutine[Any, Any, Response], name: str, started: float) -> Response:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            response = await answer
            status = response.status
            return response
        finally:
            self._count(name, started, status)

    def _count(self, name: str, started: float, status: HTTPStatus) -> None:
        self._metrics.requests.inc(name, str(status.value))
        self._metrics.request_seconds.observe(self._clock() - started, name)

    # The verbs

    def _filter(self, request: Request) -> Response:
        reason = self._not_ready()
        return Response(wire.filter_answer(wire.Filtered(error=reason)) if reason else self._verbs.filter(request.body))

    async def _bind(self, request: Request) -> Response:
        reason = self._not_ready()
        return Response(wire.bind_answer(reason) if reason else await self._verbs.bind(request.body))

    def _asked(self, request: Request, verb: Callable[[bytes], bytes]) -> Response:
        """A verb whose answer has no room for an error."""
        reason = self._not_ready()
        if reason:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        try:
            return Response(verb(request.body))
        except WireError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from error

    # The rest

    def _inspect_node(self, request: Request) -> Response:
        return Response(pieces=inspect(self._books, request.path.removeprefix(_NODE_PREFIX)))

    def _ready(self, request: Request) -> Response:
        reason = self._not_ready()
        return text(reason, HTTPStatus.SERVICE_UNAVAILABLE) if reason else text("ok")

    def _scrape(self, request: Request) -> Response:
        pieces = (piece.encode() for piece in self._metrics.registry.pieces())
        return Response(kind=CONTENT_TYPE, pieces=pieces)


async def _renew(files: TlsFiles, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(_TLS_SECONDS)
        files.renew(context)
