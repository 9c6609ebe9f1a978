from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bound import allocation_of
from shoal.model.contract import keti
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.keti import GpuPreference, KetiPolicy, MemoryPerCard
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import read_pod
from shoal.model.request import ContainerKind, Share
from tests.model.strategies import junk

NODE = NodeGpus("n1", tuple(Gpu(f"GPU-{name}", index, 16276) for index, name in enumerate("abcd")))


def pod(annotations: dict[str, Any], **counts: int) -> dict[str, Any]:
    containers = [{"name": name, "resources": {"limits": {"keti.com/mpsgpu": n}}} for name, n in counts.items()]
    return {"metadata": {"annotations": annotations}, "spec": {"nodeName": "n1", "containers": containers}}


def decode(annotations: dict[str, Any], **counts: int) -> Allocation | None:
    return allocation_of(read_pod(pod(annotations, **counts)), node=NODE, unit=MemoryUnit.GIB)


def container(name: str, cards: str, share: Share, limit: int | None = None) -> ContainerAllocation:
    places = tuple(CardShare(f"GPU-{card}", "abcd".index(card), share) for card in cards)
    return ContainerAllocation(name, places, memory_limit_mib=limit)


def test_decode_one_card() -> None:
    assert decode({"UUID": "GPU-b"}, nbody=1) == Allocation("n1", (container("nbody", "b", Share(clients=1)),))


def test_decode_memory_of_each_card() -> None:
    decision = decode({"UUID": "GPU-c,GPU-a", "GPUrequest": "2Gi", "GPUlimits": "3Gi"}, train=2)
    assert decision == Allocation("n1", (container("train", "ca", Share(3072, clients=1), 3072),))


def test_every_container_has_the_first_cards() -> None:
    decision = decode({"UUID": "GPU-a,GPU-b"}, one=1, two=2)
    assert decision is not None
    share = Share(clients=1)
    assert decision == Allocation("n1", (container("one", "a", share), container("two", "ab", share)))
    assert decision.held() == {"GPU-a": Share(clients=2), "GPU-b": Share(clients=1)}


def test_no_record() -> None:
    assert decode({}, nbody=1) is None
    assert decode({"UUID": "GPU-a"}) is None
    assert decode({"UUID": "junk,,"}, web=0) is None


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"UUID": "GPU-a,,GPU-b"}, "empty entry"),
        ({"UUID": "GPU-a,GPU-a"}, "each card once"),
        ({"UUID": "GPU-a"}, "names 1 cards, container 'train' asks for 2"),
        ({"UUID": ""}, "names 0 cards"),
        ({"UUID": "GPU-a,GPU-z"}, "'GPU-z', node 'n1' has no such card"),
        ({"UUID": ["GPU-a"]}, "UUID holds a list"),
        ({"UUID": "GPU-a,GPU-b", "GPUrequest": "lots"}, "GPUrequest holds 'lots'"),
        ({"UUID": "GPU-a,GPU-b", "GPUrequest": "2Gi", "GPUlimits": "1Gi"}, "GPUlimits .* less than GPUrequest"),
    ],
)
def test_broken_annotations(annotations: dict[str, Any], says: str) -> None:
    with pytest.raises(CodecError, match=says):
        decode(annotations, train=2)


def test_encode_lists_each_card_once() -> None:
    share = Share(clients=1)
    made = Allocation("n1", (container("one", "b", share), container("two", "ab", share)))
    assert keti.encode(made) == {"UUID": "GPU-b,GPU-a"}


def test_encode_leaves_other_families_out() -> None:
    assert (
        keti.encode(Allocation("n1", (container("a", "a", Share(1024)), container("b", "b", Share(exclusive=True)))))
        == {}
    )


@given(st.permutations("abcd"), st.integers(1, 4), st.none() | st.integers(1, 10**6), st.none() | st.integers(0, 10**6))
def test_reads_back(order: list[str], count: int, request: int | None, spare: int | None) -> None:
    annotations: dict[str, Any] = {}
    booked, limit = request or 0, None
    if request is not None:
        annotations["GPUrequest"] = f"{request}Mi"
    if spare is not None and booked + spare:
        booked = limit = booked + spare
        annotations["GPUlimits"] = f"{limit}Mi"
    made = Allocation("n1", (container("main", "".join(order[:count]), Share(booked, clients=1), limit),))
    assert decode({**annotations, **keti.encode(made)}, main=count) == made


@given(
    st.dictionaries(
        st.sampled_from(["UUID", "GPUrequest", "GPUlimits"]), junk | st.sampled_from(["GPU-a", "1Gi", "GPU-a,GPU-b"])
    )
)
def test_raises_nothing_but_codec_error(annotations: dict[str, Any]) -> None:
    try:
        decision = decode(annotations, main=1, other=2)
    except CodecError:
        return
    if decision is not None:
        assert [len(c.cards) for c in decision.containers] == [1, 2]


@pytest.mark.parametrize(
    ("annotations", "memory"),
    [
        ({}, MemoryPerCard(0, None)),
        ({"GPUrequest": "2Gi"}, MemoryPerCard(2048, None)),
        ({"GPUlimits": "2Gi"}, MemoryPerCard(2048, 2048)),
        ({"GPUrequest": "1500000000", "GPUlimits": " 2G "}, MemoryPerCard(1908, 1908)),
        ({"GPUrequest": "", "GPUlimits": "0"}, MemoryPerCard(0, None)),
    ],
)
def test_memory(annotations: dict[str, str], memory: MemoryPerCard) -> None:
    assert keti.decode_memory(annotations) == memory


@pytest.mark.parametrize(
    ("word", "number"),
    [
        *(("L", 10), ("low", 10), ("LOW", 10), ("H", 100), ("High", 100), ("i", 1500), ("I", 1500)),
        *(("M", 50), ("middle", 50), ("", 50), (None, 50), ("immediate", 50), ("100", 50), (" h ", 100)),
    ],
)
def test_priority(word: str | None, number: int) -> None:
    assert keti.priority(word) == number


def test_policy_defaults_are_ketis() -> None:
    assert keti.decode_policy({}) == KetiPolicy(
        node_weight=0.4,
        gpu_weight=0.6,
        nvlink_percent=10,
        prefer=GpuPreference.SPREAD,
        avoid_nvlink_for_one=False,
        least_score_node=False,
        avoid_best_node=False,
        multi_gpu_node=True,
        node_reservation=False,
        reschedule=True,
        multi_node=False,
        non_gpu_node=True,
    )


def test_policy_as_shipped() -> None:
    shipped = {
        "node-gpu-score-weight": "0.5:0.5",
        "nvlink-weight-percentage": "0",
        "gpu-allocate-prefer": "spread",
        "avoid-nvlink-one-gpu": "true",
        "least-score-node-prefer": "false",
        "avoid-high-score-node": "false",
        "multi-gpu-node-prefer": "false",
        "node-reservation-permit": "false",
        "pod-re-schedule-permit": "false",
        "multi-node-allocation-permit": "false",
        "non-gpu-node-prefer": "false",
    }
    assert keti.decode_policy(shipped) == KetiPolicy(
        node_weight=0.5,
        gpu_weight=0.5,
        nvlink_percent=0,
        avoid_nvlink_for_one=True,
        multi_gpu_node=False,
        reschedule=False,
        non_gpu_node=False,
    )
    assert keti.encode_policy(keti.decode_policy(shipped)) == shipped


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("avoid-nvlink-one-gpu", "avoid_nvlink_for_one"),
        ("least-score-node-prefer", "least_score_node"),
        ("avoid-high-score-node", "avoid_best_node"),
        ("multi-gpu-node-prefer", "multi_gpu_node"),
        ("node-reservation-permit", "node_reservation"),
        ("pod-re-schedule-permit", "reschedule"),
        ("multi-node-allocation-permit", "multi_node"),
        ("non-gpu-node-prefer", "non_gpu_node"),
    ],
)
def test_each_flag_of_the_policy(key: str, field: str) -> None:
    opposite = not getattr(KetiPolicy(), field)
    flag: dict[str, Any] = {field: opposite}
    expected = replace(KetiPolicy(), **flag)
    assert keti.decode_policy({key: str(opposite)}) == expected
    assert keti.encode_policy(expected)[key] == str(opposite).lower()


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("0.4:0.6", (0.4, 0.6)),
        ("0.3 0.7", (0.3, 0.7)),
        ("1:0", (1, 0)),
        (" .5 : 2. ", (0.5, 2)),
        ("0.3\t0.7", (0.3, 0.7)),
    ],
)
def test_both_separators_of_weights(text: str, weights: tuple[float, float]) -> None:
    policy = keti.decode_policy({"node-gpu-score-weight": text})
    assert (policy.node_weight, policy.gpu_weight) == weights


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        *(("node-gpu-score-weight", bad, "0.4:0.6") for bad in ("", "0.4", "0.4:0.6:0", "a:b", "0:0", "-1:2", "nan:1")),
        *(("node-gpu-score-weight", bad, "0.4:0.6") for bad in ("1e9:1", "inf:1", "1" * 50 + ":1", "9" * 10_000)),
        *(("nvlink-weight-percentage", bad, "whole number from 0 to 1000") for bad in ("", "-1", "ten", "1.5", "1001")),
        *(("gpu-allocate-prefer", bad, "spread or binpack") for bad in ("", "pack", "spread,binpack")),
        *(("avoid-nvlink-one-gpu", bad, "true or false") for bad in ("", "yes", "1", "truee")),
        ("non-gpu-node-prefer", True, "write text"),
    ],
)
def test_a_malformed_policy_names_key_value_and_fix(key: str, value: object, fix: str) -> None:
    with pytest.raises(CodecError) as error:
        keti.decode_policy({key: value})
    assert key in str(error.value)
    assert fix in str(error.value)
    assert (repr(value) if len(str(value)) < 60 else "…") in str(error.value)


def test_unknown_policy_keys_have_no_effect() -> None:
    assert keti.decode_policy({"gpu-allocate-perfer": "binpack"}) == KetiPolicy()


weights = st.integers(0, 10**6).map(lambda n: n / 1000)


@given(
    st.builds(
        KetiPolicy,
        node_weight=weights,
        gpu_weight=weights.filter(bool),
        nvlink_percent=st.integers(0, 1000),
        prefer=st.sampled_from(GpuPreference),
    )
)
def test_policy_reads_back(policy: KetiPolicy) -> None:
    assert keti.decode_policy(keti.encode_policy(policy)) == policy


@given(st.dictionaries(st.sampled_from(sorted(keti.encode_policy(KetiPolicy()))), junk | st.text(max_size=9)))
def test_policy_raises_nothing_but_codec_error(data: dict[str, Any]) -> None:
    try:
        policy = keti.decode_policy(data)
    except CodecError:
        return
    assert policy.node_weight + policy.gpu_weight > 0


def test_container_env() -> None:
    limited = container("main", "bd", Share(1024, clients=1), 2048)
    assert keti.container_env(limited) == {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-d"}
    assert keti.container_env(container("main", "b", Share(1024, clients=1), 2048)) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
    }
    assert keti.container_env(container("main", "b", Share(clients=1))) == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}


def test_init_containers_have_cards_too() -> None:
    manifest = pod({"UUID": "GPU-a"}, main=1)
    manifest["spec"]["initContainers"] = [{"name": "warm", "resources": {"limits": {"keti.com/mpsgpu": 1}}}]
    decision = allocation_of(read_pod(manifest), node=NODE, unit=MemoryUnit.GIB)
    assert decision is not None
    assert [(c.name, c.kind) for c in decision.containers] == [
        ("warm", ContainerKind.INIT),
        ("main", ContainerKind.APP),
    ]
    assert decision.held() == {"GPU-a": Share(clients=1)}
