"""MPS under the agent on a simulated node: what is told when its daemon or a server of it does not serve."""

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.agent.limits import node_limits
from shoal.agent.limits.mps import Mps, server_of
from shoal.gpu.mps import MpsDaemon
from shoal.model.request import Share
from tests.agent.lab import GIB, Lab, memory_pod
from tests.agent.simulated.conftest import NewLab
from tests.testbed.mps.daemons import STAND_IN, kill, mps_daemon
from tests.testbed.waiting import wait_for

WithMps = Callable[..., tuple[Lab, MpsDaemon]]


@pytest.fixture
def with_mps(new_lab: NewLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[WithMps]:
    """A node with two GPUs and an MPS daemon of protocol 3, which the agent looks at often."""
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    program = folder / "control"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program.write_text(f'#!/bin/sh\nPATH={path} MPS_STAND_IN_OF={os.getpid()} exec {STAND_IN} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(node_limits, "Mps", functools.partial(Mps, look_seconds=0.1))
    daemons: list[MpsDaemon] = []

    def make(**settings: object) -> tuple[Lab, MpsDaemon]:
        daemons.append(mps_daemon(folder / "p", 3, multi_user=True))
        lab = new_lab(
            "2xA30",
            mpsProgram=str(program),
            mpsDirectory=str(folder / "p"),
            mpsLogDirectory=str(folder / "log"),
            **settings,
        )
        return lab, daemons[-1]

    yield make
    for daemon in daemons:
        if daemon._listening():
            kill(daemon)
    shutil.rmtree(folder)


def run(lab: Lab, name: str, index: int = 0) -> None:
    lab.place(memory_pod(name, 4), lab.allocation({"main": [index]}, {"main": Share(4 * GIB)}))
    lab.pods.wait_running(name)


def node_events(lab: Lab, reason: str) -> list[str]:
    path = f"/api/v1/events?fieldSelector=involvedObject.name%3D{lab.node.name}"
    items = lab.pods.apiserver.request("GET", path)["items"]
    return [one["message"] for one in items if one["reason"] == reason]


def test_fault_of_a_server_is_reported_and_stops_no_other_gpu(with_mps: WithMps) -> None:
    lab, daemon = with_mps()
    run(lab, "one", 0)
    first, second = lab.gpus
    faulted = daemon.pipe_directory / "faulted"
    faulted.write_text(f"{server_of([first.uuid])}\n")
    wait_for(lambda: not lab.card(0).healthy, "unhealthy")
    assert "is in status FAULT" in lab.card(0).fault
    assert lab.card(1).healthy
    wait_for(lambda: any(first.uuid in words for words in node_events(lab, "GPUUnhealthy")), "told")
    run(lab, "two", 1)
    faulted.unlink()
    wait_for(lambda: lab.card(0).healthy, "healthy")
    wait_for(lambda: any(first.uuid in words for words in node_events(lab, "GPURecovered")), "told")
    assert not any(second.uuid in words for words in node_events(lab, "GPUUnhealthy"))


def lost(event: dict) -> bool:
    return bool(event["reason"] == "GPULimitsLost")


def test_daemon_that_died_is_told_to_running_pods(with_mps: WithMps) -> None:
    lab, daemon = with_mps()
    run(lab, "one")
    assert not any(map(lost, lab.pods.events("one")))
    kill(daemon)
    words = "until the containers are restarted"
    event = lab.pods.wait_event("one", lambda event: words in event["message"], "of its limits")
    assert lost(event)


def test_daemon_that_is_away_is_told_to_node_and_pods(with_mps: WithMps) -> None:
    lab, daemon = with_mps()
    run(lab, "one")
    lab.reload(**{**lab.settings, "mpsStart": False})
    lab.wait_ready()
    kill(daemon)
    event = lab.pods.wait_event("one", lost, "of its limits")
    assert "until the MPS daemon answers" in event["message"]
    wait_for(lambda: node_events(lab, "GPULimitsLost") != [], "told of the node")
    lab.reload(**{**lab.settings, "mpsStart": True})
    wait_for(lambda: lab.card(0).healthy, "healthy")
