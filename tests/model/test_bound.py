"""Which record of a decision counts, and when it is refused; each family's own reading is tested with the family."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.bound import allocation_of
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError, RequestError
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.manifest import read_pod
from shoal.model.request import ContainerKind, Share
from tests.model.strategies import junk

NODE = NodeGpus("n1", (Gpu("GPU-a", 0, 16276), Gpu("GPU-b", 1, 16276)))


def decision(node: str = "n1", name: str = "main", kind: ContainerKind = ContainerKind.APP) -> Allocation:
    return Allocation(node, (ContainerAllocation(name, (CardShare("GPU-b", 1, Share(3072)),), kind),), "binpack")


def pod(
    annotations: dict[str, Any],
    *,
    node: object = "n1",
    resource: str = "aliyun.com/gpu-mem",
    amount: int = 1,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": {resource: amount}}}]
    metadata = {"annotations": annotations, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}}


def read(manifest: Any, node: NodeGpus = NODE) -> Allocation | None:
    return allocation_of(read_pod(manifest), node=node, unit=MemoryUnit.GIB)


def test_shoals_own_record_comes_first() -> None:
    annotations = {
        "shoal.dev/allocation": shoal.encode_allocation(decision()),
        "scheduler.framework.gpushare.allocation": '{"0":{"0":1}}',
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "UUID": "GPU-a",
    }
    assert read(pod(annotations, amount=3)) == decision()


def test_a_broken_record_of_our_own_is_not_passed_over() -> None:
    with pytest.raises(CodecError, match=r"shoal\.dev/allocation"):
        read(pod({"shoal.dev/allocation": "{}", "ALIYUN_COM_GPU_MEM_IDX": "0"}))


def test_gpushare_then_keti() -> None:
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": "0", "UUID": "GPU-b"}
    gpushare = read(pod(annotations))
    assert gpushare is not None
    assert list(gpushare.held()) == ["GPU-a"]
    keti = read(pod(annotations, resource="keti.com/mpsgpu"))
    assert keti is not None
    assert keti.held() == {"GPU-b": Share(clients=1)}


def test_pods_without_a_record() -> None:
    assert read(pod({})) is None
    assert read(pod({"note": "x"})) is None
    assert read(pod({"ALIYUN_COM_GPU_MEM_IDX": "0"}, resource="nvidia.com/gpu")) is None


@pytest.mark.parametrize("node", [None, ""])
def test_an_unbound_pod_has_no_decision(node: object) -> None:
    assert read(pod({"shoal.dev/allocation": "broken"}, node=node)) is None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (decision(node="n2"), "for node 'n2', the pod is on 'n1'"),
        (decision(name="other"), "app container 'other'"),
        (decision(kind=ContainerKind.INIT), "init container 'main'"),
    ],
)
def test_a_record_of_another_pod(made: Allocation, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        read(pod({"shoal.dev/allocation": shoal.encode_allocation(made)}, amount=3))


TWO_CARDS = {"aliyun.com/gpu-count": "2"}


def claims(*cards: tuple[int, Share], limit: int | None = None, name: str = "main") -> Allocation:
    """Cards of the node by index, with what is claimed of each."""
    given = tuple(CardShare(NODE.gpus[index].uuid, index, share) for index, share in cards)
    return Allocation("n1", (ContainerAllocation(name, given, memory_limit_mib=limit),))


@pytest.mark.parametrize(
    ("made", "asks", "says"),
    [
        (claims((0, Share(3072)), limit=16276), {"amount": 3}, "'main' another amount"),
        (claims((0, Share(4096))), {"amount": 3}, "'main' another amount"),
        (claims((0, Share(3072, 50))), {"amount": 3}, "'main' another amount"),
        (claims((0, Share(3072, clients=1))), {"amount": 3}, "'main' another amount"),
        (claims((0, Share(exclusive=True))), {"amount": 3}, "'main' another amount"),
        (claims((0, Share(6144)), (1, Share())), {"amount": 6, "labels": TWO_CARDS}, "'main' another amount"),
        (claims((0, Share(3072)), (1, Share(3072))), {"amount": 3}, "asks for 1 cards and is given 2"),
        (claims((0, Share(6144))), {"amount": 6, "labels": TWO_CARDS}, "asks for 2 cards and is given 1"),
        (Allocation("n1", ()), {"amount": 3}, "has no cards for container 'main'"),
        (Allocation("n1", (ContainerAllocation("main", ()),)), {"amount": 3}, "asks for 1 cards and is given 0"),
        (
            Allocation("n1", (ContainerAllocation("main", (CardShare("GPU-x", 0, Share(3072)),)),)),
            {"amount": 3},
            "card 'GPU-x', which node 'n1' does not have",
        ),
    ],
    ids=[
        *("limit", "memory", "compute", "clients", "whole", "shifted", "more cards", "fewer cards"),
        *("no container", "no card", "invented card"),
    ],
)
def test_a_record_claims_what_was_asked_for_and_nothing_else(made: Allocation, asks: dict[str, Any], says: str) -> None:
    with pytest.raises(CodecError, match=says):
        read(pod({"shoal.dev/allocation": shoal.encode_allocation(made)}, **asks))


def test_a_record_of_less_than_a_client_may_use_is_not_believed() -> None:
    """What is booked is the larger of both: with the smaller a tenant could use more than is counted."""
    sizes = {"GPUrequest": "1Gi", "GPUlimits": "2Gi"}
    for memory, believed in ((2048, True), (1024, False)):
        record = shoal.encode_allocation(claims((0, Share(memory, clients=1)), limit=2048))
        manifest = pod({**sizes, "shoal.dev/allocation": record}, resource="keti.com/mpsgpu")
        if believed:
            assert read(manifest) is not None
            continue
        with pytest.raises(CodecError, match="'main' another amount"):
            read(manifest)


def test_who_asks_for_nothing_has_nothing() -> None:
    for written in (shoal.encode_allocation(decision()), "broken", "x" * 200_000):
        assert read(pod({"shoal.dev/allocation": written}, resource="cpu")) is None


def test_a_record_longer_than_its_request_is_not_read() -> None:
    many = tuple(CardShare(f"GPU-{number}", number, Share()) for number in range(100))
    made = shoal.encode_allocation(Allocation("n1", (ContainerAllocation("main", many),)))
    with pytest.raises(CodecError, match="longer than any record of what the pod asks for"):
        read(pod({"shoal.dev/allocation": made}))


COUNTED = NodeGpus("n1", (Gpu("shoal-n1-0", 0, 16276), Gpu("shoal-n1-1", 1, 16276)))


@pytest.mark.parametrize(
    ("made_for", "node", "names"),
    [
        ("shoal-n1-1", NODE, "GPU-b"),
        ("GPU-gone", COUNTED, "shoal-n1-1"),
        ("shoal-n1-1", COUNTED, "shoal-n1-1"),
        ("shoal-n1-1", NodeGpus("n1"), "shoal-n1-1"),
    ],
    ids=["listed since", "counted since", "still counted", "not known"],
)
def test_a_card_without_a_name_is_known_by_its_index(made_for: str, node: NodeGpus, names: str) -> None:
    card = CardShare(made_for, 1, Share(3072))
    made = Allocation("n1", (ContainerAllocation("main", (card,)),), "binpack")
    found = read(pod({"shoal.dev/allocation": shoal.encode_allocation(made)}, amount=3), node)
    assert found == Allocation("n1", (ContainerAllocation("main", (replace(card, uuid=names),)),), "binpack")


def test_another_node() -> None:
    with pytest.raises(CodecError, match="bound to 'n1', not to 'n2'"):
        read(pod({"shoal.dev/allocation": shoal.encode_allocation(decision())}, amount=3), NodeGpus("n2"))


@given(
    junk
    | st.builds(
        pod,
        st.dictionaries(
            st.sampled_from(["shoal.dev/allocation", "ALIYUN_COM_GPU_MEM_IDX", "UUID", "GPUrequest"]),
            junk | st.sampled_from(["0", "GPU-a", shoal.encode_allocation(decision())]),
        ),
        node=st.just("n1") | junk,
        resource=st.sampled_from(["aliyun.com/gpu-mem", "keti.com/mpsgpu", "nvidia.com/gpu", "cpu"]),
    )
)
def test_raises_nothing_but_codec_error(manifest: Any) -> None:
    try:
        parts = read_pod(manifest)
    except RequestError:
        return
    with contextlib.suppress(CodecError):
        allocation_of(parts, node=NODE, unit=MemoryUnit.GIB)
