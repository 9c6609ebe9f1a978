"""What follows the pods is right after each change, and a change costs the same whatever else is on the node."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import FrameType

import pytest

import shoal.agent
from shoal.agent.errors import IdentityError
from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits
from shoal.model.contract import gpushare, nvidia
from tests.agent.scene import Scene

OURS = str(Path(shoal.agent.__file__).parent)
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}


def filled(folder: Path, pods: int) -> Scene:
    """A node with so many pods, all of whose changes have been acted on."""
    folder.mkdir()
    scene = Scene(folder)
    for number in range(pods):
        scene.put(f"pod-{number}", card=number % 8, status=RUNNING)
    scene.record({f"pod-{number}": [f"m{2 * number:x}", f"m{2 * number + 1:x}"] for number in range(pods)})
    scene.pods.move_to(scene.pods.node)
    scene.act()
    return scene


def calls_of(what: Callable[[], None]) -> int:
    """How many functions of the agent's are called."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(count)
    try:
        what()
    finally:
        sys.setprofile(None)
    return found


def test_change_of_a_pod_costs_the_same_on_a_full_node(tmp_path: Path):
    few, many = (filled(tmp_path / str(pods), pods) for pods in (9, 180))

    def comes(scene: Scene) -> None:
        scene.put("new", card=1)
        scene.act()

    def runs(scene: Scene) -> None:
        scene.put("new", card=1, status=RUNNING)
        scene.act()

    def goes(scene: Scene) -> None:
        scene.drop("new")
        scene.act()

    for step in (comes, runs, goes):
        assert calls_of(lambda: step(few)) == calls_of(lambda: step(many)) > 0, step.__name__  # noqa: B023 - called now


def listed(scene: Scene, resource: str) -> dict[str, list[str]]:
    """The devices that kubelet would be told of, by health."""

    async def first() -> api.ListAndWatchResponse:
        stream = scene.serving.plugins[resource].ListAndWatch(api.Empty(), None)
        assert isinstance(stream, AsyncGenerator)
        async with contextlib.aclosing(stream):
            return await anext(stream)

    found: dict[str, list[str]] = {}
    for device in asyncio.run(first()).devices:
        found.setdefault(device.health, []).append(device.ID)
    return found


def test_card_in_use_leaves_the_whole_ones_and_comes_back(tmp_path: Path):
    scene = filled(tmp_path / "node", 0)
    assert len(listed(scene, nvidia.RESOURCE_GPU)[constants.HEALTHY]) == 8
    scene.put("one", card=3)
    scene.act()
    assert len(listed(scene, nvidia.RESOURCE_GPU)[constants.UNHEALTHY]) == 1
    scene.put("one", card=3, status={"phase": "Succeeded"})
    scene.act()
    assert len(listed(scene, nvidia.RESOURCE_GPU)[constants.HEALTHY]) == 8


def test_device_beyond_the_list_stays_until_its_pod_is_over(tmp_path: Path):
    """A node can have fewer units than before: what a container has is listed all the same."""
    scene = filled(tmp_path / "node", 1)
    scene.put("one", card=3, status=RUNNING)
    scene.record({"pod-0": ["m0", "m1"], "one": ["mfff0", "mfff1"]})
    scene.act()
    assert {"mfff0", "mfff1"} <= set(listed(scene, gpushare.RESOURCE_MEMORY)[constants.HEALTHY])
    scene.drop("one")
    scene.act()
    assert not {"mfff0", "mfff1"} & set(listed(scene, gpushare.RESOURCE_MEMORY)[constants.HEALTHY])


def test_files_go_with_their_pod_alone(tmp_path: Path):
    scene = filled(tmp_path / "node", 0)
    for name in ("a-1", "b-2", "stray-3"):
        scene.specs.write(name, ContainerEdits(env=(f"NAME={name}",)))
    for name in ("a", "b"):
        scene.put(name, card=0)
    scene.record({"a": ["m0"], "b": ["m1"]}, names={"a": "a-1", "b": "b-2"})
    scene.pods.move_to(scene.pods.node)
    scene.act()
    assert scene.specs.names() == {"a-1", "b-2"}, "nobody has the other"
    scene.put("a", card=0, status={"phase": "Failed"})
    scene.act()
    assert scene.specs.names() == {"b-2"}
    scene.record({})  # kubelet may have forgotten a pod before its end is told
    scene.drop("b")
    scene.act()
    assert scene.specs.names() == set()


def test_news_are_told_again_while_kubelets_record_cannot_be_read(tmp_path: Path):
    scene = filled(tmp_path / "node", 1)
    scene.specs.write("a-1", ContainerEdits(env=("A=1",)))
    scene.put("a", card=0)
    scene.record({"a": ["mfff0"]}, names={"a": "a-1"})
    scene.pods.move_to(scene.pods.node)
    scene.act()
    scene.drop("a")
    fail_once(scene, tmp_path / "aside")
    scene.act()
    assert scene.specs.names() == set()
    assert "mfff0" not in listed(scene, gpushare.RESOURCE_MEMORY)[constants.HEALTHY]
    scene.specs.write("stray-1", ContainerEdits(env=("A=1",)))
    scene.pods.move_to(scene.pods.node)
    fail_once(scene, tmp_path / "aside")
    scene.act()
    assert scene.specs.names() == set()


def fail_once(scene: Scene, aside: Path) -> None:
    """Act while kubelet's record cannot be read; then it is there again, as it was."""
    scene.paths.checkpoint.rename(aside)
    scene.paths.checkpoint.mkdir()
    news = scene.pods.news()
    with pytest.raises(IdentityError):
        scene.follow.act(news)
    scene.pods.not_done(news)
    scene.paths.checkpoint.rmdir()
    aside.rename(scene.paths.checkpoint)
