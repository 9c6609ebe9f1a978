"""A device plugin (API v1beta1) for one resource: serves, registers with kubelet, and again after kubelet's restart.

kubelet removes the sockets of plugins when it starts, and its end breaks the stream of ListAndWatch: that is how its
restart is noticed. Which devices there are and what a container gets is decided elsewhere.

kubelet knows a plugin by its resource alone. If it notices the end of one plugin after it has taken the next one of the
same resource, it takes the next one for ended: it goes on reading its list, and starts no container with its devices.
So a plugin registers after kubelet has let go of the one before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from shoal.agent.device_plugin.devices import Count, DeviceList, is_below, listing, settled
from shoal.agent.errors import AgentError, RecordError
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc
from shoal.kubelet.host_paths import HostPaths
from shoal.kubelet.servers import stop_server
from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)

_REGISTER_SECONDS: Final = 10.0
#: Time for kubelet to write its record after it has read a list.
_WRITE_SECONDS: Final = 1.0
_BACKOFF: Final = Backoff(first=0.1, longest=2.0)
_OPTIONS: Final = (("grpc.max_send_message_length", constants.MAX_MESSAGE_BYTES),)

Allocate = Callable[[str, Sequence[str]], Awaitable[api.ContainerAllocateResponse]]
PreStart = Callable[[str, Sequence[str]], Awaitable[None]]
#: Waits until kubelet has noticed the end of a resource's plugin before this one.
LetGo = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PluginResource:
    """A resource and the file name of its socket."""

    name: str
    socket: str
    #: Containers have it by claims: no device is listed, and none waits for PreStartContainer. kubelet would refuse a
    #: container that asks for a name of a plugin with PreStartContainer and has no devices; and it knows an ended
    #: plugin for five minutes.
    by_claims: bool = False


@dataclass(frozen=True, slots=True)
class _Counted:
    """What a list was made from, and how many of its devices can change hands without another list."""

    resource: str
    count: Count
    in_use: frozenset[str]
    settled: int

    def still_holds(self, count: Count, in_use: frozenset[str]) -> bool:
        if count != self.count or in_use == self.in_use:
            return count == self.count
        changed = in_use ^ self.in_use
        return len(in_use) <= count.allowed and all(is_below(self.resource, one, self.settled) for one in changed)


class Plugin(rpc.DevicePluginServicer):
    """Serves one resource. `run` until it is cancelled."""

    def __init__(
        self,
        resource: PluginResource,
        paths: HostPaths,
        *,
        allocate: Allocate,
        pre_start: PreStart,
        let_go: LetGo,
    ) -> None:
        self.resource = resource
        #: Set while kubelet reads the list.
        self.connected = asyncio.Event()
        self._paths = paths
        self._allocate = allocate
        self._pre_start = pre_start
        self._let_go = let_go
        self._counted: _Counted | None = None
        self._listing = DeviceList()
        self._streams: set[asyncio.Event] = set()
        self._lost = asyncio.Event()
        self._options = api.DevicePluginOptions(pre_start_required=not resource.by_claims)

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self._paths.device_plugins / self.resource.socket

    def count(self, count: Count, in_use: frozenset[str]) -> None:
        """List counted devices, if the count or the use has changed: a long list takes a while to make."""
        if self._counted is not None and self._counted.still_holds(count, in_use):
            return
        name = self.resource.name
        fresh = listing(name, count, in_use)
        self._tell(fresh)
        self._counted = _Counted(name, count, in_use, settled(name, fresh, count, in_use))

    def show(self, devices: DeviceList) -> None:
        """List these devices, if they differ from the last list."""
        self._tell(devices)

    def _tell(self, fresh: DeviceList) -> None:
        self._counted = None
        if fresh != self._listing:
            self._listing = fresh
            self._send()

    def _send(self) -> None:
        for changed in self._streams:
            changed.set()

    async def run(self) -> None:
        """Serve and stay registered. While kubelet is away, try again every two seconds at most."""
        pause = _BACKOFF.first
        while True:
            server = grpc.aio.server(options=_OPTIONS)
            rpc.add_DevicePluginServicer_to_server(self, server)
            try:
                self._lost.clear()
                self._bind(server)
                await server.start()
                await self._let_go(self.resource.name)
                await self._register()
                pause = _BACKOFF.first
                await self._lost.wait()
                log.info("kubelet has let go of %s: registering again", self.resource.name)
            except _NotRegisteredError as error:
                log.log(
                    logging.DEBUG if pause < _BACKOFF.longest else logging.WARNING, "%s: %s", self.resource.name, error
                )
                pause = _BACKOFF.longer(pause)
            finally:
                self.connected.clear()
                try:
                    await stop_server(server)
                finally:
                    self.socket.unlink(missing_ok=True)
            await asyncio.sleep(pause)

    def _bind(self, server: grpc.aio.Server) -> None:
        """Listen on the socket, and replace a file that is in its place."""
        try:
            self._paths.device_plugins.mkdir(parents=True, exist_ok=True)
            self.socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{self.socket}")
        except (OSError, RuntimeError) as error:
            raise _NotRegisteredError(f"cannot serve on {self.socket}: {error}") from error

    async def _register(self) -> None:
        request = api.RegisterRequest(
            version=constants.DEVICE_PLUGIN_VERSION,
            endpoint=self.resource.socket,
            resource_name=self.resource.name,
            options=self._options,
        )
        address = f"unix:{self._paths.registration}"
        async with grpc.aio.insecure_channel(address, options=constants.CHANNEL_OPTIONS) as channel:
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)
                async with asyncio.timeout(_REGISTER_SECONDS):
                    await self.connected.wait()
            except grpc.aio.AioRpcError as error:
                raise _NotRegisteredError(f"kubelet does not take the registration: {error.details()}") from error
            except TimeoutError as error:
                raise _NotRegisteredError("kubelet has registered the plugin and does not ask for its list") from error
        log.info("registered %s with kubelet", self.resource.name)

    # What kubelet asks

    async def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:  # noqa: N802
        """PreStartContainer is wanted, unless no container has devices."""
        return self._options

    async def ListAndWatch(  # noqa: N802 - the wire's name
        self, request: api.Empty, context: object
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """The list of devices, now and after each change."""
        changed = asyncio.Event()
        self._streams.add(changed)
        try:
            while True:
                changed.clear()
                message = self._listing.message()
                self.connected.set()
                yield message
                await changed.wait()
        finally:
            self._streams.discard(changed)
            if not self._streams:
                self._lost.set()

    async def Allocate(  # noqa: N802 - the wire's name
        self,
        request: api.AllocateRequest,
        context: grpc.aio.ServicerContext[api.AllocateRequest, api.AllocateResponse],
    ) -> api.AllocateResponse:
        """What containers with these devices get."""
        begun = time.perf_counter()
        try:
            answers = [
                await self._allocate(self.resource.name, tuple(container.devices_ids))
                for container in request.container_requests
            ]
        except AgentError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._took("Allocate", begun)
        return api.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802 - the wire's name
        self,
        request: api.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[api.PreStartContainerRequest, api.PreStartContainerResponse],
    ) -> api.PreStartContainerResponse:
        """A container with these devices is about to be created."""
        begun = time.perf_counter()
        try:
            await self._start(tuple(request.devices_ids))
        except AgentError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._took("PreStartContainer", begun)
        return api.PreStartContainerResponse()

    async def _start(self, ids: Sequence[str]) -> None:
        try:
            await self._pre_start(self.resource.name, ids)
        except RecordError as error:
            log.warning("%s: %s: kubelet gets the list once more, and writes its record", self.resource.name, error)
            self._send()
            await asyncio.sleep(_WRITE_SECONDS)
            await self._pre_start(self.resource.name, ids)

    def _took(self, call: str, begun: float) -> None:
        log.debug("%s of %s took %.3f ms", call, self.resource.name, (time.perf_counter() - begun) * 1000)


class _NotRegisteredError(AgentError):
    """kubelet is away, or does not take the plugin now."""
