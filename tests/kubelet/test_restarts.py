"""What kubelet forgets and what it keeps: a restart of kubelet alone, and a reboot of the node."""

import pytest

from tests.kubelet.conftest import NewPlugin
from tests.kubelet.pods import FOREVER, Pods, container, container_status, is_ready, pod
from tests.kubelet.test_init_containers import records
from tests.testbed.node import Node
from tests.testbed.node_fixtures import NewNode
from tests.testbed.waiting import wait_for

SAY = f"echo $IDENTITY; {FOREVER}"


def allocatable(node: Node, resource: str) -> str:
    return str(node.status()["allocatable"].get(resource))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_kubelet_restart(new_node: NewNode, pods: Pods, new_plugin: NewPlugin, how: str):
    node = new_node()
    plugin = new_plugin(node, 8)
    pods.create(pod("before", [container("main", SAY, {plugin.resource: 2})], restart="Always"), node)
    before = container_status(pods.wait_running("before"), "main")
    wait_for(lambda: allocatable(node, plugin.resource) == "8", "told of 8 devices")
    assert plugin.socket.exists()

    getattr(node.kubelet, how)()
    node.kubelet.start()
    wait_for(lambda: not plugin.socket.exists(), "rid of the plugin's socket, which kubelet removes")
    wait_for(lambda: allocatable(node, plugin.resource) == "0", "told of no devices")
    plugin.stop()
    plugin.start()
    wait_for(lambda: allocatable(node, plugin.resource) == "8", "told of 8 devices again")

    pods.create(pod("after", [container("main", SAY, {plugin.resource: 2})]), node)
    pods.wait_running("after")
    assert pods.log("after", "main").strip() == f"{pods.namespace}/after/main"
    now = container_status(pods.get("before"), "main")
    assert (now["containerID"], now["restartCount"]) == (before["containerID"], 0), "running pods go on"
    assert len(plugin.allocated) == 2
    assert not set(plugin.allocated[0]) & set(plugin.allocated[1]), "kubelet still knows whose devices are taken"


def test_reboot(new_node: NewNode, pods: Pods, new_plugin: NewPlugin):
    node = new_node()
    plugin = new_plugin(node, 8)
    pods.create(pod("before", [container("main", SAY, {plugin.resource: 2})], restart="Always"), node)
    pods.create(pod("plain", [container("main")], restart="Always"), node)
    first = pods.wait_running("plain")
    pods.wait_running("before")
    kept = records(node, plugin.resource)

    plugin.stop()
    node.reboot()
    assert records(node, plugin.resource) == kept, "the checkpoint outlives a reboot"
    # kubelet admits the node's pods anew, and no plugin can have registered with it yet.
    lost = pods.wait_phase("before", "Failed")
    assert lost["status"]["reason"] == "UnexpectedAdmissionError"
    assert "no healthy devices present" in lost["status"]["message"]
    again = pods.wait(
        "plain", lambda found: is_ready(found) and container_status(found, "main")["restartCount"] == 1, "running again"
    )
    assert again["metadata"]["uid"] == first["metadata"]["uid"]

    plugin.start()
    wait_for(lambda: allocatable(node, plugin.resource) == "8", "told of 8 devices again")
    assert pods.get("before")["status"]["phase"] == "Failed", "a pod that was refused stays so"
    assert len(plugin.pre_started) == 1, "nothing of it is started again"
    pods.create(pod("after", [container("main", SAY, {plugin.resource: 8})]), node)
    pods.wait_running("after")
    assert pods.log("after", "main").strip() == f"{pods.namespace}/after/main", "all devices are free again"
