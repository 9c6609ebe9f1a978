"""Nodes that go quiet, are cordoned or tainted, and what becomes of their pods; with a clock of the test's own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import EVENTS, NODES, PODS
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import parse
from shoal.embedded.nodes.lifecycle import stays, taints_of
from tests.embedded.nodes.manual_clock import START, ManualClock

NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


class Cluster:
    """Two nodes and the API server, on a manual clock."""

    def __init__(self, api: EmbeddedApi, clock: ManualClock, nodes: Nodes) -> None:
        self.api = api
        self.clock = clock
        self.nodes = nodes

    async def pod(self, name: str, node: str, **spec: object) -> None:
        """A pod on a node, running."""
        container = {"name": "main", "image": "x"}
        manifest = {"metadata": {"name": name}, "spec": {"containers": [container], "nodeName": node, **spec}}
        self.api.registry.create(PODS, "default", manifest)
        await self.clock.settle()

    def get(self, name: str) -> Any:
        return self.api.registry.store.get(PODS.key, ("default", name))

    def node(self, name: str) -> Any:
        return self.api.registry.store.get(NODES.key, ("", name))

    def ready(self, name: str) -> tuple[str, str]:
        condition = next(one for one in self.node(name)["status"]["conditions"] if one["type"] == "Ready")
        return condition["status"], condition["reason"]

    def taints(self, name: str) -> set[tuple[str, str]]:
        return {(one["key"], one["effect"]) for one in self.node(name)["spec"].get("taints", ())}

    def told(self, name: str) -> set[tuple[str, str]]:
        events = self.api.registry.store.objects(EVENTS.key)
        return {(one["reason"], one["message"]) for one in events if one["involvedObject"]["name"] == name}

    async def change_node(self, name: str, **spec: object) -> None:
        old = self.node(name)
        self.api.registry.update(NODES, "", name, {**old, "spec": {**old["spec"], **spec}})
        await self.clock.settle()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    clock = ManualClock()
    api = EmbeddedApi(tmp_path / "api", clock=clock.now)
    nodes = Nodes(api, parse([{"name": "n", "count": 2, "devicePlugins": False}]), tmp_path / "n", clock=clock)
    await nodes.start()
    await clock.settle()
    yield Cluster(api, clock, nodes)
    await nodes.stop()


async def test_nodes_are_ready_and_stay_so(cluster: Cluster) -> None:
    assert cluster.taints("n-1") == set(), "the taint that a new node gets is gone"
    await cluster.clock.advance(600)
    assert cluster.ready("n-1") == ("True", "KubeletReady")
    assert cluster.taints("n-1") == set()


async def test_a_quiet_node_is_tainted_and_loses_its_pods_after_five_minutes(cluster: Cluster) -> None:
    await cluster.pod("p", "n-1")
    await cluster.pod("other", "n-2")
    await cluster.pod("loyal", "n-1", tolerations=[{"operator": "Exists"}])
    assert cluster.get("p")["status"]["phase"] == "Running"
    await cluster.nodes["n-1"].stop()
    await cluster.clock.advance(45)
    assert cluster.ready("n-1") == ("True", "KubeletReady")
    await cluster.clock.advance(20)
    assert cluster.ready("n-1") == ("Unknown", "NodeStatusUnknown")
    assert cluster.taints("n-1") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
    assert cluster.ready("n-2") == ("True", "KubeletReady")
    assert ("NodeNotReady", "Node is not ready") in cluster.told("p")
    assert ("NodeNotReady", "Node n-1 status is now: NodeNotReady") in cluster.told("n-1")
    conditions = {one["type"]: one["status"] for one in cluster.get("p")["status"]["conditions"]}
    assert conditions["Ready"] == "False"
    await cluster.clock.advance(280)
    assert "deletionTimestamp" not in cluster.get("p")["metadata"]
    await cluster.clock.advance(30)
    leaving = cluster.get("p")
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 30, "nobody is there to let it go"
    target = next(one for one in leaving["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (target["reason"], target["status"]) == ("DeletionByTaintManager", "True")
    assert ("TaintManagerEviction", "Marking for deletion Pod default/p") in cluster.told("p")
    assert "deletionTimestamp" not in cluster.get("loyal")["metadata"]
    assert "deletionTimestamp" not in cluster.get("other")["metadata"]
    await cluster.nodes["n-1"].start()
    await cluster.clock.advance(60)
    assert cluster.ready("n-1") == ("True", "KubeletReady")
    assert cluster.taints("n-1") == set()
    assert cluster.get("p") is None, "kubelet is back and has let it go"
    assert cluster.get("loyal")["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_renewed_lease_is_a_sign_of_life_at_its_own_time(cluster: Cluster) -> None:
    await cluster.clock.advance(43)
    await cluster.nodes["n-1"].stop()
    await cluster.clock.advance(40)
    assert cluster.ready("n-1") == ("True", "KubeletReady")
    await cluster.clock.advance(20)
    assert cluster.ready("n-1") == ("Unknown", "NodeStatusUnknown")


async def test_a_node_that_comes_back_in_time_keeps_its_pods(cluster: Cluster) -> None:
    await cluster.pod("p", "n-1")
    await cluster.nodes["n-1"].stop()
    await cluster.clock.advance(100)
    assert cluster.ready("n-1")[0] == "Unknown"
    await cluster.nodes["n-1"].start()
    await cluster.clock.advance(400)
    assert cluster.get("p")["status"]["phase"] == "Running"
    conditions = {one["type"]: one["status"] for one in cluster.get("p")["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert ("TaintManagerEviction", "Cancelling deletion of Pod default/p") in cluster.told("p")


async def test_a_cordoned_node_is_tainted(cluster: Cluster) -> None:
    await cluster.change_node("n-1", unschedulable=True)
    assert cluster.taints("n-1") == {("node.kubernetes.io/unschedulable", "NoSchedule")}
    await cluster.change_node("n-1", unschedulable=None)
    assert cluster.taints("n-1") == set()


async def test_a_taint_evicts_at_once_what_does_not_stand_it(cluster: Cluster) -> None:
    stands = {"key": "gone", "operator": "Exists", "effect": "NoExecute"}
    await cluster.pod("none", "n-1")
    await cluster.pod("some", "n-1", tolerations=[{**stands, "tolerationSeconds": 60}])
    await cluster.pod("all", "n-1", tolerations=[stands])
    await cluster.change_node("n-1", taints=[{"key": "gone", "effect": "NoExecute"}])
    await cluster.clock.advance(2)
    assert cluster.get("none") is None
    await cluster.clock.advance(50)
    assert cluster.get("some") is not None
    await cluster.clock.advance(15)
    assert cluster.get("some") is None
    assert cluster.get("all")["status"]["phase"] == "Running"
    await cluster.pod("late", "n-1")
    refused = cluster.get("late")
    assert refused is None or refused["status"]["reason"] == "TaintToleration"


@pytest.mark.parametrize(
    ("taints", "tolerations", "seconds"),
    [
        ([], [], None),
        ([{"key": "a", "effect": "NoSchedule"}], [], None),
        ([{"key": "a", "effect": "NoExecute"}], [], 0.0),
        ([{"key": "a", "effect": "NoExecute"}], [{"key": "a", "operator": "Exists"}], None),
        ([{"key": "a", "effect": "NoExecute"}], [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}], 5.0),
        ([{"key": "a", "effect": "NoExecute"}], [{"operator": "Exists", "tolerationSeconds": -3}], 0.0),
        ([{"key": "a", "value": "x", "effect": "NoExecute"}], [{"key": "a", "value": "y"}], 0.0),
        ([{"key": "a", "value": "x", "effect": "NoExecute"}], [{"key": "a", "value": "x"}], None),
        (
            [{"key": "a", "effect": "NoExecute"}, {"key": "b", "effect": "NoExecute"}],
            [{"key": "a", "operator": "Exists"}],
            0.0,
        ),
    ],
)
def test_how_long_a_pod_stays(taints: list, tolerations: list, seconds: float | None) -> None:
    assert stays({"spec": {"tolerations": tolerations}}, taints) == seconds


def test_taints_follow_conditions_and_leave_others_alone() -> None:
    mine = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    node: dict[str, Any] = {"spec": {"taints": [mine]}, "status": {"conditions": []}}
    assert [one["key"] for one in taints_of(node, START)] == ["gpu", NOT_READY]
    node["status"]["conditions"] = [
        {"type": "Ready", "status": "False"},
        {"type": "MemoryPressure", "status": "True"},
    ]
    assert [(one["key"], one["effect"]) for one in taints_of(node, START)] == [
        ("gpu", "NoSchedule"),
        (NOT_READY, "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        (NOT_READY, "NoExecute"),
    ]
    tainted = {**node, "spec": {"taints": taints_of(node, START)}}
    assert taints_of(tainted, START) == tainted["spec"]["taints"], "what is there stays as it is"
