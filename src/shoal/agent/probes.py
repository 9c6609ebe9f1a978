"""Health over HTTP: whether the process lives, and whether it serves or what it waits for, in words."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from shoal.model.contract import shoal


@contextlib.asynccontextmanager
async def serve(host: str, port: int, waiting_for: Callable[[], str]) -> AsyncIterator[int]:
    """Answer while the block runs; gives the port. `waiting_for` is empty when all is served."""

    async def health(_: web.Request) -> web.Response:
        # A node without a driver is no reason to restart the process: it would not bring one.
        return web.Response(text=waiting_for() or "ok")

    async def ready(_: web.Request) -> web.Response:
        reason = waiting_for()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    app = web.Application()
    app.router.add_get(shoal.PATH_HEALTH, health)
    app.router.add_get(shoal.PATH_READY, ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
