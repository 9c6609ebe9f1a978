"""The wire between kubelet and DRA drivers: finds them by their sockets, calls them, hears of their devices' health.

The real kubelet is told of sockets by the kernel; here somebody calls `look` every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from shoal.embedded.nodes.claims.checkpoint import ClaimDevice, ClaimInfo
from shoal.embedded.nodes.clock import Clock
from shoal.embedded.nodes.devices.plugins import answer_of, go_error, socket_address
from shoal.embedded.nodes.errors import AllocationError, ClaimNotReadyError, NodesError
from shoal.kubelet import constants
from shoal.kubelet.api import dra_health_pb2 as health_api
from shoal.kubelet.api import dra_health_pb2_grpc as health_rpc
from shoal.kubelet.api import dra_v1_pb2 as v1
from shoal.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from shoal.kubelet.api import dra_v1beta1_pb2 as v1beta1
from shoal.kubelet.api import dra_v1beta1_pb2_grpc as v1beta1_rpc
from shoal.kubelet.api import pluginregistration_pb2 as registration
from shoal.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from shoal.kubelet.dra import CALL_SECONDS, PLUGIN_TYPE

log = logging.getLogger(__name__)

#: How long a driver may be away before its slices are deleted.
WIPE_SECONDS: Final = 30.0
#: What kubelet speaks: the messages and the service of each version.
_VERSIONS: Final[dict[str, tuple[Any, Any]]] = {
    "v1.DRAPlugin": (v1, v1_rpc),
    "v1beta1.DRAPlugin": (v1beta1, v1beta1_rpc),
}
_REGISTRATION_SECONDS: Final = 10.0
_HEALTH_RETRY_SECONDS: Final = 5.0
#: The health of a device is unknown when nothing was heard of it for so long, unless its driver says otherwise.
_HEALTH_SECONDS: Final = 30
_HEALTH: Final = {health_api.HEALTHY: "Healthy", health_api.UNHEALTHY: "Unhealthy"}
UNKNOWN: Final = "Unknown"


@dataclass(frozen=True, slots=True)
class KnownHealth:
    """How a device is, in the words of a pod's status, and until when that holds."""

    health: str
    message: str
    until: datetime


#: Driver, pool and device.
DeviceKey = tuple[str, str, str]


class Stub(Protocol):
    """The calls of one version."""

    NodePrepareResources: Callable[..., Any]
    NodeUnprepareResources: Callable[..., Any]


@dataclass(slots=True, eq=False)
class RegisteredDriver:
    """A driver that has registered."""

    name: str
    messages: Any
    stub: Stub
    channel: grpc.aio.Channel
    connected: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def prepare(self, claims: Sequence[ClaimInfo]) -> dict[str, tuple[ClaimDevice, ...]]:
        """The devices of claims, by UID; ClaimNotReadyError, in kubelet's words, if one of them cannot be had."""
        request = self.messages.NodePrepareResourcesRequest(claims=self._named(claims))
        answers = await self._ask("NodePrepareResources", self.stub.NodePrepareResources, request, claims)
        return {
            uid: tuple(
                ClaimDevice(
                    one.pool_name,
                    one.device_name,
                    tuple(one.request_names),
                    tuple(one.cdi_device_ids),
                    getattr(one, "share_id", "") or None,
                )
                for one in answer.devices
            )
            for uid, answer in answers.items()
        }

    async def unprepare(self, claims: Sequence[ClaimInfo]) -> None:
        """Have the driver take claims back; ClaimNotReadyError if it does not."""
        request = self.messages.NodeUnprepareResourcesRequest(claims=self._named(claims))
        await self._ask("NodeUnprepareResources", self.stub.NodeUnprepareResources, request, claims)

    def _named(self, claims: Sequence[ClaimInfo]) -> list[Any]:
        return [self.messages.Claim(namespace=one.namespace, uid=one.uid, name=one.name) for one in claims]

    async def _ask(
        self, name: str, call: Callable[..., Any], request: Any, claims: Sequence[ClaimInfo]
    ) -> dict[str, Any]:
        """The answer for each claim."""
        try:
            answer = await answer_of(call(request, timeout=CALL_SECONDS))
        except grpc.aio.AioRpcError as error:
            raise ClaimNotReadyError(f"{name}: {go_error(error)}") from error
        except AllocationError as error:
            raise ClaimNotReadyError(f"{name}: {error}") from error
        names = {one.uid: one.name for one in claims}
        for uid, one in answer.claims.items():
            if uid not in names:
                raise ClaimNotReadyError(f"{name} returned result for unknown claim UID {uid}")
            if one.error:
                raise ClaimNotReadyError(f"{name} failed for ResourceClaim {names[uid]}: {one.error}")
        if len(answer.claims) < len(names):
            raise ClaimNotReadyError(f"{name} skipped {len(names) - len(answer.claims)} ResourceClaims")
        return dict(answer.claims)


class Drivers:
    """The drivers of one node."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        wipe: Callable[[str], None],
        changed: Callable[[set[DeviceKey]], None],
    ) -> None:
        """`wipe` deletes the slices of a driver; `changed` hears which devices are no longer as they were."""
        self._folder = folder
        self._clock = clock
        self._wipe = wipe
        self._changed = changed
        #: By socket: what tells it from another at its place, and the driver behind it once it has registered.
        self._sockets: dict[Path, tuple[int, int]] = {}
        self._drivers: dict[Path, RegisteredDriver] = {}
        self._wipes: dict[str, datetime] = {}
        self._health: dict[DeviceKey, KnownHealth] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, name: str) -> RegisteredDriver:
        """The driver of a name: of several the newest that can be reached. ClaimNotReadyError if there is none."""
        found = [driver for driver in self._drivers.values() if driver.name == name]
        if not found:
            raise ClaimNotReadyError(f"DRA driver {name} is not registered")
        return next((driver for driver in reversed(found) if driver.connected), found[-1])

    def health(self, key: DeviceKey) -> tuple[str, str]:
        """How a device is, and what its driver says to it."""
        found = self._health.get(key)
        if found is None or found.until < self._clock.now():
            return UNKNOWN, ""
        return found.health, found.message

    def look(self) -> None:
        """Take note of sockets that came or went, and delete the slices of drivers that have been away for long."""
        present = self._present()
        for path in [path for path, mark in self._sockets.items() if present.get(path) != mark]:
            del self._sockets[path]
            self._forget(path)
        for path, mark in present.items():
            if path not in self._sockets:
                self._sockets[path] = mark
                self._start(self._register(path))
        now = self._clock.now()
        for name in [name for name, due in self._wipes.items() if due <= now]:
            del self._wipes[name]
            log.info("driver %s is gone: its slices are deleted", name)
            self._wipe(name)

    def _present(self) -> dict[Path, tuple[int, int]]:
        found = {}
        try:
            for path in self._folder.iterdir():
                if path.is_socket():
                    stat = path.stat()
                    found[path] = (stat.st_ino, stat.st_ctime_ns)
        except FileNotFoundError:  # no folder, or a socket went just now
            pass
        return found

    async def close(self) -> None:
        """Hang up on all drivers."""
        drivers = list(self._drivers.values())
        self._drivers.clear()
        tasks = [*self._tasks, *(task for driver in drivers for task in driver.tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for driver in drivers:
            await driver.channel.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="driver registration")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _register(self, path: Path) -> None:
        mark = self._sockets[path]
        try:
            async with grpc.aio.insecure_channel(socket_address(path), options=constants.CHANNEL_OPTIONS) as channel:
                stub = registration_rpc.RegistrationStub(channel)
                info = await stub.GetInfo(registration.InfoRequest(), timeout=_REGISTRATION_SECONDS)
                why = self._refusal(info, path)
                if self._sockets.get(path) != mark:
                    return  # it has gone meanwhile
                if not why:
                    self._add(path, info)
                status = registration.RegistrationStatus(plugin_registered=not why, error=why)
                await stub.NotifyRegistrationStatus(status, timeout=_REGISTRATION_SECONDS)
        except (grpc.aio.AioRpcError, NodesError) as error:
            log.warning("the driver on %s could not be registered: %s", path, error)
            # The next look tries again.
            if self._sockets.get(path) == mark:
                del self._sockets[path]
                self._forget(path)

    def _refusal(self, info: registration.PluginInfo, path: Path) -> str:
        """Why a plugin is not taken."""
        prefix = "RegisterPlugin error --"
        if info.type != PLUGIN_TYPE:
            return f"{prefix} no handler registered for plugin type: {info.type} at socket {path}"
        if not any(version in _VERSIONS for version in info.supported_versions):
            why = f"invalid supported gRPC versions of DRA driver plugin {info.name} at endpoint {info.endpoint}"
            return f"{prefix} plugin validation failed with err: {why}"
        return ""

    def _add(self, path: Path, info: registration.PluginInfo) -> None:
        version = next(one for one in info.supported_versions if one in _VERSIONS)
        messages, rpc = _VERSIONS[version]
        endpoint = socket_address(Path(info.endpoint or path))
        channel = grpc.aio.insecure_channel(endpoint, options=constants.CHANNEL_OPTIONS)
        driver = self._drivers[path] = RegisteredDriver(info.name, messages, rpc.DRAPluginStub(channel), channel)
        driver.tasks = [
            asyncio.create_task(self._follow_connection(driver), name=f"connection of {driver.name}"),
            asyncio.create_task(self._follow_health(driver), name=f"health of {driver.name}"),
        ]
        log.info("registered driver %s", driver.name)
        self._weigh(driver.name)

    def _forget(self, path: Path) -> None:
        driver = self._drivers.pop(path, None)
        if driver is None:
            return
        log.info("driver %s went", driver.name)
        for task in driver.tasks:
            task.cancel()
        self._start(driver.channel.close())
        self._weigh(driver.name)

    def _weigh(self, name: str) -> None:
        """A driver that cannot be reached loses its slices some time later."""
        if any(driver.connected for driver in self._drivers.values() if driver.name == name):
            self._wipes.pop(name, None)
        else:
            self._wipes.setdefault(name, self._clock.now() + timedelta(seconds=WIPE_SECONDS))

    async def _follow_connection(self, driver: RegisteredDriver) -> None:
        while True:
            state = driver.channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != driver.connected:
                driver.connected = connected
                self._weigh(driver.name)
            await driver.channel.wait_for_state_change(state)

    async def _follow_health(self, driver: RegisteredDriver) -> None:
        stub = health_rpc.DRAResourceHealthStub(driver.channel)
        while True:
            try:
                async for answer in stub.NodeWatchResources(health_api.NodeWatchResourcesRequest()):
                    self._take_health(driver.name, answer)
            except grpc.aio.AioRpcError as error:
                log.debug("the health of %s's devices is not told: %s", driver.name, go_error(error))
            finally:
                gone = {key for key in self._health if key[0] == driver.name}
                for key in gone:
                    del self._health[key]
                self._changed(gone)
            await self._clock.wait(asyncio.Event(), self._clock.now() + timedelta(seconds=_HEALTH_RETRY_SECONDS))

    def _take_health(self, name: str, answer: health_api.NodeWatchResourcesResponse) -> None:
        changed, now = set(), self._clock.now()
        for one in answer.devices:
            key = (name, one.device.pool_name, one.device.device_name)
            seconds = one.health_check_timeout_seconds if one.health_check_timeout_seconds > 0 else _HEALTH_SECONDS
            fresh = KnownHealth(_HEALTH.get(one.health, UNKNOWN), one.message, now + timedelta(seconds=seconds))
            if self.health(key) != (fresh.health, fresh.message):
                changed.add(key)
            self._health[key] = fresh
        if changed:
            self._changed(changed)
