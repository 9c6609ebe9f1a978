"""The driver where kubelet or the API server does not go along: nothing is offered, and what to switch on is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
import pytest
from aiohttp import web

from shoal.agent.claims.driver import ClaimsDriver
from shoal.agent.claims.preparing import PreparedClaims
from shoal.agent.claims.records import ClaimRecords
from shoal.agent.claims.slices import SlicePublisher, slices_of
from shoal.agent.claims.specs import ClaimSpecs
from shoal.agent.limits import NO_LIMITS
from shoal.agent.node.cards import NodeCards
from shoal.embedded.app import EmbeddedApi
from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.claims_api import ClaimsApi
from shoal.kube.client import Client
from shoal.kube.objects.node import Node
from shoal.kube.resources import NODES, RESOURCE_SLICES
from shoal.kubelet.api import pluginregistration_pb2 as registration
from shoal.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import dra
from tests.agent.scene import UNIT, Scene

CARDS = "4xT4"
#: What kubelet says whose feature gate is off.
NO_HANDLER = "RegisterPlugin error -- no handler registered for plugin type: DRAPlugin at socket /x"


class Driven(Scene):
    """A node whose driver runs."""

    def __init__(self, folder: Path, client: Client) -> None:
        super().__init__(folder, CARDS)
        self.client = client
        self.told: list[str] = []
        paths = HostPaths(plugins_registry=folder / "r", plugins=folder / "p", host_plugins=folder / "p")
        self.sockets = paths.driver(dra.DRIVER)
        cards = NodeCards(lambda: SimulatedNvml(parse_cards(CARDS), clock=lambda: 1.0))
        cards.open()
        specs = ClaimSpecs(self.paths.own_cdi, self.specs, NO_LIMITS, lambda: self.pods.node, unit=UNIT)
        api = ClaimsApi(client)
        claims = PreparedClaims(api, self.pods, ClaimRecords(folder / "claims", "n"), specs)
        self.driver = ClaimsDriver(
            cards,
            self.pods,
            claims,
            api,
            lambda version: SlicePublisher(client, "n", lambda: self.object, version),
            self.sockets,
            complain=self.told.append,
        )

    async def begin(self) -> None:
        self.object = await self.client.create(NODES, {"metadata": {"name": "n"}})

    async def kubelet_says(self, error: str = "") -> None:
        """kubelet takes the driver, or says why not."""
        await until(self.sockets.registration.exists)
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{self.sockets.registration}", options=options) as channel:
            await registration_rpc.RegistrationStub(channel).NotifyRegistrationStatus(status)

    async def devices(self) -> int:
        found = await self.client.list(RESOURCE_SLICES, fields=slices_of("n"))
        return sum(len(one.spec.devices) for one in found.items)

    async def wait_devices(self, count: int) -> None:
        async with asyncio.timeout(60):
            while await self.devices() != count:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(driven: Driven) -> AsyncIterator[None]:
    task = asyncio.create_task(driven.driver.run(publishing=True, rebooted=False))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
async def driven(tmp_path: Path) -> AsyncIterator[Driven]:
    async with EmbeddedApi(tmp_path / "api") as api:
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        async with Client(access) as client:
            made = Driven(tmp_path, client)
            await made.begin()
            async with running(made):
                yield made


async def test_nothing_is_offered_before_kubelet_knows_the_driver(driven: Driven):
    await driven.kubelet_says(NO_HANDLER)
    await until(lambda: driven.told)
    (words,) = driven.told
    assert "feature gate DynamicResourceAllocation" in words
    assert NO_HANDLER in words
    assert await driven.devices() == 0
    await driven.kubelet_says()
    await driven.wait_devices(4)
    assert len(driven.told) == 1


async def test_a_kubelet_that_refuses_the_driver_later_has_no_devices(driven: Driven):
    await driven.kubelet_says()
    await driven.wait_devices(4)
    assert driven.told == []
    await driven.kubelet_says(NO_HANDLER)
    await driven.wait_devices(0)
    assert len(driven.told) == 1
    await driven.kubelet_says()
    await driven.wait_devices(4)


class Upgraded:
    """An API server with one version of the group at a time, and slices without a history."""

    def __init__(self) -> None:
        self.version = "v1beta1"
        #: Devices by the version in which they were written last.
        self.written: dict[str, list[dict]] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if parts == ["apis", "resource.k8s.io"]:
            return web.json_response({"versions": [{"version": self.version}]})
        if parts[:4] != ["apis", "resource.k8s.io", self.version, "resourceslices"]:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        if request.method == "GET" and "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        if request.method == "GET":
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.sleep(0.2)
            return stream
        body = await request.json()
        body["metadata"]["resourceVersion"] = "2"
        if "dryRun" not in request.query:
            self.written[self.version] = body["spec"]["devices"]
        return web.json_response(body, status=201)


async def test_after_an_upgrade_cards_are_shared(tmp_path: Path):
    """The version that was used is gone: another is looked up."""
    server = Upgraded()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", StoredCredential())
        driven = Driven(tmp_path, await stack.enter_async_context(Client(access)))
        driven.object = Node()
        await stack.enter_async_context(running(driven))
        await driven.kubelet_says()
        await until(lambda: "v1beta1" in server.written)
        assert all(set(one) == {"name", "basic"} for one in server.written["v1beta1"])
        server.version = "v1"
        await until(lambda: "v1" in server.written)
        assert [one["allowMultipleAllocations"] for one in server.written["v1"]] == [True] * 4
        assert driven.told == []


async def test_a_cluster_without_the_api_is_told_what_to_switch_on(tmp_path: Path):
    runner = web.AppRunner(web.Application())  # which answers 404 to everything
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        access = Access(f"http://127.0.0.1:{runner.addresses[0][1]}", StoredCredential())
        driven = Driven(tmp_path, await stack.enter_async_context(Client(access)))
        await stack.enter_async_context(running(driven))
        await until(lambda: driven.told)
        assert driven.told[0].startswith("the API server has no resource.k8s.io: ")
        for words in ("DynamicResourceAllocation", "--runtime-config=resource.k8s.io/v1beta1=true", "1.34"):
            assert words in driven.told[0]
        assert not driven.sockets.registration.exists()
