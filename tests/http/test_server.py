"""The server on a socket: what callers may use, before anybody knows who they are."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from shoal.embedded.certificates import make_pki
from shoal.http.server import FREE, Bodies, Bounds, ConnectionSlots, in_pieces, serving, text

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """Routes for every kind of answer."""

    def __init__(self, bounds: Bounds) -> None:
        self.bodies = Bodies(bounds)
        self.bounds = bounds
        self.go_on = asyncio.Event()
        self.entered = asyncio.Event()
        self.made = 0
        self.refused = 0
        self.port = 0

    async def handler(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.path:
            case "/echo":
                async with self.bodies.of(request) as body:
                    return web.Response(body=body)
            case "/later":
                self.entered.set()
                await self.go_on.wait()
                return text("later")
            case "/pieces":
                return await in_pieces(request, iter([b"a", b"", b"bc"]))
            case "/endless":
                return await in_pieces(request, self.endless())
            case "/broken-pieces":
                return await in_pieces(request, broken())
            case "/refused":
                raise web.HTTPConflict(text="no")
        raise KeyError(request.path)

    def endless(self) -> Iterator[bytes]:
        while True:
            self.made += 1
            yield b"x" * 100_000

    def on_refused(self) -> None:
        self.refused += 1

    async def connected(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port)


def broken() -> Iterator[bytes]:
    yield b"a"
    raise KeyError("broken")


@contextlib.asynccontextmanager
async def served_with(bounds: Bounds, context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    parts = Served(bounds)
    async with serving(parts.handler, "127.0.0.1", 0, bounds, context, refused=parts.on_refused) as parts.port:
        yield parts


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with served_with(Bounds(body=1000, seconds=0.3)) as parts:
        yield parts


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


def post(size: int, body: bytes = b"") -> bytes:
    return f"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer that says its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Content-Length"))
    return int(head.split()[1]), await reader.readexactly(int(length))


async def ends(reader: asyncio.StreamReader) -> None:
    """The server closes the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass


async def test_requests_sent_ahead_are_answered_in_their_order(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(post(2, b"1.") + get("/later") + post(2, b"2.") + get("/refused"))
    assert await answer(reader) == (200, b"1.")
    await served.entered.wait()
    writer.write(post(2, b"3."))
    served.go_on.set()
    assert [await answer(reader) for _ in range(4)] == [(200, b"later"), (200, b"2."), (409, b"no"), (200, b"3.")]
    writer.close()


async def test_a_handler_that_fails_is_answered_and_the_connection_goes_on(served: Served) -> None:
    reader, writer = await served.connected()
    for path, status in (("/unknown", 500), ("/refused", 409), ("/echo", 200)):
        writer.write(get(path))
        assert (await answer(reader))[0] == status
    writer.close()


async def test_pieces(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(get("/pieces") + get("/echo"))
    assert b"Transfer-Encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
    assert await reader.readuntil(b"0\r\n\r\n") == b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    assert await answer(reader) == (200, b"")
    writer.close()


async def test_an_answer_that_breaks_off_does_not_look_whole(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(get("/broken-pieces"))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()


async def test_a_caller_that_does_not_read_is_cut_off(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(get("/endless"))
    await reader.readexactly(1)
    made = -1
    while made != served.made:  # until no more is made, for the caller does not take it
        made = served.made
        await asyncio.sleep(1)
    async with asyncio.timeout(30):  # what is on its way still arrives, and no more
        with contextlib.suppress(ConnectionError):
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_head_that_does_not_end_is_cut_off(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(b"GET /echo HTT")
    await ends(reader)
    writer.close()


async def test_the_clock_runs_for_what_is_sent_ahead_too(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(get("/later"))
    await served.entered.wait()
    writer.write(b"GET /echo HTT")
    await asyncio.sleep(0.05)
    served.go_on.set()
    assert await answer(reader) == (200, b"later")
    await ends(reader)
    writer.close()


async def test_a_body_that_does_not_end_is_told(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(post(9, b"1"))
    assert await answer(reader) == (408, b"the request took longer than 0.3 s to arrive")
    await ends(reader)
    writer.close()


async def test_heads_are_bounded(served: Served) -> None:
    for head in (b"x-long: " + b"x" * 5000, b"".join(b"x-%d: y\r\n" % n for n in range(60))):
        reader, writer = await served.connected()
        writer.write(b"GET /echo HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_who_is_refused_while_sending_reads_why(served: Served, chunked: bool) -> None:
    reader, writer = await served.connected()
    if chunked:
        writer.write(b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    else:
        writer.write(post(5_000_000))
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            writer.write((b"186a0\r\n" if chunked else b"") + b"x" * 100_000 + (b"\r\n" if chunked else b""))
            await asyncio.sleep(0)
    assert await answer(reader) == (413, b"the body is longer than 1000 bytes")
    writer.close()


async def test_a_packed_body_is_not_unpacked(served: Served) -> None:
    """A few bytes could become gigabytes."""
    reader, writer = await served.connected()
    writer.write(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbomb")
    assert await answer(reader) == (200, b"bomb")
    writer.close()


async def test_who_asks_to_be_let_go_on_is(served: Served) -> None:
    reader, writer = await served.connected()
    writer.write(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ab")
    assert await answer(reader) == (200, b"ab")
    writer.close()


async def test_unfinished_bodies_are_bounded_together_and_ordinary_requests_still_pass() -> None:
    bounds = Bounds(body=8 << 20, bodies=10 << 20, seconds=30)
    async with served_with(bounds) as served:
        hogs = [await served.connected() for _ in range(5)]
        statuses = []
        for reader, writer in hogs:
            with contextlib.suppress(ConnectionError):
                writer.write(post(8 << 20, b"x" * (6 << 20)))
                await writer.drain()
            statuses.append(reader)
        async with asyncio.timeout(60):
            while served.bodies.held < 5 << 20:  # noqa: ASYNC110 - the server's own pace
                await asyncio.sleep(0.01)
            refused = [asyncio.create_task(reader.readline()) for reader in statuses]
            done, waiting = await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
            assert any(b" 503 " in task.result() for task in done)
        assert served.bodies.held <= bounds.bodies
        reader, writer = await served.connected()
        body = b"y" * FREE
        writer.write(post(len(body), body))
        assert await answer(reader) == (200, body)
        for task in waiting:
            task.cancel()
        for _, other in [*hogs, (reader, writer)]:
            other.close()
    assert served.bodies.held == 0


async def test_connections_of_one_address_are_bounded() -> None:
    async with served_with(Bounds(connections=10, per_peer=3)) as served:
        held = [await served.connected() for _ in range(3)]
        for _, writer in held:
            writer.write(get("/later"))
        await served.entered.wait()
        reader, writer = await served.connected()
        await ends(reader)
        assert served.refused == 1
        served.go_on.set()
        assert await answer(held[0][0]) == (200, b"later")
        held[0][1].close()
        await asyncio.sleep(0.1)
        again, other = await served.connected()
        other.write(get("/echo"))
        assert (await answer(again))[0] == 200
        for closed in (writer, other, *(writer for _, writer in held)):
            closed.close()


def test_a_crowd_makes_room_for_others() -> None:
    slots = ConnectionSlots(4, 4)
    closed: list[int] = []
    crowd = [slots.take("crowd") for _ in range(4)]
    for number, slot in enumerate(crowd):
        assert slot is not None
        slot.busy = number == 0
        slot.close = lambda number=number: closed.append(number)  # type: ignore[misc]
    assert slots.take("crowd") is None
    assert slots.take("one") is not None
    assert closed == [1], "the oldest that is not being answered"
    assert slots.take("two") is not None
    assert slots.take("three") is not None
    assert slots.take("four") is None, "nobody has more than one"
    assert len(slots) == 4


async def test_handshakes_that_do_not_end_hold_no_place_for_long(tmp_path: Path) -> None:
    pki = make_pki(tmp_path, now=datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.certificate, pki.key)
    async with served_with(Bounds(connections=2, per_peer=2, handshake_seconds=0.2), context) as served:
        for _ in range(3):
            silent = [await served.connected() for _ in range(2)]
            for reader, writer in silent:
                await ends(reader)
                writer.close()
        trust = ssl.create_default_context(cafile=str(pki.authority))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=trust, server_hostname="localhost")
        writer.write(get("/echo"))
        assert await answer(reader) == (200, b"")
        writer.close()


async def test_the_end_waits_for_what_is_being_answered() -> None:
    async with served_with(Bounds()) as served:
        reader, writer = await served.connected()
        idle, other = await served.connected()
        writer.write(get("/later"))
        await served.entered.wait()
        asyncio.get_running_loop().call_later(0.05, served.go_on.set)
    assert await answer(reader) == (200, b"later")
    assert await reader.read() == b""
    assert await idle.read() == b""
    writer.close()
    other.close()
