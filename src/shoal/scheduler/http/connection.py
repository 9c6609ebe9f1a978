"""One connection: bytes in, requests to the handler, answers out.

A handler that can answer at once does so in the same turn of the event loop, with no task between. While an answer is
awaited or sent in pieces nothing more is read. A caller that is too slow with its request, or with reading the answer,
is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from shoal.scheduler.http.messages import HttpError, Request, Response, text
from shoal.scheduler.http.reading import Reader

log = logging.getLogger(__name__)

#: Answers at once, or in a while. Raises HttpError.
Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]

#: Longer than Go keeps an idle connection, so that it is never closed under a request on its way.
IDLE_SECONDS: Final = 120.0
#: How long a caller that is refused may go on sending before it is cut off; it would miss the answer otherwise.
LINGER_SECONDS: Final = 2.0

_FAILED: Final = text("the request failed here; the log says why", HTTPStatus.INTERNAL_SERVER_ERROR)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a caller may use: bytes of a body, and seconds until a request has arrived or a piece of the answer left."""

    max_body: int
    seconds: float


class Connection(asyncio.Protocol):
    """Serves one caller. `open_ones` holds all connections that are open."""

    def __init__(self, handler: Handler, bounds: Bounds, open_ones: set[Connection]) -> None:
        self._handler = handler
        self._bounds = bounds
        self._open_ones = open_ones
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(max_body=bounds.max_body)
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._paused = self._ending = self._half_closed = False

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        certified = bool(transport.get_extra_info("peercert"))
        self._reader = Reader(max_body=self._bounds.max_body, certified=certified)
        self._open_ones.add(self)
        self._wait(IDLE_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_ones.discard(self)
        self._ending = True
        self._stop_waiting()
        self._writable.set()
        self._closed.set()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        begun = self._reader.begun
        self._reader.feed(data)
        if self._task is not None:
            self._paused = True
            self._transport.pause_reading()
        else:
            self._advance(begun=begun)

    def eof_received(self) -> bool:
        self._half_closed = True
        return self._task is not None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Requests

    def _advance(self, *, begun: bool) -> None:
        """Answer what is there, until something has to be awaited. `begun`: the time of a request runs already."""
        try:
            while not self._ending and self._task is None:
                request = self._reader.take()
                if request is None:
                    self._await_more(begun=begun)
                    return
                begun = False
                self._stop_waiting()
                self._answer(request)
        except HttpError as refusal:
            self._refuse(refusal)

    def _await_more(self, *, begun: bool) -> None:
        if self._reader.waits:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._reader.begun:
            self._wait(IDLE_SECONDS, self._transport.close)
        elif not begun:
            self._wait(self._bounds.seconds, self._too_slow)

    def _too_slow(self) -> None:
        words = f"the request took longer than {self._bounds.seconds:g} s to arrive"
        self._refuse(HttpError(HTTPStatus.REQUEST_TIMEOUT, words))

    def _answer(self, request: Request) -> None:
        answer = self._called(request)
        if isinstance(answer, Response) and answer.pieces is None:
            self._send(answer, request)
        else:
            self._task = self._loop.create_task(self._finish(request, answer))

    def _called(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        try:
            return self._handler(request)
        except HttpError as refusal:
            return text(str(refusal), refusal.status)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _FAILED

    async def _finish(self, request: Request, answer: Response | Coroutine[Any, Any, Response]) -> None:
        try:
            response = answer if isinstance(answer, Response) else await self._awaited(request, answer)
            if response.pieces is None:
                self._send(response, request)
            else:
                await self._send_pieces(response, request)
        finally:
            self._task = None
        if self._paused and not self._ending:
            self._paused = False
            self._transport.resume_reading()
        self._advance(begun=False)
        if self._half_closed and self._task is None:
            self._end()

    async def _awaited(self, request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
        try:
            return await answer
        except HttpError as refusal:
            return text(str(refusal), refusal.status)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _FAILED

    # Answers

    def _send(self, response: Response, request: Request) -> None:
        content = b"" if request.method == "HEAD" else response.content
        self._transport.write(response.head(keep=request.keep) + content)
        if not request.keep:
            self._end()

    async def _send_pieces(self, response: Response, request: Request) -> None:
        self._transport.write(response.head(keep=request.keep))
        try:
            for piece in (response.pieces or ()) if request.method != "HEAD" else ():
                if piece:
                    self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(0)
                async with asyncio.timeout(self._bounds.seconds):
                    await self._writable.wait()
                if self._ending:
                    return
        except TimeoutError:
            self._transport.abort()
            return
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            self._transport.abort()  # a broken answer must not look like a whole one
            return
        if request.method != "HEAD":
            self._transport.write(b"0\r\n\r\n")
        if not request.keep:
            self._end()

    def _refuse(self, refusal: HttpError) -> None:
        """Say why, and listen no more. What the caller is still sending is thrown away for a moment."""
        response = text(str(refusal), refusal.status)
        self._transport.write(response.head(keep=False) + response.content)
        self._ending = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._wait(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def _end(self) -> None:
        self._ending = True
        self._transport.close()

    # The one thing that is waited for

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Shutting down

    async def shut(self) -> None:
        """Finish the answer that is being made and send it, then close."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self._end()
        await self._closed.wait()

    def abort(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()
