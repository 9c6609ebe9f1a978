"""The test node itself: pods run on it, and kubectl reaches into them."""

import json

from tests.kubelet.pods import FOREVER, Pods, container, pod
from tests.testbed.node import Node
from tests.testbed.node_config import KUBELET_ROOT
from tests.testbed.node_fixtures import NewNode


def test_pod_runs_to_its_end_and_kubectl_reads_its_log(kubelet: Node, pods: Pods):
    pods.create(pod("once", [container("main", "hostname; echo done")]), kubelet)
    ended = pods.wait_phase("once", "Succeeded")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert pods.log("once", "main").split() == ["once", "done"]


def test_kubectl_exec_works(kubelet: Node, pods: Pods):
    pods.create(pod("long", [container("main", f"echo started; {FOREVER}")]), kubelet)
    pods.wait_running("long")
    said = pods.apiserver.kubectl("-n", pods.namespace, "exec", "long", "-c", "main", "--", "cat", "/proc/1/cmdline")
    assert said.split("\0")[:2] == ["/bin/sh", "-c"]


def test_node_keeps_to_itself(kubelet: Node, pods: Pods):
    pods.create(pod("inside", [container("main")]), kubelet)
    found = pods.wait_running("inside")
    uid = found["metadata"]["uid"]
    own = {folder for top in kubelet.cgroup.folders for folder in top.rglob(f"pod{uid}")}
    assert own, "the pod's cgroup is not under the node's"
    assert found["status"]["hostIP"] == kubelet.address
    processes = kubelet.run(["ps", "-e", "-o", "pid=,comm="]).split()
    assert processes[:1] == ["1"]
    assert "kubelet" in processes
    assert "pytest" not in processes


def test_kubelet_finds_its_folder_as_systemd_would_leave_it(kubelet: Node):
    mounts = kubelet.run(["cat", "/proc/self/mountinfo"]).splitlines()
    own = [mount for mount in mounts if KUBELET_ROOT in mount.split()]
    assert len(own) == 1, "kubelet mounted its folder over itself"
    assert " shared:" in own[0]


def test_two_nodes_side_by_side(kubelet: Node, new_node: NewNode, pods: Pods):
    other = new_node()
    assert other.address != kubelet.address
    for node in (kubelet, other):
        pods.create(pod(f"on-{node.name}", [container("main", "hostname -i; echo here")]), node)
    addresses = set()
    for node in (kubelet, other):
        pods.wait_phase(f"on-{node.name}", "Succeeded")
        address, said = pods.log(f"on-{node.name}", "main").split()
        assert said == "here"
        addresses.add(address)
    assert len(addresses) == 2
    listed = json.loads(pods.apiserver.kubectl("get", "nodes", "-o", "json"))["items"]
    assert {kubelet.name, other.name} <= {node["metadata"]["name"] for node in listed}
