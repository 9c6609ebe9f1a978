"""The devices kubelet counts: tables of cards and pods, and what holds for every list."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.devices import Count, DeviceList
from shoal.agent.node.holdings import HeldTotals, PodHolding
from shoal.kubelet import constants
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import Request, Share

CASES = yaml.safe_load((Path(__file__).parent / "counts.yaml").read_text())
RESOURCES = {"memory": gpushare.RESOURCE_MEMORY, "clients": keti.RESOURCE_MPS, "whole": nvidia.RESOURCE_GPU}


def card(index: int, case: dict) -> Gpu:
    fault = case.get("fault", "")
    return Gpu(
        f"GPU-{index}",
        index,
        case["memory"] * 1024,
        healthy=not fault,
        fault=fault,
        mig=case.get("mig", False),
        mps_clients=case.get("clients", 10),
    )


def holding(case: dict) -> PodHolding:
    resource = case["resource"]
    whole = resource == "whole" or case.get("whole", False)
    share = Share(exclusive=True) if whole else Share(case.get("memory", 0) * 1024, clients=int(resource == "clients"))
    cards = tuple(CardShare(f"GPU-{index}", index, share) for index in case["cards"])
    asked = case["asked"] * 1024 if "asked" in case else None
    entry = ContainerAllocation("main", cards, memory_limit_mib=asked)
    return PodHolding(Request(), Allocation("n", (entry,)), resources={"main": RESOURCES[resource]})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_counts(case: dict):
    gpus = [card(index, one) for index, one in enumerate(case["cards"])]
    held = HeldTotals.of(holding(one) for one in case["pods"])
    counts = {
        "memory": devices.memory(gpus, held, MemoryUnit.GIB),
        "clients": devices.clients(gpus, held),
        "whole": devices.whole(gpus, held),
    }
    assert counts == {name: Count(*case[name]) for name in counts}


@given(
    total=st.integers(0, 60),
    allowed=st.integers(0, 60),
    used=st.sets(st.integers(0, 70), max_size=40),
)
def test_every_list(total: int, allowed: int, used: set[int]):
    in_use = {f"m{number:x}" for number in used}
    listed = devices.listing(gpushare.RESOURCE_MEMORY, Count(total, min(allowed, total)), in_use)
    ids = [*listed.healthy, *listed.withdrawn]
    assert len(ids) == len(set(ids)) == max(total, len(in_use)), "as many as there are units, or in use"
    assert in_use <= set(listed.healthy), "what a container has is never withdrawn"
    assert len(listed.healthy) == max(min(allowed, total), len(in_use))
    assert devices.listing(gpushare.RESOURCE_MEMORY, Count(total, min(allowed, total)), in_use) == listed


@given(total=st.integers(0, 40), used=st.sets(st.integers(0, 39), max_size=20), data=st.data())
def test_taking_a_device_changes_no_list(total: int, used: set[int], data: st.DataObject):
    """kubelet takes a healthy device: the list with it in use has the same devices, or it would be sent for nothing."""
    in_use = {f"m{number:x}" for number in used if number < total}
    before = devices.listing(gpushare.RESOURCE_MEMORY, Count(total, total), in_use)
    free = sorted(set(before.healthy) - in_use)
    if free:
        after = devices.listing(
            gpushare.RESOURCE_MEMORY, Count(total, total), {*in_use, data.draw(st.sampled_from(free))}
        )
        assert after == before


@given(
    total=st.integers(0, 40),
    allowed=st.integers(0, 40),
    before=st.sets(st.integers(0, 45), max_size=20),
    after=st.sets(st.integers(0, 45), max_size=20),
)
def test_list_that_is_not_made_again_is_the_same(total: int, allowed: int, before: set[int], after: set[int]):
    count = Count(total, min(allowed, total))
    had, has = ({f"m{number:x}" for number in numbers} for numbers in (before, after))
    listed = devices.listing(gpushare.RESOURCE_MEMORY, count, had)
    below = devices.settled(gpushare.RESOURCE_MEMORY, listed, count, had)
    if len(has) <= count.allowed and all(devices.is_below(gpushare.RESOURCE_MEMORY, one, below) for one in had ^ has):
        assert devices.listing(gpushare.RESOURCE_MEMORY, count, has) == listed


@pytest.mark.parametrize(
    ("count", "had", "below"),
    [
        (Count(16, 16), {"m3"}, 16),
        (Count(16, 10), {"m3"}, 10),
        (Count(16, 10), {"m3", "mc"}, 9),
        (Count(16, 1), {"m0", "m1"}, 0),
        (Count(4, 4), {"GPU-1"}, 3),
    ],
)
def test_devices_that_come_and_go_without_another_list(count: Count, had: set[str], below: int):
    listed = devices.listing(gpushare.RESOURCE_MEMORY, count, had)
    assert devices.settled(gpushare.RESOURCE_MEMORY, listed, count, had) == below


@pytest.mark.parametrize(("device", "below"), [("m1f", True), ("m20", False), ("m01", False), ("GPU-1", False)])
def test_whose_id_it_is(device: str, below: bool):
    assert devices.is_below(gpushare.RESOURCE_MEMORY, device, 32) is below


def test_the_longest_list_that_is_sent_fits_kubelets_message():
    units = 220_000
    assert devices.fits_a_message(gpushare.RESOURCE_MEMORY, 150_000)
    most = max(n for n in range(1000, units, 1000) if devices.fits_a_message(gpushare.RESOURCE_MEMORY, n))
    listed = DeviceList(withdrawn=tuple(f"m{number:x}" for number in range(most)))
    assert most >= 180_000
    assert listed.message().ByteSize() <= constants.MAX_MESSAGE_BYTES
    assert not devices.fits_a_message(gpushare.RESOURCE_MEMORY, 8 * 80 * 1024)


def test_ids_of_different_resources_differ():
    names = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU, shoal.RESOURCE_SLOT)
    ids = [one for name in names for one in devices.listing(name, Count(20, 20), ()).healthy]
    assert len(ids) == len(set(ids)) == 80
    assert not any(one.isdigit() for one in ids)
