"""kubelet's checkpoint is what we take it for: every entry is read, and its checksum is understood."""

from shoal.embedded.nodes.devices import checkpoint
from shoal.kubelet import constants
from tests.kubelet.conftest import NewPlugin
from tests.kubelet.pods import FOREVER, Pods, container, pod
from tests.testbed.node import Node
from tests.testbed.waiting import wait_for


def test_checkpoint_is_read_and_written_alike(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    plugin, other = new_plugin(kubelet, 8), new_plugin(kubelet, 3)
    path = kubelet.device_plugins / constants.CHECKPOINT
    containers = [
        container("left", FOREVER, {plugin.resource: 2}),
        container("right", FOREVER, {plugin.resource: 3, other.resource: 1}),
    ]
    pods.create(pod("pair", containers, [container("first", "true", {plugin.resource: 4})]), kubelet)
    uid = pods.wait_running("pair")["metadata"]["uid"]
    found = checkpoint.decode(path.read_bytes())
    held = {(one.container, one.resource): len(one.ids) for one in found.entries if one.pod_uid == uid}
    assert held == {
        ("first", plugin.resource): 4,
        ("left", plugin.resource): 2,
        ("right", plugin.resource): 3,
        ("right", other.resource): 1,
    }
    assert {name: len(found.registered[name]) for name in (plugin.resource, other.resource)} == {
        plugin.resource: 8,
        other.resource: 3,
    }
    assert checkpoint.decode(checkpoint.encode(found)) == found
    assert checkpoint.encode(found) == path.read_bytes()
    pods.delete("pair")
    pods.create(pod("next", [container("main", FOREVER, {plugin.resource: 1})]), kubelet)
    pods.wait_running("next")
    wait_for(lambda: uid not in {one.pod_uid for one in checkpoint.decode(path.read_bytes()).entries}, "rid of the pod")
