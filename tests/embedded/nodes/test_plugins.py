"""The wire between kubelet and device plugins."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from shoal.embedded.nodes.devices.plugins import Endpoint, socket_address
from shoal.embedded.nodes.errors import AllocationError
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc


class HangingPlugin(rpc.DevicePluginServicer):
    """Takes calls, and never answers them."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def GetDevicePluginOptions(self, request, context):  # noqa: N802
        return api.DevicePluginOptions(pre_start_required=True)

    async def PreStartContainer(self, request, context):  # noqa: N802
        self.called.set()
        await asyncio.Event().wait()

    Allocate = GetPreferredAllocation = PreStartContainer


@pytest.fixture
async def hanging() -> AsyncIterator[tuple[HangingPlugin, Endpoint]]:
    with tempfile.TemporaryDirectory() as folder:
        plugin, server, socket = HangingPlugin(), grpc.aio.server(), Path(folder) / "p.sock"
        rpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(socket_address(socket))
        await server.start()
        endpoint = Endpoint("shoal.test/r")
        await endpoint.connect(socket)
        yield plugin, endpoint
        await endpoint.close()
        await server.stop(0)


@pytest.mark.parametrize("call", ["pre_start", "allocate", "preferred"])
async def test_a_plugin_that_goes_in_the_midst_of_a_call_fails_the_call_alone(
    hanging: tuple[HangingPlugin, Endpoint], call: str
) -> None:
    plugin, endpoint = hanging
    arguments = (["a"], [], 1) if call == "preferred" else (["a"],)
    waiting = asyncio.create_task(getattr(endpoint, call)(*arguments))
    await plugin.called.wait()
    await endpoint.close()
    with pytest.raises(AllocationError, match="the client connection is closing"):
        await waiting


async def test_who_is_cancelled_is_cancelled(hanging: tuple[HangingPlugin, Endpoint]) -> None:
    plugin, endpoint = hanging
    waiting = asyncio.create_task(endpoint.pre_start(["a"]))
    await plugin.called.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
