"""A TCP relay in front of a server that cuts, stalls and blocks connections when a test says so."""

import asyncio
import contextlib
from types import TracebackType


class Relay:
    """Listens on a free port of 127.0.0.1 and passes bytes on to another. Use it in `async with`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._live: set[asyncio.Task[None]] = set()
        #: Cleared while the connections of the moment are to hold still.
        self._flow = asyncio.Event()
        self._flow.set()
        self._blocked = False
        #: Answers that are still to be lost.
        self._lost = 0
        self.port = 0
        #: Connections passed on and connections turned away.
        self.passed = 0
        self.refused = 0

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._flow.set()
        await self.cut()

    async def cut(self) -> int:
        """Break all connections of the moment; how many there were."""
        tasks = list(self._live)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)

    def stall(self) -> None:
        """Let the connections of the moment hold still, open, for good. New ones are passed on."""
        self._flow.clear()
        self._flow = asyncio.Event()
        self._flow.set()

    def hang(self) -> None:
        """Let all connections hold still, those of the moment and those to come."""
        self._flow.clear()

    def lose_answers(self, count: int) -> None:
        """Let the server get what is sent, and break the connection instead of passing its answer on."""
        self._lost = count

    async def block(self) -> None:
        """Break all connections and turn new ones away, until `unblock`."""
        self._blocked = True
        await self.cut()

    def unblock(self) -> None:
        """Pass new connections on again."""
        self._blocked = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        try:
            if self._blocked:
                self.refused += 1
                return
            self.passed += 1
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer, self._flow)
        finally:
            self._live.discard(task)
            await _abort(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.create_task(_copy(reader, far_writer, flow)),
            asyncio.create_task(self._answer(far_reader, writer, flow)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.transport.abort()  # before anything is waited for: a cut may come in between
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await _abort(far_writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        while piece := await reader.read(1 << 16):
            await flow.wait()
            if self._lost:
                self._lost -= 1
                return
            writer.write(piece)
            await writer.drain()


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
    while piece := await reader.read(1 << 16):
        await flow.wait()
        writer.write(piece)
        await writer.drain()
