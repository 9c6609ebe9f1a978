"""The end of a gRPC server for kubelet."""

from __future__ import annotations

import asyncio

import grpc.aio


async def stop_server(server: grpc.aio.Server) -> None:
    """End a server and all its calls, even if the caller is cancelled meanwhile: then CancelledError comes after.

    A server that is not stopped keeps its connections, and kubelet goes on reading from them.
    """
    stopping = asyncio.ensure_future(server.stop(None))
    cancelled = False
    while not stopping.done():
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    stopping.result()
