"""The end of gRPC servers."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc
from shoal.kubelet.servers import stop_server


class Endless(rpc.DevicePluginServicer):
    """Lists nothing, for ever."""

    async def ListAndWatch(self, request, context):  # noqa: N802
        yield api.ListAndWatchResponse()
        await asyncio.Event().wait()


@pytest.mark.parametrize("cancels", range(4))
async def test_calls_end_however_often_the_one_who_stops_is_cancelled(tmp_path: Path, cancels: int):
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Endless(), server)
    server.add_insecure_port(f"unix:{tmp_path / 's'}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path / 's'}") as channel:
        call = rpc.DevicePluginStub(channel).ListAndWatch(api.Empty())
        await call.read()
        stopping = asyncio.create_task(stop_server(server))
        for _ in range(cancels):
            await asyncio.sleep(0)
            stopping.cancel()
        await asyncio.wait({stopping})
        assert stopping.cancelled() == bool(cancels)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
