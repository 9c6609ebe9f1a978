"""Copies of a home that is silent are removed, in time and no others; on the embedded API server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.lease import boot_clock
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, PODS
from shoal.model.contract import clusters
from shoal.model.contract.clusters import CopyOrigin
from shoal.scheduler.fence import REASON, FenceWatch
from shoal.scheduler.reporter import Reporter

HOME = "11111111-2222-3333-4444-555555555555"
SYSTEM = "kube-system"
FENCE = 240


class Member:
    """A cluster with copies, and a scheduler whose clock the test moves on."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self.client = client
        self._recorder = recorder
        self.passed = 0.0

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """A scheduler that keeps fences while the block runs."""
        reporter = Reporter(
            self.client, self._recorder, now=lambda: datetime.datetime.now(datetime.UTC), may_write=lambda: True
        )
        fences = FenceWatch(
            self.client,
            reporter,
            namespace=SYSTEM,
            may_write=lambda: True,
            clock=lambda: boot_clock() + self.passed,
            seconds=1.0,
        )
        async with Reflector(self.client, PODS, consumers=[fences.on_pod]) as pods:
            await pods.wait_synced()
            task = asyncio.create_task(fences.run())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait({task})

    async def moment(self) -> str:
        """When somebody last looked."""
        return (await self.client.get(CONFIG_MAPS, clusters.NAME_ROOM, namespace=SYSTEM)).data.get(
            clusters.KEY_FENCE, ""
        )

    async def look(self, times: int = 2) -> str:
        """Wait until somebody has looked so often; the last moment."""
        for _ in range(times):
            before = await self.moment()
            async with asyncio.timeout(60):
                while await self.moment() == before:  # noqa: ASYNC110 - it is another program's state
                    await asyncio.sleep(0.05)
        return await self.moment()

    async def renew(self, moment: str) -> None:
        """As home's manager does."""
        spec = {"holderIdentity": HOME, "leaseDurationSeconds": FENCE, "renewTime": moment}
        name = clusters.fence_name(HOME)
        if (await self.client.list(LEASES, namespace="team")).items:
            await self.client.patch(LEASES, name, {"spec": spec}, namespace="team")
        else:
            await self.client.create(LEASES.raw, {"metadata": {"name": name}, "spec": spec}, namespace="team")

    async def copy(self, name: str, *, fence: int = FENCE, gated: bool = False, kept: bool = True) -> None:
        """A copy of a pod of home."""
        origin = clusters.encode(CopyOrigin(HOME, name, 1, fence), what="origin")
        meta: dict[str, Any] = {
            "name": name,
            "labels": {clusters.LABEL_ORIGIN: HOME},
            "annotations": {clusters.ANNOTATION_ORIGIN: origin},
            "finalizers": [clusters.FINALIZER_COPY] if kept else [],
        }
        spec: dict[str, Any] = {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 3600}
        spec |= {"schedulingGates": [{"name": clusters.GATE_COPY}]} if gated else {"nodeName": "somewhere"}
        await self.client.create(PODS.raw, {"metadata": meta, "spec": spec}, namespace="team")

    async def staying(self) -> set[str]:
        """The pods that are there and are not being deleted."""
        pods = (await self.client.list(PODS, namespace="team")).items
        return {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is None}


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    async with (
        EmbeddedApi(tmp_path / "embedded") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
        Recorder(client, "test") as recorder,
    ):
        await client.create(NAMESPACES.raw, {"metadata": {"name": "team"}})
        await client.create(CONFIG_MAPS.raw, {"metadata": {"name": clusters.NAME_ROOM}}, namespace=SYSTEM)
        yield Member(client, recorder)


async def test_what_is_not_renewed_goes_and_nothing_else(member: Member) -> None:
    await member.copy("open")
    await member.copy("gated", gated=True, kept=False)
    await member.copy("left-to-itself", kept=False)
    await member.copy("waited-for", fence=0)
    everything = await member.staying()
    async with member.looking():
        await member.renew(await member.look())
        member.passed += FENCE - 60
        await member.renew(await member.look())
        member.passed += FENCE - 60
        await member.look()
        assert await member.staying() == everything, "it was renewed in time"
        await member.client.delete(LEASES, clusters.fence_name(HOME), namespace="team")
        await member.look()
        assert await member.staying() == everything, "what the Lease said counts"
        member.passed += 61

        async def gone() -> bool:
            return await member.staying() == {"left-to-itself", "waited-for"}

        await until_true(gone)

        async def told() -> bool:
            events = (await member.client.list(EVENTS, namespace="team")).items
            return {one.involved_object.name for one in events if one.reason == REASON} == {"open", "gated"}

        await until_true(told)
    removed = await member.client.get(PODS.raw, "open", namespace="team")
    assert removed["metadata"]["deletionGracePeriodSeconds"] == clusters.fence_grace(FENCE)


async def test_a_scheduler_that_starts_anew_counts_on(member: Member) -> None:
    """It knows neither when the renewal nor when the copy came, but by the server's clock."""
    await member.copy("short", fence=4)
    await member.copy("long")
    await member.renew("2020-01-01T00:00:00.000000Z")
    async with member.looking():
        await member.look(1)
    member.passed += 1e6  # another process' clock
    async with member.looking():

        async def gone() -> bool:
            return "short" not in await member.staying()

        await until_true(gone)
        assert await member.staying() == {"long"}, "it is not so old"


async def until_true(ready: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, with a patience that only a broken run exhausts."""
    async with asyncio.timeout(120):
        while not await ready():  # noqa: ASYNC110 - it is another program's state
            await asyncio.sleep(0.05)
