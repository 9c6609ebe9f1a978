from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation, Held
from shoal.model.contract import shoal
from shoal.model.errors import CodecError
from shoal.model.gpu import Gpu, Isolation, LimitedBy, Link, MigInstance
from shoal.model.request import CardSelector, ContainerKind, Share
from tests.model.strategies import allocations, inventories, json_values, junk

ALLOCATION = Allocation(
    node="n1",
    policy="binpack",
    containers=(
        ContainerAllocation("fetch", (CardShare("GPU-a", 0, Share(exclusive=True)),), ContainerKind.INIT),
        ContainerAllocation(
            "main",
            (CardShare("GPU-a", 0, Share(3072, 30)), CardShare("GPU-b", 3, Share(512, 0, 1))),
            memory_limit_mib=4096,
        ),
    ),
)
GPUS = (
    Gpu("GPU-a", 0, 81920, model="NVIDIA A100-SXM4-80GB", minor=0, numa=0, links=(Link("GPU-b", 12),), mps_clients=16),
    Gpu(
        "GPU-b",
        3,
        40960,
        healthy=False,
        fault="Xid 79",
        mig=True,
        mig_instances=(MigInstance("MIG-1", "1g.5gb", 4864),),
    ),
)


@given(st.sampled_from(Isolation), st.sampled_from(Isolation))
def test_what_limits_a_share_is_read_as_it_was_written(memory: Isolation, compute: Isolation) -> None:
    written = str(LimitedBy(memory, compute))
    found = LimitedBy.read(written)
    assert found is not None
    assert (found.memory, str(found)) == (memory, written)


@pytest.mark.parametrize("written", ["", "+", "cgroup+", "+mps", "cgroup+none", "mps+mps", "cgroup+mps+mps", "CGROUP"])
def test_other_words_limit_nothing(written: str) -> None:
    assert LimitedBy.read(written) is None


def test_allocation_as_it_is_written() -> None:
    assert json.loads(shoal.encode_allocation(ALLOCATION)) == {
        "version": 1,
        "node": "n1",
        "policy": "binpack",
        "containers": [
            {"name": "fetch", "kind": "init", "cards": [{"uuid": "GPU-a", "index": 0, "exclusive": True}]},
            {
                "name": "main",
                "cards": [
                    {"uuid": "GPU-a", "index": 0, "memory": 3072, "compute": 30},
                    {"uuid": "GPU-b", "index": 3, "memory": 512, "clients": 1},
                ],
                "limit": 4096,
            },
        ],
    }


def test_inventory_as_it_is_written() -> None:
    assert json.loads(shoal.encode_gpus(GPUS)) == {
        "version": 1,
        "gpus": [
            {
                "uuid": "GPU-a",
                "index": 0,
                "memory": 81920,
                "model": "NVIDIA A100-SXM4-80GB",
                "minor": 0,
                "numa": 0,
                "links": [{"peer": "GPU-b", "lanes": 12}],
                "clients": 16,
            },
            {
                "uuid": "GPU-b",
                "index": 3,
                "memory": 40960,
                "healthy": False,
                "fault": "Xid 79",
                "mig": True,
                "instances": [{"uuid": "MIG-1", "profile": "1g.5gb", "memory": 4864}],
            },
        ],
    }


@given(allocations())
def test_allocation_reads_back(allocation: Allocation) -> None:
    assert shoal.decode_allocation(shoal.encode_allocation(allocation)) == allocation


@given(inventories())
def test_inventory_reads_back(gpus: tuple[Gpu, ...]) -> None:
    assert shoal.decode_gpus(shoal.encode_gpus(gpus)) == gpus


def changed(document: dict[str, Any], path: list[Any], value: object) -> str:
    copy: Any = json.loads(json.dumps(document))
    target = copy
    for step in path[:-1]:
        target = target[step]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return json.dumps(copy)


DOCUMENT = json.loads(shoal.encode_allocation(ALLOCATION))
CARD = ["containers", 1, "cards", 0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["version"], 2),
        (["version"], "1"),
        (["version"], ...),
        (["node"], ""),
        (["node"], ...),
        (["node"], "n" * 254),
        (["extra"], 1),
        (["policy"], "p" * 64),
        (["containers"], ...),
        (["containers"], [{"name": "x", "cards": []}] * 2),
        (["containers"], [{"name": f"c{i}", "cards": []} for i in range(257)]),
        (["containers", 0, "kind"], "ephemeral"),
        (["containers", 0, "name"], 3),
        (["containers", 0, "name"], "main"),
        (["containers", 0, "cards"], None),
        (["containers", 0, "limit"], -1),
        ([*CARD, "memory"], -1),
        ([*CARD, "memory"], 1.5),
        ([*CARD, "memory"], "3072"),
        ([*CARD, "memory"], 2**31 + 1),
        ([*CARD, "memory"], 10**400),
        ([*CARD, "compute"], 101),
        ([*CARD, "index"], -1),
        ([*CARD, "index"], ...),
        ([*CARD, "uuid"], ""),
        ([*CARD, "uuid"], "GPU-a,GPU-b"),
        ([*CARD, "uuid"], "GPU-a\n"),
        ([*CARD, "uuid"], "GPU-b"),
        ([*CARD, "uuid"], "G" * 301),
        ([*CARD, "exclusive"], 1),
    ],
)
def test_a_changed_allocation_is_refused(path: list[Any], value: object) -> None:
    with pytest.raises(CodecError, match=r"shoal\.dev/allocation"):
        shoal.decode_allocation(changed(DOCUMENT, path, value))


INVENTORY = json.loads(shoal.encode_gpus(GPUS))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["version"], 0),
        (["gpus"], {}),
        (["gpus", 1, "uuid"], "GPU-a"),
        (["gpus", 1, "index"], 0),
        (["gpus", 1, "memory"], ...),
        (["gpus", 1, "temperature"], 40),
        (["gpus", 0, "links"], [{"peer": "GPU-b"}]),
        (["gpus", 0, "links"], [{"peer": "GPU-b", "lanes": 1}] * 257),
        (["gpus", 0, "model"], "m" * 513),
        (["gpus", 0, "numa"], -1),
        (["gpus", 1, "instances", 0, "memory"], None),
        (["gpus"], [{"uuid": f"GPU-{i}", "index": i, "memory": 1} for i in range(257)]),
    ],
)
def test_a_changed_inventory_is_refused(path: list[Any], value: object) -> None:
    with pytest.raises(CodecError, match=r"shoal\.dev/gpus"):
        shoal.decode_gpus(changed(INVENTORY, path, value))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "3", '"x"', "\ud800", "\x00", '{"version":1}', "[" * 100_000, '{"a":' * 20_000),
        " " * (shoal.MAX_LENGTH + 1),
    ],
    ids=range(12),
)
def test_what_is_no_document_is_refused(text: str) -> None:
    for decode in (shoal.decode_allocation, shoal.decode_gpus):
        with pytest.raises(CodecError) as error:
            decode(text)
        assert len(str(error.value)) < 500


@given(st.text() | json_values.map(json.dumps))
def test_arbitrary_text_raises_nothing_but_codec_error(text: str) -> None:
    for decode in (shoal.decode_allocation, shoal.decode_gpus):
        try:
            decode(text)
        except CodecError:
            continue


@given(allocations(), st.integers(0, 10_000), st.characters())
def test_damaged_documents_raise_nothing_but_codec_error(allocation: Allocation, place: int, put: str) -> None:
    text = shoal.encode_allocation(allocation)
    place %= len(text)
    for damaged in (text[:place], text[:place] + put + text[place + 1 :], text[:place] + put + text[place:]):
        try:
            shoal.decode_allocation(damaged)
        except CodecError:
            continue


@pytest.mark.parametrize(
    "allocation",
    [
        replace(ALLOCATION, node=""),
        replace(ALLOCATION, node="\ud800"),
        replace(ALLOCATION, containers=ALLOCATION.containers * 2),
        Allocation("n", (ContainerAllocation("c", (CardShare("GPU-a", 0, Share(-1)),)),)),
        Allocation("n", (ContainerAllocation("c", (CardShare("GPU-a", 0, Share(2**70)),)),)),
        Allocation("n", (ContainerAllocation("c", (CardShare("a,b", 0, Share(1)),)),)),
        Allocation("n", (ContainerAllocation("c", (CardShare("GPU-a", 0, Share(1)),) * 2),)),
    ],
    ids=range(7),
)
def test_what_cannot_be_read_is_not_written(allocation: Allocation) -> None:
    with pytest.raises(CodecError):
        shoal.encode_allocation(allocation)


def test_what_does_not_fit_is_not_written() -> None:
    links = tuple(Link(f"GPU-{'x' * 200}{i}", 1) for i in range(256))
    with pytest.raises(CodecError, match=r"would have .* at most"):
        shoal.encode_gpus([Gpu(f"GPU-{i}", i, 1, links=links) for i in range(64)])


def test_a_large_machine_fits() -> None:
    uuids = [f"GPU-{i:08d}-0000-0000-0000-000000000000" for i in range(32)]
    gpus = tuple(
        Gpu(u, i, 288 * 1024, "NVIDIA GB300", i, i // 8, tuple(Link(p, 18) for p in uuids if p != u))
        for i, u in enumerate(uuids)
    )
    assert shoal.decode_gpus(shoal.encode_gpus(gpus)) == gpus


def test_made_up_names() -> None:
    assert shoal.made_up_uuid("n1", 0) == "shoal-n1-0"
    assert shoal.is_made_up("shoal-n1-0")
    assert not shoal.is_made_up("GPU-a")


def test_selector() -> None:
    assert shoal.decode_selector(
        {
            "shoal.dev/use-gpu-model": " A100 ,H100",
            "shoal.dev/avoid-gpu-model": "",
            "shoal.dev/use-gpu-uuid": "GPU-a",
            "other": "x",
        }
    ) == CardSelector(models=frozenset({"A100", "H100"}), uuids=frozenset({"GPU-a"}))


@pytest.mark.parametrize(
    ("value", "policy"), [("spread", "spread"), (" binpack ", "binpack"), ("", None), (None, None)]
)
def test_policy(value: object, policy: str | None) -> None:
    assert shoal.decode_policy({"shoal.dev/policy": value}) == policy


@pytest.mark.parametrize("value", ["a b", "-", "x" * 64, "a/b", 3, ["spread"], "spread\n\n!"])
def test_bad_policy(value: object) -> None:
    with pytest.raises(CodecError, match=r"shoal\.dev/policy holds"):
        shoal.decode_policy({"shoal.dev/policy": value})


@given(
    st.dictionaries(
        st.sampled_from(["shoal.dev/policy", "shoal.dev/use-gpu-model", "shoal.dev/avoid-gpu-uuid"]), junk | st.text()
    )
)
def test_user_annotations_raise_nothing_but_codec_error(annotations: dict[str, Any]) -> None:
    for decode in (shoal.decode_selector, shoal.decode_policy):
        try:
            decode(annotations)
        except CodecError:
            continue


def test_what_is_held_is_read_back() -> None:
    held = Held({"uid-1": (CardShare("GPU-a", 0, Share(3072, 50)),), "uid-2": ()}, as_of=812)
    written = shoal.encode_held(held)
    assert written == (
        '{"version":1,"asOf":812,"pods":{"uid-1":[{"uuid":"GPU-a","index":0,"memory":3072,"compute":50}],"uid-2":[]}}'
    )
    assert shoal.decode_held(written) == held


def test_a_pod_has_left_its_cards_when_the_node_says_so() -> None:
    held = Held({"there": ()}, as_of=10)
    assert [held.releases(uid, version) for uid, version in (("there", 1), ("gone", 10), ("gone", 11))] == [
        *(False, True, False)
    ]
