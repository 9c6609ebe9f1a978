"""The HTTP server: the extender's routes as kube-scheduler and gpushare's clients know them, health and metrics.

Every answer of filter and bind is 200 with the error in words, since kube-scheduler tells people nothing of another
one. While this process is not ready (not synced, not leading) it decides nothing. Bodies are bounded in size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from shoal.model.contract import gpushare, shoal
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.inspect import inspect
from shoal.scheduler.extender.tls import TlsFiles
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.extender.wire import WireError
from shoal.scheduler.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

Route = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: 5,000 whole nodes of 10 kB; with node names it is a hundredth.
MAX_BODY: Final = 64 << 20
#: A caller that is slower than this with its request is not kube-scheduler.
BODY_SECONDS: Final = 10.0
#: Answered to everyone, with or without a certificate.
_OPEN: Final = frozenset({shoal.PATH_HEALTH, shoal.PATH_READY, gpushare.PATH_VERSION})
_EXPIRY_SECONDS: Final = 1.0
_TLS_SECONDS: Final = 60.0
_SHUTDOWN_SECONDS: Final = 5.0


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
        self._body_seconds = BODY_SECONDS

    def _application(self, address: Address) -> web.Application:
        """All routes. With a client CA most are for callers who have shown a certificate."""
        certificates = address.tls is not None and address.tls.client_ca is not None
        self._body_seconds = address.body_seconds
        middlewares = [self._measured, _known_callers] if certificates else [self._measured]
        app = web.Application(client_max_size=address.max_body, middlewares=middlewares)
        app.router.add_post(gpushare.PATH_FILTER, self._filter)
        app.router.add_post(gpushare.PATH_PRIORITIZE, self._prioritize)
        app.router.add_post(gpushare.PATH_PREEMPT, self._preempt)
        app.router.add_post(gpushare.PATH_BIND, self._bind)
        app.router.add_get(gpushare.PATH_INSPECT, self._inspect)
        app.router.add_get(gpushare.PATH_INSPECT + "/{node}", self._inspect)
        app.router.add_get(gpushare.PATH_VERSION, self._version)
        app.router.add_get(shoal.PATH_HEALTH, self._health)
        app.router.add_get(shoal.PATH_READY, self._ready)
        app.router.add_get(shoal.PATH_METRICS, self._scrape)
        return app

    @contextlib.asynccontextmanager
    async def serve(self, address: Address) -> AsyncIterator[int]:
        """Serve while the block runs; gives the port."""
        runner = web.AppRunner(self._application(address), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        context = None if address.tls is None else address.tls.context()
        chores = [asyncio.create_task(self._expire(), name="extender-holds")]
        if address.tls is not None and context is not None:
            chores.append(asyncio.create_task(_renew(address.tls, context), name="extender-tls"))
        try:
            site = web.TCPSite(runner, address.host, address.port, ssl_context=context, reuse_address=True)
            await site.start()
            port: int = runner.addresses[0][1]
            log.info("extender on %s:%d%s", address.host, port, " with TLS" if context else "")
            yield port
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await runner.cleanup()

    async def _expire(self) -> None:
        """Holds end also when nobody asks."""
        while True:
            await asyncio.sleep(_EXPIRY_SECONDS)
            self._verbs.holds.expire()

    # The verbs

    async def _filter(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        reason = self._not_ready()
        if reason:
            return _json(wire.filter_answer(wire.Filtered(error=reason)))
        return _json(self._verbs.filter(body))

    async def _bind(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        reason = self._not_ready()
        if reason:
            return _json(wire.bind_answer(reason))
        return _json(await self._verbs.bind(body))

    async def _prioritize(self, request: web.Request) -> web.Response:
        return await self._asked(request, self._verbs.prioritize)

    async def _preempt(self, request: web.Request) -> web.Response:
        return await self._asked(request, self._verbs.preempt)

    async def _asked(self, request: web.Request, verb: Callable[[bytes], bytes]) -> web.Response:
        """A verb whose answer has no room for an error."""
        body = await self._body(request)
        reason = self._not_ready()
        if reason:
            raise web.HTTPServiceUnavailable(text=reason)
        try:
            return _json(verb(body))
        except WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._body_seconds):
                return await request.read()
        except TimeoutError:
            seconds = f"{self._body_seconds:g} s"
            raise web.HTTPRequestTimeout(text=f"the request took longer than {seconds} to arrive") from None

    # The rest

    async def _inspect(self, request: web.Request) -> web.StreamResponse:
        return await _streamed(request, "application/json", inspect(self._books, request.match_info.get("node")))

    async def _version(self, request: web.Request) -> web.Response:
        return web.Response(text=gpushare.VERSION)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, request: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def _scrape(self, request: web.Request) -> web.StreamResponse:
        return await _streamed(request, CONTENT_TYPE, (piece.encode() for piece in self._metrics.registry.pieces()))

    @web.middleware
    async def _measured(self, request: web.Request, handler: Route) -> web.StreamResponse:
        resource = request.match_info.route.resource
        name = "none" if resource is None else resource.canonical
        started = self._clock()
        status = 500
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            self._metrics.requests.inc(name, str(status))
            self._metrics.request_seconds.observe(self._clock() - started, name)


@web.middleware
async def _known_callers(request: web.Request, handler: Route) -> web.StreamResponse:
    """A certificate that was shown has been checked by TLS; kubelet, which probes, has none to show."""
    transport = request.transport
    if request.path not in _OPEN and (transport is None or not transport.get_extra_info("peercert")):
        raise web.HTTPUnauthorized(text="show a client certificate that the extender's client CA has signed")
    return await handler(request)


def _json(content: bytes) -> web.Response:
    return web.Response(body=content, content_type="application/json")


async def _streamed(request: web.Request, kind: str, pieces: Iterator[bytes]) -> web.StreamResponse:
    """A long answer, made while others are answered."""
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)
    await response.write_eof()
    return response


async def _renew(files: TlsFiles, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(_TLS_SECONDS)
        files.renew(context)
