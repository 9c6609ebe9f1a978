"""gRPC within bounds, in plain text unless it is given a certificate. gRPC itself takes any number of connections: here
a door stands before it, which counts them, by address and in all, cuts off those on which nothing moves, and passes on
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Final

import grpc
import grpc.aio

from shoal.http.server import ConnectionSlot, ConnectionSlots

log = logging.getLogger(__name__)

#: Most requests say nothing, or name one card.
LONGEST_REQUEST: Final = 4096
#: Open connections of all callers and of one address, and calls that are being answered.
CONNECTIONS: Final = 64
PER_PEER: Final = 16
_CALLS: Final = 64
#: A connection on which nothing moved for so long is cut off.
_IDLE_SECONDS: Final = 60.0
_PIECE: Final = 16 << 10
_BACKLOG: Final = 64
_OPTIONS: Final = (
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.http2.max_frame_size", 16384),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.so_reuseport", 0),
)


@contextlib.asynccontextmanager
async def serving_grpc(
    handlers: Sequence[grpc.GenericRpcHandler],
    host: str,
    ports: Sequence[int],
    *,
    connections: int = CONNECTIONS,
    per_peer: int = PER_PEER,
    idle_seconds: float = _IDLE_SECONDS,
    longest_request: int = LONGEST_REQUEST,
    calls: int = _CALLS,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[int, ...]]:
    """Serve on some ports while the block runs; gives the ports, a free one for each 0. Raises OSError."""
    inside = f"shoal-grpc-{secrets.token_hex(16)}"
    options = (*_OPTIONS, ("grpc.max_receive_message_length", longest_request))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls)
    server.add_generic_rpc_handlers(handlers)
    if credentials is None:
        server.add_insecure_port(f"unix-abstract:{inside}")
    else:
        server.add_secure_port(f"unix-abstract:{inside}", credentials)
    door = _GrpcDoor(f"\0{inside}", ConnectionSlots(connections, per_peer), idle_seconds)
    async with contextlib.AsyncExitStack() as stack:
        doors = []
        for port in ports:
            listener = _listening(host, port)
            opened = await asyncio.start_server(door.enter, sock=listener, limit=_PIECE)
            stack.callback(opened.close)
            doors.append(int(listener.getsockname()[1]))
        await server.start()
        stack.push_async_callback(server.stop, None)
        stack.push_async_callback(door.shut)
        yield tuple(doors)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


class _GrpcDoor:
    """Passes connections on to the server inside."""

    def __init__(self, inside: str, slots: ConnectionSlots, idle_seconds: float) -> None:
        self._inside = inside
        self._slots = slots
        self._idle_seconds = idle_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it ends or gets no slot."""
        peer = writer.get_extra_info("peername")
        slot = self._slots.take(str(peer[0]) if peer else "")
        if slot is None:
            writer.transport.abort()
            return
        # asyncio sets it on sockets that name their protocol, which those of create_server do not: 40 ms an answer.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        slot.close = task.cancel
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            log.debug("a connection of %s is cut off", slot.peer)
        except (OSError, TimeoutError) as error:
            log.debug("a connection of %s ended: %s", slot.peer, error)
        finally:
            writer.transport.abort()
            self._leave(slot, task)

    def _leave(self, slot: ConnectionSlot, task: asyncio.Task[None]) -> None:
        self._slots.leave(slot)
        self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._inside, limit=_PIECE)
        try:
            async with asyncio.timeout(self._idle_seconds) as limit, asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, back, limit))
                group.create_task(self._copy(there, writer, limit))
        except* OSError as group_error:
            raise ConnectionError(str(group_error.exceptions[0])) from None
        finally:
            back.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(_PIECE):
            limit.reschedule(loop.time() + self._idle_seconds)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("closed")

    async def shut(self) -> None:
        """End all connections."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
