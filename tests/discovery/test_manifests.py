"""The manifests of discovery: taken by a real API server, as the code has them, and enough rights but no more."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from shoal import __version__
from shoal.cli.settings import load
from shoal.discovery.config import DiscoveryConfig
from shoal.model.contract import discovery, gpushare, nvidia, shoal
from tests.testbed.apiserver import ApiServer

DEPLOY = Path(__file__).parents[2] / "deploy" / "discovery"


def documents() -> list[dict[str, Any]]:
    """What lies in the files, kustomization excepted."""
    paths = sorted(path for path in DEPLOY.glob("*.yaml") if path.name != "kustomization.yaml")
    return list(itertools.chain.from_iterable(yaml.safe_load_all(path.read_text()) for path in paths))


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> dict[str, dict[str, Any]]:
    found = [d for d in documents() if d["kind"] in ("DaemonSet", "Deployment")]
    return {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in found}


def test_all_files_are_applied() -> None:
    listed = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in DEPLOY.glob("*.yaml") if path.name != "kustomization.yaml")


def test_settings_are_the_defaults_written_out(tmp_path: Path) -> None:
    path = tmp_path / "discovery.yaml"
    path.write_text(one("ConfigMap", "shoal-discovery")["data"]["discovery.yaml"])
    assert load(DiscoveryConfig, path, {}, command="discovery") == DiscoveryConfig()


def test_names_are_those_of_the_code() -> None:
    found = pods()
    assert set(found) == {"shoal-discovery", "shoal-discovery-bus", "shoal-discovery-cards"}
    for name, pod in found.items():
        (container,) = pod["containers"]
        leads = name == "shoal-discovery"
        assert container["image"] == f"shoal:{__version__}"
        assert container["args"][0] == "discovery"
        assert ("--leader" in container["args"]) is leads
        assert ("--no-driver" in container["args"]) is (name == "shoal-discovery-bus")
        account = discovery.NAME_LEADER if leads else discovery.NAME_WORKER
        assert pod["serviceAccountName"] == account == one("ServiceAccount", account)["metadata"]["name"]
        if not leads:
            assert container["env"][0]["name"] == gpushare.ENV_NODE_NAME
            assert [toleration["key"] for toleration in pod["tolerations"]] == [nvidia.TAINT_GPU]
    fence = str(one("ValidatingAdmissionPolicy", "shoal-discovery-own-node"))
    assert discovery.ANNOTATION_FACTS in fence
    assert str(discovery.MAX_LENGTH) in fence
    assert f":{discovery.NAME_WORKER}'" in fence
    assert f":{discovery.NAME_LEADER}'" in str(one("ValidatingAdmissionPolicy", "shoal-discovery-labels"))
    lease = one("Role", "shoal-discovery")["rules"][1]
    assert lease["resourceNames"] == [DiscoveryConfig().lease_name]


def test_probes_ask_the_port_that_is_served() -> None:
    for pod in pods().values():
        (container,) = pod["containers"]
        (port,) = container["ports"]
        assert f"--port={port['containerPort']}" in container["args"]
        for probe, path in (("livenessProbe", shoal.PATH_HEALTH), ("readinessProbe", shoal.PATH_READY)):
            assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_a_node_has_one_worker_whatever_its_label_says() -> None:
    rules = []
    for name in ("shoal-discovery-bus", "shoal-discovery-cards"):
        affinity = pods()[name]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]
        (rule,) = term["matchExpressions"]
        assert (rule["key"], rule["values"]) == (nvidia.LABEL_PRESENT, ["true"])
        rules.append(rule["operator"])
    assert rules == ["NotIn", "In"]


def test_nobody_is_root_or_sees_the_host() -> None:
    for pod in pods().values():
        assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
        assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
        (container,) = pod["containers"]
        context = {**pod["securityContext"], **container["securityContext"]}
        assert (context["runAsUser"], context["runAsNonRoot"]) == (65532, True)
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert context["capabilities"] == {"drop": ["ALL"]}


WORKER = f"system:serviceaccount:kube-system:{discovery.NAME_WORKER}"
LEADER = f"system:serviceaccount:kube-system:{discovery.NAME_LEADER}"
LEASES = "leases.coordination.k8s.io"
#: Who, verb, resource, namespace ("" for all) of what they do.
NEEDED = (
    *((who, verb, "nodes", "") for who in (WORKER, LEADER) for verb in ("list", "watch", "patch")),
    *((WORKER, verb, "configmaps/device-plugin-config", "kube-system") for verb in ("list", "watch")),
    (LEADER, "create", LEASES, "kube-system"),
    *((LEADER, verb, f"{LEASES}/shoal-discovery", "kube-system") for verb in ("get", "update", "delete")),
)
#: And of what they have no business with.
REFUSED = (
    *((who, verb, "nodes", "") for who in (WORKER, LEADER) for verb in ("create", "update", "delete")),
    *((who, "list", what, "kube-system") for who in (WORKER, LEADER) for what in ("secrets", "pods", "configmaps")),
    (LEADER, "list", "configmaps/device-plugin-config", "kube-system"),
    (LEADER, "update", f"{LEASES}/kube-scheduler", "kube-system"),
    (LEADER, "create", LEASES, "default"),
    *((WORKER, verb, LEASES, "kube-system") for verb in ("create", "get", "update")),
    *((who, "create", "clusterrolebindings.rbac.authorization.k8s.io", "") for who in (WORKER, LEADER)),
)


def test_a_real_api_server_takes_them_and_accounts_may_do_their_work_only(
    new_apiserver: Callable[[], ApiServer],
) -> None:
    api = new_apiserver()
    said = api.kubectl("apply", "-k", str(DEPLOY), "--validate=strict", "--warnings-as-errors")
    assert "deployment.apps/shoal-discovery created" in said

    def may(who: str, verb: str, resource: str, namespace: str) -> bool:
        where = ["-n", namespace] if namespace else ["--all-namespaces"]
        answer = api.kubectl("auth", "can-i", verb, resource, *where, "--as", who, check=False)
        return answer.strip().splitlines()[-1].startswith("yes")

    assert [what for what in NEEDED if not may(*what)] == []
    assert [what for what in REFUSED if may(*what)] == []
    for who in (WORKER, LEADER):
        asked = ("auth", "can-i", "patch", "nodes", "--subresource=status", "--all-namespaces", "--as", who)
        assert api.kubectl(*asked, check=False).strip().splitlines()[-1].startswith("no")
