"""When a leader lets another lead, by what the watch shows."""

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.scheduler.handover import Handover


class Scene:
    """Two nodes, of which `a` has the own pod and `b` another replica."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.handover = Handover(namespace="kube-system", name="own", node=self.nodes.get)
        self.node("a")
        self.node("b")
        self.pod("own", "a")
        self.pod("other", "b")

    def node(self, name: str, *, cordoned: bool = False) -> None:
        old = self.nodes.get(name)
        self.nodes[name] = msgspec.convert(
            {"metadata": {"name": name}, "spec": {"unschedulable": True} if cordoned else {}}, Node
        )
        self.handover.on_node(Change(ChangeType.MODIFIED, old, self.nodes[name]))

    def pod(self, name: str, node: str, **changes: Any) -> None:
        meta = {"name": name, "namespace": changes.pop("namespace", "kube-system"), **changes.pop("metadata", {})}
        running = [{"name": "scheduler", "state": changes.pop("state", {"running": {}})}]
        account = changes.pop("account", "shoal-scheduler")
        status = {"phase": changes.pop("phase", "Running"), "containerStatuses": running}
        made = {"metadata": meta, "spec": {"nodeName": node, "serviceAccountName": account}, "status": status}
        self.handover.on_pod(Change(ChangeType.ADDED, None, msgspec.convert(made, Pod)))

    def gone(self, name: str) -> None:
        pod = msgspec.convert({"metadata": {"name": name, "namespace": "kube-system"}}, Pod)
        self.handover.on_pod(Change(ChangeType.DELETED, pod, None))


def test_a_leader_stays_until_its_node_is_cordoned() -> None:
    scene = Scene()
    assert not scene.handover.due()
    scene.node("b", cordoned=True)
    assert not scene.handover.due()
    scene.node("b")
    scene.node("a", cordoned=True)
    assert scene.handover.due()
    scene.node("a")
    assert not scene.handover.due()


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "Pending"},
        {"phase": "Succeeded"},
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        {"account": "somebody"},
        {"namespace": "elsewhere"},
        {"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}},
    ],
)
def test_nobody_takes_over_who_could_not_lead(other: dict[str, Any]) -> None:
    scene = Scene()
    scene.node("a", cordoned=True)
    scene.gone("other")
    scene.pod("other", "b", **other)
    assert not scene.handover.due()


def test_a_replica_on_a_node_that_goes_too_is_no_successor() -> None:
    scene = Scene()
    scene.node("a", cordoned=True)
    scene.node("b", cordoned=True)
    assert not scene.handover.due()
    scene.pod("other", "unknown")
    assert not scene.handover.due()
    scene.pod("third", "a")
    assert not scene.handover.due()
    scene.node("b")
    scene.pod("third", "b")
    assert scene.handover.due()


def test_a_process_that_is_no_pod_never_hands_over() -> None:
    scene = Scene()
    scene.node("a", cordoned=True)
    scene.gone("own")
    assert not scene.handover.due()


async def test_news_of_pods_and_nodes_wake_who_waits() -> None:
    for last in ("node", "pod"):
        scene = Scene()
        scene.gone("other")
        if last == "pod":
            scene.node("a", cordoned=True)
        else:
            scene.pod("other", "b")
        waiting = asyncio.create_task(scene.handover.until_due())
        await asyncio.sleep(0)
        assert not waiting.done()
        if last == "pod":
            scene.pod("other", "b")
        else:
            scene.node("a", cordoned=True)
        await waiting
