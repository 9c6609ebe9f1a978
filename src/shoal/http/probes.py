"""The port of a service that answers nobody but kubelet's probes. Plain HTTP, and bodies are not read at all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from shoal.http.server import Bounds, Routes, serving, text
from shoal.model.contract import shoal

_BOUNDS: Final = Bounds(connections=64, per_peer=32, body=0, bodies=0)


@contextlib.asynccontextmanager
async def answering_probes(host: str, port: int, waiting_for: Callable[[], str]) -> AsyncIterator[int]:
    """Answer `/healthz` and `/readyz` while the block runs; gives the port, which is a free one for 0.

    `waiting_for` says in words what keeps the service from its work; empty when nothing does.
    """

    async def health(_: web.BaseRequest) -> web.StreamResponse:
        # What the service waits for is no reason to restart it.
        return text(waiting_for() or "ok")

    async def ready(_: web.BaseRequest) -> web.StreamResponse:
        reason = waiting_for()
        return text(reason, HTTPStatus.SERVICE_UNAVAILABLE) if reason else text("ok")

    routes = Routes({shoal.PATH_HEALTH: ("GET", health), shoal.PATH_READY: ("GET", ready)}, clock=time.monotonic)
    async with serving(routes, host, port, _BOUNDS) as taken:
        yield taken
