"""What goes wrong around an agent: containers fail closed, somebody is told, and all goes on when it is mended."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from shoal.kubelet import constants
from shoal.model.contract import nvidia
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, TELL, WHOLE, memory_pod
from tests.agent.sharing import SHARED, file, replicas
from tests.agent.simulated.conftest import InProcess, NewLab, SimulatedLab
from tests.kube.relay import Relay
from tests.kubelet.pods import container, container_status, is_ready, pod
from tests.testbed.waiting import wait_for


def place(lab: SimulatedLab, name: str, index: int, units: int, restart: str = "Always") -> None:
    manifest = memory_pod(name, units, restart=restart)
    lab.place(manifest, lab.allocation({"main": [index]}, {"main": Share(units * GIB)}))


def crash(lab: SimulatedLab, name: str) -> None:
    """Have a container end, so that it is started again."""
    before = container_status(lab.pods.get(name), "main").get("restartCount", 0)
    lab.node.end_container(lab.pods.get(name), "main", 1)
    lab.pods.wait(
        name,
        lambda found: container_status(found, "main").get("restartCount", 0) > before and is_ready(found),
        "started again",
    )


# The folder of CDI files is full


@contextmanager
def tiny(folder: Path) -> Iterator[None]:
    """A file system of one page over a folder."""
    command = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        (folder / "fills.it").touch()
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_folder_of_cdi_files_is_full(new_lab: NewLab) -> None:
    lab = new_lab("2xT4")
    place(lab, "before", 1, 4)
    lab.pods.wait_running("before")
    with tiny(lab.node.cdi):
        place(lab, "full", 0, 4)
        event = lab.pods.wait_event("full", lambda event: event["reason"] == "GpuRefused", "of its refusal")
        assert "No space left on device" in event["message"]
        assert lab.asked("healthz")[0] == 200
        assert is_ready(lab.pods.get("before")), "what runs is left alone"
        assert not container_status(lab.pods.get("full"), "main").get("containerID")
    lab.pods.wait_running("full")
    assert lab.visible("full") == [0]
    crash(lab, "before")
    assert lab.visible("before") == [1]


# kubelet's record


@pytest.mark.parametrize("torn", [b'{"Data":{"PodDeviceEnt', b"\x00" * 512], ids=["half", "zeroes"])
def test_kubelets_record_is_torn_when_the_agent_starts(new_lab: NewLab, torn: bytes) -> None:
    """Nobody knows then which devices are taken: nothing is listed until kubelet has written it anew."""
    lab = new_lab("2xT4")
    place(lab, "before", 1, 4)
    lab.pods.wait_running("before")
    lab.stop()
    path = lab.node.device_plugins / constants.CHECKPOINT
    whole = path.read_bytes()
    path.write_bytes(torn)
    lab.start(wait=False)
    wait_for(lambda: "kubelet's checkpoint cannot be read" in lab.asked("readyz")[1], "telling what it waits for")
    assert lab.asked("healthz")[0] == 200, "a restart would not help"
    assert is_ready(lab.pods.get("before")), "what runs is left alone"
    fresh = path.with_name("fresh")
    fresh.write_bytes(whole)
    fresh.replace(path)
    lab.wait_ready()
    place(lab, "after", 0, 4)
    lab.pods.wait_running("after")
    crash(lab, "before")
    assert (lab.visible("before"), lab.visible("after")) == ([1], [0])


def test_record_of_a_replica_is_lost_while_replicas_are_served_no_more(new_lab: NewLab, tmp_path: Path) -> None:
    """Of two writes at one time the older may come last. The container is started again with what it had."""
    lab = new_lab("2xT4", nvidiaConfig=file(tmp_path, replicas(4, renameByDefault=True)), resources=[MEMORY, WHOLE])
    wait_for(lambda: lab.allocatable(SHARED) > 0, "counted")
    lab.bind(pod("again", [container("main", TELL, {SHARED: 1})], restart="Always"))
    lab.pods.wait_running("again")
    before = lab.visible("again")
    file(tmp_path, "version: v1")
    lab.reload(**lab.settings)
    wait_for(lambda: lab.allocatable(SHARED) == 1, "with what is in use")
    path = lab.node.device_plugins / constants.CHECKPOINT
    content = json.loads(path.read_text())
    content["Data"]["PodDeviceEntries"] = None
    path.with_name("older").write_text(json.dumps(content))
    path.with_name("older").replace(path)
    label = {"metadata": {"labels": {"looked": "at"}}}
    url = f"/api/v1/namespaces/{lab.pods.namespace}/pods/again"
    lab.pods.apiserver.request("PATCH", url, label, "application/merge-patch+json")
    wait_for(lambda: lab.allocatable(SHARED) == 0, "without what is not recorded")
    crash(lab, "again")
    assert lab.visible("again") == before


# The node


def test_node_deleted_and_made_again_under_running_pods(new_lab: NewLab) -> None:
    """What the agent says of the node is said again of the new object; what pods hold stays held."""
    lab = new_lab("2xT4")
    place(lab, "before", 1, 10)
    lab.pods.wait_running("before")
    first = lab.object["metadata"]["uid"]
    lab.pods.apiserver.request("DELETE", f"/api/v1/nodes/{lab.node.name}")
    lab.node.kubelet.restart()
    assert lab.object["metadata"]["uid"] != first
    lab.wait_ready()
    assert is_ready(lab.pods.get("before"))
    place(lab, "too-much", 1, 8)
    event = lab.pods.wait_event("too-much", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "has 10240 MiB in use by other pods of the node" in event["message"]
    place(lab, "beside", 0, 12)
    lab.pods.wait_running("beside")
    crash(lab, "before")
    assert (lab.visible("before"), lab.visible("beside")) == ([1], [0])


def test_same_name_with_other_cards(new_lab: NewLab) -> None:
    """The machine was replaced: the cards of yesterday are nobody's, and those of today are given to who has them."""
    lab = new_lab("2xT4")
    place(lab, "before", 1, 4)
    lab.pods.wait_running("before")
    old = {gpu.uuid for gpu in lab.gpus}
    lab.stop()
    others = SimulatedNvml(parse_cards("3xA30"), clock=lambda: 1.0, seed="another machine")
    lab.open_driver = lambda: others
    lab.start(wait=False)
    wait_for(lambda: lab.asked("readyz")[0] == 200 and len(lab.gpus) == 3, "with the new cards")
    assert old.isdisjoint(gpu.uuid for gpu in lab.gpus)
    place(lab, "after", 1, 20)
    lab.pods.wait_running("after")
    assert lab.env("after")[nvidia.ENV_VISIBLE_DEVICES] == lab.card(1).uuid
    lab.node.end_container(lab.pods.get("before"), "main", 1)
    event = lab.pods.wait_event("before", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert any(uuid in event["message"] for uuid in old), event["message"]


# Two agents


def test_second_agent_on_a_node_waits_for_the_first(new_lab: NewLab) -> None:
    lab = new_lab("2xT4")
    place(lab, "before", 1, 4)
    lab.pods.wait_running("before")
    second = InProcess(lab.pods.apiserver, lab.node, {"nodeName": lab.node.name}, lab.open_driver)
    first, lab._agent = lab._agent, second
    try:
        wait_for(lambda: "another agent" in lab.asked("readyz")[1], "saying what it waits for")
        place(lab, "during", 0, 4)
        lab.pods.wait_running("during")
        assert lab.visible("during") == [0]
        assert first is not None
        first.stop()
        wait_for(lambda: lab.asked("readyz")[0] == 200, "in the place of the first")
        place(lab, "after", 0, 11)
        lab.pods.wait_running("after")
        crash(lab, "before")
        assert (lab.visible("before"), lab.visible("after")) == ([1], [0])
    finally:
        lab.stop()


# The API server


class Between:
    """A relay between the agent and its API server, on the loop of the simulated cluster."""

    def __init__(self, lab: SimulatedLab, folder: Path) -> None:
        self._loop = lab.pods.apiserver.loop
        self.relay = Relay(lab.pods.apiserver.api.port)
        self._loop.run(self.relay.__aenter__())
        config = yaml.safe_load(lab.pods.apiserver.api.kubeconfig().read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.relay.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def away(self) -> None:
        """Nobody answers any more."""

        self._loop.run(self.relay.block())

    def back(self) -> None:
        """All is as before."""

        self.relay.unblock()

    def close(self) -> None:
        """End it."""
        self._loop.run(self.relay.__aexit__(None, None, None))


def test_api_server_is_away(new_lab: NewLab, tmp_path: Path) -> None:
    """A container of a pod that the agent has not heard of does not start; those it knows do, and nothing is lost."""
    lab = new_lab("2xT4", start=False)
    between = Between(lab, tmp_path)
    lab.kubeconfig = between.kubeconfig
    lab.start()
    place(lab, "before", 1, 4)
    lab.pods.wait_running("before")
    between.away()
    place(lab, "during", 0, 4)
    lab.pods.wait_event("during", lambda event: "has not told of the pod" in event["message"], "of its waiting")
    assert not container_status(lab.pods.get("during"), "main").get("containerID")
    crash(lab, "before")
    assert lab.visible("before") == [1]
    assert lab.asked("healthz")[0] == 200
    between.back()
    lab.pods.wait_running("during")
    assert lab.visible("during") == [0]
    lab.stop()
    between.close()
