"""Listen on a port and serve every connection; when it ends, finish what is being answered.

Connections count from their first packet on, before TLS: a handshake that does not end holds a place and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from shoal.kube.certificates import der_fingerprint

#: Of each body, what counts against nothing: 5,000 names of nodes.
FREE: Final = 256 << 10


@dataclass(frozen=True)
class Bounds:
    """Bytes, connections and seconds."""

    #: Open connections, TLS handshakes included: of all callers, and of one address.
    connections: int = 512
    per_peer: int = 256
    #: Bytes of one body, and of all that are being read or answered.
    body: int = 64 << 20
    bodies: int = 128 << 20
    #: Until a request has arrived, head and body, and until a caller takes more of its answer.
    seconds: float = 10.0
    handshake_seconds: float = 5.0


class Bodies:
    """Reads bodies, so that all of them together stay within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        #: Bytes held beyond what is free.
        self.held = 0

    @contextlib.asynccontextmanager
    async def of(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """The body, which is held while the block runs. Raises HTTPException when it is too long or too slow."""
        if (request.content_length or 0) > self._bounds.body:
            raise self._too_long()
        held = 0
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(self._bounds.seconds):
                    await _let_go_on(request)
                    async for part in request.content.iter_any():
                        parts.append(part)
                        size += len(part)
                        more = max(0, size - FREE) - held
                        self._hold(size, more)
                        held += more
            except TimeoutError:
                words = f"the request took longer than {self._bounds.seconds:g} s to arrive"
                raise web.HTTPRequestTimeout(text=words, headers=_CLOSE) from None
            body = b"".join(parts)
            parts.clear()
            yield body
        finally:
            self.held -= held

    def _hold(self, size: int, more: int) -> None:
        if size > self._bounds.body:
            raise self._too_long()
        if self.held + more > self._bounds.bodies:
            words = "requests of others fill the room there is: try again"
            raise web.HTTPServiceUnavailable(text=words, headers=_CLOSE)
        self.held += more

    def _too_long(self) -> web.HTTPException:
        words = f"the body is longer than {self._bounds.body} bytes"
        return web.HTTPRequestEntityTooLarge(self._bounds.body, self._bounds.body + 1, text=words, headers=_CLOSE)


_CLOSE: Final = {"Connection": "close"}


async def _let_go_on(request: web.BaseRequest) -> None:
    """Tell a caller that waits for it to send its body."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class ConnectionSlot:
    """One connection, from its first packet on. `close` ends it, in whatever state it is."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        #: Being answered: not to be taken away.
        self.busy = False
        self.close: Callable[[], object] = lambda: None


class ConnectionSlots:
    """All places, the oldest first."""

    def __init__(self, total: int, per_peer: int) -> None:
        self._total = total
        self._per_peer = per_peer
        self._places: dict[ConnectionSlot, None] = {}
        self._peers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, peer: str) -> ConnectionSlot | None:
        """A place for a newcomer; None when it gets none."""
        if self._peers[peer] >= self._per_peer:
            return None
        if len(self._places) >= self._total and not self._make_room(peer):
            return None
        place = ConnectionSlot(peer)
        self._places[place] = None
        self._peers[peer] += 1
        return place

    def leave(self, place: ConnectionSlot) -> None:
        """The connection is over; told more than once is no matter."""
        if place in self._places:
            del self._places[place]
            self._peers[place.peer] -= 1
            if not self._peers[place.peer]:
                del self._peers[place.peer]

    def _make_room(self, peer: str) -> bool:
        most_connected, count = self._peers.most_common(1)[0]
        if count <= self._peers[peer] + 1:
            return False
        victim = next((place for place in self._places if place.peer == most_connected and not place.busy), None)
        if victim is None:
            return False
        self.leave(victim)
        victim.close()
        return True


class ServerConnection(web.RequestHandler):
    """Serves one caller. The server says when a request is answered: `begin` and `end`."""

    def __init__(
        self, server: web.Server, bounds: Bounds, places: ConnectionSlots, place: ConnectionSlot, **options: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._bounds = bounds
        self._places = places
        self._place = place
        self._wire: asyncio.Transport | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._ahead = self._half_closed = False
        #: The fingerprint of the certificate that the caller has shown and TLS has checked.
        self.shown = ""

    def begin(self) -> None:
        """A request has its head here, and is being answered."""
        self._place.busy = True
        self._ahead = False
        self._stop_arriving()
        if self._half_closed:
            self.close()

    def end(self) -> None:
        """It is answered."""
        self._place.busy = False
        if self._ahead:
            self._await_request()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.shown = "" if certificate is None else der_fingerprint(certificate)
        self._place.close = transport.abort
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._places.leave(self._place)
        self._stop_arriving()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._place.busy:
            self._ahead = True
        elif data:
            self._await_request()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A caller that has closed its side is answered, and nothing more is read."""
        self._half_closed = True
        if self._place.busy:
            self.close()
        return self._place.busy or self._arriving is not None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._cut_off_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def _await_request(self) -> None:
        """The time of a request runs from its first byte on."""
        if self._arriving is None:
            self._arriving = self._cut_off_later()

    def _cut_off_later(self) -> asyncio.TimerHandle:
        assert self._wire is not None
        return asyncio.get_running_loop().call_later(self._bounds.seconds, self._wire.abort)

    def _stop_arriving(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


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
        self._places = ConnectionSlots(bounds.connections, bounds.per_peer)
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

    async def _enter(self, caller: socket.socket, place: ConnectionSlot) -> None:
        """Make a connection of a socket; with TLS that takes as long as the handshake."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ServerConnection(self._server, self._bounds, self._places, place, **_OPTIONS),
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
        assert isinstance(connection, ServerConnection)
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
