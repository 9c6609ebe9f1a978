"""What was given is the agent's own knowledge: whatever is written on pods, and over restarts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.agent.errors import RefusedError
from shoal.agent.node.cgroups import PodCgroups
from shoal.agent.node.given import Given, GivenFiles
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation, Held
from shoal.model.contract import shoal
from shoal.model.request import Share
from tests.agent.scene import Scene

UID = "0b5b9d3e-7e0f-4a60-9d4c-1f6a2a6f0001"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, "2xA30")


def cgroup(scene: Scene, name: str, *, runs: bool) -> None:
    """The cgroup of a pod, with or without a process in it."""
    folder = scene.paths.pod_cgroups / "kubepods" / f"pod{name}"
    (folder / "container").mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("")
    (folder / "container" / "cgroup.procs").write_text("12\n" if runs else "")


def cards(scene: Scene, name: str) -> list[int]:
    """The cards a pod holds."""
    known = scene.pods.get(name)
    assert known is not None
    held = known.holding.held()
    return [gpu.index for gpu in scene.pods.node.gpus if gpu.uuid in held]


def give(scene: Scene, name: str) -> None:
    known = scene.pods.get(name)
    assert known is not None
    scene.pods.give(known)


def rewrite(scene: Scene, name: str, annotations: Mapping[str, str], **more: Any) -> None:
    """Somebody changes what is written on a pod."""
    known = scene.pods.get(name)
    assert known is not None
    manifest = {**msgspec.to_builtins(known.pod), **more}
    manifest["metadata"] = {**manifest["metadata"], "annotations": dict(annotations)}
    scene.pods.on_pod(Change(ChangeType.MODIFIED, known.pod, msgspec.convert(manifest, Pod)))


def forged(scene: Scene, *, card: int, memory: int = 2048) -> dict[str, str]:
    gpu = scene.pods.node.gpus[card]
    entry = ContainerAllocation("main", (CardShare(gpu.uuid, card, Share(memory)),))
    return {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(Allocation("n", (entry,)))}


@pytest.mark.parametrize("given", [True, False], ids=["given", "not yet"])
def test_a_changed_record_has_no_effect(scene: Scene, given: bool) -> None:
    scene.put("a", card=0)
    if given:
        give(scene, "a")
    for written in (forged(scene, card=1), forged(scene, card=1, memory=24576), {}, {"UUID": "x"}):
        rewrite(scene, "a", written)
        assert cards(scene, "a") == [0]
        assert scene.pods.totals.held("aliyun.com/gpu-mem", scene.pods.node.gpus[0].uuid).memory_mib == 2048


def test_a_record_that_claims_too_much_takes_no_room(scene: Scene) -> None:
    scene.put("a", card=0)
    known = scene.pods.get("a")
    assert known is not None
    scene.drop("a")
    manifest = msgspec.to_builtins(known.pod)
    manifest["metadata"]["annotations"] = forged(scene, card=0, memory=24576)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "forged"}]}
    scene.pods.on_pod(Change(ChangeType.ADDED, None, msgspec.convert({**manifest, "status": status}, Pod)))
    assert scene.pods.totals.held("aliyun.com/gpu-mem", scene.pods.node.gpus[0].uuid).memory_mib == 0


def test_what_was_given_is_known_after_a_restart(tmp_path: Path) -> None:
    before = Scene(tmp_path, "2xA30")
    before.put("a", card=0)
    give(before, "a")
    after = Scene(tmp_path, "2xA30")
    after.put("a", card=1)
    after.pods.recall()
    assert cards(after, "a") == [0]
    assert list(after.pods.held().pods) == ["a"]
    known = after.pods.get("a")
    assert known is not None
    assert known.given


@pytest.mark.parametrize("how", ["deleted", "called finished"])
def test_a_pod_holds_its_cards_while_its_containers_run(scene: Scene, how: str) -> None:
    scene.put("a", card=0)
    give(scene, "a")
    cgroup(scene, "a", runs=True)
    known = scene.pods.get("a")
    assert known is not None
    if how == "deleted":
        scene.pods.on_pod(Change(ChangeType.DELETED, known.pod, None, "41"))
    else:
        scene.put("a", card=0, status={"phase": "Succeeded"})
    assert scene.pods.alive("a")
    assert scene.pods.ending.is_set()
    assert cards(scene, "a") == [0]
    scene.pods.look_for_ends()
    assert "a" in scene.pods.held().pods
    cgroup(scene, "a", runs=False)
    scene.pods.look_for_ends()
    assert not scene.pods.alive("a")
    assert not scene.pods.ending.is_set()
    held = scene.pods.held()
    assert not held.pods
    assert held.as_of == (41 if how == "deleted" else 0)
    assert list(scene.paths.given.iterdir()) == []


def test_a_deleted_pod_does_not_come_back_when_the_cards_change(scene: Scene) -> None:
    scene.put("a", card=0)
    give(scene, "a")
    cgroup(scene, "a", runs=True)
    known = scene.pods.get("a")
    assert known is not None
    scene.pods.on_pod(Change(ChangeType.DELETED, known.pod, None, "41"))
    scene.pods.move_to(scene.pods.node)
    assert list(scene.pods.held().pods) == ["a"]
    cgroup(scene, "a", runs=False)
    scene.pods.look_for_ends()
    assert not scene.pods.held().pods
    assert scene.pods.get("a") is None


def test_a_pod_that_vanished_while_the_agent_was_away_holds_its_cards(tmp_path: Path) -> None:
    before = Scene(tmp_path, "2xA30")
    before.put("a", card=0)
    before.put("b", card=1)
    give(before, "a")
    give(before, "b")
    cgroup(before, "a", runs=True)
    after = Scene(tmp_path, "2xA30")
    after.pods.recall()
    assert list(after.pods.held().pods) == ["a"], "of the other nothing runs"
    assert cards(after, "a") == [0]
    cgroup(after, "a", runs=False)
    after.pods.look_for_ends()
    assert not after.pods.held().pods


def test_the_end_of_a_pod_that_got_nothing_is_told_too(scene: Scene) -> None:
    scene.put("a", card=0)
    known = scene.pods.get("a")
    assert known is not None
    scene.pods.on_pod(Change(ChangeType.DELETED, known.pod, None, "17"))
    assert scene.pods.held().as_of == 17


@pytest.mark.parametrize("sandbox", [False, True])
def test_a_pod_that_was_deleted_is_given_nothing(scene: Scene, sandbox: bool) -> None:
    """It was found before, and its sandbox may run already: what is given now nobody would take back."""
    scene.put("a", card=0)
    cgroup(scene, "a", runs=sandbox)
    known = scene.pods.get("a")
    assert known is not None
    scene.pods.on_pod(Change(ChangeType.DELETED, known.pod, None, "17"))
    with pytest.raises(RefusedError, match="the pod is over"):
        scene.pods.give(known)
    scene.pods.take_back("a")
    cgroup(scene, "a", runs=False)
    scene.pods.look_for_ends()
    assert not scene.pods.alive("a")
    assert not scene.pods.held().pods
    assert not list(scene.pods.on_card(scene.pods.node.gpus[0].uuid))


def test_what_cannot_be_remembered_is_not_given(scene: Scene) -> None:
    scene.put("a", card=0)
    scene.paths.run.mkdir()
    scene.paths.given.write_text("a file where the folder should be")
    with pytest.raises(RefusedError, match="cannot be remembered in"):
        give(scene, "a")
    known = scene.pods.get("a")
    assert known is not None
    assert not known.given
    scene.paths.given.unlink()
    give(scene, "a")
    assert list(scene.pods.held().pods) == ["a"]


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    files = GivenFiles(tmp_path)
    one = Given("u", "d", "p", Allocation("n", (ContainerAllocation("c", ()),)))
    files.write(one)
    for name, content in {"torn.json": '{"version":1', ".u.json.7": "draft", "old.json": '{"version":9}'}.items():
        (tmp_path / name).write_text(content)
    assert files.read() == [one]
    assert [path.name for path in tmp_path.iterdir()] == ["u.json"]


@pytest.mark.parametrize(
    "place",
    [
        f"kubepods/burstable/pod{UID}/c1",
        f"kubepods/pod{UID}/c1",
        f"kubelet/kubepods/besteffort/pod{UID}/c1",
        "kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-c1.scope",
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_pods_are_found_wherever_kubelet_puts_them(tmp_path: Path, place: str, version: int) -> None:
    root = tmp_path / "cgroup"
    base = root / "memory" if version == 1 else root
    base.mkdir(parents=True)
    if version == 2:
        (root / "cgroup.controllers").write_text("cpu memory")
    cgroups = PodCgroups(root)
    assert not cgroups.runs(UID)
    folder = base / place
    folder.mkdir(parents=True)
    (folder.parent / "cgroup.procs").write_text("")
    (folder / "cgroup.procs").write_text("7\n")
    other = UID[:-1] + "9"
    assert [cgroups.runs(UID), cgroups.runs(other)] == [True, False]
    (folder / "cgroup.procs").write_text("")
    assert not cgroups.runs(UID)


def test_without_cgroups_nothing_is_said_to_run(tmp_path: Path) -> None:
    assert not PodCgroups(tmp_path / "none").runs(UID)


#: A status that says that a claim serves the container. Who may write the status of a pod can write it.
MAPPED = {
    "resourceClaimName": "none",
    "requestMappings": [{"containerName": "main", "resourceName": "aliyun.com/gpu-mem", "requestName": "r"}],
}


@pytest.mark.parametrize("given", [True, False], ids=["given", "not yet"])
@pytest.mark.parametrize("how", ["a claim by the status", "an unreadable request"])
def test_the_end_of_a_pod_is_reported_whatever_the_pod_says(scene: Scene, given: bool, how: str) -> None:
    """A scheduler that has a ledger entry for the pod waits for the report."""
    scene.put("a", card=0)
    if given:
        give(scene, "a")
    known = scene.pods.get("a")
    assert known is not None
    meta = msgspec.to_builtins(known.pod)["metadata"]
    changes = (
        {"status": {"phase": "Running", "extendedResourceClaimStatus": MAPPED}}
        if how == "a claim by the status"
        else {"metadata": {**meta, "labels": {"aliyun.com/gpu-count": "many"}}}
    )
    rewrite(scene, "a", meta.get("annotations", {}), **changes)
    known = scene.pods.get("a")
    assert known is not None
    scene.pods.on_pod(Change(ChangeType.DELETED, known.pod, None, "41"))
    assert scene.pods.held() == Held({}, 41)


def test_a_claim_by_the_status_hides_no_devices(tmp_path: Path) -> None:
    """Neither before nor after a restart, nor is the name then served through claims."""
    before = Scene(tmp_path, "2xA30")
    before.put("a", card=0)
    give(before, "a")
    after = Scene(tmp_path, "2xA30")
    after.put("a", card=0, status={"phase": "Running", "extendedResourceClaimStatus": MAPPED})
    for scene in (before, after):
        rewrite(scene, "a", {}, status={"phase": "Running", "extendedResourceClaimStatus": MAPPED})
        scene.pods.recall()
        assert cards(scene, "a") == [0]
        assert scene.pods.totals.held("aliyun.com/gpu-mem", scene.pods.node.gpus[0].uuid).memory_mib == 2048
        assert scene.pods.claimed_names() == set()


def test_names_served_through_claims_hold_no_devices(scene: Scene) -> None:
    scene.put("a", card=0)
    scene.put("b", card=1)
    give(scene, "b")
    scene.pods.serve_by_claims(frozenset({"aliyun.com/gpu-mem"}))
    assert (cards(scene, "a"), cards(scene, "b")) == ([], [1]), "what was given stays"
    assert scene.pods.claimed_names() == {"aliyun.com/gpu-mem"}
    scene.pods.serve_by_claims(frozenset())
    assert (cards(scene, "a"), cards(scene, "b")) == ([0], [1])
