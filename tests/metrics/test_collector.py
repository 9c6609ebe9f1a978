"""One interval, against an API server and simulated cards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.gpu.errors import NoDriverError
from shoal.gpu.protocol import MemoryLimit
from shoal.gpu.simulated import NEWEST
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.resources import EVENTS, PODS
from shoal.metrics import app
from shoal.metrics.attribution import UseSource
from shoal.metrics.config import MetricsConfig
from shoal.metrics.processes import ContainerRef
from shoal.metrics.snapshot import CardSnapshot, LatestSnapshot, Snapshot
from tests.gpu.conftest import nvml_library, shim  # noqa: F401 - fixtures
from tests.gpu.machines import ShimMachine
from tests.metrics.machine import Containers, Machine
from tests.metrics.pods import NODE, container_id, manifest
from tests.testbed.nvml.shim import Shim

GIB = 2**30
INTERVAL = 0.05


@asynccontextmanager
async def collecting(access: Access, machine: Machine, **settings: Any) -> AsyncIterator[LatestSnapshot]:
    """A collector that runs."""
    latest = LatestSnapshot()
    config = MetricsConfig(node_name=NODE, interval_seconds=INTERVAL, **settings)
    task = asyncio.create_task(
        app.run(
            config,
            access,
            lambda: machine.nvml,
            owners=machine.containers,
            folders=machine.containers,
            latest=latest,
        )
    )
    try:
        yield latest
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def seen(latest: LatestSnapshot, holds: Any) -> Snapshot:
    """The first snapshot of which something holds. Each adds up."""
    number = 0
    while True:
        snapshot = await latest.after(number)
        number = snapshot.number
        for card in snapshot.cards:
            adds_up(card)
        if holds(snapshot):
            return snapshot


def adds_up(card: CardSnapshot) -> None:
    """The rule of every sample."""
    parts = [one.used_bytes for one in card.containers if one.source is not None]
    if card.used_bytes is not None and card.unattributed_bytes is not None:
        assert None not in parts
        assert card.unattributed_bytes >= 0
        assert sum(one or 0 for one in parts) + card.unattributed_bytes == card.used_bytes


async def make(client: Client, name: str, **parts: Any) -> str:
    """A pod on the node; its UID."""
    made = await client.create(PODS.raw, manifest(name, **parts), namespace="default")
    status = manifest(name, **parts)["status"]
    await client.patch(PODS.raw, name, {"status": status}, namespace="default", subresource="status")
    uid = made["metadata"]["uid"]
    assert isinstance(uid, str)
    return uid


def used(snapshot: Snapshot, card: int = 0) -> dict[tuple[str, str], int | None]:
    """By pod and container."""
    return {(one.name.pod, one.name.container): one.used_bytes for one in snapshot.cards[card].containers}


async def test_each_pod_gets_its_own_use_and_the_rest_is_nobodys(access: Access, client: Client) -> None:
    machine = Machine()
    first, second = machine.uuids
    one = await make(client, "one", shares={"main": [(first, 8)]}, ids={"main": container_id(1)})
    two = await make(client, "two", shares={"main": [(first, 4)]}, ids={"main": container_id(2)})
    await make(client, "idle", wholes={"main": [second]})
    machine.run(11, 6 * GIB, container=ContainerRef(one, container_id(1)), load=30)
    machine.run(12, 1 * GIB, container=ContainerRef(one, container_id(1)), load=5)
    machine.run(13, 3 * GIB, container=ContainerRef(two, container_id(2)), load=10)
    machine.run(14, 2 * GIB)
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
    card = snapshot.cards[0]
    assert (card.used_bytes, card.unattributed_bytes) == (12 * GIB, 2 * GIB)
    shown = [(c.name.pod, c.requested_bytes, c.used_bytes, c.utilisation, c.source) for c in card.containers]
    assert shown == [
        ("one", 8 * GIB, 7 * GIB, 35, UseSource.PROCESS),
        ("two", 4 * GIB, 3 * GIB, 10, UseSource.PROCESS),
    ]
    idle = snapshot.cards[1].containers
    assert [(c.name.pod, c.requested_bytes, c.used_bytes, c.source) for c in idle] == [
        ("idle", snapshot.cards[1].card.memory_bytes, None, None)
    ]
    assert (snapshot.node, snapshot.interval) == (NODE, INTERVAL)


async def test_processes_of_mig_instances_are_their_containers(access: Access, client: Client) -> None:
    machine = Machine([{"model": "A30", "mig": ["1g.6gb", "2g.12gb"]}])
    small, large = (part.uuid for part in machine.nvml.survey().cards[0].mig_instances)
    uid = await make(client, "cut", plain=["main"], ids={"main": container_id(1)})
    machine.containers.of[21] = ContainerRef(uid, container_id(1))
    machine.nvml.add_process(small, 21, 2 * GIB, 40)
    machine.nvml.add_process(large, 22, 3 * GIB, 10)
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
    (card,) = snapshot.cards
    assert (card.used_bytes, card.unattributed_bytes) == (5 * GIB, 3 * GIB)
    (one,) = card.containers
    assert (one.name.pod, one.mig_uuid, one.used_bytes) == ("cut", small, 2 * GIB)
    assert one.utilisation is None, "not known on MIG"
    assert card.sample is not None
    assert {part.uuid: part.memory_used_bytes for part in card.sample.mig} == {small: 2 * GIB, large: 3 * GIB}


async def test_who_uses_a_card_nobody_gave_it_has_nothing_booked(access: Access, client: Client) -> None:
    machine = Machine()
    uid = await make(client, "guest", plain=["main"], ids={"main": container_id(1)})
    machine.run(1, GIB, container=ContainerRef(uid, container_id(1)))
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
    assert [(c.requested_bytes, c.used_bytes) for c in snapshot.cards[0].containers] == [(0, GIB)]
    assert snapshot.cards[0].unattributed_bytes == 0


async def test_a_container_that_is_not_named_yet_and_a_pod_that_is_not_there(access: Access, client: Client) -> None:
    machine = Machine()
    uid = await make(client, "young", shares={"main": [(machine.uuids[0], 4)]})
    machine.run(1, GIB, container=ContainerRef(uid, container_id(1)))
    machine.run(2, 2 * GIB, container=ContainerRef("00000000-0000-4000-8000-00000000dead", container_id(2)))
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
        assert used(snapshot) == {("young", ""): GIB, ("young", "main"): None}
        assert snapshot.cards[0].containers[0].requested_bytes is None
        assert snapshot.cards[0].unattributed_bytes == 2 * GIB
        status = manifest("young", plain=["main"], ids={"main": container_id(1)})["status"]
        await client.patch(PODS.raw, "young", {"status": status}, namespace="default", subresource="status")
        snapshot = await seen(latest, lambda one: ("young", "") not in used(one))
        assert used(snapshot) == {("young", "main"): GIB}
        await client.delete(PODS.raw, "young", namespace="default", grace_seconds=0)
        snapshot = await seen(latest, lambda one: not used(one))
        assert snapshot.cards[0].unattributed_bytes == 3 * GIB


async def test_the_drivers_own_account_counts_more_than_processes(access: Access, client: Client) -> None:
    machine = Machine(driver=NEWEST)
    uuid = machine.uuids[0]
    uid = await make(client, "one", shares={"main": [(uuid, 8)]}, ids={"main": container_id(1)})
    ref = ContainerRef(uid, container_id(1))
    machine.run(1, 3 * GIB, container=ref)
    machine.nvml.set_memory_limit(uuid, machine.containers.folders[ref], MemoryLimit(hard_bytes=8 * GIB))
    del machine.containers.of[1]  # nobody knows the process, but the driver knows the cgroup
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
        (one,) = snapshot.cards[0].containers
        assert (one.used_bytes, one.limit_bytes, one.source) == (3 * GIB, 8 * GIB, UseSource.CGROUP)
        assert snapshot.cards[0].unattributed_bytes == 0
        machine.cgroups_gone.add(machine.containers.folders[ref])
        snapshot = await seen(latest, lambda one: used(one) == {("one", "main"): None})
        assert snapshot.cards[0].unattributed_bytes == 3 * GIB


async def test_under_mps_the_load_of_one_client_is_not_known(access: Access, client: Client) -> None:
    machine = Machine()
    uid = await make(client, "one", shares={"main": [(machine.uuids[0], 8)]}, ids={"main": container_id(1)})
    machine.run(1, GIB, container=ContainerRef(uid, container_id(1)), load=50, mps=True)
    async with collecting(access, machine) as latest:
        snapshot = await seen(latest, lambda one: one.cards and one.cards[0].containers)
    (one,) = snapshot.cards[0].containers
    assert (one.used_bytes, one.utilisation, one.source) == (GIB, None, UseSource.MPS)


async def test_a_lost_card_costs_its_own_numbers(access: Access, client: Client) -> None:
    machine = Machine()
    await make(client, "one", shares={"main": [(machine.uuids[1], 8)]})
    machine.run(1, GIB, card=0)
    async with collecting(access, machine) as latest:
        await seen(latest, lambda one: one.cards and one.cards[0].unattributed_bytes == GIB)
        machine.nvml.lose(machine.uuids[1])
        snapshot = await seen(latest, lambda one: one.cards[1].sample is None)
        assert (snapshot.cards[1].used_bytes, used(snapshot, 1)) == (None, {("one", "main"): None})
        assert snapshot.cards[0].used_bytes == GIB
        machine.nvml.restore(machine.uuids[1])
        await seen(latest, lambda one: one.cards[1].sample is not None)


async def test_without_a_driver_it_waits_and_says_so(access: Access, caplog: pytest.LogCaptureFixture) -> None:
    there = asyncio.Event()
    machine = Machine()

    def opened() -> Any:
        if there.is_set():
            return machine.nvml
        raise NoDriverError("no libnvidia-ml.so.1 here")

    latest = LatestSnapshot()
    config = MetricsConfig(node_name=NODE, interval_seconds=INTERVAL)
    task = asyncio.create_task(app.run(config, access, opened, latest=latest))
    snapshot = await latest.after(2)
    assert (snapshot.cards, snapshot.driver) == ((), None)
    assert sum(snapshot.failures.values()) >= 2
    there.set()
    snapshot = await seen(latest, lambda one: one.cards)
    assert snapshot.driver is not None
    task.cancel()
    await asyncio.wait({task})
    assert caplog.text.count("no libnvidia-ml.so.1 here") == 1


async def test_over_use_is_an_event_on_the_pod(access: Access, client: Client) -> None:
    machine = Machine()
    uid = await make(client, "greedy", shares={"main": [(machine.uuids[0], 4)]}, ids={"main": container_id(1)})
    machine.run(1, 6 * GIB, container=ContainerRef(uid, container_id(1)))
    async with collecting(access, machine, overuse_grace_seconds=0.2) as latest:
        snapshot = await seen(latest, lambda one: _overuse(one) > 1)
    events = [event for event in (await client.list(EVENTS)).items if event.reason == app.REASON_OVERUSE]
    assert [(event.involved_object.name, event.involved_object.uid, event.count) for event in events] == [
        ("greedy", uid, 1)
    ]
    assert "main uses 6144 MiB of GPU0" in events[0].message
    assert "4096 MiB were booked" in events[0].message
    assert _overuse(snapshot) > 1


def _overuse(snapshot: Snapshot) -> float:
    return max((one.overuse_seconds for card in snapshot.cards for one in card.containers), default=0.0)


async def test_the_load_of_the_machine(access: Access) -> None:
    async with collecting(access, Machine("T4")) as latest:
        snapshot = await seen(latest, lambda one: one.load is not None and one.load.cpu_used_milli is not None)
        assert snapshot.load is not None
        assert (snapshot.load.memory_used_bytes or 0) > 0
        assert snapshot.pods == ()
    async with collecting(access, Machine("T4"), host_root=None) as latest:
        assert (await latest.after(2)).load is None


async def test_without_the_list_of_processes_nothing_is_said_to_be_nobodys(
    access: Access,
    shim: Shim,  # noqa: F811
) -> None:
    stage = ShimMachine(shim, "T4")
    stage.change(lambda cards: cards.add_process(cards.uuids()[0], 7, GIB, 0))
    machine: Any = SimpleNamespace(nvml=stage.nvml, containers=Containers())
    async with collecting(access, machine) as latest:
        await seen(latest, lambda one: one.cards and one.cards[0].unattributed_bytes == GIB)
        stage.write(errors=(("nvmlDeviceGetComputeRunningProcesses_v3", 999),))
        snapshot = await seen(latest, lambda one: one.failures)
        snapshot = await latest.after(snapshot.number)
        assert (snapshot.cards[0].used_bytes, snapshot.cards[0].unattributed_bytes) == (GIB, None)
        stage.write()
        await seen(latest, lambda one: one.cards[0].unattributed_bytes == GIB)
    stage.close()
