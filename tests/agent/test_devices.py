"""The devices kubelet counts: tables of cards and pods, and what holds for every list."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent import devices
from shoal.agent.devices import Count, Listing
from shoal.agent.holdings import Holding
from shoal.kubelet import constants
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import Request, Share

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "counts.yaml").read_text())
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


def holding(case: dict) -> Holding:
    resource = case["resource"]
    whole = resource == "whole" or case.get("whole", False)
    share = Share(exclusive=True) if whole else Share(case.get("memory", 0) * 1024, clients=int(resource == "clients"))
    cards = tuple(CardShare(f"GPU-{index}", index, share) for index in case["cards"])
    asked = case["asked"] * 1024 if "asked" in case else None
    entry = ContainerAllocation("main", cards, memory_limit_mib=asked)
    return Holding(Request(), Allocation("n", (entry,)), resources={"main": RESOURCES[resource]})


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_counts(case: dict):
    gpus = [card(index, one) for index, one in enumerate(case["cards"])]
    holdings = [holding(one) for one in case["pods"]]
    counts = {
        "memory": devices.memory(gpus, holdings, MemoryUnit.GIB),
        "clients": devices.clients(gpus, holdings),
        "whole": devices.whole(gpus, holdings),
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


def test_the_longest_list_that_is_sent_fits_kubelets_message():
    units = 220_000
    assert devices.fits_a_message(gpushare.RESOURCE_MEMORY, 150_000)
    most = max(n for n in range(1000, units, 1000) if devices.fits_a_message(gpushare.RESOURCE_MEMORY, n))
    listed = Listing(withdrawn=tuple(f"m{number:x}" for number in range(most)))
    assert most >= 180_000
    assert listed.message().ByteSize() <= constants.MAX_MESSAGE_BYTES
    assert not devices.fits_a_message(gpushare.RESOURCE_MEMORY, 8 * 80 * 1024)


def test_ids_of_different_resources_differ():
    names = (gpushare.RESOURCE_MEMORY, keti.RESOURCE_MPS, nvidia.RESOURCE_GPU, shoal.RESOURCE_SLOT)
    ids = [one for name in names for one in devices.listing(name, Count(20, 20), ()).healthy]
    assert len(ids) == len(set(ids)) == 80
    assert not any(one.isdigit() for one in ids)
