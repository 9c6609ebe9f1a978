"""The manifests of the collector: taken by a real API server, as the code has them, and enough rights but no more."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from shoal import __version__
from shoal.cli.settings import load
from shoal.metrics import app, history_wire
from shoal.metrics.config import MetricsConfig
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.model.contract import gpushare, shoal
from tests.testbed.apiserver import ApiServer

DEPLOY = Path(__file__).parents[2] / "deploy" / "metrics"
ACCOUNT = "system:serviceaccount:kube-system:shoal-metrics"


def documents(folder: Path = DEPLOY) -> list[dict[str, Any]]:
    """What lies in the files, kustomization excepted."""
    paths = sorted(path for path in folder.glob("*.yaml") if path.name != "kustomization.yaml")
    return list(itertools.chain.from_iterable(yaml.safe_load_all(path.read_text()) for path in paths))


def one(kind: str, name: str = "shoal-metrics", folder: Path = DEPLOY) -> dict[str, Any]:
    (found,) = [d for d in documents(folder) if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def test_all_files_are_applied() -> None:
    listed = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in DEPLOY.glob("*.yaml") if path.name != "kustomization.yaml")


def test_settings_can_be_read_and_their_folders_are_mounted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(one("ConfigMap")["data"]["metrics.yaml"])
    config = load(MetricsConfig, path, {"node_name": "n"}, command="metrics")
    plain = MetricsConfig(node_name="n")
    assert config.interval_seconds == plain.interval_seconds
    assert config.overuse_grace_seconds == plain.overuse_grace_seconds
    pod = one("DaemonSet")["spec"]["template"]["spec"]
    (collector,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in collector["volumeMounts"]}
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert config.history is not None
    for inside, outside in (
        (config.proc_root, "/proc"),
        (config.cgroup_root, "/sys/fs/cgroup"),
        (config.history.folder, config.history.folder),
    ):
        assert hosts[mounts[inside]["name"]] == outside
        assert mounts[inside].get("readOnly", False) is (inside != config.history.folder)
    assert config.history.port in [port["containerPort"] for port in collector["ports"]]


def test_names_are_those_of_the_code_and_nodes_those_of_the_agent() -> None:
    pod = one("DaemonSet")["spec"]["template"]["spec"]
    agents = one("DaemonSet", "shoal-agent", DEPLOY.parent / "agent")["spec"]["template"]["spec"]
    assert all(pod[part] == agents[part] for part in ("affinity", "tolerations"))
    (collector,) = pod["containers"]
    assert {one["image"] for one in (*pod["initContainers"], collector)} == {f"shoal:{__version__}"}
    assert collector["args"][0] == "metrics"
    assert collector["env"][0]["name"] == gpushare.ENV_NODE_NAME
    assert one("ServiceAccount")["metadata"]["name"] == pod["serviceAccountName"] == app.COMPONENT
    fence = str(one("ValidatingAdmissionPolicy", "shoal-metrics-own-node-events"))
    assert all(name in fence for name in (app.REASON_OVERUSE, app.COMPONENT))
    leases = one("ValidatingAdmissionPolicy", "shoal-metrics-own-history")["spec"]
    assert leases["matchConstraints"]["namespaceSelector"]["matchLabels"].popitem()[1] == history_wire.NAMESPACE
    assert f"'{history_wire.ANNOTATION}'" in str(leases)


def test_it_is_not_root_and_sees_no_more_than_it_needs() -> None:
    pod = one("DaemonSet")["spec"]["template"]["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    (collector,) = pod["containers"]
    assert collector["securityContext"] == {
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (first,) = pod["initContainers"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert [mount["name"] for mount in first["volumeMounts"]] == ["history"]
    (folder,) = [mount["mountPath"] for mount in first["volumeMounts"]]
    user = collector["securityContext"]["runAsUser"]
    assert first["command"][-1] == f"import os; os.chown({folder!r}, {user}, {user})"


def test_it_is_asked_where_it_answers() -> None:
    (collector,) = one("DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert ExporterSettings().listen == f":{collector['ports'][0]['containerPort']}"
    assert collector["livenessProbe"]["httpGet"] == {"path": shoal.PATH_HEALTH, "port": "metrics"}
    assert collector["readinessProbe"]["httpGet"] == {"path": shoal.PATH_READY, "port": "metrics"}


def test_names_of_pods_are_shown_behind_a_network_policy() -> None:
    policy = one("NetworkPolicy")["spec"]
    labels = one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    reached = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    # Port 9401 asks for a token.
    assert reached == {9400: [monitoring], 9401: None}
    settings = yaml.safe_load(one("ConfigMap")["data"]["metrics.yaml"])
    assert settings["exporter"] == {"podLabels": "auto", "networkPolicy": True}
    assert not one("DaemonSet")["spec"]["template"]["spec"].get("hostNetwork")


def test_a_real_api_server_takes_them(new_apiserver: Callable[[], ApiServer]) -> None:
    said = new_apiserver().kubectl("apply", "-k", str(DEPLOY), "--validate=strict", "--warnings-as-errors")
    assert "daemonset.apps/shoal-metrics created" in said


#: Verb, resource, namespace ("" for all) of what the collector does.
NEEDED = (
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "nodes", ""),
    ("create", "events", "anywhere"),
    ("patch", "events", "anywhere"),
    ("create", "tokenreviews.authentication.k8s.io", ""),
    ("create", "subjectaccessreviews.authorization.k8s.io", ""),
    ("create", "leases.coordination.k8s.io", "shoal-load"),
    ("patch", "leases.coordination.k8s.io", "shoal-load"),
    ("create", "leases.coordination.k8s.io", "shoal-history"),
    ("patch", "leases.coordination.k8s.io", "shoal-history"),
)
#: And of what it has no business with.
REFUSED = (
    ("patch", "pods", "anywhere"),
    ("delete", "pods", "anywhere"),
    ("list", "nodes", ""),
    ("patch", "nodes", ""),
    ("list", "secrets", "kube-system"),
    ("list", "configmaps", "kube-system"),
    ("list", "events", ""),
    ("create", "leases.coordination.k8s.io", "default"),
    ("create", "leases.coordination.k8s.io", "kube-system"),
    ("delete", "leases.coordination.k8s.io", "shoal-history"),
    ("create", "pods/exec", "anywhere"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
)


def test_the_account_may_do_its_work_and_nothing_else(new_apiserver: Callable[[], ApiServer]) -> None:
    api = new_apiserver()
    api.kubectl("apply", "-k", str(DEPLOY))

    def may(verb: str, resource: str, namespace: str) -> bool:
        where = ["-n", namespace] if namespace else ["--all-namespaces"]
        said = api.kubectl("auth", "can-i", verb, resource, *where, "--as", ACCOUNT, check=False)
        return said.strip().splitlines()[-1].startswith("yes")

    assert [what for what in NEEDED if not may(*what)] == []
    assert [what for what in REFUSED if may(*what)] == []
