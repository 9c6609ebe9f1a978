"""A DRA driver as kubelet sees it: two sockets, by which it registers, prepares claims and tells of its devices.

kubelet finds the driver by the socket in its folder of registrations, at any time and again after its own restart; the
driver never calls kubelet. What is prepared is decided elsewhere. Both versions of the API are served, the newer one
first: kubelet takes the first that it knows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc
import grpc.aio

from shoal.kubelet.api import dra_health_pb2 as health_api
from shoal.kubelet.api import dra_health_pb2_grpc as health_rpc
from shoal.kubelet.api import dra_v1_pb2 as v1
from shoal.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from shoal.kubelet.api import dra_v1beta1_pb2 as v1beta1
from shoal.kubelet.api import dra_v1beta1_pb2_grpc as v1beta1_rpc
from shoal.kubelet.api import pluginregistration_pb2 as registration
from shoal.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from shoal.kubelet.host_paths import DriverSockets
from shoal.kubelet.servers import stop_server

log = logging.getLogger(__name__)

PLUGIN_TYPE: Final = "DRAPlugin"
VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
#: How long kubelet waits for an answer.
CALL_SECONDS: Final = 45.0
#: Of that, what is left for the answer itself.
_SPARE_SECONDS: Final = 5.0
#: kubelet takes the health of a device for unknown when nothing was heard of it for 30 s.
_HEALTH_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 2.0
_MAX_WORDS: Final = 1000


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim, the requests it is for, and what containers with one of them are given for it."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The devices of a claim; or why they cannot be had, in words."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a device is."""

    pool: str
    device: str
    healthy: bool
    words: str = ""


#: Prepares all claims of a pod that kubelet asks for at once; by UID. The seconds say how long that may take.
Prepare = Callable[[Sequence[ClaimRef], float], Awaitable[dict[str, Prepared]]]
#: Takes claims back; by UID why that failed, in words, or nothing.
Unprepare = Callable[[Sequence[ClaimRef]], Awaitable[dict[str, str]]]


class DraDriver(registration_rpc.RegistrationServicer, health_rpc.DRAResourceHealthServicer):
    """Serves one driver. `run` until it is cancelled."""

    def __init__(
        self,
        name: str,
        sockets: DriverSockets,
        *,
        prepare: Prepare,
        unprepare: Unprepare,
        health: Callable[[], Iterable[DeviceHealth]],
    ) -> None:
        self.name = name
        #: Set while kubelet knows the driver, as far as it has said so.
        self.registered = asyncio.Event()
        #: Why kubelet does not take the driver, in its words; empty unless it has said so last.
        self.refused = ""
        self._sockets = sockets
        self._prepare = prepare
        self._unprepare = unprepare
        self._health = health
        self._streams: set[asyncio.Event] = set()

    def tell_health(self) -> None:
        """The health of devices may have changed."""
        for changed in self._streams:
            changed.set()

    async def run(self) -> None:
        """Serve. Sockets that somebody removes are made again."""
        while True:
            server = grpc.aio.server()
            registration_rpc.add_RegistrationServicer_to_server(self, server)
            health_rpc.add_DRAResourceHealthServicer_to_server(self, server)
            v1_rpc.add_DRAPluginServicer_to_server(_Calls(v1, self._prepare, self._unprepare), server)
            v1beta1_rpc.add_DRAPluginServicer_to_server(_Calls(v1beta1, self._prepare, self._unprepare), server)
            try:
                self._bind(server)
                await server.start()
                log.info("driver %s waits for kubelet on %s", self.name, self._sockets.registration)
                while all(path.exists() for path in self._paths):  # noqa: ASYNC110 - files tell nobody that they go
                    await asyncio.sleep(_LOOK_SECONDS)
                log.warning("a socket of driver %s was removed: serving again", self.name)
            except (OSError, RuntimeError) as error:
                log.warning("driver %s cannot serve: %s", self.name, error)
                await asyncio.sleep(_LOOK_SECONDS)
            finally:
                self.registered.clear()
                try:
                    await stop_server(server)
                finally:
                    for path in self._paths:
                        path.unlink(missing_ok=True)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self._sockets.calls, self._sockets.registration

    def _bind(self, server: grpc.aio.Server) -> None:
        """Listen for calls, then for the registration, which is what kubelet looks for."""
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")

    # What kubelet asks

    async def GetInfo(self, request: registration.InfoRequest, context: object) -> registration.PluginInfo:  # noqa: N802
        """Who the driver is and where it is called."""
        return registration.PluginInfo(
            type=PLUGIN_TYPE, name=self.name, endpoint=self._sockets.endpoint, supported_versions=VERSIONS
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the wire's name
        self, request: registration.RegistrationStatus, context: object
    ) -> registration.RegistrationStatusResponse:
        """kubelet knows the driver, or says why not."""
        if request.plugin_registered:
            log.info("registered driver %s with kubelet", self.name)
            self.refused = ""
            self.registered.set()
        else:
            log.warning("kubelet does not take driver %s: %s", self.name, request.error)
            self.refused = request.error[:_MAX_WORDS] or "it does not say why"
            self.registered.clear()
        return registration.RegistrationStatusResponse()

    async def NodeWatchResources(  # noqa: N802 - the wire's name
        self, request: health_api.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[health_api.NodeWatchResourcesResponse]:
        """The health of all devices, after each change and before kubelet takes it for unknown."""
        changed = asyncio.Event()
        self._streams.add(changed)
        try:
            while True:
                changed.clear()
                yield health_message(self._health(), now=time.time())
                try:
                    async with asyncio.timeout(_HEALTH_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._streams.discard(changed)


def health_message(devices: Iterable[DeviceHealth], *, now: float) -> health_api.NodeWatchResourcesResponse:
    """What kubelet is told of devices."""
    message = health_api.NodeWatchResourcesResponse()
    for one in devices:
        message.devices.add(
            device=health_api.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
            health=health_api.HEALTHY if one.healthy else health_api.UNHEALTHY,
            last_updated_time=int(now),
            message=one.words[:_MAX_WORDS],
        )
    return message


class _Calls:
    """The calls about claims, in the messages of one version."""

    def __init__(self, api: ModuleType, prepare: Prepare, unprepare: Unprepare) -> None:
        self._api = api
        self._prepare = prepare
        self._unprepare = unprepare

    async def NodePrepareResources(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        """Make claims ready for containers."""
        begun = time.perf_counter()
        claims = [ClaimRef(one.namespace, one.name, one.uid) for one in request.claims]
        remaining: float | None = context.time_remaining()
        seconds = min(CALL_SECONDS, remaining or CALL_SECONDS) - _SPARE_SECONDS
        prepared = await self._prepare(claims, max(0.0, seconds))
        answer = self._api.NodePrepareResourcesResponse()
        for claim in claims:
            self._fill(answer.claims[claim.uid], prepared.get(claim.uid, Prepared(error="it was not prepared")))
        log.debug("NodePrepareResources of %d took %.3f ms", len(claims), (time.perf_counter() - begun) * 1000)
        return answer

    def _fill(self, answer: Any, prepared: Prepared) -> None:
        answer.error = prepared.error
        for one in () if prepared.error else prepared.devices:
            device = answer.devices.add(
                request_names=one.requests,
                pool_name=one.pool,
                device_name=one.device,
                cdi_device_ids=one.cdi_devices,
            )
            if one.share_id and "share_id" in device.DESCRIPTOR.fields_by_name:
                device.share_id = one.share_id

    async def NodeUnprepareResources(self, request: Any, context: object) -> Any:  # noqa: N802 - the wire's name
        """Take claims back. The claims themselves may be gone."""
        claims = [ClaimRef(one.namespace, one.name, one.uid) for one in request.claims]
        failed = await self._unprepare(claims)
        answer = self._api.NodeUnprepareResourcesResponse()
        for claim in claims:
            answer.claims[claim.uid].error = failed.get(claim.uid, "")
        return answer
