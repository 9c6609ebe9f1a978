"""What containers do on simulated nodes: by annotation, by command, by owner."""

import contextlib
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.nodes.errors import SimulatedWorkloadError
from shoal.embedded.nodes.pods.scripts import interpret
from shoal.embedded.nodes.pods.workload import JOB_SECONDS, Plan, plan_of, read
from tests.cases import read_cases

CASES = read_cases(Path(__file__).parent / "cases" / "workloads.yaml")


def planned(container: dict, annotations: dict | None = None, job: str = "", init: bool = False) -> Plan:
    container = {"name": "c", **container}
    labels = {"batch.kubernetes.io/job-name": job} if job else {}
    pod = {
        "metadata": {"name": "p", "annotations": annotations or {}, "labels": labels},
        "spec": {"containers": [] if init else [container], "initContainers": [container] if init else []},
    }
    return plan_of(container, pod, {"NAME": "me"})


@pytest.mark.parametrize("text", CASES["accepted"])
def test_annotation(text: str) -> None:
    expected = {**asdict(Plan()), **CASES["accepted"][text]}
    assert asdict(read(text, where="annotation")) == expected


@pytest.mark.parametrize("text", CASES["refused"])
def test_annotation_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SimulatedWorkloadError) as refused:
        planned({}, {"shoal.dev/simulate": text})
    assert CASES["refused"][text] in str(refused.value)
    assert str(refused.value).startswith("annotation shoal.dev/simulate")


def test_annotation_that_is_too_long() -> None:
    with pytest.raises(SimulatedWorkloadError, match="longer than 1000"):
        read("exit=1 " * 1000, where="annotation")


@pytest.mark.parametrize("case", CASES["commands"], ids=[" ".join(case["argv"]) for case in CASES["commands"]])
def test_command(case: dict) -> None:
    plan = planned({"command": case["argv"][:1], "args": case["argv"][1:]})
    assert plan.seconds == case["seconds"]
    assert plan.code == case.get("code", 0)
    assert [list(line) for line in plan.lines] == case.get("lines", [])
    if "stop" in case:
        assert (plan.stop_seconds, plan.stop_code) == (case["stop"], case.get("stop_code", 0))


def test_the_annotation_of_a_container_wins_over_that_of_the_pod_and_both_over_its_command() -> None:
    annotations = {
        "shoal.dev/simulate": "duration=10s exit=1",
        "shoal.dev/simulate.c": "exit=2",
        "shoal.dev/simulate.other": "exit=3",
    }
    plan = planned({"command": ["sleep", "99"]}, annotations)
    assert (plan.seconds, plan.code) == (10.0, 2)


def test_jobs_and_init_containers() -> None:
    assert planned({}, job="j").seconds == JOB_SECONDS
    assert planned({}).seconds is None
    assert planned({}, job="j", init=True).seconds == 0.0
    assert planned({"restartPolicy": "Always"}, job="j", init=True).seconds is None
    assert planned({"command": ["sleep", "60"]}, job="j").seconds == 60.0


def test_more_memory_than_its_limit_is_killed() -> None:
    limits = {"resources": {"limits": {"memory": "1Gi"}}}
    plan = planned(limits, {"shoal.dev/simulate": "ram=2Gi ramp=3s duration=1h"})
    assert (plan.seconds, plan.code, plan.reason) == (3.0, 137, "OOMKilled")
    assert planned(limits, {"shoal.dev/simulate": "ram=1Gi"}).reason == ""


@given(st.text(alphabet="abc'\"$({;|&\n \\<>=*`0123456789", max_size=60))
def test_no_script_is_too_much(text: str) -> None:
    script = interpret(["sh", "-c", text], {"a": "b"})
    assert script is None or script.seconds is None or script.seconds >= 0


@given(st.text(max_size=60))
def test_no_annotation_is_too_much(text: str) -> None:
    with contextlib.suppress(SimulatedWorkloadError):
        plan = read(text, where="annotation")
        assert plan.seconds is None or plan.seconds >= 0
