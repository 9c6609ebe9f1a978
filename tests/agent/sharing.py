"""What an agent does with NVIDIA's configuration, whatever kubelet it meets: replicas, MIG partitions, live changes.

The tests of the folders `simulated` and `real` run these.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, SAY, TELL, WHOLE, Lab, memory_pod
from tests.kubelet.pods import container, is_ready, pod
from tests.testbed.waiting import wait_for

NewLab = Callable[..., Lab]
SHARED = nvidia.RESOURCE_GPU_SHARED
SMALL = "nvidia.com/mig-1g.6gb"
LARGE = "nvidia.com/mig-2g.12gb"
CUT = {"model": "A30", "mig": ["1g.6gb", "1g.6gb", "2g.12gb"]}


def replicas(number: int, *, name: str = WHOLE, **more: object) -> str:
    """A file that slices time."""
    section = {"resources": [{"name": name, "replicas": number}], **more}
    return yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": section}})


def asks(name: str, resource: str, count: int = 1) -> dict:
    """A pod of one container that tells what it got."""
    return pod(name, [container("main", TELL, {resource: count})])


def file(folder: Path, text: str) -> str:
    """The path of a file with this text."""
    path = folder / "nvidia.yaml"
    path.write_text(text)
    return str(path)


class Map:
    """A ConfigMap that agents are told to read."""

    def __init__(self, lab: Lab, **data: str) -> None:
        self._lab = lab
        self._name = f"plugin-{uuid.uuid4().hex[:8]}"
        self.path = f"{lab.pods.namespace}/{self._name}"
        self.write(**data)

    def write(self, **data: str) -> None:
        """Make it have these keys and no others."""
        path = f"/api/v1/namespaces/{self._lab.pods.namespace}/configmaps"
        server, body = self._lab.pods.apiserver, {"metadata": {"name": self._name}, "data": data}
        if server.try_request("PUT", f"{path}/{self._name}", body)[0] == 404:
            server.request("POST", path, body)


def label(lab: Lab, key: str) -> None:
    """Have the node ask for a key."""
    patch = {"metadata": {"labels": {nvidia.LABEL_DEVICE_PLUGIN_CONFIG: key}}}
    lab.pods.apiserver.request("PATCH", f"/api/v1/nodes/{lab.node.name}", patch, "application/merge-patch+json")


def node_events(lab: Lab, reason: str) -> list[str]:
    """What events about the node say."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{lab.node.name}"
    return [one["message"] for one in lab.pods.apiserver.request("GET", path)["items"] if one["reason"] == reason]


def device_ids(lab: Lab, name: str) -> list[str]:
    """The devices that a pod has, by kubelet's record."""
    uid = lab.pods.get(name)["metadata"]["uid"]
    entries = [one for one in lab.node.checkpoint()["PodDeviceEntries"] if one["PodUID"] == uid]
    return [one for entry in entries for ids in entry["DeviceIDs"].values() for one in ids]


@pytest.mark.parametrize("strategy", ["auto", "envvar"])
def test_time_slices_are_spread_and_booked(new_lab: NewLab, tmp_path: Path, strategy: str):
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(4)), deviceListStrategy=strategy)
    assert lab.allocatable(WHOLE) == 8
    names = [f"slice-{number}" for number in range(5)]
    for name in names:
        lab.bind(asks(name, WHOLE))
    for name in names:
        lab.pods.wait_running(name)
    cards = Counter(lab.written(name)[0] for name in names)
    assert sorted(cards.values()) == [2, 3]
    for name in names:
        assert (lab.visible(name) if strategy == "auto" else lab.given(name)) == lab.written(name)
        annotations = lab.pods.get(name)["metadata"]["annotations"]
        written = shoal.decode_allocation(annotations[shoal.ANNOTATION_ALLOCATION])
        assert written.policy == "time-slicing-4"
        assert written.containers[0].cards[0].share == Share(15 * GIB // 4)
        assert gpushare.NAME_INDEX not in annotations, "it is no pod of gpushare's"
        assert not any(gpu.uuid in one for one in device_ids(lab, name) for gpu in lab.gpus)
    wait_for(lambda: lab.allocatable(MEMORY) == 3 + 7, "with the memory of replicas taken from the shares")
    assert lab.allocatable(WHOLE) == 8


def test_replicas_whole_cards_and_memory_live_on_one_node(new_lab: NewLab, tmp_path: Path):
    lab = new_lab("3xT4", nvidiaConfig=file(tmp_path, replicas(2, renameByDefault=True)))
    wait_for(lambda: lab.allocatable(SHARED) == 6, "with replicas")
    assert lab.allocatable(WHOLE) == 3
    whole = lab.allocation({"main": [0]}, {"main": Share(exclusive=True)})
    lab.place(asks("whole", WHOLE), whole)
    lab.pods.wait_running("whole")
    wait_for(lambda: lab.allocatable(SHARED) == 4, "without the replicas of the whole card")
    lab.place(memory_pod("memory", 9), lab.allocation({"main": [1]}, {"main": Share(9 * GIB)}))
    lab.pods.wait_running("memory")
    wait_for(lambda: lab.allocatable(SHARED) == 2, "without replicas that have no room beside the memory")
    lab.bind(asks("both", SHARED, 2))
    lab.pods.wait_running("both")
    assert lab.visible("both") == [2]
    wait_for(lambda: (lab.allocatable(MEMORY), lab.allocatable(WHOLE)) == (15, 1), "without the cards that are in use")
    lab.pods.delete("whole")
    wait_for(lambda: lab.allocatable(SHARED) == 4, "with the replicas of the card that is free")
    lab.bind(asks("late", SHARED))
    lab.pods.wait_running("late")
    assert lab.visible("late") == [0]


def test_containers_of_one_pod_have_replicas_of_their_own(new_lab: NewLab, tmp_path: Path):
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(3)))
    init = [container("first", SAY, {WHOLE: 1}), container("beside", TELL, {WHOLE: 1}, restartPolicy="Always")]
    apps = [container("left", TELL, {WHOLE: 1}), container("right", TELL, {MEMORY: 4})]
    lab.bind(pod("mixed", apps, init))
    lab.pods.wait_running("mixed")
    found = shoal.decode_allocation(lab.pods.get("mixed")["metadata"]["annotations"][shoal.ANNOTATION_ALLOCATION])
    chosen = {entry.name: [card.index for card in entry.cards] for entry in found.containers}
    assert {name: lab.visible("mixed", name) for name in chosen} == chosen
    assert chosen.keys() == {"first", "beside", "left", "right"}


def test_more_than_one_replica_is_refused_if_so_configured(new_lab: NewLab, tmp_path: Path):
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(4, failRequestsGreaterThanOne=True)))
    lab.bind(asks("greedy", WHOLE, 2))
    refused = lab.pods.wait_phase("greedy", "Failed")
    assert (
        "a container asks for 2 of nvidia.com/gpu, whose replicas share a card: ask for 1"
        in (refused["status"]["message"])
    )
    lab.bind(asks("modest", WHOLE))
    lab.pods.wait_running("modest")


def test_pod_that_was_placed_on_a_whole_card_has_it_alone(new_lab: NewLab, tmp_path: Path):
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(4)))
    lab.place(asks("whole", WHOLE), lab.allocation({"main": [1]}, {"main": Share(exclusive=True)}))
    lab.pods.wait_running("whole")
    assert lab.visible("whole") == [1]
    wait_for(lambda: lab.allocatable(WHOLE) == 5, "without the other replicas of its card")
    lab.bind(asks("slice", WHOLE))
    lab.pods.wait_running("slice")
    assert lab.visible("slice") == [0]


def test_edits_of_the_config_map_are_taken_live(new_lab: NewLab):
    lab = new_lab("2xT4", start=False)
    config = Map(lab, plain="version: v1", sliced=replicas(4))
    lab.start(nvidiaConfigMap=config.path, nvidiaConfigDefault="plain")
    assert lab.allocatable(WHOLE) == 2
    label(lab, "sliced")
    wait_for(lambda: lab.allocatable(WHOLE) == 8, "sliced by the label")
    lab.bind(asks("first", WHOLE))
    lab.pods.wait_running("first")
    lab.place(memory_pod("memory", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("memory")
    config.write(plain="version: v1", sliced=replicas(2))
    wait_for(lambda: lab.allocatable(WHOLE) == 3, "cut into two: one beside each pod, and the first's own")
    lab.bind(asks("second", WHOLE))
    lab.pods.wait_running("second")
    config.write(plain="version: v1", sliced="version: v1\nsharing: {timeslicing: {}}")
    wait_for(lambda: bool(node_events(lab, "GPUConfigRefused")), "telling of the mistake")
    assert "timeslicing" in node_events(lab, "GPUConfigRefused")[0]
    assert "the last good one stays in force" in node_events(lab, "GPUConfigRefused")[0]
    assert lab.allocatable(WHOLE) == 3
    label(lab, "plain")
    wait_for(lambda: lab.allocatable(WHOLE) == 2, "with what pods have, and no card that is free")
    for name in ("first", "second", "memory"):
        assert is_ready(lab.pods.get(name))
    lab.node.kubelet.stop()
    lab.node.kubelet.start()
    lab.wait_ready()
    for name in ("first", "second", "memory"):
        lab.pods.wait_running(name)
        assert lab.visible(name) == lab.written(name)
    lab.pods.delete("first")
    lab.pods.delete("second")
    lab.pods.delete("memory")
    wait_for(lambda: lab.allocatable(WHOLE) == 2, "with whole cards again")
    lab.bind(asks("whole", WHOLE, 2))
    lab.pods.wait_running("whole")
    assert lab.visible("whole") == [0, 1]


def test_label_that_names_no_key_offers_nothing_until_it_does(new_lab: NewLab):
    lab = new_lab("2xT4", start=False)
    config = Map(lab, plain="version: v1")
    label(lab, "gone")
    lab.start(wait=False, nvidiaConfigMap=config.path)
    wait_for(lambda: "asks for 'gone', which is not there" in lab.asked("readyz")[1], "telling what it waits for", 120)
    wait_for(lambda: lab.allocatable(MEMORY) == 30, "with what has nothing to do with it")
    assert lab.allocatable(WHOLE) == 0
    config.write(plain="version: v1", gone=replicas(2))
    wait_for(lambda: lab.allocatable(WHOLE) == 4, "with replicas")


def test_resource_that_is_no_more_is_served_while_a_pod_has_it(new_lab: NewLab, tmp_path: Path):
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(2, renameByDefault=True)))
    wait_for(lambda: lab.allocatable(SHARED) == 4, "with replicas")
    lab.bind(asks("slice", SHARED))
    lab.pods.wait_running("slice")
    file(tmp_path, "version: v1")
    lab.reload(**lab.settings)
    wait_for(lambda: lab.allocatable(SHARED) == 1, "with the one that is in use")
    assert (lab.asked("readyz")[0], is_ready(lab.pods.get("slice"))) == (200, True)
    lab.pods.delete("slice")
    wait_for(lambda: lab.allocatable(SHARED) == 0, "with none")


@pytest.mark.parametrize("strategy", ["auto", "envvar", "volume-mounts"])
def test_mig_partitions_by_profile(new_lab: NewLab, tmp_path: Path, strategy: str):
    text = "{version: v1, flags: {migStrategy: mixed}}"
    lab = new_lab([CUT, {"model": "A30"}], nvidiaConfig=file(tmp_path, text), deviceListStrategy=strategy)
    wait_for(lambda: (lab.allocatable(SMALL), lab.allocatable(LARGE)) == (2, 1), "with partitions")
    assert (lab.allocatable(MEMORY), lab.allocatable(WHOLE)) == (24, 1), "a card in MIG mode gives nothing else"
    for name, resource in (("small-0", SMALL), ("small-1", SMALL), ("large", LARGE)):
        lab.bind(asks(name, resource))
        lab.pods.wait_running(name)
    parts = {one.uuid: one.profile for one in lab.card(0).mig_instances}
    seen = {}
    for name in ("small-0", "small-1", "large"):
        (seen[name],) = device_ids(lab, name)
        listed = nvidia.VISIBLE_DEVICES_DIRECTORY if strategy == "volume-mounts" else seen[name]
        assert lab.env(name)[nvidia.ENV_VISIBLE_DEVICES] == listed, "what PodResources says is what it has"
    assert {name: parts[one] for name, one in seen.items()} == {
        "small-0": "1g.6gb",
        "small-1": "1g.6gb",
        "large": "2g.12gb",
    }
    assert len(set(seen.values())) == 3


def test_mig_partitions_by_the_agents_own_setting(new_lab: NewLab):
    lab = new_lab([CUT, {"model": "A30"}], migStrategy="mixed")
    wait_for(lambda: (lab.allocatable(SMALL), lab.allocatable(LARGE)) == (2, 1), "with partitions")


def test_mig_partitions_under_the_name_of_cards_and_sliced(new_lab: NewLab, tmp_path: Path):
    text = replicas(2) + "flags: {migStrategy: single}\n"
    cards = [{"model": "A30", "count": 2, "mig": ["1g.6gb", "1g.6gb"]}]
    lab = new_lab(cards, nvidiaConfig=file(tmp_path, text), resources=[WHOLE])
    assert lab.allocatable(WHOLE) == 8
    lab.bind(asks("part", WHOLE))
    lab.pods.wait_running("part")
    (one,) = device_ids(lab, "part")
    assert lab.env("part")[nvidia.ENV_VISIBLE_DEVICES] == nvidia.parse_replica_id(one)[0]


def test_cards_that_do_not_go_with_the_strategy_are_told_of(new_lab: NewLab, tmp_path: Path):
    text = "{version: v1, flags: {migStrategy: single}}"
    lab = new_lab([CUT, {"model": "A30"}], nvidiaConfig=file(tmp_path, text), resources=[MEMORY])
    assert node_events(lab, "GPUConfigRefused") == [], "nothing of NVIDIA's is served here"
    lab.reload(nvidiaConfig=lab.settings["nvidiaConfig"], resources=[MEMORY, WHOLE])
    wait_for(lambda: bool(node_events(lab, "GPUConfigRefused")), "telling what is wrong")
    assert "needs every card in MIG mode and cut into the same profile" in node_events(lab, "GPUConfigRefused")[0]
    assert lab.allocatable(WHOLE) == 0
