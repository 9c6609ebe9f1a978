"""Walls around shares, on the simulated node: a program that takes more than its share is told so."""

from pathlib import Path
from typing import Any

import pytest

from shoal.agent.limits import cgroup
from shoal.embedded.nodes.errors import HookError
from shoal.embedded.nodes.host import HookCall
from shoal.model.contract import gpushare, shoal
from shoal.model.gpu import Isolation
from shoal.model.request import Share
from tests.agent import hook
from tests.agent.lab import GIB, Lab, memory_pod
from tests.agent.simulated.conftest import NewLab, paths_of
from tests.testbed.waiting import wait_for

ROOT = "/sys/fs/cgroup"


async def play(call: HookCall) -> None:
    """What the hook's program does: it asks the agent, and fails unless that says ok."""
    _, door, *limits = call.hook.args
    try:
        answer = await hook.ask(Path(door), call.cgroup.removeprefix(ROOT), limits)
    except OSError as error:
        raise HookError(f"shoal-limit: {door}: {error.strerror}") from error
    if answer != cgroup.OK:
        raise HookError(f"shoal-limit: the agent: {answer}")


@pytest.fixture
def walled(new_lab: NewLab, tmp_path: Path):
    """A node that can limit cgroups."""

    def make(cards: object = "2xA30", **settings: Any) -> Lab:
        lab = new_lab(cards, start=False)
        program = tmp_path / "shoal-limit"
        program.write_bytes(b"\x7fELF")
        paths_of(lab.node).cgroup2.touch()
        lab.node.inner.host.run_hook = play
        lab.start(limitHook=str(program), **settings)
        return lab

    return make


def taking(name: str, units: int, memory: str) -> dict:
    manifest = memory_pod(name, units)
    manifest["metadata"]["annotations"] = {shoal.ANNOTATION_SIMULATE: f"duration=forever memory={memory}"}
    return manifest


def place(lab: Lab, manifest: dict, index: int, units: int) -> None:
    lab.place(manifest, lab.allocation({"main": [index]}, {"main": Share(units * GIB)}))


def test_share_is_a_wall(walled):
    lab = walled()
    assert [gpu.isolation for gpu in lab.gpus] == [Isolation.CGROUP] * 2
    place(lab, taking("modest", 4, "3Gi"), 1, 4)
    lab.pods.wait_running("modest")
    place(lab, taking("greedy", 4, "5Gi"), 1, 4)
    wait_for(lambda: lab.pods.get("greedy")["status"].get("phase") == "Failed", "stopped by the wall")
    assert "CUDA out of memory" in lab.pods.log("greedy", "main")
    assert "has 4294967296 left of its limit" in lab.pods.log("greedy", "main")
    creation = next(iter(lab.node.inner.host.creations.values()))
    assert creation.env[shoal.ENV_ISOLATION] == "cgroup"
    assert (paths_of(lab.node).programs / "shoal-limit").exists()


def test_container_does_not_start_without_its_wall(walled):
    """The agent is away when the hook asks: the container fails, and starts when the agent is back."""
    lab = walled()

    async def nobody(call: HookCall) -> None:
        raise HookError("shoal-limit: /run/shoal/limit.sock: No such file or directory")

    lab.node.inner.host.run_hook = nobody
    manifest = taking("waiting", 4, "3Gi")
    manifest["spec"]["restartPolicy"] = "Always"
    place(lab, manifest, 0, 4)
    lab.pods.wait_event("waiting", lambda event: "shoal-limit" in event["message"], "of its hook")
    lab.node.inner.host.run_hook = play
    lab.pods.wait_running("waiting")


def test_tier_that_cannot_be_had_refuses_shares_and_says_why(new_lab: NewLab):
    lab = new_lab("2xA30", isolation="cgroup")
    assert [gpu.isolation for gpu in lab.gpus] == [Isolation.NONE] * 2
    place(lab, memory_pod("share", 4), 0, 4)
    event = lab.pods.wait_event("share", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "isolation cgroup is asked for and cannot be had: the program shoal-limit is not there" in event["message"]


def test_without_means_shares_are_counted_and_that_is_said(new_lab: NewLab):
    lab = new_lab("1xA30")
    assert lab.card(0).isolation is Isolation.NONE
    place(lab, memory_pod("share", 4), 0, 4)
    lab.pods.wait_running("share")
    assert lab.env("share")[shoal.ENV_ISOLATION] == "none"


def test_label_switches_walls_off(walled):
    lab = walled()
    path = f"/api/v1/nodes/{lab.node.name}"
    patch = {"metadata": {"labels": {gpushare.LABEL_NO_ISOLATION: "true"}}}
    lab.pods.apiserver.request("PATCH", path, patch, "application/merge-patch+json")
    wait_for(lambda: lab.card(0).isolation is Isolation.NONE, "without walls in the inventory")
    place(lab, taking("greedy", 4, "5Gi"), 0, 4)
    lab.pods.wait_running("greedy")


def test_nothing_is_left_of_the_walls(walled):
    lab = walled()
    paths = paths_of(lab.node)
    lab.stop()
    assert paths.limit_socket.exists()
    lab.clean()
    assert not paths.limit_socket.exists()
    assert list(paths.programs.iterdir()) == []
