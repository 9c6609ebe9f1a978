from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.node import node_gpus
from tests.model.strategies import inventories, junk


def node(
    capacity: dict[str, Any] | None = None,
    *,
    labels: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    allocatable: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": capacity or {}, "allocatable": allocatable or {}},
    }


def read(manifest: Any, unit: MemoryUnit = MemoryUnit.GIB) -> NodeGpus:
    return node_gpus(manifest, unit=unit)


def card(index: int, memory_mib: int, *, model: str = "", clients: int = 0) -> Gpu:
    return Gpu(f"shoal-n1-{index}", index, memory_mib, model=model, mps_clients=clients)


@given(inventories())
def test_the_inventory_counts_alone(gpus: tuple[Gpu, ...]) -> None:
    manifest = node(
        {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2", "nvidia.com/gpu": "8"},
        annotations={"shoal.dev/gpus": shoal.encode_gpus(gpus)},
    )
    assert read(manifest).gpus == gpus


def test_gpushare_capacity() -> None:
    capacity = {"aliyun.com/gpu-mem": "31", "aliyun.com/gpu-count": "2", "nvidia.com/gpu": "8"}
    assert read(node(capacity)).gpus == (card(0, 15 * 1024), card(1, 15 * 1024))
    assert read(node({"aliyun.com/gpu-mem": "32k", "aliyun.com/gpu-count": 2}), MemoryUnit.MIB).gpus == (
        card(0, 16000),
        card(1, 16000),
    )


def test_mps_clients_of_a_gpushare_node() -> None:
    capacity = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2", "keti.com/mpsgpu": "21"}
    assert read(node(capacity)).gpus == (card(0, 15360, clients=10), card(1, 15360, clients=10))


@pytest.mark.parametrize(
    "capacity",
    [
        {},
        {"aliyun.com/gpu-mem": "30"},
        {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "0"},
        {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "2"},
        {"keti.com/mpsgpu": "20"},
        {"nvidia.com/gpu": "0"},
        {"nvidia.com/mig-1g.10gb": "7"},
    ],
)
def test_nodes_without_cards(capacity: dict[str, str]) -> None:
    assert read(node(capacity)).gpus == ()


def test_nvidia_capacity() -> None:
    assert read(node({"nvidia.com/gpu": "2"})).gpus == (card(0, 0), card(1, 0))
    labels = {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert read(node({"nvidia.com/gpu": "1"}, labels=labels)).gpus == (card(0, 81920, model="NVIDIA-A100-SXM4-80GB"),)


def test_replicas_count_once() -> None:
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "Tesla-T4-SHARED"}
    assert read(node({"nvidia.com/gpu": "8"}, labels=labels)).gpus == (
        card(0, 0, model="Tesla-T4"),
        card(1, 0, model="Tesla-T4"),
    )
    assert len(read(node({"nvidia.com/gpu": "2"}, labels={"nvidia.com/gpu.replicas": "0"})).gpus) == 2


def test_cpu_and_memory() -> None:
    capacity = {"cpu": "8", "memory": "64Gi"}
    both = read(node(capacity, allocatable={"cpu": "7910m", "memory": "65535Ki"}))
    assert (both.cpu_milli, both.memory_mib) == (7910, 63)
    capacity_only = read(node(capacity))
    assert (capacity_only.cpu_milli, capacity_only.memory_mib) == (8000, 65536)
    assert (read(node()).cpu_milli, read(node()).memory_mib) == (0, 0)


@pytest.mark.parametrize(
    ("labels", "policy"),
    [
        ({}, None),
        ({"ack.node.gpu.placement": "spread"}, "spread"),
        ({"ack.node.gpu.placement": "binpack"}, "binpack"),
        ({"ack.node.gpu.placement": "other"}, None),
        ({"shoal.dev/policy": "frag", "ack.node.gpu.placement": "spread"}, "frag"),
        ({"shoal.dev/policy": "", "ack.node.gpu.placement": "spread"}, "spread"),
    ],
)
def test_policy(labels: dict[str, str], policy: str | None) -> None:
    assert read(node(labels=labels)).policy == policy


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (None, r"metadata\.name"),
        ({}, r"metadata\.name"),
        ([], "the node is a list"),
        ({"metadata": {"name": 3}}, r"metadata\.name is 3"),
        ({"metadata": {"name": "n1", "labels": []}}, r"metadata\.labels"),
        ({"metadata": {"name": "n1"}, "status": {"capacity": "x"}}, r"status\.capacity"),
        (node(annotations={"shoal.dev/gpus": "{}"}), r"shoal\.dev/gpus"),
        (node({"aliyun.com/gpu-mem": "1.5"}), r"aliyun\.com/gpu-mem of the node"),
        (node({"nvidia.com/gpu": "257"}), "257 cards"),
        (node({"nvidia.com/gpu": "1e60"}), "at most 256"),
        (node({"nvidia.com/gpu": "1"}, labels={"nvidia.com/gpu.memory": "80 GB"}), r"gpu\.memory holds '80 GB'"),
        (node({"cpu": "many"}), "cpu of the node"),
        (node(labels={"shoal.dev/policy": "a b"}), r"shoal\.dev/policy holds 'a b'"),
    ],
)
def test_what_cannot_be_read(manifest: Any, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        read(manifest)


RESOURCES = ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "nvidia.com/gpu", "keti.com/mpsgpu", "cpu", "memory"]
LABELS = ["nvidia.com/gpu.memory", "nvidia.com/gpu.product", "nvidia.com/gpu.replicas", "shoal.dev/policy"]


@given(
    junk
    | st.builds(
        node,
        st.dictionaries(st.sampled_from(RESOURCES), junk | st.sampled_from(["0", "1", "2", "1e50", -1, 8])),
        labels=st.dictionaries(st.sampled_from(LABELS), junk | st.sampled_from(["0", "1", "16276"])),
        annotations=st.dictionaries(st.just("shoal.dev/gpus"), junk),
        allocatable=st.dictionaries(st.sampled_from(RESOURCES), junk),
    )
)
def test_raises_nothing_but_codec_error(manifest: Any) -> None:
    try:
        seen = read(manifest)
    except CodecError:
        return
    assert seen.cpu_milli >= 0
    assert seen.memory_mib >= 0
    assert len({gpu.uuid for gpu in seen.gpus}) == len(seen.gpus) <= 256
    assert all(0 <= gpu.memory_mib <= 2**31 and 0 <= gpu.mps_clients <= 48 for gpu in seen.gpus)
