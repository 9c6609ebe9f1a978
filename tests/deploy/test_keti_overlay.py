"""`deploy/keti`: Shoal in KETI's namespace, under KETI's names, with its InfluxDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.agent.config import AgentConfig
from shoal.cli.settings import load
from shoal.clusters.keti_grpc import KetiClusterSettings
from shoal.metrics.config import MetricsConfig
from shoal.model.contract import keti
from shoal.model.contract.decisions import LABEL_VISIBLE_DEVICES
from shoal.scheduler.config import SchedulerConfig
from tests.testbed.apiserver import ApiServer

FOLDER = Path(__file__).parents[2] / "deploy" / "keti"


def built(api: ApiServer) -> list[dict[str, Any]]:
    return [obj for obj in yaml.safe_load_all(api.kubectl("kustomize", str(FOLDER))) if obj]


def one(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (only,) = [obj for obj in found if (obj["kind"], obj["metadata"]["name"]) == (kind, name)]
    return only


def test_a_real_api_server_takes_it(new_apiserver: Callable[[], ApiServer]) -> None:
    api = new_apiserver()
    said = api.kubectl("apply", "-k", str(FOLDER), "--validate=strict", "--warnings-as-errors")
    for made in (
        f"deployment.apps/{keti.SCHEDULER_DEPLOYMENT}",
        f"daemonset.apps/{keti.PLUGIN_DAEMONSET}",
        f"deployment.apps/{keti.ENGINE_DEPLOYMENT}",
        f"service/{keti.COLLECTOR_SERVICE}",
        f"deployment.apps/{keti.MANAGER_DEPLOYMENT}",
        f"service/{keti.MANAGER_SERVICE}",
        f"statefulset.apps/{keti.INFLUXDB_SERVICE}",
    ):
        assert f"{made} created" in said


def test_names_are_those_by_which_ketis_parts_find_each_other(apiserver: ApiServer) -> None:
    found = built(apiserver)
    collector = one(found, "DaemonSet", keti.COLLECTOR_DAEMONSET)
    assert collector["spec"]["template"]["metadata"]["labels"][keti.LABEL_NAME] == keti.COLLECTOR_SERVICE
    for obj in found:
        if obj["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "Service", "ServiceAccount"):
            viewer = obj["metadata"]["name"] == "shoal-metrics-viewer"
            assert obj["metadata"]["namespace"] == ("shoal-history" if viewer else keti.NAMESPACE), obj["metadata"]
    assert one(found, "Namespace", keti.NAMESPACE)["metadata"]["labels"][LABEL_VISIBLE_DEVICES] == "allow"


def test_collectors_write_to_the_influxdb_that_is_there(apiserver: ApiServer, tmp_path: Path) -> None:
    found = built(apiserver)
    path = tmp_path / "settings.yaml"
    path.write_text(one(found, "ConfigMap", "shoal-metrics")["data"]["metrics.yaml"])
    settings = load(MetricsConfig, path, {"node_name": "n"}, command="metrics")
    service = one(found, "Service", "influxdb")
    assert settings.influx is not None
    assert settings.influx.url == f"http://influxdb.{keti.NAMESPACE}:{service['spec']['ports'][0]['port']}"
    assert settings.keti is not None
    pod = one(found, "StatefulSet", "influxdb")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_scheduler_and_the_agent_are_set_for_keti(apiserver: ApiServer, tmp_path: Path) -> None:
    found = built(apiserver)
    path = tmp_path / "settings.yaml"
    path.write_text(one(found, "ConfigMap", "shoal-scheduler")["data"]["scheduler.yaml"])
    scheduler = load(SchedulerConfig, path, {}, command="scheduler")
    assert scheduler.election.namespace == keti.NAMESPACE
    assert scheduler.scheduler_names == (keti.SCHEDULER_NAME,)
    path.write_text(one(found, "ConfigMap", "shoal-agent")["data"]["agent.yaml"])
    agent = load(AgentConfig, path, {"node_name": "n"}, command="agent")
    assert (agent.mps_program, agent.mps_start) == ("nvidia-cuda-mps-control", False)
    daemon = one(found, "DaemonSet", "shoal-mps")["spec"]["template"]["spec"]
    assert {"name": "mps", "hostPath": {"path": keti.MPS_DIRECTORY, "type": "DirectoryOrCreate"}} in daemon["volumes"]


def test_the_cluster_manager_is_where_ketis_clients_look_and_plain_text_stays_in_the_namespace(
    apiserver: ApiServer,
) -> None:
    found = built(apiserver)
    pod = one(found, "Deployment", keti.MANAGER_DEPLOYMENT)["spec"]["template"]
    assert pod["metadata"]["labels"][keti.LABEL_NAME] == keti.MANAGER_SERVICE
    (container,) = pod["spec"]["containers"]
    assert {"name": "grpc", "containerPort": keti.PORT_MANAGER} in container["ports"]
    settings = yaml.safe_load(one(found, "ConfigMap", "shoal-cluster-manager")["data"]["cluster-manager.yaml"])
    assert msgspec.convert(settings["keti"], KetiClusterSettings) == KetiClusterSettings(plaintext=True)
    service = one(found, "Service", keti.MANAGER_SERVICE)["spec"]
    assert service["type"] == "NodePort"
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["ports"]
    assert (port["port"], port["targetPort"], port["nodePort"]) == (80, keti.PORT_MANAGER, keti.PORT_MANAGER_NODE)
    policies = [
        obj["spec"]
        for obj in found
        if obj["kind"] == "NetworkPolicy"
        and obj["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ]
    (policy,) = policies
    rules = [rule for rule in policy["ingress"] if {"port": keti.PORT_MANAGER, "protocol": "TCP"} in rule["ports"]]
    assert [rule["from"] for rule in rules] == [[{"podSelector": {}}]]


def test_strangers_reach_no_port_of_a_collector_that_names_pods(apiserver: ApiServer) -> None:
    found = built(apiserver)
    labels = one(found, "DaemonSet", keti.COLLECTOR_DAEMONSET)["spec"]["template"]["metadata"]["labels"]
    reached: dict[int, list[object]] = {}
    for obj in found:
        if obj["kind"] == "NetworkPolicy" and obj["spec"]["podSelector"]["matchLabels"].items() <= labels.items():
            for rule in obj["spec"]["ingress"]:
                for port in rule["ports"]:
                    reached.setdefault(port["port"], []).append(rule.get("from"))
    inside = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": keti.NAMESPACE}}}]
    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    # Port 9401 asks for a token.
    assert reached == {
        9400: [monitoring],
        9401: [None],
        keti.PORT_COLLECTOR: [inside],
        keti.PORT_COLLECTOR_V1: [inside],
    }


def test_plain_text_is_served_nowhere_else() -> None:
    for path in (FOLDER.parent / "cluster-manager").glob("*.yaml"):
        assert "plaintext" not in path.read_text(), path
        assert str(keti.PORT_MANAGER) not in path.read_text(), path
