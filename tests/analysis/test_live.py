"""The commands on clusters with a scheduler: what they say is what then happens."""

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.analysis.small import shoal
from tests.suites.scheduling import shorthand
from tests.suites.scheduling.cluster import Cluster
from tests.suites.scheduling.ways import Way

ALLOCATION = "shoal.dev/allocation"
RATHER = {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["west"]}]}}
#: What pods of the random clusters ask for.
SHORTS: tuple[dict[str, Any], ...] = (
    {"mem": 2},
    {"mem": 5, "cpu": 8},
    {"mem": 9},
    {"mem": 14},
    {"mem": 4, "core": 30},
    {"mps": 1, "annotations": {"GPUrequest": "3Gi"}},
    {"mps": 2},
    {"gpu": 1},
    {"gpu": 2, "cpu": 30},
    {"containers": [{"mem": 3}, {"mem": 4}]},
    {"mem": 6, "init": [{"mem": 10}]},
    {"mem": 3, "annotations": {"shoal.dev/policy": "spread"}},
    {"mem": 2, "labels": {"app": "one"}, "spec": {"nodeSelector": {"zone": "west"}}},
    {"mem": 1, "spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [RATHER]}}}},
)
WEST = {"labels": {"zone": "west"}}


class Live:
    """A cluster with nodes of its own and what is asked about it."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.cluster = Cluster(way.api, f"ask-{uuid.uuid4().hex[:6]}")
        self.place = ("--kubeconfig", way.api.kubeconfig(), "-n", self.cluster.namespace)

    def nodes(self, nodes: dict[str, dict[str, Any]], *options: str) -> None:
        """Make nodes, then start the scheduler anew: it takes them in the order of their names, as a dry_run does."""
        for name, short in nodes.items():
            made = shorthand.node(name, short, mib=False)
            self.cluster.create({"kind": "Node", **made})
            # Every new node is tainted until a controller has seen it.
            self.cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": made["spec"]["taints"] or None}})
        self.way.run_with(options, fresh=True)

    def what_if(self, manifest: dict[str, Any], *options: str) -> dict[str, Any]:
        """The answer of `shoal what-if`."""
        text = yaml.safe_dump(manifest)
        result = shoal("what-if", "-f", "-", "-o", "json", *self.place, *options, stdin=text)
        assert result.stdout, result.stderr
        (workload,) = json.loads(result.stdout)["workloads"]
        assert result.exit_code == (0 if workload["fits"] == workload["pods"] else 1)
        return dict(workload)

    def settled(self, name: str) -> dict[str, Any]:
        """The pod when it has a node, or has been told why not."""

        def wrong() -> str:
            pod = self.cluster.pods()[name]
            return "" if pod["spec"].get("nodeName") or _told(pod) else f"nobody has decided on {name}"

        self.cluster.wait(wrong)
        return self.cluster.pods()[name]

    def remove(self, name: str) -> None:
        """Delete a pod and wait until it is gone."""
        # Not by force: what ran has a time to end then, on nodes where nobody tells of its end.
        self.cluster.delete(self.cluster.pod_path(name))
        self.cluster.wait(lambda: f"{name} is still there" if name in self.cluster.pods() else "")


@pytest.fixture
def live(way: Way) -> Iterator[Live]:
    one = Live(way)
    yield one
    one.cluster.close()


def _told(pod: dict[str, Any]) -> str:
    found = (one for one in pod.get("status", {}).get("conditions", ()) if one["type"] == "PodScheduled")
    return next((one.get("message", "") for one in found if one["status"] == "False"), "")


def _outcome(pod: dict[str, Any]) -> tuple[str, list[tuple[str, int]]] | str:
    """Node and cards by container, or why it waits."""
    if not pod["spec"].get("nodeName"):
        return _told(pod)
    record = json.loads(pod["metadata"]["annotations"][ALLOCATION])
    return pod["spec"]["nodeName"], [
        (one["name"], card["index"]) for one in record["containers"] for card in one["cards"]
    ]


def _expected(workload: dict[str, Any]) -> tuple[str, list[tuple[str, int]]] | str:
    if not workload["placed"]:
        return str(workload["unplaced"]["message"])
    (placed,) = workload["placed"]
    return placed["node"], [(card["container"], card["index"]) for card in placed["cards"]]


@pytest.mark.parametrize("policy", ["binpack", "spread", "topology", "best-fit"])
def test_what_if_is_what_the_scheduler_then_does(live: Live, policy: str) -> None:
    rng = random.Random(policy)
    nodes = {f"n-{i}": {"gpus": rng.choice([2, 4, [16, 24]]), **(WEST if i % 2 else {})} for i in range(4)}
    live.nodes(nodes, "--policy", policy)
    placed: list[str] = []
    outcomes = []
    too_large = {"mem": 40}
    for number, short in enumerate([*rng.choices(SHORTS, k=16), too_large, *rng.choices(SHORTS, k=4)]):
        manifest = shorthand.pod(f"p-{number}", short)
        expected = _expected(live.what_if(manifest, "--policy", policy))
        live.cluster.create(manifest)
        pod = live.settled(f"p-{number}")
        assert _outcome(pod) == expected, manifest
        outcomes.append(isinstance(expected, str))
        if isinstance(expected, str):
            live.remove(f"p-{number}")
        else:
            placed.append(f"p-{number}")
        if len(placed) > 9:
            live.remove(placed.pop(rng.randrange(len(placed))))
    assert any(outcomes)
    assert not all(outcomes)


def test_under_fragmentation_it_is_what_a_scheduler_does_that_starts_now(live: Live) -> None:
    rng = random.Random(4)
    live.nodes({f"n-{i}": {"gpus": 3, **(WEST if i % 2 else {})} for i in range(4)})
    for number in range(15):
        live.cluster.create(shorthand.pod(f"p-{number}", rng.choice(SHORTS[:6])))
        live.settled(f"p-{number}")
    for number in range(15, 21):
        live.way.restart()
        manifest = shorthand.pod(f"p-{number}", rng.choice(SHORTS[:6]))
        expected = _expected(live.what_if(manifest))
        live.cluster.create(manifest)
        assert _outcome(live.settled(f"p-{number}")) == expected


def test_who_must_give_way_is_told_before_they_do(live: Live) -> None:
    live.nodes({"n-0": {"gpus": 1}})
    name = f"high-{uuid.uuid4().hex[:6]}"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    live.cluster.create(kind)
    live.cluster.create(shorthand.pod("low", {"mem": 12}))
    live.settled("low")
    manifest = shorthand.pod("high", {"mem": 10, "spec": {"priorityClassName": name}})
    unplaced = live.what_if(manifest)["unplaced"]
    assert unplaced["preempts"] == {"node": "n-0", "pods": [f"{live.cluster.namespace}/low"]}
    live.cluster.create(manifest)
    live.cluster.wait(lambda: "low is still there" if "low" in live.cluster.pods() else "")


def test_a_deployment_lands_as_told(live: Live) -> None:
    live.nodes({"n-0": {"gpus": 2}, "n-1": {"gpus": 1}})
    template = {"metadata": {"labels": {"app": "web"}}, "spec": shorthand.pod("web", {"mem": 7})["spec"]}
    template["spec"].pop("terminationGracePeriodSeconds")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"replicas": 8, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    answer = live.what_if(deployment)
    live.cluster.create(deployment)

    def wrong() -> str:
        pods = live.cluster.pods().values()
        bound = [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]
        told = [pod for pod in pods if _told(pod)]
        return "" if len(bound) + len(told) == 8 else f"{len(bound)} bound, {len(told)} told"

    live.cluster.wait(wrong)
    pods = live.cluster.pods().values()
    bound = sorted(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName"))
    assert bound == sorted(one["node"] for one in answer["placed"])
    assert answer["fits"] == 6


def test_why_tells_the_same_live_and_from_a_snapshot(live: Live, tmp_path: Path) -> None:
    live.nodes({"n-0": {"gpus": 2}, "n-1": {"gpus": 1, "cordoned": True}})
    for name, short in {"a": {"mem": 12}, "b": {"gpu": 1}, "c": {"mem": 6}}.items():
        live.cluster.create(shorthand.pod(name, short))
        live.settled(name)
    file = tmp_path / "s.json.gz"
    assert shoal("snapshot", "-o", file, "--kubeconfig", live.way.api.kubeconfig()).exit_code == 0
    for name in "abc":
        told = json.loads(shoal("why", name, "-o", "json", *live.place).stdout)
        assert any(event["reason"] in ("Scheduled", "FailedScheduling") for event in told.pop("events"))
        again = shoal("why", name, "-o", "json", "-n", live.cluster.namespace, "--snapshot", file)
        assert json.loads(again.stdout) == told
    waits = json.loads(shoal("why", "c", "-o", "json", *live.place).stdout)
    assert waits["unplaced"]["message"] == waits["condition"]


def test_a_snapshot_for_other_programs(live: Live, tmp_path: Path) -> None:
    live.nodes({"n-0": {"gpus": 2}})
    place = ("--kubeconfig", live.way.api.kubeconfig())
    for name in ("-", "json"):
        printed = shoal("snapshot", "-o", name, *place)
        assert printed.exit_code == 0
        assert json.loads(printed.stdout)["kind"] == "ShoalSnapshot"
        assert printed.stderr.startswith("standard output: 1 node and ")
    file = tmp_path / "s.json"
    file.write_text(printed.stdout)
    assert shoal("policy", "show", "--snapshot", file).stdout == shoal("policy", "show", *place).stdout
    refused = shoal("snapshot", "-o", "yaml", *place)
    assert refused.exit_code == 2
    assert "write -o json" in refused.stderr


def test_events_are_those_of_the_pod_that_is_there(live: Live) -> None:
    """Another pod of the same name was there before it."""
    live.nodes({"n-0": {"gpus": 1}})
    for mem, reason in ((40, "FailedScheduling"), (4, "Scheduled")):
        live.cluster.create(shorthand.pod("p", {"mem": mem}))
        live.settled("p")
        live.cluster.wait(lambda: "" if _reasons(live) else "no event yet")
        assert _reasons(live) == {reason}
        live.remove("p")


def _reasons(live: Live) -> set[str]:
    """Of the pod's events."""
    told = json.loads(shoal("why", "p", "-o", "json", *live.place).stdout)
    return {event["reason"] for event in told["events"]} & {"Scheduled", "FailedScheduling"}


def test_an_unreachable_cluster_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    user = {"name": "c", "user": {}}
    document = {"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"}
    config.write_text(yaml.safe_dump(document))
    for command in (["why", "p"], ["snapshot"], ["policy", "show"], ["what-if", "--policy", "binpack"]):
        result = shoal(*command, "--kubeconfig", config)
        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.stderr
