from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import RequestError
from shoal.model.gpu import Gpu
from shoal.model.manifest import read_pod
from shoal.model.pod import check_fits_some_card, request_of
from shoal.model.request import (
    CardSelector,
    ContainerKind,
    ContainerRequest,
    Request,
    Share,
    accepts,
    matches_model,
)
from tests.cases import read_cases
from tests.model.strategies import junk

CASES = Path(__file__).parent / "cases"


def cases(file: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in read_cases(CASES / file)]


def unit_of(case: dict[str, Any]) -> MemoryUnit:
    return MemoryUnit.parse(case.get("unit", "GiB"))


def expected_request(case: dict[str, Any]) -> Request:
    told = dict(case["request"])
    containers = tuple(
        ContainerRequest(
            name=c["name"],
            gpus=c["gpus"],
            share=Share(**c["share"]),
            kind=ContainerKind(c.get("kind", "app")),
            memory_limit_mib=c.get("memory_limit_mib"),
        )
        for c in told.pop("containers", ())
    )
    selector = CardSelector(**{key: frozenset(values) for key, values in told.pop("selector", {}).items()})
    return Request(containers=containers, selector=selector, **told)


@pytest.mark.parametrize("case", cases("accepted.yaml"))
def test_accepted(case: dict[str, Any]) -> None:
    assert request_of(read_pod(case["pod"]), unit=unit_of(case)) == expected_request(case)


@pytest.mark.parametrize("case", cases("refused.yaml"))
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as error:
        request_of(read_pod(case["pod"]), unit=unit_of(case))
    for words in case["says"]:
        assert str(words) in str(error.value)


@pytest.mark.parametrize("pod", [None, [], "pod", 3, object(), {}, {"spec": None}, {"spec": []}, {"spec": "x"}])
def test_not_a_pod(pod: Any) -> None:
    with pytest.raises(RequestError):
        request_of(read_pod(pod), unit=MemoryUnit.GIB)


RESOURCES = st.sampled_from(
    [
        *("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count", "keti.com/mpsgpu"),
        *("nvidia.com/gpu", "cpu", "memory"),
    ]
)
AMOUNTS = junk | st.sampled_from(["1", "2", 3, "4Gi", "1e9", "-1", "0", "250m", 10**5000])
NAMED_JUNK = st.dictionaries(RESOURCES, AMOUNTS, max_size=3) | junk
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "c", "", None])},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": NAMED_JUNK, "requests": NAMED_JUNK}) | junk,
        "restartPolicy": st.just("Always") | junk,
    },
)
NOTES = st.dictionaries(
    st.sampled_from(
        [
            *("aliyun.com/gpu-count", "ack.gpushare.placement", "GPUrequest", "GPUlimits", "shoal.dev/policy"),
            *("shoal.dev/use-gpu-model", "shoal.dev/avoid-gpu-model", "shoal.dev/use-gpu-uuid"),
        ]
    ),
    AMOUNTS,
    max_size=3,
)
ALMOST_PODS = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINER | junk, max_size=3)},
            optional={
                "initContainers": st.lists(CONTAINER, max_size=2) | junk,
                "overhead": NAMED_JUNK,
                "resources": st.fixed_dictionaries({}, optional={"limits": NAMED_JUNK, "requests": NAMED_JUNK}),
                "nodeName": junk,
            },
        )
    },
    optional={"metadata": st.fixed_dictionaries({}, optional={"labels": NOTES | junk, "annotations": NOTES | junk})},
)


@given(junk | ALMOST_PODS, st.sampled_from(MemoryUnit))
def test_raises_nothing_but_request_error(pod: Any, unit: MemoryUnit) -> None:
    try:
        request = request_of(read_pod(pod), unit=unit)
    except RequestError:
        return
    # Whatever was accepted is sane: the ledger adds these numbers up without looking again.
    assert 0 <= request.cpu_milli <= 2**53
    assert 0 <= request.memory_mib <= 2**53
    for container in request.containers:
        share = container.share
        assert 1 <= container.gpus <= 256
        assert share != Share()
        assert 0 <= share.memory_mib < 2**31
        assert 0 <= share.compute <= 100
        assert share.clients in (0, 1)
        assert not (share.exclusive and (share.memory_mib or share.compute or share.clients))


@given(st.integers(1, 300), st.integers(1, 8), st.sampled_from(MemoryUnit))
def test_split_shares_add_up(each: int, cards: int, unit: MemoryUnit) -> None:
    pod = {
        "metadata": {"labels": {"aliyun.com/gpu-count": str(cards)}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": each * cards}}}]},
    }
    (container,) = request_of(read_pod(pod), unit=unit).containers
    assert container.gpus == cards
    assert container.share.memory_mib == each * (1024 if unit is MemoryUnit.GIB else 1)


def gpu(memory_mib: int, **more: Any) -> Gpu:
    return Gpu(uuid=f"GPU-{memory_mib}", index=0, memory_mib=memory_mib, **more)


def asks(share: Share, *, limit: int | None = None, selector: CardSelector | None = None) -> Request:
    container = ContainerRequest("main", 1, share, memory_limit_mib=limit)
    return Request(containers=(container,), selector=selector or CardSelector())


@pytest.mark.parametrize(
    ("request_", "cards"),
    [
        (Request(), []),
        (asks(Share(memory_mib=16276)), [gpu(8000), gpu(16276)]),
        (asks(Share(exclusive=True)), [gpu(0)]),
        (asks(Share(exclusive=True), limit=8000), [gpu(8000)]),
        (asks(Share(memory_mib=100)), [gpu(16276, healthy=False)]),
        (asks(Share(clients=1)), [gpu(100, mps_clients=0), gpu(200)]),
    ],
)
def test_fits_some_card(request_: Request, cards: list[Gpu]) -> None:
    check_fits_some_card(request_, cards)


@pytest.mark.parametrize(
    ("request_", "cards", "says"),
    [
        (
            asks(Share(memory_mib=20480)),
            [gpu(8000), gpu(16276)],
            ["'main'", "20480 MiB (20 GiB)", "16276 MiB", "gpu-count"],
        ),
        (asks(Share(memory_mib=1)), [gpu(0)], ["1 MiB", "largest holds 0 MiB"]),
        (asks(Share(exclusive=True), limit=8001), [gpu(8000)], ["8001 MiB", "8000 MiB"]),
        (asks(Share(memory_mib=9000, clients=1)), [gpu(8000)], ["9000 MiB", "ask for less"]),
        (asks(Share(memory_mib=1)), [gpu(16276, mig=True)], ["no card", "add a node"]),
        (asks(Share(memory_mib=1)), [], ["no card", "add a node"]),
        (asks(Share(clients=1)), [gpu(100, mps_clients=0)], ["'main'", "MPS client", "run the agent with MPS on"]),
        (
            asks(Share(memory_mib=1), selector=CardSelector(models=frozenset({"H100"}))),
            [gpu(16276, model="Tesla T4")],
            ["selectors accept", "annotations"],
        ),
        (
            asks(Share(memory_mib=9000), selector=CardSelector(not_uuids=frozenset({"GPU-16276"}))),
            [gpu(16276), gpu(8000)],
            ["largest holds 8000 MiB"],
        ),
    ],
)
def test_fits_no_card(request_: Request, cards: list[Gpu], says: list[str]) -> None:
    with pytest.raises(RequestError) as error:
        check_fits_some_card(request_, cards)
    for words in says:
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("model", "wanted", "matches"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4", True),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4", True),
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA A100", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-80GB", "A10", False),
        ("NVIDIA A10", "A100", False),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", False),
        ("NVIDIA A100-SXM4-80GB", "SXM4 A100", False),
        ("NVIDIA A100-SXM4-80GB", "", False),
        ("", "A100", False),
        ("", "", False),
        ("Tesla T4", "t4", True),
    ],
)
def test_matches_model(model: str, wanted: str, matches: bool) -> None:
    assert matches_model(model, wanted) is matches


@pytest.mark.parametrize(
    ("selector", "accepted"),
    [
        (CardSelector(), True),
        (CardSelector(models=frozenset({"A100", "T4"})), True),
        (CardSelector(models=frozenset({"T4"})), False),
        (CardSelector(not_models=frozenset({"A100"})), False),
        (CardSelector(not_models=frozenset({"A10"})), True),
        (CardSelector(uuids=frozenset({"GPU-1"})), True),
        (CardSelector(uuids=frozenset({"GPU-11"})), False),
        (CardSelector(not_uuids=frozenset({"GPU-1"})), False),
        (CardSelector(uuids=frozenset({"GPU-1"}), not_models=frozenset({"SXM4"})), False),
        (CardSelector(models=frozenset({"A100"}), uuids=frozenset({"GPU-2"})), False),
    ],
)
def test_accepts(selector: CardSelector, accepted: bool) -> None:
    assert accepts(selector, Gpu("GPU-1", 0, 1, model="NVIDIA A100-SXM4-80GB")) is accepted
