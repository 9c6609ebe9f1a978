"""How long a list of devices kubelet takes, and what it does with one that is too long."""

from shoal.kubelet import constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.model import quantity
from tests.kubelet.conftest import NewPlugin
from tests.kubelet.pods import FOREVER, Pods, container, is_ready, pod
from tests.testbed.node import Node
from tests.testbed.node_fixtures import NewNode
from tests.testbed.waiting import wait_for


def size_of(devices: list[str]) -> int:
    message = api.ListAndWatchResponse(devices=[api.Device(ID=name, health=constants.HEALTHY) for name in devices])
    return message.ByteSize()


def count(node: Node, what: str, resource: str) -> int:
    return quantity.whole(node.status()[what].get(resource, "0"))  # the API server writes 220000 as 220k


def test_longest_list(new_node: NewNode, pods: Pods, new_plugin: NewPlugin):
    node = new_node()
    devices = [f"{number:x}" for number in range(220_000)]
    assert size_of(devices) < constants.MAX_MESSAGE_BYTES
    plugin = new_plugin(node, devices)
    wait_for(lambda: count(node, "allocatable", plugin.resource) == 220_000, "told of 220,000 devices", 120)

    script = f"echo $DEVICES | wc -w; echo $IDENTITY; {FOREVER}"
    pods.create(pod("large", [container("main", script, {plugin.resource: 5000})]), node)
    pods.wait_running("large")
    assert pods.log("large", "main").split() == ["5000", f"{pods.namespace}/large/main"]

    longer = [f"{number:x}" for number in range(300_000)]
    assert size_of(longer) > constants.MAX_MESSAGE_BYTES
    plugin.set_devices(longer)
    wait_for(lambda: "larger than max" in node.kubelet.tail(2000), "refused by kubelet")
    # The stream is broken: kubelet still counts the devices it knew, but holds none of them for healthy.
    wait_for(lambda: count(node, "allocatable", plugin.resource) == 0, "rid of the devices")
    assert count(node, "capacity", plugin.resource) == 220_000
    assert is_ready(pods.get("large")), "a pod that runs goes on"
    plugin.stop()
    plugin.set_devices(devices)
    plugin.start()
    wait_for(lambda: count(node, "allocatable", plugin.resource) == 220_000, "told of 220,000 devices again", 120)
