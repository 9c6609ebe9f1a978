"""The states of a pod's containers by the second, from a table; and what must hold of every pod."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.nodes.pods.machine import PodRun
from shoal.embedded.nodes.pods.states import ContainerRun, Ended, Running
from shoal.embedded.nodes.pods.status import phase_of, pod_status
from shoal.embedded.nodes.pods.workload import Plan
from shoal.model.request import ContainerKind
from tests.cases import read_cases

CASES = read_cases(Path(__file__).parent / "cases" / "machine.yaml")
START = datetime(2026, 1, 1, tzinfo=UTC)
SPECIAL = {"forever": Plan(), "refused": Plan(), "sidecar": Plan(), "sidecar-1": Plan(seconds=1.0, code=1)}


def plan_of(word: Any) -> Plan:
    if isinstance(word, list):
        return Plan(seconds=float(word[0]), code=word[1])
    return Plan(**word) if isinstance(word, dict) else SPECIAL[word]


def pod_of(case: dict) -> dict:
    init = [
        {"name": name, "image": "x", **({"restartPolicy": "Always"} if str(word).startswith("sidecar") else {})}
        for name, word in case.get("init", {}).items()
    ]
    spec: dict[str, Any] = {
        "containers": [{"name": name, "image": "x"} for name in case["apps"]],
        "restartPolicy": case.get("policy", "Always"),
        "terminationGracePeriodSeconds": case.get("grace", 30),
    }
    if init:
        spec["initContainers"] = init
    if "deadline" in case:
        spec["activeDeadlineSeconds"] = case["deadline"]
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1}, "spec": spec}


class Drive:
    """Drives a run as a worker does, with a clock of its own that jumps from moment to moment."""

    def __init__(self, pod: dict, plans: dict[str, Plan], refused: set[str]) -> None:
        self.pod = pod
        self.run = PodRun(pod)
        self.run.started, self.run.address = START, "10.0.0.1"
        self.plans = plans
        self.refused = refused
        self.now = START
        self.starts: list[str] = []

    def settle(self) -> datetime | None:
        """Do what is to be done now; when there is more."""
        for _ in range(100):
            step = self.run.step(self.now)
            for one in step.start:
                self.starts.append(one.name)
                if one.name in self.refused:
                    self.run.not_begun(one.name, self.now, "CreateContainerError", "no")
                else:
                    self.run.begun(one.name, self.now, f"id-{one.name}-{one.runs}", self.plans[one.name])
            if not step.start:
                return step.wake
        raise AssertionError("it does not come to rest")

    def go_to(self, second: float) -> None:
        """Let time pass, stopping wherever the machine wants to be looked at."""
        until = START + timedelta(seconds=second)
        while True:
            wake = self.settle()
            if wake is None or wake > until:
                self.now = until
                self.settle()
                return
            self.now = wake


def shown(one: ContainerRun) -> str:
    if isinstance(one.state, Running):
        return f"R{one.restarts or ''}"
    if isinstance(one.state, Ended):
        return f"E{one.state.code}" + (f" {one.restarts}" if one.restarts else "")
    return f"W{one.restarts or ''}"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_table(case: dict) -> None:
    words = {**case.get("init", {}), **case["apps"]}
    refused = {name for name, word in words.items() if word == "refused"}
    drive = Drive(pod_of(case), {name: plan_of(word) for name, word in words.items()}, refused)
    for second, expected in case["at"].items():
        drive.go_to(second)
        match expected.get("do"):
            case "crash":
                drive.run.crash(drive.now)
            case "allow":
                drive.refused.clear()
            case {"stop": grace}:
                drive.run.stop(drive.now, grace)
        drive.settle()
        found: dict[str, Any] = {name: shown(one) for name, one in drive.run.containers.items()}
        found |= {"phase": phase_of(drive.run), "over": drive.run.over}
        found["failure"] = drive.run.failure[0] if drive.run.failure else ""
        status = pod_status(drive.pod, drive.run, host="h", now=drive.now)
        found["ready"] = [one["name"] for one in status["containerStatuses"] if one["ready"]]
        wanted = {"over": False, **{key: value for key, value in expected.items() if key != "do"}}
        assert {key: found[key] for key in wanted} == wanted, f"at {second} s: {found}"


PLANS = st.builds(
    Plan,
    seconds=st.none() | st.floats(0, 50),
    code=st.sampled_from([0, 0, 1, 137]),
    stop_seconds=st.none() | st.floats(0, 20),
)
NAMES = ("i1", "i2", "s", "a", "b")


@given(
    plans=st.lists(PLANS, min_size=5, max_size=5),
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    looks=st.lists(st.floats(0, 400), max_size=8).map(sorted),
    stop_at=st.none() | st.floats(0, 300),
    grace=st.floats(0, 60),
)
def test_whatever_happens(
    plans: list[Plan], policy: str, looks: list[float], stop_at: float | None, grace: float
) -> None:
    case = {"init": {"i1": 0, "i2": 0, "s": "sidecar"}, "apps": {"a": 0, "b": 0}, "policy": policy}
    drive = Drive(pod_of(case), dict(zip(NAMES, plans, strict=True)), set())
    stopped = False
    over = False
    for second in looks:
        if stop_at is not None and not stopped and second >= stop_at:
            drive.go_to(stop_at)
            drive.run.stop(drive.now, grace)
            starts, stopped = len(drive.starts), True
        drive.go_to(second)
        run = drive.run
        assert not over or run.over, "what is over stays so"
        over = run.over
        apps = [one for one in run.containers.values() if one.kind is ContainerKind.APP]
        if any(one.runs for one in apps):
            inits = [run.containers["i1"], run.containers["i2"]]
            assert all(isinstance(one.state, Ended) and one.state.code == 0 for one in inits), "first things first"
        assert (phase_of(run) in ("Succeeded", "Failed")) == over
        if stopped:
            assert len(drive.starts) == starts, "nothing is started any more"
            if stop_at is not None and second >= stop_at + grace:
                assert over, "grace is over"
        status = pod_status(drive.pod, run, host="h", now=drive.now)
        assert {one["name"] for one in status["containerStatuses"]} == {"a", "b"}
        assert [one["type"] for one in status["conditions"]][:2] == ["PodReadyToStartContainers", "Initialized"]
        for one in run.containers.values():
            assert one.restarts <= max(0, one.runs - 1)


@given(plans=st.lists(PLANS, min_size=2, max_size=2), looks=st.lists(st.floats(0, 300), max_size=6).map(sorted))
def test_a_late_look_sees_what_one_in_time_sees(plans: list[Plan], looks: list[float]) -> None:
    """What a run does by itself does not depend on how often somebody looks, as long as nothing is restarted."""
    case = {"apps": {"a": 0, "b": 0}, "policy": "Never"}
    drives = [Drive(pod_of(case), dict(zip("ab", plans, strict=True)), set()) for _ in range(2)]
    for second in looks:
        drives[0].go_to(second)
    drives[1].settle()
    last = looks[-1] if looks else 0.0
    for drive in drives:
        drive.now = START + timedelta(seconds=last)
        drive.settle()
    assert drives[0].run.containers == drives[1].run.containers
