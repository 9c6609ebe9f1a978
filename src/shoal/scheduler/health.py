"""The port for probes and for Prometheus: health, readiness, metrics. Plain HTTP, and nothing is decided here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from shoal.http.server import Bounds, Routes, in_pieces, serving, text
from shoal.model.contract import gpushare, shoal
from shoal.observe.prometheus import CONTENT_TYPE
from shoal.scheduler.metrics import Metrics

#: Bodies are not read at all.
_BOUNDS: Final = Bounds(connections=64, per_peer=32, body=0, bodies=0)


@contextlib.asynccontextmanager
async def serve(
    host: str, port: int, *, metrics: Metrics, not_ready: Callable[[], str], clock: Callable[[], float]
) -> AsyncIterator[int]:
    """Answer while the block runs; gives the port, which is a free one for 0."""

    async def health(_: web.BaseRequest) -> web.StreamResponse:
        return text("ok")

    async def ready(_: web.BaseRequest) -> web.StreamResponse:
        reason = not_ready()
        return text(reason, HTTPStatus.SERVICE_UNAVAILABLE) if reason else text("ok")

    async def version(_: web.BaseRequest) -> web.StreamResponse:
        return text(gpushare.VERSION)

    async def scrape(request: web.BaseRequest) -> web.StreamResponse:
        return await in_pieces(request, (piece.encode() for piece in metrics.registry.pieces()), CONTENT_TYPE)

    routes = Routes(
        {
            shoal.PATH_HEALTH: ("GET", health),
            shoal.PATH_READY: ("GET", ready),
            shoal.PATH_METRICS: ("GET", scrape),
            gpushare.PATH_VERSION: ("GET", version),
        },
        clock=clock,
        counted=metrics.answered,
    )
    async with serving(routes, host, port, _BOUNDS, refused=metrics.refused_connections.inc) as serving_port:
        yield serving_port
