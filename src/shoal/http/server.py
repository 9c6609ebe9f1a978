"""aiohttp's server within bounds that hold before anybody has said who they are, and the routes of one port.

Connections count from their first packet on, before TLS: a handshake that does not end holds a slot and no more. When
all slots are taken, a newcomer gets that of whoever has the most and waits the longest, so one caller cannot keep the
others out by holding connections open. A body counts against the room of all bodies only beyond its first part, so
callers with ordinary requests are served also while others fill that room. When serving ends, what is being answered is
finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

log = logging.getLogger(__name__)

#: The first part of each body, which does not count against the room of all: 5,000 names of nodes.
FREE: Final = 256 << 10

_CLOSE: Final = {"Connection": "close"}
#: Answers, or raises aiohttp's HTTPException.
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: Longer than Go keeps an idle connection, so that it is never closed under a request on its way.
IDLE_SECONDS: Final = 120.0
#: How long a caller that is refused may go on sending before it is cut off; it would miss the answer otherwise.
LINGER_SECONDS: Final = 2.0
_SHUTDOWN_SECONDS: Final = 5.0
_BACKLOG: Final = 128
#: The pause when no socket can be had because the process has too many.
_NO_SOCKET_SECONDS: Final = 0.1
#: aiohttp tells of every broken request, which anybody can send at any rate. Our own failures are logged here.
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
#: Told of every answer: the route ("none" when there is none), its status, and how long it took.
Counted = Callable[[str, int, float], None]
#: May the caller with this fingerprint ("" without a certificate) ask anything? Why not, in words; empty when it may.
Admission = Callable[[str], Awaitable[str]]
JSON: Final = "application/json"
#: The end of a route whose path has one more part.
ANY: Final = "/{name}"


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
            # An exception keeps this frame until the collector comes, and with it what was read.
            parts.clear()
            body = b""
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


async def _let_go_on(request: web.BaseRequest) -> None:
    """Answer "100 Continue" to a caller that waits for it."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class ConnectionSlot:
    """One connection, from its first packet on. `close` ends it, in whatever state it is."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        #: A request is being answered: the slot must not be taken away.
        self.busy = False
        self.close: Callable[[], object] = lambda: None


class ConnectionSlots:
    """The slots of all connections, the oldest first."""

    def __init__(self, total: int, per_peer: int) -> None:
        self._total = total
        self._per_peer = per_peer
        self._slots: dict[ConnectionSlot, None] = {}
        self._peers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, peer: str) -> ConnectionSlot | None:
        """A slot for a new connection; None when it gets none."""
        if self._peers[peer] >= self._per_peer:
            return None
        if len(self._slots) >= self._total and not self._make_room(peer):
            return None
        slot = ConnectionSlot(peer)
        self._slots[slot] = None
        self._peers[peer] += 1
        return slot

    def leave(self, slot: ConnectionSlot) -> None:
        """Give a slot back; may be called more than once."""
        if slot in self._slots:
            del self._slots[slot]
            self._peers[slot.peer] -= 1
            if not self._peers[slot.peer]:
                del self._peers[slot.peer]

    def _make_room(self, peer: str) -> bool:
        most_connected, count = self._peers.most_common(1)[0]
        if count <= self._peers[peer] + 1:
            return False
        victim = next((slot for slot in self._slots if slot.peer == most_connected and not slot.busy), None)
        if victim is None:
            return False
        self.leave(victim)
        victim.close()
        return True


class ServerConnection(web.RequestHandler):
    """Serves one caller. The server says when a request is answered: `begin` and `end`."""

    def __init__(
        self, server: web.Server, bounds: Bounds, slots: ConnectionSlots, slot: ConnectionSlot, **options: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._bounds = bounds
        self._slots = slots
        self._slot = slot
        self._wire: asyncio.Transport | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._ahead = self._half_closed = self._secured = False
        #: The fingerprint of the certificate that the caller has shown and TLS has checked.
        self.shown = ""

    def begin(self) -> None:
        """The head of a request has arrived, and the request is being answered."""
        self._slot.busy = True
        self._ahead = False
        self._stop_arriving()
        if self._half_closed:
            self.close()

    def end(self) -> None:
        """The request is answered."""
        self._slot.busy = False
        if self._ahead:
            self._await_request()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        tls = transport.get_extra_info("ssl_object")
        self._secured = tls is not None
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        self.shown = "" if certificate is None else hashlib.sha256(certificate).hexdigest()
        self._slot.close = transport.abort
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._slots.leave(self._slot)
        self._stop_arriving()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._slot.busy:
            self._ahead = True
        elif data:
            self._await_request()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A caller that has closed its side is answered, and nothing more is read. TLS has no half-closed side."""
        self._half_closed = True
        if self._slot.busy:
            self.close()
        return not self._secured and (self._slot.busy or self._arriving is not None)

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
    """Serve while the block runs; gives the port, a free one for 0. `refused`: called when a caller gets no slot."""
    async with _serving(web.Server(_answering(handler)), host, port, bounds, context, refused) as taken:
        yield taken


@contextlib.asynccontextmanager
async def serving_application(
    application: web.Application,
    host: str,
    port: int,
    bounds: Bounds,
    context: ssl.SSLContext | None = None,
    *,
    refused: Callable[[], None] = lambda: None,
) -> AsyncIterator[int]:
    """The same for many routes with middlewares. `on_shutdown` of the application is told before connections end."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        server = runner.server
        assert server is not None
        server.request_handler = _answering(server.request_handler)
        async with _serving(server, host, port, bounds, context, refused) as taken:
            try:
                yield taken
            finally:
                await runner.shutdown()
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _serving(
    server: web.Server,
    host: str,
    port: int,
    bounds: Bounds,
    context: ssl.SSLContext | None,
    refused: Callable[[], None],
) -> AsyncIterator[int]:
    listener = _listening(host, port)
    door = _Door(server, bounds, context, refused)
    door.open(listener)
    try:
        yield int(listener.getsockname()[1])
    finally:
        door.close(listener)
        listener.close()
        await door.shut()


class _Door:
    """Accepts connections."""

    def __init__(
        self, server: web.Server, bounds: Bounds, context: ssl.SSLContext | None, refused: Callable[[], None]
    ) -> None:
        self._server = server
        self._bounds = bounds
        self._context = context
        self._refused = refused
        self._slots = ConnectionSlots(bounds.connections, bounds.per_peer)
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
        slot = self._slots.take(str(address[0]))
        if slot is None:
            caller.close()
            self._refused()
            return
        caller.setblocking(False)
        task = asyncio.create_task(self._enter(caller, slot))
        slot.close = task.cancel
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, caller: socket.socket, slot: ConnectionSlot) -> None:
        """Make a connection of a socket; with TLS that takes as long as the handshake."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ServerConnection(self._server, self._bounds, self._slots, slot, **_OPTIONS),
                caller,
                ssl=self._context,
                ssl_handshake_timeout=self._bounds.handshake_seconds if self._context else None,
                ssl_shutdown_timeout=self._bounds.handshake_seconds if self._context else None,
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:  # ssl.SSLError is an OSError
            log.debug("a connection of %s came to nothing: %s", slot.peer, error)
            caller.close()
            self._slots.leave(slot)

    async def shut(self) -> None:
        """End what enters and what is idle at once, and what is being answered when it is."""
        for task in tuple(self._entering):
            task.cancel()
        if self._entering:
            await asyncio.wait(self._entering)
        self._server.pre_shutdown()
        await self._server.shutdown(_SHUTDOWN_SECONDS)


def _answering(handler: Handler) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """The handler, with the connection's clocks set and failures logged."""

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


class Routes:
    """The routes of one port, by path, with the method each is asked with."""

    def __init__(
        self,
        routes: Mapping[str, tuple[str, Handler]],
        *,
        clock: Callable[[], float],
        counted: Counted = lambda route, status, seconds: None,
        admission: Admission | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._open = tuple(path.removesuffix(ANY) + "/" for path in routes if path.endswith(ANY))
        self._clock = clock
        self._counted = counted
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
            self._counted(name if name in self._routes else "none", status, self._clock() - started)

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


def shown_token(request: web.BaseRequest, header: str) -> str:
    """The token a request shows, empty without one. The header of our own goes first: something on the way may set
    `Authorization`, as proxies do, or drop it.
    """
    own = request.headers.get(header, "")
    if own:
        return own.strip()
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def rest(request: web.BaseRequest, path: str) -> str:
    """The last part of a request's path, for a route that ends with `ANY`."""
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
