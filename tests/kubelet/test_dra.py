"""A DRA driver's sockets, asked as kubelet asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from shoal.kubelet.api import dra_health_pb2 as health
from shoal.kubelet.api import dra_health_pb2_grpc as health_rpc
from shoal.kubelet.api import dra_v1_pb2 as v1
from shoal.kubelet.api import dra_v1_pb2_grpc as v1_rpc
from shoal.kubelet.api import dra_v1beta1_pb2 as v1beta1
from shoal.kubelet.api import dra_v1beta1_pb2_grpc as v1beta1_rpc
from shoal.kubelet.api import pluginregistration_pb2 as registration
from shoal.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from shoal.kubelet.dra import ClaimRef, DeviceHealth, DraDriver, Prepared, PreparedDevice
from shoal.kubelet.host_paths import HostPaths

DEVICE = PreparedDevice(("gpu",), "node", "gpu-0", ("example.com/claim=u-gpu",), "share")


class Driver:
    """Prepares any claim but those that are named bad."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.healthy = True

    async def prepare(self, claims: Sequence[ClaimRef], seconds: float) -> dict[str, Prepared]:
        self.seconds.append(seconds)
        return {one.uid: Prepared(error="bad") if one.name == "bad" else Prepared((DEVICE,)) for one in claims}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        return {one.uid: "stuck" for one in claims if one.name == "bad"}

    def health(self) -> list[DeviceHealth]:
        return [DeviceHealth("node", "gpu-0", self.healthy, "" if self.healthy else "broken")]


class Served:
    """A driver that serves."""

    def __init__(self, folder: Path) -> None:
        self.does = Driver()
        paths = HostPaths(plugins_registry=folder / "r", plugins=folder / "p", host_plugins=Path("/host"))
        self.sockets = paths.driver("gpu.example.com")
        self.driver = DraDriver(
            "gpu.example.com",
            self.sockets,
            prepare=self.does.prepare,
            unprepare=self.does.unprepare,
            health=self.does.health,
        )

    def channel(self, path: Path) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])

    async def there(self) -> None:
        while not all(path.exists() for path in (self.sockets.registration, self.sockets.calls)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    found = Served(tmp_path)
    task = asyncio.create_task(found.driver.run())
    await found.there()
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert not found.sockets.calls.exists()


async def test_registration(served: Served):
    async with served.channel(served.sockets.registration) as channel:
        stub = registration_rpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration.InfoRequest())
        assert (info.type, info.name) == ("DRAPlugin", "gpu.example.com")
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"], "kubelet takes the first"
        assert info.endpoint == "/host/gpu.example.com/dra.sock"
        await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True))
        assert served.driver.registered.is_set()
        await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=False, error="no"))
        assert not served.driver.registered.is_set()
        assert served.driver.refused == "no"
        await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True))
        assert served.driver.refused == ""


@pytest.mark.parametrize(("api", "rpc"), [(v1, v1_rpc), (v1beta1, v1beta1_rpc)])
async def test_claims(served: Served, api, rpc):
    claims = [api.Claim(namespace="d", name=name, uid=f"uid-{name}") for name in ("good", "bad")]
    async with served.channel(served.sockets.calls) as channel:
        stub = rpc.DRAPluginStub(channel)
        answer = await stub.NodePrepareResources(api.NodePrepareResourcesRequest(claims=claims), timeout=45)
        assert set(answer.claims) == {"uid-good", "uid-bad"}
        assert answer.claims["uid-bad"].error == "bad"
        (device,) = answer.claims["uid-good"].devices
        assert list(device.cdi_device_ids) == ["example.com/claim=u-gpu"]
        assert getattr(device, "share_id", "share") == "share"
        taken = await stub.NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=claims))
        assert {uid: one.error for uid, one in taken.claims.items()} == {"uid-good": "", "uid-bad": "stuck"}


async def test_an_answer_comes_before_kubelet_gives_up(served: Served):
    request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="d", name="c", uid="u")])
    async with served.channel(served.sockets.calls) as channel:
        stub = v1_rpc.DRAPluginStub(channel)
        await stub.NodePrepareResources(request, timeout=45)
        await stub.NodePrepareResources(request, timeout=20)
        await stub.NodePrepareResources(request)
    first, second, third = served.does.seconds
    assert 30 < first <= 40
    assert second < 16
    assert third == 40


async def test_health(served: Served):
    async with served.channel(served.sockets.calls) as channel:
        stream = health_rpc.DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest())
        first = await stream.read()
        served.does.healthy = False
        served.driver.tell_health()
        second = await stream.read()
        assert [one.devices[0].health for one in (first, second)] == [health.HEALTHY, health.UNHEALTHY]
        assert second.devices[0].message == "broken"
        stream.cancel()


async def test_sockets_that_somebody_removes(served: Served):
    served.sockets.registration.unlink()
    await served.there()
    async with served.channel(served.sockets.registration) as channel:
        await registration_rpc.RegistrationStub(channel).GetInfo(registration.InfoRequest())
