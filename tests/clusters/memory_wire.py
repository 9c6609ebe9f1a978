"""HTTP between the product's client and its embedded API server without sockets: bytes pass from protocol to protocol.

Client, server and all that lies between them but the kernel's network are the real ones. A wire can lag, be cut, and
lose what is sent over it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.transport import TransportLimits


class Wire:
    """All connections of one client to one server."""

    def __init__(self, server: Callable[[], asyncio.Protocol], rng: random.Random, *, lag: float) -> None:
        """A piece of data takes up to `lag` seconds each way."""
        self._server = server
        self._rng = rng
        self._lag = lag
        self._ends: set[_End] = set()
        #: Nothing passes, and nobody is told: what the client sends, and what the server does.
        self._there_lost = self._back_lost = False

    def connect(self, client: asyncio.Protocol) -> None:
        """A new connection."""
        served = self._server()
        here, there = _End(self, client, here=True), _End(self, served, here=False)
        here.peer, there.peer = there, here
        self._ends |= {here, there}
        served.connection_made(there)
        client.connection_made(here)

    def cut(self) -> None:
        """Break all connections."""
        for end in list(self._ends):
            end.abort()

    def silence(self, there: bool, back: bool) -> None:
        """Lose from now on what goes there, or comes back. A connection that lost something is broken for good."""
        self._there_lost, self._back_lost = there, back

    def loses(self, *, there: bool) -> bool:
        """Whether what goes in a direction is lost."""
        return self._there_lost if there else self._back_lost

    def lag(self) -> float:
        """Seconds until the next piece of data arrives."""
        return self._lag * self._rng.random() ** 4

    def forget(self, end: "_End") -> None:
        """It is closed."""
        self._ends.discard(end)


class _End(asyncio.Transport):
    """One end of a connection."""

    peer: "_End"

    def __init__(self, wire: Wire, protocol: asyncio.Protocol, *, here: bool) -> None:
        super().__init__()
        self._wire = wire
        self._here = here
        #: Something that was sent is lost, and so is all that follows.
        self._broken = False
        self._protocol = protocol
        self._closed = False
        self._reading = True
        #: What has been sent here and has not arrived; None is the end.
        self._coming: deque[bytes | None] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._broken = self._broken or (bool(data) and self._wire.loses(there=self._here))
        if not self._closed and data and not self._broken:
            self.peer._send(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if not self._closed:
            if not self._broken and not self._wire.loses(there=self._here):
                self.peer._send(None)
            self._lose()

    abort = close

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._arrive_later()

    def is_reading(self) -> bool:
        return self._reading

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def _send(self, data: bytes | None) -> None:
        self._coming.append(data)
        self._arrive_later()

    def _arrive_later(self) -> None:
        if self._timer is None and self._coming and self._reading:
            self._timer = asyncio.get_running_loop().call_later(self._wire.lag(), self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._closed or not self._reading:
            return
        data = self._coming.popleft()
        if data is None:
            self._lose()
            return
        self._protocol.data_received(data)
        self._arrive_later()

    def _lose(self) -> None:
        if not self._closed:
            self._closed = True
            self._wire.forget(self)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class _WireConnector(aiohttp.BaseConnector):
    def __init__(self, wire: Wire, limit: int) -> None:
        super().__init__(limit=limit)
        self._wire = wire

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:  # noqa: ASYNC109
        made: ResponseHandler = self._factory()
        self._wire.connect(made)
        return made


class WireClient(Client):
    """The product's client on a wire. Use it in `async with`."""

    def __init__(self, wire: Wire, token: str, name: str, *, limits: TransportLimits | None = None) -> None:
        headers = (("Authorization", f"Bearer {token}"),)
        super().__init__(Access(f"http://{name}", StoredCredential(), headers=headers), limits=limits)
        self._wire = wire

    async def __aenter__(self) -> "WireClient":
        transport = self._transport
        connector = _WireConnector(self._wire, transport.limits.connections)
        transport._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        transport._session._retry_connection = False
        return self
