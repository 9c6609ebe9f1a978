"""Brings the API server's port into a node: listens on 127.0.0.1 there, connects to 127.0.0.1 here.

The same port on both sides, so that one kubeconfig serves both. Runs as a plain script; the listening socket is opened
in the node's network namespace, everything else happens in the one it was started in.
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


def _listen_in(network: str, port: int) -> socket.socket:
    here = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY | os.O_CLOEXEC)}"
    _enter_network(network)
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    _enter_network(here)
    return listener


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _serve(listener: socket.socket, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(back):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


def main() -> None:
    """Relay until killed."""
    network, port, ready = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    listener = _listen_in(network, port)
    ready.touch()
    asyncio.run(_serve(listener, port))


if __name__ == "__main__":
    main()
