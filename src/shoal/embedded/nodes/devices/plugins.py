"""The wire between kubelet and device plugins: the Registration service, and a client for each plugin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio

from shoal.embedded.nodes.devices.accounting import PluginDevice
from shoal.embedded.nodes.errors import AllocationError, NodesError
from shoal.embedded.rules.pods import is_extended
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The kernel's limit on the path of a unix socket, with the zero at its end.
_LONGEST_SOCKET: Final = 107
_DIAL_SECONDS: Final = 10.0
#: Go's names of the codes that are not theirs in capitals.
_CODES: Final = {"CANCELLED": "Canceled", "OK": "OK"}


def socket_address(path: Path) -> str:
    """The address of a unix socket; NodesError if the kernel would cut its path."""
    if len(str(path).encode()) > _LONGEST_SOCKET:
        raise NodesError(f"the path of the socket {path} is longer than {_LONGEST_SOCKET} bytes: use a shorter folder")
    return f"unix:{path}"


def go_error(error: grpc.aio.AioRpcError) -> str:
    """An error of a call, as kubelet's messages carry it."""
    name = error.code().name
    code = _CODES.get(name) or "".join(word.capitalize() for word in name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


class Endpoint:
    """A plugin that has registered, or one that the checkpoint knows and that has not come back."""

    def __init__(self, resource: str, *, stopped: datetime | None = None) -> None:
        self.resource = resource
        self.options = api.DevicePluginOptions()
        #: Since when it is gone.
        self.stopped = stopped
        self._channel: grpc.aio.Channel | None = None
        self._stub: rpc.DevicePluginStub | None = None

    async def connect(self, socket: Path) -> None:
        """Dial the plugin and ask for its options."""
        self._channel = grpc.aio.insecure_channel(socket_address(socket), options=constants.CHANNEL_OPTIONS)
        self._stub = rpc.DevicePluginStub(self._channel)
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                await self._channel.channel_ready()
            self.options = await self._stub.GetDevicePluginOptions(api.Empty())
        except TimeoutError as error:
            await self.close()
            raise NodesError(f"failed to dial device plugin: no answer on {socket.name}") from error
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise NodesError(f"failed to get device plugin options: {go_error(error)}") from error

    async def follow(self, listed: Callable[[list[PluginDevice]], Awaitable[None]]) -> None:
        """Take in the plugin's lists until the stream ends."""
        try:
            async for answer in self._live().ListAndWatch(api.Empty()):
                await listed([_device(one) for one in answer.devices])
            log.error("ListAndWatch of %s ended", self.resource)
        except grpc.aio.AioRpcError as error:
            log.error("ListAndWatch of %s ended unexpectedly: %s", self.resource, go_error(error))

    async def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Which devices the plugin would take."""
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        try:
            request = api.PreferredAllocationRequest(container_requests=[one])
            answer = await answer_of(self._live().GetPreferredAllocation(request))
        except grpc.aio.AioRpcError as error:
            why = f"device plugin GetPreferredAllocation rpc failed with err: {go_error(error)}"
            raise AllocationError(why) from error
        return [one for response in answer.container_responses[:1] for one in response.deviceIDs]

    async def allocate(self, ids: Sequence[str]) -> bytes:
        """What the plugin says to a container with these devices, as protobuf."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = await answer_of(self._live().Allocate(request))
        except grpc.aio.AioRpcError as error:
            raise AllocationError(go_error(error)) from error
        if not answer.container_responses:
            raise AllocationError(f"no containers return in allocation response {answer}")
        response: bytes = answer.container_responses[0].SerializeToString()
        return response

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with these devices is about to be created."""
        prefix = "device plugin PreStartContainer rpc failed with err:"
        try:
            request = api.PreStartContainerRequest(devices_ids=ids)
            await answer_of(self._live().PreStartContainer(request, timeout=constants.PRE_START_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise AllocationError(f"{prefix} {go_error(error)}") from error
        except AllocationError as error:
            raise AllocationError(f"{prefix} {error}") from error

    async def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            await self._channel.close()
        self._channel = self._stub = None

    def _live(self) -> rpc.DevicePluginStub:
        if self._stub is None or self.stopped is not None:
            raise AllocationError(f"endpoint {self.resource} has been stopped")
        return self._stub


async def answer_of(call: Awaitable[T]) -> T:
    """The answer of a call. When the connection is closed under it, gRPC cancels whoever waits, who did nothing."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise AllocationError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


def _device(one: api.Device) -> PluginDevice:
    numa = tuple(node.ID for node in one.topology.nodes) if one.HasField("topology") else ()
    return PluginDevice(one.ID, healthy=one.health == constants.HEALTHY, numa=numa)


class RegistrationService(rpc.RegistrationServicer):
    """kubelet's own service, on which plugins register."""

    def __init__(self, folder: Path, connect: Callable[[str, Path], Awaitable[None]]) -> None:
        self._folder = folder
        self._connect = connect
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Remove the sockets of plugins, which must register anew, and serve."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(socket_address(self._folder / constants.REGISTRATION_SOCKET))
        await self._server.start()

    async def stop(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def Register(  # noqa: N802 - the wire's name
        self, request: api.RegisterRequest, context: grpc.aio.ServicerContext[api.RegisterRequest, api.Empty]
    ) -> api.Empty:
        """A plugin says where it serves what."""
        if request.version != constants.DEVICE_PLUGIN_VERSION:
            supported = f"[{constants.DEVICE_PLUGIN_VERSION}]"
            why = f'requested API version "{request.version}" is not supported by kubelet. Supported version is'
            await context.abort(grpc.StatusCode.UNKNOWN, f'{why} "{supported}"')
        if not is_extended(request.resource_name):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        socket = self._folder / request.endpoint
        if socket.parent != self._folder:
            await context.abort(grpc.StatusCode.UNKNOWN, f'the endpoint "{request.endpoint}" is not a file name')
        try:
            await self._connect(request.resource_name, socket)
        except NodesError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return api.Empty()
