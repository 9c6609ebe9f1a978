"""The server on a socket: order, errors, slow callers, and its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from http import HTTPStatus
from typing import Any

import pytest

from shoal.scheduler.http.connection import Bounds
from shoal.scheduler.http.messages import HttpError, Request, Response, text
from shoal.scheduler.http.server import serving


class Served:
    """Routes for every kind of answer."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.entered = asyncio.Event()
        self.made = 0

    def handler(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        match request.path:
            case "/echo":
                return Response(request.body)
            case "/later":
                return self.later()
            case "/pieces":
                return Response(pieces=iter([b"a", b"", b"bc"]))
            case "/endless":
                return Response(pieces=self.endless())
            case "/broken-pieces":
                return Response(pieces=broken())
            case "/refused":
                raise HttpError(HTTPStatus.CONFLICT, "no")
            case "/refused-later":
                return self.refused()
            case "/broken-later":
                return self.broken()
        raise KeyError(request.path)

    async def later(self) -> Response:
        self.entered.set()
        await self.go_on.wait()
        return text("later")

    async def refused(self) -> Response:
        raise HttpError(HTTPStatus.CONFLICT, "no")

    async def broken(self) -> Response:
        raise KeyError("broken")

    def endless(self) -> Iterator[bytes]:
        while True:
            self.made += 1
            yield b"x" * 100_000


def broken() -> Iterator[bytes]:
    yield b"a"
    raise KeyError("broken")


Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter, Served]


@pytest.fixture
async def served() -> AsyncIterator[Connected]:
    parts = Served()
    async with serving(parts.handler, "127.0.0.1", 0, Bounds(1000, 0.3)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield reader, writer, parts
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer that says its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Content-Length"))
    return int(head.split()[1]), await reader.readexactly(int(length))


async def test_requests_sent_ahead_are_answered_in_their_order(served: Connected) -> None:
    reader, writer, parts = served
    echo = b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n"
    writer.write(echo + b"1." + get("/later") + echo + b"2." + get("/refused"))
    assert await answer(reader) == (200, b"1.")
    await parts.entered.wait()
    writer.write(echo + b"3.")
    parts.go_on.set()
    assert [await answer(reader) for _ in range(4)] == [(200, b"later"), (200, b"2."), (409, b"no"), (200, b"3.")]


async def test_a_handler_that_fails_is_answered_and_the_connection_goes_on(served: Connected) -> None:
    reader, writer, _ = served
    for path, status in (("/unknown", 500), ("/broken-later", 500), ("/refused-later", 409)):
        writer.write(get(path))
        assert (await answer(reader))[0] == status
    writer.write(get("/echo"))
    assert await answer(reader) == (200, b"")


async def test_pieces(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(get("/pieces") + get("/echo"))
    assert b"Transfer-Encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    assert await answer(reader) == (200, b"")


async def test_a_head_is_answered_without_a_body(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(b"HEAD /pieces HTTP/1.1\r\n\r\nHEAD /refused HTTP/1.1\r\n\r\n" + get("/echo"))
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
    assert b"Content-Length: 2" in await reader.readuntil(b"\r\n\r\n")
    assert await answer(reader) == (200, b"")


async def test_an_answer_that_breaks_off_does_not_look_whole(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(get("/broken-pieces"))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readuntil(b"0\r\n\r\n")


async def test_a_caller_that_does_not_read_is_cut_off(served: Connected) -> None:
    reader, writer, parts = served
    writer.write(get("/endless"))
    await reader.readexactly(1)
    made = -1
    while made != parts.made:  # until no more is made, for the caller does not take it
        made = parts.made
        await asyncio.sleep(1)
    with contextlib.suppress(ConnectionResetError):
        assert not (await reader.read()).endswith(b"0\r\n\r\n")


async def test_a_request_that_does_not_end_is_told(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(b"GET /echo")
    assert b" 408 " in await reader.readuntil(b"\r\n\r\n")
    assert await reader.read() == b"the request took longer than 0.3 s to arrive"


async def test_who_is_refused_while_sending_reads_why(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(b"POST /echo HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n")
    for _ in range(50):
        writer.write(b"x" * 100_000)
        await asyncio.sleep(0)
    assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
    assert await reader.read() == b"the body is longer than 1000 bytes"


async def test_a_caller_that_closes_its_side_is_answered(served: Connected) -> None:
    reader, writer, parts = served
    writer.write(get("/later") + get("/later") + get("/echo"))
    await parts.entered.wait()
    writer.write_eof()
    await asyncio.sleep(0.01)
    parts.go_on.set()
    assert [await answer(reader) for _ in range(3)] == [(200, b"later"), (200, b"later"), (200, b"")]
    assert await reader.read() == b""


async def test_who_asks_to_be_let_go_on_is(served: Connected) -> None:
    reader, writer, _ = served
    writer.write(b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ab")
    assert await answer(reader) == (200, b"ab")


async def test_the_end_waits_for_what_is_being_answered() -> None:
    parts = Served()
    async with serving(parts.handler, "127.0.0.1", 0, Bounds(1000, 5)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle, other = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/later"))
        await parts.entered.wait()
        asyncio.get_running_loop().call_later(0.05, parts.go_on.set)
    assert await answer(reader) == (200, b"later")
    assert await reader.read() == b""
    assert await idle.read() == b""
    writer.close()
    other.close()
