"""Claims that the scheduler makes of resource names, on the embedded API server: what is written, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError
from shoal.kube.events import Recorder
from shoal.kube.objects.claims import ResourceClaim
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from shoal.model.contract import dra, gpushare, keti, mechanisms, nvidia, shoal
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu
from shoal.scheduler.app import Scheduler
from shoal.scheduler.claims.names import claim_name
from shoal.scheduler.config import ElectionConfig, LiveLoadConfig, LoadSource, SchedulerConfig
from tests.kube.waiting import until
from tests.scheduler.claims.world import CLASS, slice_of
from tests.testbed.fake_nodes import node

MEMORY, CLIENTS, WHOLE = mechanisms.NAMES
_PATIENCE = 15
CARDS = [Gpu(f"GPU-a-{index}", index, 16 * 1024, "T", mps_clients=8) for index in range(2)]
Manifest = dict[str, Any]


class Interrupted(Client):
    """Writes as asked up to the write with a number that is about a claim made of names, and then something else."""

    def __init__(self, access: Any, *, at: int, then: Callable[[Any, asyncio.Event], Any]) -> None:
        super().__init__(access)
        self.wrote = 0
        self._at, self._then = at, then
        self.reached = asyncio.Event()

    async def _count(self, write: Any) -> Any:
        self.wrote += 1
        if self.wrote == self._at:
            return await self._then(write, self.reached)
        return await write

    async def create(self, resource: Resource[Any], obj: Any, *, namespace: str = "") -> Any:
        write = super().create(resource, obj, namespace=namespace)
        return await self._count(write) if resource == RESOURCE_CLAIMS else await write

    async def patch(self, resource: Resource[Any], name: str, patch: Any, **more: Any) -> Any:
        write = super().patch(resource, name, patch, **more)
        told = resource == PODS and "extendedResourceClaimStatus" in patch.get("status", ())
        return await self._count(write) if told or resource == RESOURCE_CLAIMS else await write

    async def bind(self, pod: Pod, node: str, **more: Any) -> None:
        await self._count(super().bind(pod, node, **more))


async def then_killed(write: Any, reached: asyncio.Event) -> None:
    """The write is made, and nobody hears of it any more."""
    await write
    reached.set()
    await asyncio.Event().wait()


async def then_refused(write: Any, reached: asyncio.Event) -> None:
    """The write is refused."""
    write.close()
    reached.set()
    await asyncio.sleep(0.5)  # time for others
    raise ForbiddenError(asked="a write", status=403, reason="Forbidden", message="not today")


class World:
    """One node with two cards, which serves names by claims, and schedulers."""

    def __init__(self, client: Client, access: Any) -> None:
        self.client = client
        self._access = access

    @asynccontextmanager
    async def scheduler(self, *, client: Client | None = None, claims: bool = True) -> AsyncIterator[Scheduler]:
        config = SchedulerConfig(
            claims=claims,
            port=0,
            health_host="127.0.0.1",
            health_port=0,
            election=ElectionConfig(enabled=False),
            live_load=LiveLoadConfig(source=LoadSource.OFF),
        )
        client = client or self.client
        async with Recorder(client, "test") as recorder:
            scheduler = Scheduler(client, recorder, config, identity="test")
            running = asyncio.create_task(scheduler.run())
            await until(lambda: scheduler.not_ready() == "", "ready")
            try:
                yield scheduler
            finally:
                running.cancel()
                await asyncio.wait({running})

    @asynccontextmanager
    async def interrupted(self, at: int, then: Any) -> AsyncIterator[Interrupted]:
        client = Interrupted(self._access, at=at, then=then)
        async with client:
            yield client

    async def serve(self, served: Mapping[str, Mechanism]) -> None:
        """Say by which mechanism the node serves names."""
        patch = {"metadata": {"annotations": {mechanisms.ANNOTATION_MECHANISMS: mechanisms.encode(served)}}}
        await self.client.patch(NODES, "a", patch)

    async def create(self, name: str, *limits: Mapping[str, int], **metadata: Any) -> None:
        containers = [
            {"name": f"c{number}", "image": "none", "resources": {"limits": {key: str(one[key]) for key in one}}}
            for number, one in enumerate(limits)
        ]
        spec = {"schedulerName": "gpu-scheduler", "containers": containers}
        pod = {"metadata": {"name": name, **metadata}, "spec": spec}
        await self.client.create(PODS.raw, pod, namespace="default")

    async def pod(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace="default")

    async def bound(self, name: str) -> Pod:
        return await self._until(name, lambda pod: bool(pod.spec.node_name))

    async def told(self, name: str, words: str) -> Pod:
        return await self._until(name, lambda pod: any(words in (c.message or "") for c in pod.status.conditions))

    async def _until(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        pod = Pod()
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    pod = await self.pod(name)
                    if holds(pod):
                        return pod
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name}: {pod.status.conditions}") from None

    async def claims(self) -> Sequence[ResourceClaim]:
        return (await self.client.list(RESOURCE_CLAIMS)).items


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with EmbeddedApi(tmp_path) as api:
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        async with Client(access) as client:
            made = node("a", CARDS)
            for part in ("capacity", "allocatable"):
                made["status"][part] = {**made["status"][part], MEMORY: "0", CLIENTS: "0", WHOLE: "0"}
            await client.create(NODES, made)
            await client.patch(NODES, "a", {"spec": {"taints": None}})  # as when the node is ready
            slices = slice_of("a", CARDS)
            for device in slices["spec"]["devices"]:
                policy = {"default": "0", "validRange": {"min": "0", "step": "1"}}
                device["capacity"][dra.CAPACITY_CLIENTS] = {"value": "8", "requestPolicy": policy}
            await client.create(RESOURCE_SLICES.raw, slices)
            await client.create(DEVICE_CLASSES.raw, CLASS)
            found = World(client, access)
            await found.serve(dict.fromkeys(mechanisms.NAMES, Mechanism.CLAIMS))
            yield found


def held(scheduler: Scheduler) -> dict[str, int]:
    """The MiB that are booked of each card; -1 for a whole one."""
    books = scheduler.state.engine.ledger.node("a")
    assert books is not None
    return {uuid: -1 if card.exclusive else card.memory_mib for uuid, card in books.cards.items() if not card.untouched}


def check_claim(claim: ResourceClaim, pod: Pod) -> None:
    """The claim is allocated on the pod's node, reserved for it and its own; kubelet is told of it."""
    assert claim.metadata.name == claim_name(pod)
    assert claim.metadata.annotations == {dra.ANNOTATION_EXTENDED_RESOURCE: "true"}
    assert dra.FINALIZER in claim.metadata.finalizers
    assert [owner.uid for owner in claim.metadata.owner_references] == [pod.metadata.uid]
    assert claim.status.allocation is not None
    assert [one.uid for one in claim.status.reserved_for] == [pod.metadata.uid]
    made = pod.status.extended_resource_claim_status
    assert made is not None
    assert made.resource_claim_name == claim.metadata.name


async def test_one_request_for_each_container(world: World) -> None:
    async with world.scheduler() as scheduler:
        await world.create("two", {MEMORY: 3}, {"cpu": 1}, {MEMORY: 5, gpushare.RESOURCE_COMPUTE: 20, "cpu": 1})
        pod = await world.bound("two")
        (claim,) = await world.claims()
        check_claim(claim, pod)
        mappings = pod.status.extended_resource_claim_status
        assert mappings is not None
        assert [(one.container_name, one.resource_name, one.request_name) for one in mappings.request_mappings] == [
            ("c0", MEMORY, "container-0-request-0"),
            ("c2", MEMORY, "container-2-request-1"),
        ]
        assert claim.status.allocation is not None
        taken = {one.request: one.consumed_capacity for one in claim.status.allocation.devices.results}
        assert taken == {
            "container-0-request-0": {"memory": "3Gi", "compute": "0", "clients": "0"},
            "container-2-request-1": {"memory": "5Gi", "compute": "20", "clients": "0"},
        }
        assert shoal.ANNOTATION_ALLOCATION not in pod.metadata.annotations
        assert sum(held(scheduler).values()) == 8 * 1024
        await world.client.delete(PODS, "two", namespace="default")
        patch = {"status": {"allocation": None, "reservedFor": None}}
        name = claim.metadata.name
        await world.client.patch(RESOURCE_CLAIMS, name, patch, namespace="default", subresource="status")
        await until(lambda: not held(scheduler), "free")


@pytest.mark.parametrize(
    ("limits", "metadata", "taken"),
    [
        ({WHOLE: 2}, {}, [-1, -1]),
        ({MEMORY: 16}, {}, [-1]),
        ({MEMORY: 6}, {"labels": {gpushare.LABEL_POD_COUNT: "2"}}, [3 * 1024, 3 * 1024]),
        ({CLIENTS: 1}, {"annotations": {keti.ANNOTATION_MEMORY_REQUEST: "2Gi"}}, [2048]),
        ({CLIENTS: 2}, {}, [0, 0]),
    ],
)
async def test_all_names(world: World, limits: Mapping[str, int], metadata: Any, taken: list[int]) -> None:
    async with world.scheduler() as scheduler:
        await world.create("one", limits, **metadata)
        pod = await world.bound("one")
        (claim,) = await world.claims()
        check_claim(claim, pod)
        assert sorted(held(scheduler).values()) == taken


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_killed_after_any_write(world: World, at: int) -> None:
    """The next scheduler finds what was written, and the pod has its cards once: it needs all that there are."""
    await world.create("one", {WHOLE: 2})
    async with world.interrupted(at, then_killed) as client, world.scheduler(client=client):
        await client.reached.wait()
    async with world.scheduler() as scheduler:
        pod = await world.bound("one")
        (claim,) = await world.claims()
        check_claim(claim, pod)
        await until(lambda: list(held(scheduler).values()) == [-1, -1], "booked once")


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_what_is_refused_leaves_nothing(world: World, at: int) -> None:
    """And the pod can go to a node that counts devices: kubelet is not told of a claim that is gone."""
    async with world.interrupted(at, then_refused) as client, world.scheduler(client=client) as scheduler:
        await world.create("one", {MEMORY: 3})
        await world.told("one", "not today")
        pod = await world.bound("one")
        (claim,) = await world.claims()
        check_claim(claim, pod)
        assert sum(held(scheduler).values()) == 3 * 1024


async def test_a_claim_that_is_gone_is_not_told_of(world: World) -> None:
    async with world.interrupted(4, then_refused) as client, world.scheduler(client=client):
        patch = {"status": {part: {MEMORY: "32"} for part in ("capacity", "allocatable")}}
        await world.client.patch(NODES, "a", patch, subresource="status")
        await world.create("one", {MEMORY: 3})
        await client.reached.wait()
        await world.serve({})
        pod = await world.bound("one")
        assert shoal.ANNOTATION_ALLOCATION in pod.metadata.annotations
        assert pod.status.extended_resource_claim_status is None
        assert await world.claims() == []


async def test_a_claim_of_that_name_that_is_somebody_elses(world: World) -> None:
    await world.create("one", {MEMORY: 3})
    name = claim_name(await world.pod("one"))
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": []}}}
    await world.client.create(RESOURCE_CLAIMS.raw, body, namespace="default")
    async with world.scheduler():
        await world.told("one", f"claim {name} is there and was not made for this pod: delete the claim")
        assert [one.metadata.name for one in await world.claims()] == [name]


@pytest.mark.parametrize(
    ("served", "claims", "limits", "words"),
    [
        ({MEMORY: Mechanism.TO_CLAIMS}, True, {MEMORY: 1}, "wait for the last pods with devices of it to end"),
        ({MEMORY: Mechanism.TO_DEVICES}, True, {MEMORY: 1}, "wait for the last pods with claims of it to end"),
        ({MEMORY: Mechanism.CLAIMS}, False, {MEMORY: 1}, "by claims, which this scheduler does not make"),
    ],
)
async def test_what_waits_is_told_why(
    world: World, served: dict[str, Mechanism], claims: bool, limits: dict[str, int], words: str
) -> None:
    await world.serve(served)
    async with world.scheduler(claims=claims):
        await world.create("one", limits)
        pod = await world.told("one", words)
        assert not pod.spec.node_name
        assert await world.claims() == []


async def test_a_pod_with_two_mechanisms_is_told_so(world: World) -> None:
    await world.serve({MEMORY: Mechanism.CLAIMS})
    async with world.scheduler():
        await world.create("mixed", {MEMORY: 1}, {WHOLE: 1})
        await world.told("mixed", f"serve some of {MEMORY}, {nvidia.RESOURCE_GPU} by claims and some by devices")


@pytest.mark.parametrize("text", ["x", "[]", '{"a": "b"}', '{"aliyun.com/gpu-mem": 1}', "9" * 5000])
def test_annotations_that_cannot_be_read(text: str) -> None:
    with pytest.raises(CodecError):
        mechanisms.decode({mechanisms.ANNOTATION_MECHANISMS: text})


def test_labels_and_annotation() -> None:
    assert mechanisms.label_of(MEMORY) == "claims.shoal.dev/aliyun.com_gpu-mem"
    labels = {mechanisms.label_of(MEMORY): "true", mechanisms.label_of(WHOLE): "false", "claims.shoal.dev/x": "true"}
    assert mechanisms.asked_for(labels) == {MEMORY}
    served = {MEMORY: Mechanism.CLAIMS, WHOLE: Mechanism.DEVICES, CLIENTS: Mechanism.TO_CLAIMS}
    text = mechanisms.encode(served)
    assert text is not None
    assert mechanisms.decode({mechanisms.ANNOTATION_MECHANISMS: text}) == {
        MEMORY: Mechanism.CLAIMS,
        CLIENTS: Mechanism.TO_CLAIMS,
    }
    assert mechanisms.encode({MEMORY: Mechanism.DEVICES}) is None
    assert msgspec.json.decode(text) == {MEMORY: "claims", CLIENTS: "to-claims"}
