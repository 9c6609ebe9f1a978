"""Slices of whole cards on an API server that is older than v1: what it takes, and what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from shoal.agent.claims.devices import HeldOfCard, whole_slices
from shoal.agent.claims.slices import SlicePublisher, remove_slices, slices_of
from shoal.gpu.protocol import Driver
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.claims_api import V1BETA1, ClaimsApi
from shoal.kube.client import Client
from shoal.kube.objects.claims import ResourceSlice
from shoal.kube.resources import NODES
from shoal.model.gpu import Gpu, Link, MigInstance
from shoal.model.request import Share
from tests.testbed import features
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run

pytestmark = pytest.mark.before_kube("1.34")
DRIVER = Driver("535.104.05", (12, 2))


def card(index: int, **more: object) -> Gpu:
    return Gpu(f"GPU-{index}", index, 24564, model="NVIDIA A10", numa=0, **more)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def client_of(run: Run) -> AsyncIterator[Client]:
    server = ApiServer(run, f"old-slices-{uuid4().hex[:6]}", features.claims())
    try:
        async with Client(load_access(environ={}, home=Path("/"), kubeconfig=server.kubeconfig())) as client:
            yield client
    finally:
        server.stop()


async def test_a_pool_of_whole_cards(testbed_run: Run):
    async with client_of(testbed_run) as client:
        version = await ClaimsApi(client).version()
        assert version is V1BETA1
        node = await client.create(NODES, {"metadata": {"name": "n"}})
        publisher = SlicePublisher(client, "n", lambda: node, version)
        assert await publisher.unavailable() == ""

        async def until(holds: Callable[[list[ResourceSlice]], bool]) -> list[ResourceSlice]:
            async with asyncio.timeout(300):
                while True:
                    raw = (await client.list(version.slices, fields=slices_of("n"))).items
                    found = sorted(map(version.slice_of, raw), key=lambda one: one.metadata.name)
                    if holds(found):
                        return found
                    await asyncio.sleep(0.05)

        parts = tuple(MigInstance(f"MIG-3-{number}", "1g.10gb", 9728) for number in range(2))
        cut = Gpu("GPU-3", 3, 81920, mig=True, mig_instances=parts)
        gpus = [card(0, links=(Link("GPU-1", 4),)), card(1), card(2, healthy=False, fault="XID 79"), cut]
        async with publisher.reflector:
            task = asyncio.create_task(publisher.run())
            publisher.publish(whole_slices(gpus, (), DRIVER, {}))
            (first,) = await until(lambda found: len(found) == 1)
            assert [one.name for one in first.spec.devices] == ["gpu-0", "gpu-1", "mig-3-0", "mig-3-1"]
            assert first.metadata.owner_references[0].uid == node.metadata.uid
            assert await publisher.settle() is False, "what is read back is what was written"
            publisher.publish(whole_slices(gpus, (), DRIVER, {"GPU-0": HeldOfCard(numbers=Share(1024))}))
            (second,) = await until(lambda found: found[0].spec.pool.generation > first.spec.pool.generation)
            assert [one.name for one in second.spec.devices] == ["gpu-1", "mig-3-0", "mig-3-1"]
            publisher.publish(whole_slices([card(index) for index in range(130)], (), DRIVER, {}))
            found = await until(lambda found: [len(one.spec.devices) for one in found] == [128, 2])
            await client.delete(version.slices, found[1].metadata.name)
            await until(lambda again: len(again) == 2 and again[1].metadata.uid != found[1].metadata.uid)
            task.cancel()
            await asyncio.wait({task})
        await remove_slices(client, "n")
        await until(lambda found: found == [])
