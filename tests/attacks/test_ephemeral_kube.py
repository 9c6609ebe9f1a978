"""A container that a tenant adds to a running pod for debugging gets no card.

kubelet asks no device plugin about it, so neither the agent nor its records can be led astray. What is left is its own
word to NVIDIA's runtime, where that still listens: the policies refuse it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.arena import MERGE, Object, Tenant
from tests.attacks.play import Play
from tests.attacks.real import RealArena, environment
from tests.suites.connection import Answer

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture
def play(real_arena: RealArena) -> Iterator[Play]:
    """A tenant's pod with a share, and a neighbour's with a whole card."""
    played = Play(real_arena, Tenant(real_arena.api, "tenant"), Tenant(real_arena.api, "neighbour"))
    real_arena.policies(on=False)
    played.place({"name": "resident", "of": "neighbour", "gpu": 1})
    played.place({"name": "own", "mem": 4})
    yield played
    for whose in (played.tenant, played.neighbour):
        whose.leave()
    played.settle()


def add(play: Play, name: str, **more: object) -> Answer:
    """The tenant adds a container to its pod."""
    present = play.pod("own")["spec"].get("ephemeralContainers", [])
    made = play.arena.container(name)
    made["env"] = [*made["env"], *more.pop("env", [])]  # type: ignore[misc]
    body: Object = {"spec": {"ephemeralContainers": [*present, {**made, **more}]}}
    return play.tenant.send("PATCH", "pods/own/ephemeralcontainers", body, MERGE)


def runs(play: Play, name: str) -> bool:
    statuses = play.pod("own")["status"].get("ephemeralContainerStatuses", [])
    return any(one["name"] == name and "running" in one["state"] for one in statuses)


def test_the_policies_refuse_one_that_says_which_cards_it_sees(play: Play) -> None:
    play.arena.policies(on=True)
    for value in ("all", play.filled("$of_resident")):
        answer = add(play, "debug", env=[{"name": VISIBLE, "value": value}])
        assert answer.status in (403, 422), answer
        assert VISIBLE in answer.body["message"], answer.body
    assert add(play, "plain").status == 200
    play.wait(lambda: runs(play, "plain"), "running: plain", lambda: play.story("own"))
    play.check()


def test_without_policies_it_gets_no_card(play: Play, real_arena: RealArena) -> None:
    limited = add(play, "limited", resources={"limits": {"aliyun.com/gpu-mem": "20"}})
    assert limited.status == 422, limited
    assert "resources" in limited.body["message"], limited.body
    assert add(play, "debug", env=[{"name": VISIBLE, "value": "all"}]).status == 200
    play.wait(lambda: runs(play, "debug"), "running: debug", lambda: play.story("own"))
    (pid,) = real_arena.first_processes(play.pod("own")["metadata"]["uid"], "debug")
    env = environment(pid)
    assert env[VISIBLE] == "all", "which nobody but NVIDIA's older runtime would read"
    assert not [name for name in env if name.startswith(("ALIYUN_", "SHOAL_", "CUDA_"))]
    assert not list(Path(f"/proc/{pid}/root/dev").glob("nvidia*"))
    play.hold({"restarts": "own"})
    play.hold({"restarts": "resident"})
    play.hold({"given": {"own": [4096], "resident": [None]}})
    play.hold({"allocatable": {"aliyun.com/gpu-mem": 24, "nvidia.com/gpu": 1}})
    play.check()
