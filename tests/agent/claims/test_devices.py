"""The node's cards as devices, in their order and in slices."""

from __future__ import annotations

import re

import pytest

from shoal.agent.claims.devices import HeldOfCard, NodeDevices, nvlink_groups, pool_slices, version, whole_slices
from shoal.gpu.protocol import Driver
from shoal.kube.objects.claims import SliceDevice
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, Link, MigInstance
from shoal.model.request import Share

DRIVER = Driver("535.104.05", (12, 2))


def card(index: int, memory_mib: int = 16384, **more: object) -> Gpu:
    return Gpu(f"GPU-{index}", index, memory_mib, **more)  # type: ignore[arg-type]


def devices(*gpus: Gpu, **use: HeldOfCard) -> list[SliceDevice]:
    return [one for part in pool_slices(gpus, (), DRIVER, use) for one in part.devices]


def order(*gpus: Gpu, **held: HeldOfCard) -> list[int]:
    by_uuid = {f"GPU-{name.removeprefix('g')}": use for name, use in held.items()}
    found = [one for part in pool_slices(gpus, (), DRIVER, by_uuid) for one in part.devices]
    return [one.attributes["index"].int_ or 0 for one in found]


def test_a_card():
    (one,) = devices(card(0, 24564, model="NVIDIA A10", numa=1))
    assert one.name == "gpu-0"
    assert one.allow_multiple_allocations
    memory, compute = one.capacity["memory"], one.capacity["compute"]
    assert (memory.value, compute.value) == ("24564Mi", "100")
    assert memory.request_policy is not None
    assert memory.request_policy.default == memory.value
    assert compute.request_policy is not None
    assert compute.request_policy.default == "0"
    for policy in (memory.request_policy, compute.request_policy):
        assert policy.valid_range is not None, "without a range the API server takes negative amounts"
    assert one.attributes["driverVersion"].version == "535.104.5"
    assert one.attributes["cudaDriverVersion"].version == "12.2.0"
    assert one.attributes["numaNode"].int_ == 1
    assert "nvlinkGroup" not in one.attributes


def test_mps_clients_are_listed_where_they_are_claimed():
    gpu = card(0, 24564, mps_clients=10)
    assert "clients" not in devices(gpu)[0].capacity
    ((one,),) = (part.devices for part in pool_slices([gpu], (), DRIVER, {}, clients=True))
    clients = one.capacity["clients"]
    assert clients.value == "10"
    assert clients.request_policy is not None
    assert clients.request_policy.default == "0"
    assert clients.request_policy.valid_range is not None


def test_a_card_without_memory_is_no_device():
    assert devices(card(0, 0)) == []


@pytest.mark.parametrize(("text", "written"), [("535.104.05", "535.104.5"), ("615.7", "615.7.0"), ("", None)])
def test_versions(text, written):
    assert version(text) == written


def test_fault_is_a_taint():
    (one,) = devices(card(0, healthy=False, fault="XID 79: the card has fallen off the bus; " + "x" * 100))
    (taint,) = one.taints
    assert (taint.key, taint.effect) == (dra.TAINT_UNHEALTHY, "NoSchedule")
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", taint.value)


def test_fullest_first_then_those_with_shares_by_number():
    cards = [card(index) for index in range(5)]
    held = {
        "g1": HeldOfCard(claims=Share(4096)),
        "g2": HeldOfCard(numbers=Share(1024)),
        "g3": HeldOfCard(numbers=Share(exclusive=True)),
        "g4": HeldOfCard(claims=Share(exclusive=True)),
    }
    assert order(*cards, **held) == [4, 1, 0, 2, 3]


def test_links_make_groups():
    cards = [
        card(0, links=(Link("GPU-2", 4),)),
        card(1),
        card(2),
        card(3, links=(Link("GPU-2", 2), Link("GPU-gone", 2))),
    ]
    assert nvlink_groups(cards) == {"GPU-0": 0, "GPU-2": 0, "GPU-3": 0}


def mig(index: int, parts: int, **more: object) -> Gpu:
    instances = tuple(MigInstance(f"MIG-{index}-{number}", "1g.10gb", 9728) for number in range(parts))
    return card(index, 81920, mig=True, mig_instances=instances, **more)


def test_partitions_that_containers_have_by_number_are_no_devices():
    first, counters = pool_slices([mig(0, 3)], (), DRIVER, {}, {"MIG-0-1"})
    assert [one.name for one in first.devices] == ["mig-0-0", "mig-0-2"]
    assert len(counters.counters) == 1


def test_partitions_consume_counters_of_their_card():
    first, second = pool_slices([mig(0, 7), card(1)], (), DRIVER, {})
    assert [one.name for one in first.devices] == ["gpu-1", *(f"mig-0-{number}" for number in range(7))]
    assert not first.counters
    assert not second.devices, "counters and devices exclude each other in one slice"
    (counters,) = second.counters
    part = first.devices[1]
    assert not part.allow_multiple_allocations
    assert part.consumes_counters[0].counter_set == counters.name == "gpu-0"
    assert counters.counters["memory"].value == "80Gi"
    assert part.attributes["parentUUID"].string == "GPU-0"
    assert part.attributes["uuid"].string == "MIG-0-0"
    assert part.attributes["profile"].string == "1g.10gb"


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [
        ([card(index) for index in range(130)], [128, 2]),
        ([card(index, healthy=index > 0) for index in range(130)], [64, 64, 2]),
        ([mig(index, 7) for index in range(16)], [64, 48, 0, 0]),
    ],
)
def test_slices_are_not_too_long(gpus, sizes):
    found = pool_slices(gpus, (), DRIVER, {})
    assert [len(one.devices) for one in found] == sizes
    assert all(len(one.counters) <= 8 for one in found)


def test_devices_by_name():
    found = NodeDevices.of([mig(0, 2, healthy=False, fault="lost"), card(1)])
    assert set(found) == {"gpu-1", "mig-0-0", "mig-0-1"}
    assert found.fault("mig-0-1") == "lost"
    assert found.fault("gpu-1") == ""


def whole(*gpus: Gpu, **held: HeldOfCard) -> list[SliceDevice]:
    by_uuid = {f"GPU-{name.removeprefix('g')}": use for name, use in held.items()}
    return [one for part in whole_slices(gpus, (), DRIVER, by_uuid) for one in part.devices]


def test_whole_cards_say_nothing_of_shares():
    (one,) = whole(card(0, 24564, mps_clients=10))
    assert (one.allow_multiple_allocations, one.taints, one.consumes_counters) == (None, (), ())
    assert {name: (had.value, had.request_policy) for name, had in one.capacity.items()} == {
        "memory": ("24564Mi", None),
        "compute": ("100", None),
    }
    assert one.attributes["type"].string == "gpu"


def test_a_whole_card_is_offered_while_it_is_well_and_nothing_is_given_by_number():
    cards = [card(0), card(1, healthy=False, fault="XID 79"), card(2), card(3), card(4, 8192)]
    held = {"g2": HeldOfCard(numbers=Share(1024)), "g3": HeldOfCard(claims=Share(exclusive=True))}
    assert [one.name for one in whole(*cards, **held)] == ["gpu-4", "gpu-0", "gpu-3"], "the smallest first"


def test_partitions_as_whole_devices():
    parts = tuple(MigInstance(f"MIG-{number}", "1g.10gb", 9728) for number in range(3))
    gpu = Gpu("GPU-0", 0, 81920, mig=True, mig_instances=parts)
    (one,) = whole_slices([gpu], (), DRIVER, {"GPU-0": HeldOfCard(numbers=Share(1024))}, ("MIG-1",))
    assert one.counters == ()
    assert [device.name for device in one.devices] == ["mig-0", "mig-2"]
    assert not any(device.consumes_counters for device in one.devices)
