"""Listen on a port and serve every connection; when it ends, finish what is being answered.

Connections count from their first packet on, before TLS: a handshake that does not end holds a place and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from shoal.scheduler.http.bounds import Bounds
from shoal.scheduler.http.connection import Connection
from shoal.scheduler.http.places import Place, Places

log = logging.getLogger(__name__)

#: Answers, or raises aiohttp's HTTPException.
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Longer than Go keeps an idle connection, so that it is never closed under a request on its way.
IDLE_SECONDS: Final = 120.0
#: How long a caller that is refused may go on sending before it is cut off; it would miss the answer otherwise.
LINGER_SECONDS: Final = 2.0
_SHUTDOWN_SECONDS: Final = 5.0
_BACKLOG: Final = 128
#: A pause when no socket can be had: the process has too many.
_NO_SOCKET_SECONDS: Final = 0.1
#: aiohttp tells of every broken request, which anybody can send at any rate. Our own failures are told here.
_UNHEARD: Final = logging.getLogger(f"{__name__}.unheard")
_UNHEARD.disabled = True
_OPTIONS: Final[dict[str, Any]] = {
    "keepalive_timeout": IDLE_SECONDS,
    "lingering_time": LINGER_SECONDS,
    "max_line_size": 4096,
    "max_field_size": 4096,
    "max_headers": 50,
    "read_bufsize": 32 << 10,
    "auto_decompress": False,
    "access_log": None,
    "logger": _UNHEARD,
}


@contextlib.asynccontextmanager
async def serving(
    handler: Handler,
    host: str,
    port: int,
    bounds: Bounds,
    context: ssl.SSLContext | None = None,
    *,
    refused: Callable[[], None] = lambda: None,
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which is a free one for 0. `refused`: somebody got no place."""
    listener = _listening(host, port)
    server = web.Server(_answering(handler))
    door = _Door(server, bounds, context, refused)
    door.open(listener)
    try:
        yield int(listener.getsockname()[1])
    finally:
        door.close(listener)
        listener.close()
        await door.shut()


class _Door:
    """Lets callers in."""

    def __init__(
        self, server: web.Server, bounds: Bounds, context: ssl.SSLContext | None, refused: Callable[[], None]
    ) -> None:
        self._server = server
        self._bounds = bounds
        self._context = context
        self._refused = refused
        self._places = Places(bounds.connections, bounds.per_peer)
        self._entering: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def open(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def close(self, listener: socket.socket) -> None:
        """Take no more."""
        asyncio.get_running_loop().remove_reader(listener)
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self, listener: socket.socket) -> None:
        try:
            caller, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("no connection can be taken: %s", error)
            self.close(listener)
            self._pause = asyncio.get_running_loop().call_later(_NO_SOCKET_SECONDS, self.open, listener)
            return
        place = self._places.take(str(address[0]))
        if place is None:
            caller.close()
            self._refused()
            return
        caller.setblocking(False)
        task = asyncio.create_task(self._enter(caller, place))
        place.close = task.cancel
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, caller: socket.socket, place: Place) -> None:
        """Make a connection of a socket; with TLS that takes as long as the handshake."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self._server, self._bounds, self._places, place, **_OPTIONS),
                caller,
                ssl=self._context,
                ssl_handshake_timeout=self._bounds.handshake_seconds if self._context else None,
                ssl_shutdown_timeout=self._bounds.handshake_seconds if self._context else None,
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:  # ssl.SSLError is an OSError
            log.debug("a connection of %s came to nothing: %s", place.peer, error)
            caller.close()
            self._places.leave(place)

    async def shut(self) -> None:
        """End what enters and what is idle at once, and what is being answered when it is."""
        for task in tuple(self._entering):
            task.cancel()
        if self._entering:
            await asyncio.wait(self._entering)
        self._server.pre_shutdown()
        await self._server.shutdown(_SHUTDOWN_SECONDS)


def _answering(handler: Handler) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """The handler, with the connection's clocks set and failures told."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin()
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            raise web.HTTPInternalServerError(text="the request failed here; the log says why") from None
        finally:
            connection.end()

    return answer


def _listening(host: str, port: int) -> socket.socket:
    if ":" not in host:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    else:
        both = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener
