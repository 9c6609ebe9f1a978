"""Units that no plugin serves: an extended resource set in the node's status by the API."""

from shoal.model import quantity
from tests.kubelet.conftest import NewPlugin
from tests.kubelet.pods import FOREVER, Pods, container, pod
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node
from tests.testbed.node_fixtures import NewNode
from tests.testbed.waiting import wait_for

UNITS = "shoal.test/units"
COUNT = 655_360


def publish(apiserver: ApiServer, node: Node) -> None:
    status = {what: {UNITS: str(COUNT)} for what in ("capacity", "allocatable")}
    apiserver.request("PATCH", f"/api/v1/nodes/{node.name}/status", {"status": status}, "application/merge-patch+json")


def heartbeat(node: Node) -> str:
    return max(str(condition["lastHeartbeatTime"]) for condition in node.status()["conditions"])


def wait_for_update(node: Node) -> None:
    before = heartbeat(node)
    wait_for(lambda: heartbeat(node) > before, "told anything by kubelet")


def units(node: Node) -> tuple[int, ...]:
    status = node.status()
    return tuple(quantity.whole(status[what].get(UNITS, "0")) for what in ("capacity", "allocatable"))


def test_units_in_node_status(new_node: NewNode, apiserver: ApiServer, pods: Pods, new_plugin: NewPlugin):
    node = new_node()
    plugin = new_plugin(node, 8)
    publish(apiserver, node)
    for _ in range(2):
        wait_for_update(node)
        assert units(node) == (COUNT, COUNT)

    script = f"echo $IDENTITY; {FOREVER}"
    pods.create(pod("fits", [container("main", script, {UNITS: 600_000, plugin.resource: 1})]), node)
    pods.wait_running("fits")
    assert pods.log("fits", "main").strip() == f"{pods.namespace}/fits/main"
    assert [len(ids) for ids in plugin.allocated] == [1]
    assert plugin.pre_started == plugin.allocated

    pods.create(pod("beyond", [container("main", script, {UNITS: 60_000, plugin.resource: 1})]), node)
    refused = pods.wait_phase("beyond", "Failed")
    assert refused["status"]["reason"] == f"OutOf{UNITS}"
    assert len(plugin.allocated) == 2, "kubelet has called Allocate before it refuses the pod"
    assert len(plugin.pre_started) == 1, "but nothing is started"

    node.kubelet.restart()
    wait_for_update(node)
    assert units(node) == (COUNT, COUNT)
    plugin.stop()
    plugin.start()
    pods.create(pod("rest", [container("main", script, {UNITS: COUNT - 600_000, plugin.resource: 1})]), node)
    pods.wait_running("rest")
    assert pods.log("rest", "main").strip() == f"{pods.namespace}/rest/main"
