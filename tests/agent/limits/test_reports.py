"""Which pods are told that their MPS clients wait for those of other users."""

from typing import Any

import msgspec

from shoal.agent.limits.reports import REASON_WAITING, LimitReports
from shoal.agent.node.holdings import holding_of
from shoal.agent.node.pods import NodePod
from shoal.kube.objects.pod import Pod
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus


def known(name: str, user: int | None, *, running: bool = True) -> NodePod:
    status: dict[str, Any] = {"name": "main", "state": {"running": {}} if running else {"waiting": {}}}
    if user is not None:
        status["user"] = {"linux": {"uid": user, "gid": user, "supplementalGroups": [user]}}
    manifest = {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"containerStatuses": [status]},
    }
    pod = msgspec.convert(manifest, Pod)
    return NodePod(pod, holding_of(pod, node=NodeGpus("node"), unit=MemoryUnit.GIB))


class Told:
    """What was recorded: pods and words."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def record(self, about: Any, type_: str, reason: str, message: str) -> None:
        assert (type_, reason) == ("Warning", REASON_WAITING)
        self.events.append((about.name, message))


def test_clients_of_several_users_are_told_once_that_they_wait() -> None:
    pods: list[NodePod] = []
    told = Told()
    anything: Any = pods
    recorder: Any = told
    node: Any = None
    reports = LimitReports(node, anything, recorder, limited=lambda uid: None, runs=lambda uid: True)
    pods += [known("a", 0), known("b", 0), known("beside", 1000), known("old", None), known("late", 7, running=False)]
    clients = {"a", "b", "c", "old", "late"}
    reports.look_at_users(clients)
    assert told.events == [], "one user, and others that are no clients, are not known or do not run"
    pods.append(known("c", 1000))
    for _ in range(2):
        reports.look_at_users(clients)
    assert sorted(name for name, _ in told.events) == ["a", "b", "c"]
    assert all("pods of users 0, 1000: programs of one user wait" in words for _, words in told.events)
    pods.pop()
    reports.look_at_users(clients)
    pods.append(known("c", 1000))
    reports.look_at_users(clients)
    assert len(told.events) == 6
