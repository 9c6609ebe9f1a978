"""Listen on a port and serve every connection; when it ends, finish what is being answered."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Final

from shoal.scheduler.http.connection import Bounds, Connection, Handler

_SHUTDOWN_SECONDS: Final = 5.0


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, host: str, port: int, bounds: Bounds, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which is a free one for 0."""
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(handler, bounds, connections), host, port, ssl=context, reuse_address=True
    )
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        if connections:
            shutting = [loop.create_task(connection.shut()) for connection in connections]
            _, late = await asyncio.wait(shutting, timeout=_SHUTDOWN_SECONDS)
            for connection in tuple(connections):
                connection.abort()
            for task in late:
                task.cancel()
