from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bound import allocation_of
from shoal.model.contract import gpushare
from shoal.model.contract.gpushare import BindState, MemoryUnit
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import read_pod
from shoal.model.pod import request_of
from shoal.model.request import ContainerKind, Share
from tests.model.strategies import json_values, junk

#: Indices with a gap, and one larger card.
NODE = NodeGpus("n1", tuple(Gpu(f"GPU-{i}", i, 16276 if i < 4 else 24564) for i in (0, 1, 3, 4)))
TIME = 1_700_000_000_123_456_789


def bound_pod(
    limits: dict[str, int],
    annotations: dict[str, Any] | None = None,
    *,
    init: dict[str, int] | None = None,
    cards: int = 1,
    whole: bool = False,
    compute: dict[str, int] | None = None,
) -> dict[str, Any]:
    def container(name: str, units: int) -> dict[str, Any]:
        amounts = {"aliyun.com/gpu-mem": units, "aliyun.com/gpu-core.percentage": (compute or {}).get(name, 0)}
        return {"name": name, "resources": {"limits": amounts}}

    labels = {"aliyun.com/gpu-count": str(cards)} if cards > 1 else {}
    if whole:
        labels["ack.gpushare.placement"] = "require-whole-device"
    return {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {
            "nodeName": "n1",
            "initContainers": [container(*item) for item in (init or {}).items()],
            "containers": [container(*item) for item in limits.items()],
        },
    }


def allocation(**containers: dict[int, Share]) -> Allocation:
    return Allocation(
        "n1",
        tuple(
            ContainerAllocation(name, tuple(CardShare(f"GPU-{i}", i, share) for i, share in cards.items()))
            for name, cards in containers.items()
        ),
    )


def encode(decision: Allocation, names: list[str], unit: MemoryUnit = MemoryUnit.GIB, **more: Any) -> dict[str, str]:
    return gpushare.encode(decision, container_names=names, node=NODE, unit=unit, assume_time_ns=TIME, **more)


def test_binpack_1_on_one_card() -> None:
    assert encode(allocation(main={1: Share(3072)}), ["main"]) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000123456789",
        "scheduler.framework.gpushare.allocation": '{"0":{"1":3}}',
        "scheduler.framework.gpushare.assigned": "false",
        "scheduler.framework.gpushare.assume-time": "1700000000123456789",
    }


def test_3500_mib() -> None:
    annotations = encode(allocation(main={4: Share(3500)}), ["main"], MemoryUnit.MIB, assigned=True)
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "3500"
    assert annotations["ALIYUN_COM_GPU_MEM_DEV"] == "24564"
    assert annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    assert annotations["scheduler.framework.gpushare.assigned"] == "true"
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"4":3500}}'


def test_two_containers_on_one_card_keep_the_index() -> None:
    annotations = encode(allocation(a={1: Share(1024)}, b={1: Share(7168)}), ["a", "log", "b"])
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"1":1},"2":{"1":7}}'
    assert annotations["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "8"


def test_several_cards_hide_the_index() -> None:
    four = allocation(train={i: Share(3072) for i in (0, 1, 3, 4)})
    annotations = encode(four, ["train"])
    assert "ALIYUN_COM_GPU_MEM_IDX" not in annotations
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"0":3,"1":3,"3":3,"4":3}}'
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "12"
    # The largest card: who takes POD/DEV of whichever card it finds never takes too much.
    assert annotations["ALIYUN_COM_GPU_MEM_DEV"] == "23"
    two_containers = encode(allocation(a={0: Share(1024)}, b={1: Share(1024)}), ["a", "b"])
    assert "ALIYUN_COM_GPU_MEM_IDX" not in two_containers


def test_compute_has_acks_annotation() -> None:
    annotations = encode(allocation(a={0: Share(1024, 30)}, b={0: Share(1024)}), ["a", "b"])
    assert annotations["gpushare.alibabacloud.com/core-percentage"] == '{"0":{"0":30}}'


def test_other_families_are_not_written() -> None:
    assert encode(allocation(a={0: Share(exclusive=True)}), ["a"]) == {}
    assert encode(allocation(a={0: Share(2048, clients=1)}), ["a"]) == {}
    mixed = encode(allocation(a={0: Share(2048, clients=1)}, b={1: Share(1024)}), ["a", "b"])
    assert mixed["scheduler.framework.gpushare.allocation"] == '{"1":{"1":1}}'
    assert mixed["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_init_containers_are_not_written() -> None:
    card = (CardShare("GPU-0", 0, Share(4096)),)
    init = ContainerAllocation("fetch", card, ContainerKind.INIT)
    assert encode(Allocation("n1", (init,)), ["main"]) == {}
    both = encode(Allocation("n1", (init, ContainerAllocation("main", card))), ["main"])
    assert both["ALIYUN_COM_GPU_MEM_POD"] == "4"


def test_encode_refuses_what_does_not_belong_together() -> None:
    with pytest.raises(CodecError, match="container 'main' is not in the pod"):
        encode(allocation(main={0: Share(1024)}), ["other"])
    with pytest.raises(CodecError, match="no card 'GPU-9'"):
        encode(allocation(main={9: Share(1024)}), ["main"])


# What other schedulers wrote


def test_decode_the_table_before_the_index() -> None:
    table = {"scheduler.framework.gpushare.allocation": '{"0":{"1":1},"1":{"1":7}}', "ALIYUN_COM_GPU_MEM_IDX": "0"}
    pod = bound_pod({"a": 1, "b": 7}, table)
    assert allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB) == allocation(
        a={1: Share(1024)}, b={1: Share(7168)}
    )


def test_decode_the_index_alone() -> None:
    pod = bound_pod({"a": 1, "b": 2}, {"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "3"})
    assert allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB) == allocation(
        a={3: Share(1024)}, b={3: Share(2048)}
    )
    del pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]
    assert allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.MIB) == allocation(a={3: Share(1)}, b={3: Share(2)})


def test_init_containers_are_taken_to_be_on_the_one_card() -> None:
    pod = bound_pod({"a": 2}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}, init={"fetch": 4})
    decision = allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB)
    assert decision is not None
    assert [c.name for c in decision.containers] == ["fetch", "a"]
    assert decision.held() == {"GPU-1": Share(4096)}
    table = {"scheduler.framework.gpushare.allocation": '{"0":{"0":1},"1":{"1":1}}'}
    spread = allocation_of(
        read_pod(bound_pod({"a": 1, "b": 1}, table, init={"fetch": 4})), node=NODE, unit=MemoryUnit.GIB
    )
    assert spread == allocation(a={0: Share(1024)}, b={1: Share(1024)})


def test_decode_compute() -> None:
    table = {"scheduler.framework.gpushare.allocation": '{"0":{"1":2}}'}
    pod = bound_pod({"a": 2}, table, compute={"a": 40})
    assert allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB) == allocation(a={1: Share(2048, 40)})
    pod["metadata"]["annotations"]["gpushare.alibabacloud.com/core-percentage"] = '{"0":{"1":35}}'
    with pytest.raises(CodecError, match="'a' another amount than it asks for"):
        allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB)
    pod["metadata"]["annotations"]["gpushare.alibabacloud.com/core-percentage"] = '{"0":{"1":101}}'
    with pytest.raises(CodecError, match="101 percent of card 1"):
        allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB)


@pytest.mark.parametrize(
    ("limits", "annotations", "says"),
    [
        ({"a": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "-1"}, "IDX holds '-1'"),
        ({"a": 3}, {"ALIYUN_COM_GPU_MEM_IDX": ""}, "IDX holds ''"),
        ({"a": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "one"}, "IDX holds 'one'"),
        ({"a": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "2"}, r"card 2, node 'n1' has cards \[0, 1, 3, 4\]"),
        ({"a": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}, "POD holds '4', .* ask for 3"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"0":{"1":2}}'}, "'a' 2 GiB, it asks for 3"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"1":{"1":3}}'}, "container 1, the pod has 1"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"0":{"2":3}}'}, "card 2"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": "{}"}, "'a' 0 GiB, it asks for 3"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"0":{"1":-3}}'}, "gpushare.allocation holds"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"0":{"x":3}}'}, "card index .* holds 'x'"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": '{"a":{"1":3}}'}, "container index .* holds 'a'"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": "[]"}, "gpushare.allocation holds"),
        ({"a": 3}, {"scheduler.framework.gpushare.allocation": 3}, "write text"),
        (
            {"a": 3},
            {"scheduler.framework.gpushare.allocation": " " * 70_000},
            "longer than any record",
        ),
        ({"a": -3}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}, "its request is broken: container 'a'"),
    ],
)
def test_broken_annotations(limits: dict[str, int], annotations: dict[str, Any], says: str) -> None:
    with pytest.raises(CodecError, match=says):
        allocation_of(read_pod(bound_pod(limits, annotations)), node=NODE, unit=MemoryUnit.GIB)


def test_one_index_cannot_tell_several_cards() -> None:
    pod = bound_pod({"a": 4}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}, cards=2)
    with pytest.raises(CodecError, match="names one card, container 'a' asks for 2"):
        allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB)


def test_copied_annotations_on_a_pod_that_asks_for_nothing() -> None:
    pod = bound_pod({"a": 0}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "scheduler.framework.gpushare.allocation": "{"})
    assert allocation_of(read_pod(pod), node=NODE, unit=MemoryUnit.GIB) is None


@st.composite
def decisions(draw: st.DrawFn) -> tuple[dict[str, Any], Allocation, MemoryUnit]:
    """A pod and a decision on it that a scheduler could have made."""
    unit = draw(st.sampled_from(MemoryUnit))
    cards = draw(st.integers(1, 4))
    whole = draw(st.booleans())
    each = {name: draw(st.integers(1, 10)) for name in draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))}
    compute = {name: draw(st.integers(0, 100)) for name in each}
    pod = bound_pod(
        {**{name: units * cards for name, units in each.items()}, "nogpu": 0},
        cards=cards,
        whole=whole,
        compute={name: percent * cards for name, percent in compute.items()},
    )
    order = draw(st.permutations(list(pod["spec"]["containers"])))
    pod["spec"]["containers"] = order
    containers = []
    for name in (container["name"] for container in order):
        if name in each:
            chosen = sorted(draw(st.permutations(NODE.gpus))[:cards], key=lambda gpu: gpu.index)
            share = Share(exclusive=True) if whole else Share(unit.to_mib(each[name]), compute[name])
            limit = unit.to_mib(each[name]) if whole else None
            places = tuple(CardShare(gpu.uuid, gpu.index, share) for gpu in chosen)
            containers.append(ContainerAllocation(name, places, memory_limit_mib=limit))
    return pod, Allocation("n1", tuple(containers)), unit


@given(decisions(), st.integers(0, 2**62), st.booleans())
def test_reads_back(decision: tuple[dict[str, Any], Allocation, MemoryUnit], time: int, assigned: bool) -> None:
    pod, made, unit = decision
    names = [container["name"] for container in pod["spec"]["containers"]]
    annotations = gpushare.encode(
        made, container_names=names, node=NODE, unit=unit, assume_time_ns=time, assigned=assigned
    )
    pod["metadata"]["annotations"] = annotations
    assert allocation_of(read_pod(pod), node=NODE, unit=unit) == made
    assert gpushare.decode_state(annotations) == BindState(time, assigned)
    limits = [container["resources"]["limits"]["aliyun.com/gpu-mem"] for container in pod["spec"]["containers"]]
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == str(sum(limits))
    used = {card.index for container in made.containers for card in container.cards}
    if len(used) == 1:
        assert annotations["ALIYUN_COM_GPU_MEM_IDX"] == str(*used)
        del annotations["scheduler.framework.gpushare.allocation"]
        assert allocation_of(read_pod(pod), node=NODE, unit=unit) == made
    else:
        assert "ALIYUN_COM_GPU_MEM_IDX" not in annotations


FAMILY = st.sampled_from(
    [
        *("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"),
        *("ALIYUN_COM_GPU_MEM_ASSIGNED", "scheduler.framework.gpushare.allocation"),
        "gpushare.alibabacloud.com/core-percentage",
    ]
)
TABLES = st.dictionaries(
    st.sampled_from(["0", "1", "2", "x", "00"]), st.dictionaries(st.text("0123", max_size=2), st.integers())
)


@given(st.dictionaries(FAMILY, st.text(max_size=9) | json_values.map(json.dumps) | TABLES.map(json.dumps) | junk))
def test_raises_nothing_but_codec_error(annotations: dict[str, Any]) -> None:
    pod = bound_pod({"a": 1, "b": 2}, compute={"a": 10})
    request = request_of(read_pod(pod), unit=MemoryUnit.GIB)
    with contextlib.suppress(CodecError):
        gpushare.decode_state(annotations)
    try:
        made = gpushare.decode(annotations, request=request, container_names=["a", "b"], node=NODE, unit=MemoryUnit.GIB)
    except CodecError:
        return
    if made is not None:
        assert sum(card.share.memory_mib for c in made.containers for card in c.cards) == 3 * 1024


# Environment, ids, units and the rest


def test_container_env_on_one_card() -> None:
    made = allocation(a={1: Share(1024)}, b={1: Share(2048)})
    assert gpushare.container_env(made.containers[1], allocation=made, node=NODE, unit=MemoryUnit.GIB) == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }


def test_container_env_on_several_cards_keeps_the_fraction() -> None:
    made = allocation(a={0: Share(3072), 1: Share(3072)})
    env = gpushare.container_env(made.containers[0], allocation=made, node=NODE, unit=MemoryUnit.GIB, isolated=False)
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "CGPU_DISABLE": "true",
    }


def test_memory_unit() -> None:
    assert MemoryUnit.parse("GiB") is MemoryUnit.GIB
    assert MemoryUnit.parse("MiB") is MemoryUnit.MIB
    for name in ("", "gib", "GB", "KiB", "GiB "):
        with pytest.raises(CodecError, match="write GiB or MiB"):
            MemoryUnit.parse(name)
    assert (MemoryUnit.GIB.to_mib(3), MemoryUnit.MIB.to_mib(3)) == (3072, 3)
    assert (MemoryUnit.GIB.floor(16276), MemoryUnit.GIB.ceil(16276), MemoryUnit.GIB.ceil(2048)) == (15, 16, 2)
    assert (MemoryUnit.MIB.floor(16276), MemoryUnit.MIB.ceil(16276)) == (16276, 16276)


@pytest.mark.parametrize(("card", "unit"), [(15, "GiB"), (100, "GiB"), (101, "MiB"), (16276, "MiB"), (0, "GiB")])
def test_guessed_unit(card: int, unit: str) -> None:
    assert gpushare.guess_unit(card).value == unit


@pytest.mark.parametrize(
    ("annotations", "state"),
    [
        ({}, None),
        ({"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}, None),
        ({"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5"}, BindState(5, False)),
        ({"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "5", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}, BindState(5, True)),
        (
            {"scheduler.framework.gpushare.assume-time": "6", "scheduler.framework.gpushare.assigned": "true"},
            BindState(6, True),
        ),
    ],
)
def test_bind_state(annotations: dict[str, str], state: BindState | None) -> None:
    assert gpushare.decode_state(annotations) == state


def test_assigning_rewrites_both_spellings() -> None:
    assert gpushare.state_annotations(BindState(7, True)) == {
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
        "scheduler.framework.gpushare.assigned": "true",
        "scheduler.framework.gpushare.assume-time": "7",
    }


@pytest.mark.parametrize(
    ("data", "indices"), [({}, set()), ({"gpus": ""}, set()), ({"gpus": "0, 3"}, {0, 3}), ({"gpus": "12"}, {12})]
)
def test_unhealthy_cards(data: dict[str, str], indices: set[int]) -> None:
    assert gpushare.unhealthy_configmap("n1") == "unhealthy-gpu-n1"
    assert gpushare.decode_unhealthy(data) == indices


@pytest.mark.parametrize("value", ["0,,1", "GPU-a", "-1", "0;1", 3, ["0"], "9" * 30, ",".join("1" * 500)])
def test_bad_unhealthy_cards(value: object) -> None:
    with pytest.raises(CodecError, match="gpus"):
        gpushare.decode_unhealthy({"gpus": value})
