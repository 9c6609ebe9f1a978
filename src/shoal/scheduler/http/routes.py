"""Which request is answered by what, counted and timed; answers whole or in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web

from shoal.scheduler.http.server import ServerConnection
from shoal.scheduler.metrics import Metrics

Route = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: May the caller with this fingerprint ("" without a certificate) ask anything? Why not, in words; empty when it may.
Admission = Callable[[str], Awaitable[str]]

JSON: Final = "application/json"
#: Ends a path that has one more part.
ANY: Final = "/{name}"


class Routes:
    """The routes of one port, by path, with the method each is asked with."""

    def __init__(
        self,
        routes: Mapping[str, tuple[str, Route]],
        *,
        metrics: Metrics,
        clock: Callable[[], float],
        admission: Admission | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._open = tuple(path.removesuffix(ANY) + "/" for path in routes if path.endswith(ANY))
        self._metrics = metrics
        self._clock = clock
        self._admission = admission

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer. Raises HTTPException."""
        name, started = self._name(request.path), self._clock()
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            response = await self._answer(request, name)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            self._metrics.requests.inc(name if name in self._routes else "none", str(status))
            self._metrics.request_seconds.observe(self._clock() - started, name if name in self._routes else "none")

    def _name(self, path: str) -> str:
        return next((prefix.removesuffix("/") + ANY for prefix in self._open if path.startswith(prefix)), path)

    async def _answer(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        if self._admission is not None:
            refusal = await self._admission(shown(request))
            if refusal:
                raise web.HTTPUnauthorized(text=refusal, headers={"Connection": "close"})
        if name not in self._routes:
            raise web.HTTPNotFound(text="there is nothing here")
        method, route = self._routes[name]
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise web.HTTPMethodNotAllowed(request.method, [method], text=f"ask {name} with {method}")
        return await route(request)


def shown(request: web.BaseRequest) -> str:
    """The fingerprint of the caller's certificate; empty without one."""
    connection = request.protocol
    return connection.shown if isinstance(connection, ServerConnection) else ""


def rest(request: web.BaseRequest, path: str) -> str:
    """What stands for the name in a path that ends with `ANY`."""
    return request.path.removeprefix(path.removesuffix(ANY) + "/")


def text(words: str, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """An answer in words."""
    return web.Response(text=words, status=status)


def json(content: bytes) -> web.Response:
    """An answer in JSON."""
    return web.Response(body=content, content_type=JSON)


async def in_pieces(request: web.BaseRequest, pieces: Iterator[bytes], kind: str = JSON) -> web.StreamResponse:
    """An answer that is made while others are answered in between."""
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    try:
        for piece in pieces if request.method != "HEAD" else ():
            if piece:
                await response.write(piece)
            await asyncio.sleep(0)
    except Exception:
        if request.transport is not None:
            request.transport.abort()  # a broken answer must not look like a whole one
        raise
    await response.write_eof()
    return response
