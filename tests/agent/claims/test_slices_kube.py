"""Slices on a real API server: what it takes, what is restored, and how their generation grows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from shoal.agent.claims.devices import HeldOfCard, PoolSlice, pool_slices
from shoal.agent.claims.slices import SlicePublisher, remove_slices
from shoal.gpu.protocol import Driver
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.objects.claims import ResourceSlice
from shoal.kube.objects.node import Node
from shoal.kube.resources import NODES, RESOURCE_SLICES
from shoal.model.gpu import Gpu, Link, MigInstance
from shoal.model.request import Share
from tests.testbed.apiserver import ApiServer
from tests.testbed.features import Features
from tests.testbed.processes import Run

pytestmark = pytest.mark.min_kube("1.36")
DRIVER = Driver("535.104.05", (12, 2))


def card(index: int, **more: object) -> Gpu:
    return Gpu(f"GPU-{index}", index, 24564, model="NVIDIA A10", numa=0, **more)  # type: ignore[arg-type]


def mig(index: int) -> Gpu:
    parts = tuple(MigInstance(f"MIG-{index}-{number}", "1g.10gb", 9728) for number in range(7))
    return Gpu(f"GPU-{index}", index, 81920, mig=True, mig_instances=parts)


class Pool:
    """The slices of one node, published and read back."""

    def __init__(self, client: Client, node: Node) -> None:
        self.client = client
        self.node = node
        self.publisher = SlicePublisher(client, node.metadata.name, lambda: node)

    async def slices(self) -> list[ResourceSlice]:
        found = await self.client.list(RESOURCE_SLICES, fields=f"spec.nodeName={self.node.metadata.name}")
        return sorted(found.items, key=lambda one: one.metadata.name)

    async def until(self, holds: Callable[[list[ResourceSlice]], bool]) -> list[ResourceSlice]:
        """The slices once they fulfil a condition."""
        async with asyncio.timeout(300):
            while not holds(found := await self.slices()):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)
        return found

    async def published(self, *slices: PoolSlice) -> list[ResourceSlice]:
        """The slices once they hold these devices and counters, all of one generation."""
        self.publisher.publish(slices)

        def same(found: list[ResourceSlice]) -> bool:
            names = [[device.name for device in one.spec.devices] for one in found]
            wanted = [[device.name for device in one.devices] for one in slices]
            return names == wanted and len({one.spec.pool.generation for one in found}) <= 1

        return await self.until(same)


@pytest.fixture
async def pool(apiserver: ApiServer) -> AsyncIterator[Pool]:
    async with contextlib.AsyncExitStack() as stack:
        access = load_access(environ={}, home=Path("/"), kubeconfig=apiserver.kubeconfig())
        client = await stack.enter_async_context(Client(access))
        node = await client.create(NODES, {"metadata": {"name": f"slices-{uuid4().hex[:8]}"}})
        found = Pool(client, node)
        await stack.enter_async_context(found.publisher.reflector)
        task = asyncio.create_task(found.publisher.run())
        yield found
        task.cancel()
        await remove_slices(client, node.metadata.name)
        assert await found.slices() == []
        await client.delete(NODES, node.metadata.name)


async def test_the_server_takes_them(pool: Pool):
    assert await pool.publisher.unavailable() == ""
    gpus = [card(0, links=(Link("GPU-1", 4),)), card(1), card(2, healthy=False, fault="XID 79"), mig(3), mig(4)]
    first, counters = await pool.published(*pool_slices(gpus, (), DRIVER, {}))
    assert len(first.spec.devices) == 17
    assert [one.name for one in counters.spec.shared_counters] == ["gpu-3", "gpu-4"]
    assert {one.spec.pool.resource_slice_count for one in (first, counters)} == {2}
    assert first.metadata.owner_references[0].uid == pool.node.metadata.uid


async def test_nothing_is_written_twice(pool: Pool):
    wanted = pool_slices([card(0), card(1, healthy=False, fault="sick")], (), DRIVER, {})
    (one,) = await pool.published(*wanted)
    assert await pool.publisher.settle() is False, "what is read back is what was written"
    (same,) = await pool.slices()
    assert same.metadata.resource_version == one.metadata.resource_version


async def test_order_and_generation(pool: Pool):
    gpus = [card(0), card(1)]
    (first,) = await pool.published(*pool_slices(gpus, (), DRIVER, {}))
    use = {"GPU-1": HeldOfCard(claims=Share(1024))}
    (second,) = await pool.published(*pool_slices(gpus, (), DRIVER, use))
    assert second.spec.pool.generation == first.spec.pool.generation + 1
    assert second.metadata.uid == first.metadata.uid


async def test_a_taint_keeps_its_time(pool: Pool):
    """The seconds of a toleration count from it."""
    sick = card(1, healthy=False, fault="sick")
    (first,) = await pool.published(*pool_slices([card(0), sick], (), DRIVER, {}))
    await asyncio.sleep(1.1)  # the server counts seconds
    (second,) = await pool.published(*pool_slices([card(0), card(2), sick], (), DRIVER, {}))
    times = [taint.time_added for one in (first, second) for device in one.spec.devices for taint in device.taints]
    assert times[0]
    assert times[0] == times[1]


async def test_more_cards_than_a_slice_holds_and_fewer_again(pool: Pool):
    gpus = [card(index) for index in range(130)]
    found = await pool.published(*pool_slices(gpus, (), DRIVER, {}))
    assert [len(one.spec.devices) for one in found] == [128, 2]
    found = await pool.published(*pool_slices(gpus[:3], (), DRIVER, {}))
    assert [len(one.spec.devices) for one in found] == [3]
    assert found[0].spec.pool.resource_slice_count == 1


async def test_deleted_slices_come_back_under_the_same_generation(pool: Pool):
    gpus = [card(index) for index in range(130)]
    first, second = await pool.published(*pool_slices(gpus, (), DRIVER, {}))
    await pool.client.delete(RESOURCE_SLICES, second.metadata.name)
    found = await pool.until(lambda found: len(found) == 2 and found[1].metadata.uid != second.metadata.uid)
    assert found[1].spec.pool == second.spec.pool
    assert found[0].metadata.resource_version == first.metadata.resource_version
    for one in found:
        await pool.client.delete(RESOURCE_SLICES, one.metadata.name)
    uids = {one.metadata.uid for one in found}
    await pool.until(lambda again: len(again) == 2 and not uids & {one.metadata.uid for one in again})


async def test_somebody_elses_slice_of_the_pool_goes(pool: Pool):
    (own,) = await pool.published(*pool_slices([card(0)], (), DRIVER, {}))
    name = pool.node.metadata.name
    spec = {
        "driver": "gpu.shoal.dev",
        "nodeName": name,
        "pool": {"name": name, "generation": 99, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-9"}],
    }
    await pool.client.create(RESOURCE_SLICES.raw, {"metadata": {"name": f"{name}-stranger"}, "spec": spec})
    (found,) = await pool.until(lambda found: len(found) == 1 and found[0].spec.pool.generation > 99)
    assert found.metadata.uid == own.metadata.uid


async def test_a_cluster_that_cannot_do_it(testbed_run: Run):
    server = ApiServer(testbed_run, f"older-{uuid4().hex[:6]}", Features({"DRAConsumableCapacity": False}))
    try:
        access = load_access(environ={}, home=Path("/"), kubeconfig=server.kubeconfig())
        async with Client(access) as client:
            words = await SlicePublisher(client, "n", lambda: None).unavailable()
            assert "drops allowMultipleAllocations" in words
            assert (await client.list(RESOURCE_SLICES)).items == []
    finally:
        server.stop()
