"""How steps stand, by what was seen: pure."""

from __future__ import annotations

import msgspec
import pytest

from shoal.model.contract.operator import (
    MAX_VALIDATION,
    StepReport,
    ValidationReport,
    decode_validation,
    encode_validation,
)
from shoal.validator.steps import (
    READY,
    STALE_SECONDS,
    RuntimeFindings,
    Seen,
    StepFinding,
    StepStanding,
    encode_findings,
    plugin_seen,
    report_of,
    runtime_seen,
    standing,
)

BAD = Seen(False, "why", "fix")
WELL = StepFinding(ready=True)


def test_a_step_that_was_ready_must_fail_for_a_while() -> None:
    now = StepStanding(READY)
    for clock, ready in ((100, True), (130, True), (159, True), (160, False), (161, False)):
        now = standing(now, BAD, clock=clock, grace=60)
        assert now.ready is ready, clock
    assert now.seen == BAD
    assert standing(now, READY, clock=162, grace=60) == StepStanding(READY)


def test_a_step_that_recovers_begins_anew() -> None:
    now = standing(StepStanding(READY), BAD, clock=100, grace=60)
    now = standing(now, READY, clock=150, grace=60)
    assert standing(now, BAD, clock=170, grace=60).ready


def test_what_is_certain_needs_no_second_look() -> None:
    assert not standing(StepStanding(READY), Seen(False, certain=True), clock=0, grace=60).ready
    assert not standing(None, BAD, clock=0, grace=60).ready
    assert not standing(StepStanding(READY), BAD, clock=0, grace=0).ready


@pytest.mark.parametrize(
    ("allocatable", "ready"),
    [
        ({"aliyun.com/gpu-mem": "15"}, True),
        ({"keti.com/mpsgpu": "1"}, True),
        ({"nvidia.com/gpu": 1}, True),
        ({"nvidia.com/gpu.shared": "8"}, True),
        ({"nvidia.com/mig-1g.5gb": "7"}, True),
        ({"shoal.dev/gpu": "110"}, True),
        ({"nvidia.com/gpu": "0", "aliyun.com/gpu-mem": "0", "cpu": "64"}, False),
        ({"nvidia.com/gpus": "1", "aliyun.com/gpu-count": "2"}, False),
        ({"nvidia.com/gpu": "many", "keti.com/mpsgpu": "9" * 500}, False),
        ({}, False),
    ],
)
def test_a_plugin_has_done_its_work_when_the_node_offers_a_resource(
    allocatable: dict[str, str | int | float], ready: bool
) -> None:
    seen = plugin_seen(allocatable)
    assert seen.ready is ready
    assert bool(seen.why and seen.fix) is not ready


def told(**changes: object) -> bytes:
    whole = {"version": 1, "boot": "b", "at": 100.0, "driver_version": "615.71.05", "toolkit": WELL, "cuda": WELL}
    return encode_findings(msgspec.convert({**whole, **changes}, RuntimeFindings))


def seen(content: bytes | None, now: float = 120.0, files: tuple[str, ...] = ()) -> tuple[Seen, Seen | None]:
    return runtime_seen(content, counts=files.__contains__, driver_version="615.71.05", boot="b", now=now)


def test_what_the_one_under_the_runtime_class_tells() -> None:
    bad = StepFinding(ready=False, why="no library", fix="install")
    assert seen(told()) == (READY, READY)
    assert seen(told(cuda=bad)) == (READY, Seen(False, "no library", "install"))
    assert seen(told(toolkit=bad, cuda=None)) == (Seen(False, "no library", "install"), None)
    assert seen(told(), now=10 * STALE_SECONDS) == (READY, READY), "what worked is believed"
    late, _ = seen(told(toolkit=bad, cuda=None), now=101 + STALE_SECONDS)
    assert late.why == "shoal-validator-runtime is silent; the last it said: no library"


def test_nothing_was_told() -> None:
    toolkit, cuda = seen(None)
    assert (toolkit.ready, cuda) == (False, None)
    assert "toolkit.enabled=true" in toolkit.fix
    assert seen(told(boot="an earlier one"))[0] == toolkit
    assert seen(None, files=("toolkit-ready",)) == (READY, None), "NVIDIA's validator has written it"
    assert seen(None, files=("toolkit-ready", "cuda-ready")) == (READY, READY)


def test_a_runtime_that_brings_another_driver() -> None:
    toolkit, _ = seen(told(driver_version="570.1.1"))
    assert toolkit.why == "containers of the runtime class were given driver 570.1.1, the node has 615.71.05"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 16000,
        b"x" * 100_000,
        b'{"version":2}',
        told()[:-1] + b',"more":1}',
        told().replace(b'"at":100.0', b'"at":-1'),
        told(toolkit=WELL, cuda=WELL).replace(b'"ready":true', b'"ready":"yes"'),
        told().replace(b'"boot":"b"', b'"boot":"' + b"b" * 1000 + b'"'),
    ],
)
def test_hostile_findings_are_words(content: bytes) -> None:
    toolkit, cuda = seen(content)
    assert (toolkit.ready, cuda) == (False, None)
    assert "remove the file .shoal-runtime" in toolkit.fix
    report = report_of({"driver": READY, "toolkit": toolkit}, boot="b", driver_version="", known=None, now=1)
    assert decode_validation(encode_validation(report)) == report


def test_the_longest_report_fits() -> None:
    worst = Seen(False, '"' * 10_000, "\\\n" * 10_000)
    steps = {"driver": READY, "toolkit": READY, "cuda": worst, "plugin": worst}
    report = report_of(steps, boot="b" * 36, driver_version="v" * 64, known=None, now=2**31)  # type: ignore[arg-type]
    assert len(encode_validation(report)) <= MAX_VALIDATION


def test_since_when_a_step_stands_as_it_does() -> None:
    known = ValidationReport(
        version=1,
        boot="b",
        steps={"driver": StepReport(ready=True, since=5), "toolkit": StepReport(ready=False, since=6, why="w")},
    )
    steps = {"driver": READY, "toolkit": Seen(False, "another word", ""), "plugin": READY}
    report = report_of(steps, boot="b", driver_version="", known=known, now=9)  # type: ignore[arg-type]
    assert {name: step.since for name, step in report.steps.items()} == {"driver": 5, "toolkit": 6, "plugin": 9}
    assert report_of({"toolkit": READY}, boot="b", driver_version="", known=known, now=9).steps["toolkit"].since == 9
    assert report_of({"driver": READY}, boot="c", driver_version="", known=known, now=9).steps["driver"].since == 9
