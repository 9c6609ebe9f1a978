"""MIG partitions on runtimes without CDI: the answer to Allocate holds what the IDs name, and is verified."""

import base64
from pathlib import Path

import pytest

from shoal.agent.errors import RefusedError
from shoal.agent.node.checkpoint import DeviceRecord
from shoal.agent.node.pods import NodePod
from shoal.agent.nvidia.partitions import PartitionStarts
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model.contract import nvidia
from tests.agent.scene import UNIT, Scene

RESOURCE = nvidia.RESOURCE_MIG_PREFIX + "3g.40gb"
CARDS = [{"model": "A100-80G", "mig": ["3g.40gb", "3g.40gb"]}, {"model": "A100-80G"}]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path, CARDS)
    scene.put("pod", card=1)
    return scene


def uuids(scene: Scene) -> list[str]:
    return [one.uuid for one in scene.pods.node.gpus[0].mig_instances]


def starts(scene: Scene, *, by_mounts: bool) -> PartitionStarts:
    return PartitionStarts(scene.pods, scene.specs, unit=UNIT, by_mounts=by_mounts)


def known(scene: Scene) -> NodePod:
    found = scene.pods.get("pod")
    assert found is not None
    return found


def record(ids: list[str], response: api.ContainerAllocateResponse, container: str = "other") -> DeviceRecord:
    answer = base64.b64encode(response.SerializeToString()).decode()
    return DeviceRecord("pod", container, RESOURCE, frozenset(ids), answer)


def test_answer_by_environment(scene: Scene):
    first, second = uuids(scene)
    response = starts(scene, by_mounts=False).answer([second])
    assert response.envs[nvidia.ENV_VISIBLE_DEVICES] == second
    assert not response.mounts
    both = starts(scene, by_mounts=False).answer([second, first])
    assert sorted(both.envs[nvidia.ENV_VISIBLE_DEVICES].split(",")) == sorted([first, second])


def test_answer_by_mounts(scene: Scene):
    first, _ = uuids(scene)
    response = starts(scene, by_mounts=True).answer([f"{first}::1", f"{first}::0"])
    assert response.envs[nvidia.ENV_VISIBLE_DEVICES] == nvidia.VISIBLE_DEVICES_DIRECTORY
    paths = [mount.container_path for mount in response.mounts]
    assert paths == [f"{nvidia.VISIBLE_DEVICES_DIRECTORY}/{first}"], "two slices of one partition are one device"


@pytest.mark.parametrize("by_mounts", [False, True])
def test_own_answer_is_let_pass_and_every_other_refused(scene: Scene, by_mounts: bool):
    first, second = uuids(scene)
    parts = starts(scene, by_mounts=by_mounts)
    parts.verify(known(scene), record([first], parts.answer([first])))
    parts.verify(known(scene), record([second, first], parts.answer([first, second])))
    for given in (parts.answer([second]), parts.answer([first, second]), api.ContainerAllocateResponse()):
        with pytest.raises(RefusedError, match="cards of another plugin"):
            parts.verify(known(scene), record([first], given))


def test_partition_that_is_gone_is_refused(scene: Scene):
    gone = f"{nvidia.MIG_UUID_PREFIX}gone"
    parts = starts(scene, by_mounts=False)
    with pytest.raises(RefusedError, match="not there any more"):
        parts.answer([gone])
    with pytest.raises(RefusedError, match="not there any more"):
        parts.verify(known(scene), record([gone], api.ContainerAllocateResponse()))


def test_container_with_a_share_besides_is_refused(scene: Scene):
    first, _ = uuids(scene)
    parts = starts(scene, by_mounts=False)
    with pytest.raises(RefusedError, match="keep one kind of GPU"):
        parts.verify(known(scene), record([first], parts.answer([first]), "main"))
