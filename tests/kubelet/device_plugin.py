"""A device plugin that does what Shoal's agent will do, as small as can be, and writes down all that kubelet asks.

It runs on an event loop in a thread of its own, so that tests can be plain functions that wait.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc
from shoal.kubelet.api import podresources_pb2, podresources_pb2_grpc
from tests.testbed.node import Node

CDI_KIND = "shoal.test/share"

Result = TypeVar("Result")
#: Turns the devices of a container that is about to be created into what the CDI spec does to it.
Edits = Callable[[Sequence[str]], Awaitable[dict]]


class PluginLoop:
    """The event loop of all plugins of a test run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="device-plugins", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], patience: float = 300) -> Result:
        """Run something on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience)

    def close(self) -> None:
        """End loop and thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class DevicePlugin(rpc.DevicePluginServicer):
    """One resource on one node."""

    def __init__(self, loop: PluginLoop, node: Node, resource: str, devices: Sequence[str], edits: Edits) -> None:
        self.resource = resource
        #: The device IDs of each container, in the order of kubelet's calls.
        self.allocated: list[list[str]] = []
        self.pre_started: list[list[str]] = []
        #: Called at each Allocate, before it is answered.
        self.on_allocate: Callable[[], Awaitable[None]] | None = None
        #: What PreStartContainer fails with, if anything.
        self.failure = ""
        self._loop = loop
        self._node = node
        self._devices = list(devices)
        self.edits = edits
        self._socket = resource.replace("/", "-") + ".sock"
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Serve, register, and wait until kubelet knows the devices."""
        self._loop.run(self._start())

    def stop(self) -> None:
        """Stop serving; kubelet sees the connection break."""
        self._loop.run(self._stop())

    def set_devices(self, devices: Sequence[str]) -> None:
        """Send kubelet another list."""
        self._devices = list(devices)
        self._loop.run(self._notify())

    @property
    def socket(self) -> Path:
        """Where it serves."""
        return self._node.device_plugins / self._socket

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        request = api.RegisterRequest(
            version=constants.DEVICE_PLUGIN_VERSION,
            endpoint=self._socket,
            resource_name=self.resource,
            options=api.DevicePluginOptions(pre_start_required=True),
        )
        async with channel_to(self._node.device_plugins / constants.REGISTRATION_SOCKET) as channel:
            await rpc.RegistrationStub(channel).Register(request, wait_for_ready=True, timeout=60)
        await self._wait_until_known()

    async def _wait_until_known(self) -> None:
        """Wait until kubelet has taken in the list: a pod it admits before that gets no devices at all."""
        async with channel_to(self._node.pod_resources) as channel, asyncio.timeout(120):
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            while True:
                request = podresources_pb2.AllocatableResourcesRequest()
                answer = await stub.GetAllocatableResources(request, wait_for_ready=True)
                own = [one.device_ids for one in answer.devices if one.resource_name == self.resource]
                if sum(map(len, own)) == len(self._devices):
                    return
                await asyncio.sleep(0.1)

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _notify(self) -> None:
        self._changed.set()

    async def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:  # noqa: N802
        return api.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(  # noqa: N802
        self, request: api.Empty, context: object
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        while True:
            self._changed.clear()
            devices = [api.Device(ID=name, health=constants.HEALTHY) for name in self._devices]
            yield api.ListAndWatchResponse(devices=devices)
            await self._changed.wait()

    async def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:  # noqa: N802
        if self.on_allocate is not None:
            await self.on_allocate()
        answer = api.AllocateResponse()
        for container in request.container_requests:
            ids = sorted(container.devices_ids)
            self.allocated.append(ids)
            answer.container_responses.add().cdi_devices.add(name=f"{CDI_KIND}={ids[0]}")
        return answer

    async def PreStartContainer(  # noqa: N802
        self, request: api.PreStartContainerRequest, context: grpc.aio.ServicerContext
    ) -> api.PreStartContainerResponse:
        ids = sorted(request.devices_ids)
        self.pre_started.append(ids)
        if self.failure:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.failure)
        write_cdi(self._node.cdi, ids[0], await self.edits(ids))
        return api.PreStartContainerResponse()


def write_cdi(folder: Path, device: str, edits: dict) -> None:
    """Put a CDI spec for one device into place, whole or not at all."""
    spec = {"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": [{"name": device, "containerEdits": edits}]}
    draft = folder / f".{device}"
    draft.write_text(json.dumps(spec))
    draft.rename(folder / f"{CDI_KIND.replace('/', '-')}-{device}.json")


def channel_to(socket: Path) -> grpc.aio.Channel:
    """A channel to a socket of kubelet."""
    options = [*constants.CHANNEL_OPTIONS, ("grpc.max_receive_message_length", -1)]  # kubelet lists every device
    return grpc.aio.insecure_channel(f"unix:{socket}", options=options)


async def pod_resources(node: Node) -> podresources_pb2.ListPodResourcesResponse:
    """What kubelet says about all pods."""
    async with channel_to(node.pod_resources) as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer: podresources_pb2.ListPodResourcesResponse = await stub.List(
            podresources_pb2.ListPodResourcesRequest(), timeout=20
        )
        return answer


def holders(
    answer: podresources_pb2.ListPodResourcesResponse, resource: str
) -> dict[tuple[str, str, str], frozenset[str]]:
    """The devices of a resource by namespace, pod and container, from PodResources' one entry per device."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == resource:
                    key = (pod.namespace, pod.name, container.name)
                    found.setdefault(key, set()).update(devices.device_ids)
    return {key: frozenset(ids) for key, ids in found.items()}
