"""Replicas and MIG partitions: what is booked, chosen and listed, without a node."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.config import FAMILIES, AgentConfig
from shoal.agent.device_plugin import devices
from shoal.agent.device_plugin.decisions import choose_cards
from shoal.agent.device_plugin.devices import Count
from shoal.agent.device_plugin.serving import served_resources
from shoal.agent.errors import NoCardError, RefusedError
from shoal.agent.node.holdings import HeldTotals, PodHolding, given_holding, holding_of, used
from shoal.agent.nvidia import partitions
from shoal.agent.nvidia.replicas import Cut, Slicing, read_label, slicing_of
from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.plugin_config import NvidiaConfig, parse
from shoal.model.gpu import Gpu, MigInstance, NodeGpus
from shoal.model.request import NO_SHARE, Share, fits

WHOLE, SHARED, MEMORY = nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED, gpushare.RESOURCE_MEMORY
FOUR = Cut("time-slicing", 4)
NODE = NodeGpus("n", (Gpu("GPU-0", 0, 8192), Gpu("GPU-1", 1, 16384), Gpu("GPU-2", 2, 8192)))


def pod(limits: dict[str, dict[str, int]], allocation: Allocation | None = None) -> Pod:
    """A pod on the node, by container what it asks for."""
    annotations = {} if allocation is None else {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(allocation)}
    containers = [{"name": name, "resources": {"limits": amounts}} for name, amounts in limits.items()]
    return msgspec.convert(
        {"metadata": {"annotations": annotations}, "spec": {"nodeName": "n", "containers": containers}}, Pod
    )


def hold(pod: Pod, slicing: Slicing | None) -> PodHolding:
    return holding_of(pod, node=NODE, unit=MemoryUnit.GIB, slicing=slicing)


def place(count: int, slicing: Slicing, taken: dict[str, Share] | None = None, resource: str = WHOLE) -> Allocation:
    """The agent's choice for a pod of one container."""
    holding = hold(pod({"main": {resource: count}}), slicing)
    return choose_cards(holding.request, node=NODE, taken=taken or {}, slicing=slicing, sliced=holding.sliced)


def cards(allocation: Allocation) -> dict[int, Share]:
    return {card.index: card.share for card in allocation.containers[0].cards}


def test_replica_is_a_part_of_its_card():
    assert FOUR.share(NODE.gpus[1], 3) == Share(3 * 4096)
    assert Cut("mps", 3).share(NODE.gpus[0], 2) == Share(2 * (8192 // 3), 66)
    assert FOUR.count(NODE.gpus[0], Share(4096)) == 2
    for share in (
        NO_SHARE,
        Share(4095),
        Share(4096, 1),
        Share(exclusive=True),
        Share(5 * 2048),
        Share(2048, clients=1),
    ):
        assert FOUR.count(NODE.gpus[0], share) is None
    assert Cut("time-slicing", 1000).share(replace(NODE.gpus[0], memory_mib=999)) == NO_SHARE


def test_label_of_a_cut():
    assert read_label(FOUR.label) == FOUR
    for policy in ("", "binpack", "time-slicing-", "time-slicing-04", "mps-12345", "time-slicing-4 ", "tme-slicing-4"):
        assert read_label(policy) is None


def test_replicas_are_spread_or_packed():
    slicing = Slicing(WHOLE, FOUR)
    assert cards(place(1, slicing)) == {0: Share(2048)}
    assert cards(place(3, slicing)) == {0: Share(2048), 1: Share(4096), 2: Share(2048)}
    assert cards(place(1, slicing, {"GPU-0": Share(1), "GPU-2": Share(1)})) == {1: Share(4096)}
    packed = replace(slicing, packed=True)
    assert cards(place(3, packed, {"GPU-2": Share(4096)})) == {0: Share(2048), 2: Share(4096)}


def test_time_slice_may_use_all_memory_and_a_share_of_mps_its_own():
    assert place(1, Slicing(WHOLE, FOUR)).containers[0].memory_limit_mib == 8192
    assert place(1, Slicing(WHOLE, Cut("mps", 4))).containers[0].memory_limit_mib is None


def test_replicas_that_have_no_room():
    taken = {"GPU-0": Share(exclusive=True), "GPU-1": Share(9000), "GPU-2": Share(8192)}
    assert cards(place(1, Slicing(WHOLE, FOUR), taken)) == {1: Share(4096)}
    with pytest.raises(NoCardError, match=r"asks for 2 of nvidia\.com/gpu, and 1 are free"):
        place(2, Slicing(WHOLE, FOUR), taken)


@given(
    cut=st.builds(Cut, st.sampled_from(("time-slicing", "mps")), st.integers(2, 48)),
    wishes=st.lists(st.integers(1, 5), max_size=20),
    packed=st.booleans(),
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=4),
)
def test_any_pods_get_replicas_that_fit_and_are_counted(cut: Cut, wishes: list[int], packed: bool, sizes: list[int]):
    node = NodeGpus("n", tuple(Gpu(f"GPU-{index}", index, size) for index, size in enumerate(sizes)))
    slicing = Slicing(SHARED, cut, packed)
    holdings: list[PodHolding] = []
    for wish in wishes:
        before = devices.replicas(node.gpus, HeldTotals.of(holdings), SHARED, cut)
        asked = holding_of(pod({"main": {SHARED: wish}}), node=node, unit=MemoryUnit.GIB, slicing=slicing)
        had = sum(wish for wish in (holding.counts["main"] for holding in holdings))
        try:
            chosen = choose_cards(asked.request, node=node, taken=used(holdings), slicing=slicing, sliced=asked.sliced)
        except NoCardError:
            assert before.allowed - had < wish, "a replica that kubelet may give is there"
            continue
        placed = holding_of(pod({"main": {SHARED: wish}}, chosen), node=node, unit=MemoryUnit.GIB, slicing=slicing)
        assert (placed.problem, placed.allocation) == ("", chosen)
        holdings.append(placed)
        after = devices.replicas(node.gpus, HeldTotals.of(holdings), SHARED, cut)
        assert after.total == before.total
        assert after.allowed == before.allowed, "replicas take no room from replicas"
    for gpu in node.gpus:
        assert fits(gpu, used(holdings).get(gpu.uuid, NO_SHARE), NO_SHARE)


def test_pod_keeps_replicas_of_an_earlier_cut_once_they_were_given():
    written = place(2, Slicing(WHOLE, FOUR))
    manifest = pod({"main": {WHOLE: 2}}, written)
    holding = given_holding(manifest, written)
    assert (holding.allocation, holding.problem, holding.cut) == (written, "", FOUR)
    assert holding.sliced == {"main"}
    assert hold(manifest, Slicing(WHOLE, FOUR)).allocation == written
    for now in (Slicing(WHOLE, Cut("mps", 4)), None):
        assert hold(manifest, now).allocation is None, "what was given to nobody is chosen again"


def test_forged_replicas_are_refused():
    slicing = Slicing(WHOLE, FOUR)

    def forged(*shares: Share, limit: int = 0) -> str:
        given = tuple(CardShare(f"GPU-{index}", index, share) for index, share in enumerate(shares))
        entry = ContainerAllocation("main", given, memory_limit_mib=limit or NODE.gpus[len(shares) - 1].memory_mib)
        return hold(pod({"main": {WHOLE: 2}}, Allocation("n", (entry,), FOUR.label)), slicing).problem

    assert forged(Share(2048), Share(4096)) == ""
    assert forged(Share(4096)) == ""
    for shares in ([Share(2048)], [Share(1), Share(4096)], [Share(2048), Share(8192)], [NO_SHARE, Share(8192)]):
        assert "does not give container 'main' the 2 replicas it asks for" in forged(*shares)
    assert "does not give container 'main' the 2 replicas it asks for" in forged(Share(4096), limit=16384)


def test_whole_card_that_a_scheduler_chose_is_none_of_the_replicas():
    entry = ContainerAllocation("main", (CardShare("GPU-1", 1, Share(exclusive=True)),))
    holding = hold(pod({"main": {WHOLE: 1}}, Allocation("n", (entry,))), Slicing(WHOLE, FOUR))
    assert (holding.problem, holding.sliced, holding.cut) == ("", frozenset(), None)
    assert devices.replicas(NODE.gpus, HeldTotals.of([holding]), WHOLE, FOUR) == Count(12, 9)
    assert devices.memory(NODE.gpus, HeldTotals.of([holding]), MemoryUnit.GIB) == Count(32, 16)


def test_one_kind_of_gpu_per_container():
    assert "keep one kind" in hold(pod({"main": {SHARED: 1, MEMORY: 1}}), Slicing(SHARED, FOUR)).problem
    two = hold(pod({"left": {SHARED: 1}, "right": {MEMORY: 1}}), Slicing(SHARED, FOUR))
    assert (two.problem, two.sliced, [one.name for one in two.request.containers]) == (
        "",
        frozenset({"left"}),
        ["left", "right"],
    )


def test_replicas_that_are_no_more_leave_whole_cards_that_are_free():
    pods = [given_holding(pod({"main": {WHOLE: 1}}), place(1, Slicing(WHOLE, FOUR))) for _ in range(3)]
    assert devices.whole(NODE.gpus, HeldTotals.of(pods)) == Count(5, 5), "three replicas on card 0, and two cards"


# What is offered


def offered(text: str, gpus: tuple[Gpu, ...] = NODE.gpus, resources: tuple[str, ...] = FAMILIES) -> dict[str, int]:
    """The resources that NVIDIA's configuration changes or brings, and how many of each are free to be taken."""
    found = served_resources(AgentConfig(node_name="n", resources=resources), parse(text), gpus, HeldTotals())
    counted = {name: count.allowed for name, count in found.counts.items() if name in (WHOLE, SHARED)}
    config = parse(text)
    named = {
        name: len(partitions.listing(name, listed, config, frozenset()).healthy)
        for name, listed in found.partitions.items()
    }
    return {**counted, **named}


def mig(index: int, *profiles: str, healthy: bool = True) -> Gpu:
    parts = tuple(MigInstance(f"MIG-{index}-{place}", profile, 5000) for place, profile in enumerate(profiles))
    return Gpu(f"GPU-{index}", index, 40960, mig=True, mig_instances=parts, mps_clients=0, healthy=healthy)


SLICED = "sharing: {timeSlicing: {%s resources: [{name: %s, replicas: 3}]}}"
TWO_ALIKE = (mig(0, "1g.5gb", "1g.5gb"), mig(1, "1g.5gb"))
MIXED = (mig(0, "1g.5gb", "2g.10gb+me"), Gpu("GPU-1", 1, 8192))


@pytest.mark.parametrize(
    ("text", "gpus", "wanted"),
    [
        ("", NODE.gpus, {WHOLE: 3}),
        (SLICED % ("", "gpu"), NODE.gpus, {WHOLE: 9}),
        (SLICED % ("renameByDefault: true,", "gpu"), NODE.gpus, {WHOLE: 3, SHARED: 9}),
        ("", TWO_ALIKE, {WHOLE: 0}),
        ("flags: {migStrategy: single}", NODE.gpus, {WHOLE: 3}),
        ("flags: {migStrategy: single}", TWO_ALIKE, {WHOLE: 3}),
        ("flags: {migStrategy: single}", MIXED, {WHOLE: 0}),
        ("flags: {migStrategy: single}", (mig(0),), {WHOLE: 0}),
        ("flags: {migStrategy: mixed}", MIXED, {WHOLE: 1, "nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb.me": 1}),
        ("flags: {migStrategy: mixed}", (mig(0, "1g.5gb", healthy=False),), {WHOLE: 0, "nvidia.com/mig-1g.5gb": 0}),
        (
            "flags: {migStrategy: mixed}\n" + SLICED % ("renameByDefault: true,", "mig-1g.5gb"),
            TWO_ALIKE,
            {WHOLE: 0, "nvidia.com/mig-1g.5gb.shared": 9},
        ),
    ],
)
def test_offers(text: str, gpus: tuple[Gpu, ...], wanted: dict[str, int]):
    assert offered(f"version: v1\n{text}", gpus) == wanted


def test_nothing_of_nvidias_is_offered_where_another_plugin_serves_it():
    text = "version: v1\nflags: {migStrategy: mixed}\n" + SLICED % ("renameByDefault: true,", "gpu")
    assert (
        served_resources(AgentConfig(node_name="n", resources=(MEMORY,)), parse(text), MIXED, HeldTotals()).nvidias
        == set()
    )


def test_nothing_of_nvidias_is_offered_while_it_is_not_known_how():
    found = served_resources(AgentConfig(node_name="n"), None, NODE.gpus, HeldTotals())
    assert (found.counts[WHOLE], found.nvidias) == (Count(0, 0), set())
    assert found.counts[MEMORY].allowed == 32
    assert slicing_of(None) is slicing_of(NvidiaConfig()) is None


def test_partition_in_use_is_never_withdrawn():
    part = partitions.listing(
        "r", list(partitions.all_of([mig(0, "1g.5gb", "1g.5gb", healthy=False)])), None, frozenset()
    )
    assert (part.healthy, part.withdrawn) == ((), ("MIG-0-0", "MIG-0-1"))
    held = partitions.listing("r", [], None, frozenset({"MIG-0-1"}))
    assert (held.healthy, held.withdrawn) == (("MIG-0-1",), ())


def test_partition_that_a_claim_has_is_withdrawn():
    both = list(partitions.all_of([mig(0, "1g.5gb", "1g.5gb")]))
    part = partitions.listing("r", both, None, frozenset(), {"MIG-0-0"})
    assert (part.healthy, part.withdrawn) == (("MIG-0-1",), ("MIG-0-0",))


def test_ids_name_partitions():
    node = NodeGpus("n", (mig(0, "1g.5gb", "1g.5gb"), mig(1, "1g.5gb", healthy=False)))
    assert Counter(one.instance.uuid for one in partitions.chosen(["MIG-0-1::2", "MIG-0-1::0"], node)) == {"MIG-0-1": 1}
    with pytest.raises(RefusedError, match="'MIG-7' is not there any more"):
        partitions.chosen(["MIG-7"], node)
    with pytest.raises(RefusedError, match="is not healthy"):
        partitions.chosen(["MIG-1-0"], node)
    assert partitions.named_by(["MIG-0-1::2"])
    assert not partitions.named_by(["g0"])
