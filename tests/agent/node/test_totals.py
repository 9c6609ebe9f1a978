"""Sums that follow the pods one by one are those of all pods at once."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.device_plugin import devices
from shoal.agent.node.holdings import HeldTotals, PodHolding, used
from shoal.agent.nvidia.replicas import Cut
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import NO_SHARE, Request, Share

CARDS = [Gpu(f"GPU-{index}", index, 16 * 1024, mps_clients=10) for index in range(3)]
CUT = Cut("time-slicing", 4)
SHARES = {
    gpushare.RESOURCE_MEMORY: [Share(2048), Share(4096, compute=20), Share(exclusive=True)],
    keti.RESOURCE_MPS: [Share(clients=1), Share(1024, clients=1)],
    nvidia.RESOURCE_GPU: [Share(exclusive=True)],
    nvidia.RESOURCE_GPU_SHARED: [CUT.share(CARDS[0]), CUT.share(CARDS[0], 2)],
}


@st.composite
def holdings(draw: st.DrawFn) -> PodHolding:
    """A pod of one or two containers, each with a resource of its own."""
    entries, resources = [], {}
    for name in draw(st.sampled_from([["a"], ["a", "b"]])):
        resource = draw(st.sampled_from(list(SHARES)))
        cards = draw(st.lists(st.sampled_from(CARDS), min_size=1, max_size=2, unique=True))
        share = draw(st.sampled_from(SHARES[resource]))
        limit = 4096 if share.exclusive and resource == gpushare.RESOURCE_MEMORY else None
        shares = tuple(CardShare(gpu.uuid, gpu.index, share) for gpu in cards)
        entries.append(ContainerAllocation(name, shares, memory_limit_mib=limit))
        resources[name] = resource
    cut = CUT if nvidia.RESOURCE_GPU_SHARED in resources.values() else None
    return PodHolding(Request(), Allocation("n", tuple(entries)), resources=resources, cut=cut)


changes = st.lists(st.tuples(st.sampled_from("pqrs"), st.none() | holdings()), max_size=20)


@given(changes)
def test_sums_follow_each_pod(steps: list[tuple[str, PodHolding | None]]):
    totals = HeldTotals()
    pods: dict[str, PodHolding] = {}
    for uid, holding in steps:
        version = totals.version
        changed = pods.get(uid) != holding
        totals.put(uid, holding)
        assert (totals.version != version) is changed
        if holding is None:
            pods.pop(uid, None)
        else:
            pods[uid] = holding
    anew = HeldTotals.of(pods.values())
    for gpu in CARDS:
        for resource in SHARES:
            assert totals.held(resource, gpu.uuid) == used(pods.values(), resource).get(gpu.uuid, NO_SHARE)
            assert totals.units(resource, gpu) == anew.units(resource, gpu)
        assert totals.asked_mib(gpu.uuid) == anew.asked_mib(gpu.uuid)
    assert devices.memory(CARDS, totals, MemoryUnit.GIB) == devices.memory(CARDS, anew, MemoryUnit.GIB)
    assert devices.whole(CARDS, totals) == devices.whole(CARDS, anew)
