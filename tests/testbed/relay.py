"""Brings the API server's port into a node: listens on some addresses there, connects to 127.0.0.1 here.

Runs as a plain script; the listening sockets are opened in the node's network namespace, everything else happens in the
one it was started in.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def _enter_network(path: str) -> None:
    """os.setns is there only from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(descriptor)


def _listen_in(network: str, addresses: list[str]) -> list[socket.socket]:
    here = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"
    _enter_network(network)
    pairs = [address.rsplit(":", 1) for address in addresses]
    listeners = [socket.create_server((host, int(port)), backlog=256) for host, port in pairs]
    _enter_network(here)
    return listeners


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _serve(listeners: list[socket.socket], port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(back):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))

    servers = [await asyncio.start_server(relay, sock=listener) for listener in listeners]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Relay until killed."""
    network, port, ready, addresses = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    listeners = _listen_in(network, addresses)
    ready.touch()
    asyncio.run(_serve(listeners, port))


if __name__ == "__main__":
    main()
