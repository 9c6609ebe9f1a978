"""`--used`: what collectors measure beside what was requested, on both clusters and with the documented rights."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.model.contract import shoal
from tests.cli.inspect.cluster import Cluster, objects
from tests.metrics.history_thread import collectors
from tests.metrics.snapshots import GIB, card, container, snapshot

DEPLOY = Path(__file__).parents[3] / "deploy"
RBAC = DEPLOY / "rbac"
#: Where collectors tell how they are reached, and who may ask them.
HISTORY = DEPLOY / "metrics" / "history.yaml"
NODES: dict[str, Any] = {
    "n1": {"mem": 32, "cards": {"0": 16384, "1": 16384}},
    "n2": {"mem": 16, "cards": {"0": 16384}},
}


def allocation(node: str, index: int, mib: int) -> dict[str, str]:
    card = {"uuid": f"GPU-{node}-{index}", "index": index, "memory": mib}
    record = {"version": 1, "node": node, "containers": [{"name": "c0", "cards": [card]}]}
    return {shoal.ANNOTATION_ALLOCATION: json.dumps(record)}


PODS: dict[str, Any] = {
    "a": {"node": "n1", "mem": 3, "namespace": "team", "annotations": allocation("n1", 0, 3072)},
    "b": {"node": "n1", "mem": 4, "namespace": "other", "annotations": allocation("n1", 0, 4096)},
    "idle": {"node": "n2", "mem": 2, "namespace": "team", "annotations": allocation("n2", 0, 2048)},
}
FIRST = snapshot(
    [
        card(0, [container("a", 2 * GIB), container("b", 5 * GIB, namespace="other")], unattributed=GIB),
        card(1, [container("thief", GIB, namespace="other")]),
    ]
)
#: A card that does not answer.
SECOND = snapshot([card(0, [container("idle")], unattributed=None, node="n2")], node="n2")
BOTH = (FIRST, SECOND)


@pytest.fixture
def used_cluster(cluster: Cluster) -> Cluster:
    cluster.put(objects(NODES, PODS))
    cluster.apply(RBAC / "viewer.yaml")
    cluster.apply(HISTORY)
    cluster.apply(RBAC / "namespace-viewer.yaml")
    return cluster


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_nodes_cards_and_pods(used_cluster: Cluster, tmp_path: Path) -> None:
    before = used_cluster.inspect().output, used_cluster.inspect("-d").output, used_cluster.inspect("-o", "json").output
    with collectors(used_cluster.kubeconfig, tmp_path, BOTH):
        short, whole = used_cluster.inspect("--used"), used_cluster.inspect("--used", "-d")
        assert before == tuple(used_cluster.inspect(*some).output for some in ((), ("-d",), ("-o", "json")))
    assert short.exit_code == whole.exit_code == 0, whole.output
    assert whole.stdout.startswith(short.stdout)
    nodes, cards, pods = whole.stdout.split("\n\n")
    assert rows(nodes) == [
        ["NODE", "REQUESTED(GiB)", "USED", "TOTAL", "CPU", "MEMORY(GiB)"],
        ["n1", "7", "9.0", "32", "1500m", "3.0"],
        ["n2", "2", "-", "16", "1500m", "3.0"],
    ]
    assert rows(cards) == [
        ["NODE", "GPU", "REQUESTED(GiB)", "USED", "TOTAL", "NOBODY'S", "UTIL", "TEMP", "POWER", "PODS"],
        ["n1", "0", "7", "8.0", "16", "1.0", "40%", "55C", "70W", "2"],
        ["n1", "1", "0", "1.0", "16", "0.0", "40%", "55C", "70W", "1"],
        ["n2", "0", "2", "-", "16", "-", "-", "-", "-", "1"],
    ]
    assert rows(pods) == [
        ["NAMESPACE", "POD", "NODE", "GPU", "REQUESTED(GiB)", "USED", "UTIL"],
        ["other", "b", "n1", "0", "4", "5.0", "30%"],
        ["team", "a", "n1", "0", "3", "2.0", "30%"],
        ["other", "thief", "n1", "1", "0", "1.0", "30%"],
        ["team", "idle", "n2", "0", "2", "-", "-"],
    ]
    assert whole.stderr == ""


def test_documents(used_cluster: Cluster, tmp_path: Path) -> None:
    plain = json.loads(used_cluster.inspect("-o", "json").output)
    with collectors(used_cluster.kubeconfig, tmp_path, BOTH):
        document = json.loads(used_cluster.inspect("--used", "-o", "json").stdout)
        assert set(yaml.safe_load(used_cluster.inspect("--used", "-o", "yaml").stdout)) == set(document)
    first, second = document["nodes"]
    assert first["used"]["memoryMiB"] == 9 * 1024
    assert first["gpus"][0]["used"] == {
        "memoryMiB": 8192,
        "utilisation": 40,
        "unattributedMiB": 1024,
        "temperatureCelsius": 55,
        "powerWatts": 70.5,
    }
    assert [(pod["name"], pod["used"]["memoryMiB"]) for pod in first["gpus"][0]["pods"]] == [("b", 5120), ("a", 2048)]
    assert first["gpus"][0]["pods"][1]["containers"][0]["used"] == {"memoryMiB": 2048, "utilisation": 30}
    assert [pod["name"] for pod in first["gpus"][1]["unrequested"]] == ["thief"]
    assert set(second["gpus"][0]["used"].values()) == {None}
    assert document["notMeasured"] == {}
    assert {key: document[key] for key in plain if key != "nodes"} == {
        key: plain[key] for key in plain if key != "nodes"
    }


def test_one_namespace(used_cluster: Cluster, tmp_path: Path) -> None:
    with collectors(used_cluster.kubeconfig, tmp_path, BOTH):
        pods = used_cluster.inspect("--used", "-d", "-n", "team").stdout.split("\n\n")[2]
    assert [row[:2] for row in rows(pods)[1:]] == [["team", "a"], ["team", "idle"]]


def test_without_collectors_it_is_said_what_to_switch_on(used_cluster: Cluster) -> None:
    result = used_cluster.inspect("--used")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "Failed due to --used: no collector has said where it answers: apply deploy/metrics, which measures what is "
        "used\n"
    )


def test_a_node_that_does_not_answer_is_told(used_cluster: Cluster, tmp_path: Path) -> None:
    with collectors(used_cluster.kubeconfig, tmp_path, [FIRST]):
        result = used_cluster.inspect("--used")
        assert result.stderr == "Not measured: n2: no collector runs there: apply deploy/metrics\n"
        assert rows(result.stdout)[2] == ["n2", "2", "-", "16", "-", "-"]
    result = used_cluster.inspect("--used")  # the Lease is still there
    assert result.exit_code == 0
    assert "Not measured: n1: it does not answer" in result.stderr


def test_old_and_foreign_answers_are_not_shown(used_cluster: Cluster, tmp_path: Path) -> None:
    with collectors(used_cluster.kubeconfig, tmp_path, [FIRST], age=300):
        result = used_cluster.inspect("--used", "n1")
        assert "its last sample is 30" in result.stderr
        assert rows(result.stdout)[1][2] == "-"
    with collectors(used_cluster.kubeconfig, tmp_path, [FIRST]):
        # n2 leads to the collector of n1
        leases = "/apis/coordination.k8s.io/v1/namespaces/shoal-history/leases"
        lease = used_cluster.demand("GET", f"{leases}/n1")
        told = lease["metadata"]["annotations"]["shoal.dev/history"].replace('"n1"', '"n2"')
        meta = {"name": "n2", "annotations": {"shoal.dev/history": told}}
        used_cluster.demand("POST", leases, {"metadata": meta, "spec": {"holderIdentity": "n2"}})
        result = used_cluster.inspect("--used", "n2")
        assert "Not measured: n2: it answers for another node" in result.stderr


def test_text_of_a_node_is_no_text_for_the_terminal(used_cluster: Cluster, tmp_path: Path) -> None:
    evil = container("evil\x1b[2J", GIB)
    with collectors(used_cluster.kubeconfig, tmp_path, [replace(FIRST, cards=(card(0, [evil]),))]):
        result = used_cluster.inspect("--used", "-d", "n1")
    assert "\x1b" not in result.stdout
    assert "evil" in result.stdout


def test_used_has_no_wide_form() -> None:
    for more in (["-w"], ["-o", "wide"]):
        result = CliRunner().invoke(main, ["inspect", "--used", *more])
        assert result.exit_code == 2
        assert "shoal top" in result.output


# Rights: on the real API server, which knows users by certificates


@pytest.fixture
def outsider(real_cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose collectors answer on an address of the machine, as the pods of nodes do."""
    real_cluster.put(objects(NODES, PODS))
    real_cluster.apply(RBAC / "viewer.yaml")
    real_cluster.apply(HISTORY)
    real_cluster.apply(DEPLOY / "metrics" / "rbac.yaml")
    real_cluster.apply(RBAC / "namespace-viewer.yaml")
    host = own_host()
    with collectors(real_cluster.kubeconfig, tmp_path, BOTH, host=host) as ports:
        make_pod(real_cluster, "n1", host, ports[0])
        yield real_cluster


def own_host() -> str:
    """An address of this machine that is not loopback: the API server proxies to no other. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has no address beside loopback")
        return str(probe.getsockname()[0])


def make_pod(cluster: Cluster, node: str, host: str, port: int) -> None:
    """The pod of a collector, as the API server knows it."""
    meta = {
        "name": f"shoal-metrics-{node}",
        "namespace": "kube-system",
        "labels": {"app.kubernetes.io/name": "shoal-metrics"},
    }
    spec: dict[str, Any] = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "x", "ports": [{"containerPort": port}]}],
    }
    spec |= {"automountServiceAccountToken": False, "serviceAccountName": "shoal-metrics"}
    path = "/api/v1/namespaces/kube-system/pods"
    cluster.demand("POST", path, {"metadata": meta, "spec": spec})
    status = {"phase": "Running", "podIP": host, "podIPs": [{"ip": host}]}
    cluster.demand("PATCH", f"{path}/{meta['name']}/status", {"status": status}, "application/merge-patch+json")


def as_user(cluster: Cluster, name: str, groups: tuple[str, ...], *arguments: str) -> Result:
    return CliRunner().invoke(main, ["inspect", "--kubeconfig", str(cluster.api.kubeconfig(name, groups)), *arguments])


@pytest.mark.kube
def test_the_documented_viewer_reads_it_from_outside_the_node(outsider: Cluster) -> None:
    result = as_user(outsider, "eve", ("shoal-viewers",), "--used", "-d")
    assert result.exit_code == 0, result.output
    _, cards, pods = result.stdout.split("\n\n")
    assert rows(cards)[1][:4] == ["n1", "0", "7", "8.0"]
    assert {row[1] for row in rows(pods)[1:]} == {"a", "b", "thief", "idle"}
    assert result.stderr == ""


@pytest.mark.kube
def test_through_the_api_server_s_proxy(outsider: Cluster) -> None:
    """The administrator may, and no packet goes to the node by another way; a viewer may not."""
    result = outsider.inspect("--used", "-d", "n1", "--metrics-way", "proxy")
    assert result.exit_code == 0, result.output
    assert rows(result.stdout.split("\n\n")[1])[1][:4] == ["n1", "0", "7", "8.0"]
    assert result.stderr == ""
    both = outsider.inspect("--used", "--metrics-way", "proxy")
    assert both.stderr == "Not measured: n2: its pod is not there: leave out --metrics-way proxy\n"
    lost = as_user(outsider, "eve", ("shoal-viewers",), "--used", "n1", "--metrics-way", "proxy")
    assert "Not measured: n1" in lost.stderr


@pytest.mark.kube
def test_others_pods_are_denied_without_rights(outsider: Cluster) -> None:
    """A tenant who may list pods, and see only what those of its namespace use."""
    kubeconfig = outsider.viewer()
    name = yaml.safe_load(kubeconfig.read_text())["users"][0]["name"]
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces"
    subject = {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    roles = (
        ("team", "shoal-metrics-viewer"),
        ("team", "shoal-metrics-viewer-token"),
        ("shoal-history", "shoal-metrics-team"),
    )
    for namespace, role in roles:
        ref = {"kind": "Role", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": f"{name}-{role}"}, "subjects": [subject], "roleRef": ref}
        outsider.demand("POST", f"{rbac}/{namespace}/rolebindings", body)
    options = ["inspect", "--kubeconfig", str(kubeconfig), "--used", "-o", "json"]
    refused = CliRunner().invoke(main, options)
    assert refused.exit_code == 1
    assert "you may make no token of the account shoal-history/shoal-metrics-viewer" in refused.stderr
    result = CliRunner().invoke(main, [*options, "--metrics-account", "team/shoal-metrics-viewer"])
    assert result.exit_code == 0, result.output
    first = json.loads(result.stdout)["nodes"][0]["gpus"][0]
    assert first["used"]["memoryMiB"] is None, "totals of cards need a right of their own"
    assert {pod["name"]: pod["used"]["memoryMiB"] for pod in first["pods"]} == {"a": 2048, "b": None}
    assert "thief" not in result.stdout


@pytest.mark.kube
def test_a_stranger_is_told_which_right_is_missing(outsider: Cluster) -> None:
    result = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(outsider.viewer()), "--used"])
    assert result.exit_code == 1
    assert "you may not list leases in shoal-history" in result.stderr
    assert "ask for the rights of the group shoal-viewers" in result.stderr
