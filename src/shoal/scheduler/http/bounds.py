"""What callers may use, all together and each.

A body counts against the room of all bodies only beyond its first part. So callers with ordinary requests are served
also while others fill that room.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web

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
