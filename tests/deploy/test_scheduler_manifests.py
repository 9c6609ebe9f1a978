"""The manifests of the scheduler: taken by a real API server, and as the code has it."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from shoal import __version__
from shoal.cli.settings import load
from shoal.model.contract import clusters, gpushare, keti, shoal
from shoal.scheduler.config import PORT_HEALTH, SECRET, OfferConfig, SchedulerConfig
from shoal.scheduler.kube_scheduler import MOUNTED, SchedulerMode, configuration
from tests.testbed.apiserver import ApiServer

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDERS = ("scheduler", "scheduler-second", "scheduler-plain", "scheduler-offer", "scheduler-claims")
ACCOUNT = "system:serviceaccount:kube-system:shoal-scheduler"


def documents(folder: str) -> list[dict[str, Any]]:
    """What lies in the files of a folder, kustomization excepted."""
    paths = sorted(path for path in (DEPLOY / folder).glob("*.yaml") if path.name != "kustomization.yaml")
    return list(itertools.chain.from_iterable(yaml.safe_load_all(path.read_text()) for path in paths))


def one(folder: str, kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents(folder) if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def test_the_settings_can_be_read(tmp_path: Path) -> None:
    both = (keti.SCHEDULER_NAME,)
    for names, secret, host, text in (
        (both, SECRET, "0.0.0.0", one("scheduler", "ConfigMap", "shoal-scheduler")["data"]["scheduler.yaml"]),
        ((), SECRET, "0.0.0.0", patched("scheduler-second")),
        (both, None, "0.0.0.0", patched("scheduler-plain")),
    ):
        path = tmp_path / "scheduler.yaml"
        path.write_text(text)
        settings = load(SchedulerConfig, path, {}, command="scheduler")
        assert (settings.port, settings.scheduler_names) == (gpushare.PORT_MANIFEST, names)
        assert settings.election.enabled
        assert (None if settings.tls is None else settings.tls.secret) == secret
        assert (settings.extender_host, settings.open_inspect) == (host, False)


def test_offers_are_served_as_the_contract_has_it(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(one("scheduler", "ConfigMap", "shoal-scheduler")["data"]["scheduler.yaml"])
    plain = load(SchedulerConfig, path, {}, command="scheduler")
    assert not plain.offer.enabled, "off unless asked for"
    path.write_text(patched("scheduler-offer"))
    settings = load(SchedulerConfig, path, {}, command="scheduler")
    assert settings == msgspec.structs.replace(plain, offer=OfferConfig(enabled=True)), "and nothing else changes"
    patches = yaml.safe_load((DEPLOY / "scheduler-offer" / "kustomization.yaml").read_text())["patches"]
    (container,) = yaml.safe_load(patches[1]["patch"])["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "offer", "containerPort": clusters.OFFER_PORT}]
    service = one("scheduler-offer", "Service", clusters.NAME_OFFER_SERVICE)
    assert service["spec"]["ports"] == [{"name": "offer", "port": clusters.OFFER_PORT, "targetPort": "offer"}]
    labels = one("scheduler", "Deployment", "shoal-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert "data" not in one("scheduler-offer", "ConfigMap", clusters.NAME_ROOM), "it comes empty"
    (rule,) = one("scheduler-offer", "Role", "shoal-scheduler-offer")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == ([clusters.NAME_ROOM], ["get", "patch"])


def test_claims_are_off_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(one("scheduler", "ConfigMap", "shoal-scheduler")["data"]["scheduler.yaml"])
    plain = load(SchedulerConfig, path, {}, command="scheduler")
    assert not plain.claims
    path.write_text(patched("scheduler-claims"))
    settings = load(SchedulerConfig, path, {}, command="scheduler")
    assert settings == msgspec.structs.replace(plain, claims=True), "and nothing else changes"
    groups = [rule["apiGroups"] for rule in one("scheduler-claims", "ClusterRole", "shoal-scheduler-claims")["rules"]]
    assert groups == [["resource.k8s.io"]] * len(groups)


def patched(folder: str) -> str:
    """The settings as an overlay changes them."""
    patch = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["patches"][0]["patch"]
    text: str = yaml.safe_load(patch)["data"]["scheduler.yaml"]
    return text


def test_the_plain_port_warns_in_its_first_line() -> None:
    first = (DEPLOY / "scheduler-plain" / "kustomization.yaml").read_text().splitlines()[0]
    assert first.startswith("# WARNING: without TLS")


def test_the_stock_schedulers_configurations_are_those_printed() -> None:
    data = one("scheduler-second", "ConfigMap", "gpu-scheduler")["data"]
    assert data["kube-scheduler-second.yaml"] == configuration("1.36", mode=SchedulerMode.SECOND, tls=MOUNTED)
    (container,) = one("scheduler-second", "Deployment", "gpu-scheduler")["spec"]["template"]["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "tls"]
    assert MOUNTED.ca.startswith(mount["mountPath"] + "/")
    assert container["command"][1] == "--config=/etc/shoal/kube-scheduler-second.yaml"


def test_the_secret_comes_empty_and_is_the_only_one_that_may_be_touched() -> None:
    secret = one("scheduler", "Secret", SECRET)
    assert "data" not in secret
    assert "stringData" not in secret
    rules = [rule for rule in one("scheduler", "Role", "shoal-scheduler")["rules"] if rule["resources"] == ["secrets"]]
    assert [(rule["resourceNames"], rule["verbs"]) for rule in rules] == [([SECRET], ["get", "update"])]


def test_names_and_ports_are_those_of_the_contract() -> None:
    service = one("scheduler", "Service", gpushare.EXTENDER_NAME)
    assert service["metadata"]["namespace"] == gpushare.EXTENDER_NAMESPACE
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["nodePort"]) == (gpushare.PORT_MANIFEST, gpushare.PORT_NODE)
    pod = one("scheduler", "Deployment", "shoal-scheduler")["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"shoal:{__version__}"
    assert container["ports"] == [
        {"name": port["targetPort"], "containerPort": gpushare.PORT_MANIFEST},
        {"name": "health", "containerPort": PORT_HEALTH},
    ]
    assert container["livenessProbe"]["httpGet"] == {"path": shoal.PATH_HEALTH, "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": shoal.PATH_READY, "port": "health"}
    role = one("scheduler", "ClusterRole", "shoal-scheduler")
    (policies,) = [rule for rule in role["rules"] if rule["resources"] == ["configmaps"]]
    assert policies["resourceNames"] == list(keti.POLICY_CONFIGMAPS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_containers_have_no_more_than_they_need(folder: str) -> None:
    deployments = [document for document in documents(folder) if document["kind"] == "Deployment"]
    changes = ("scheduler-plain", "scheduler-offer", "scheduler-claims")
    assert deployments or folder in changes, "which change that of scheduler"
    for deployment in deployments:
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert {"livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_real_api_server_takes_them(apiserver: ApiServer, folder: str) -> None:
    strictly = ("--validate=strict", "--warnings-as-errors", "--dry-run=server")
    said = apiserver.kubectl("apply", "-k", str(DEPLOY / folder), *strictly)
    budget = "poddisruptionbudget.policy/shoal-scheduler"
    for made in ("deployment.apps/shoal-scheduler", f"service/{gpushare.EXTENDER_NAME}", shoal.POLICY_PODS, budget):
        assert made in said


@pytest.mark.parametrize("how", ["create", "apply"])
def test_the_service_takes_the_place_of_gpushares(new_apiserver: Callable[[], ApiServer], how: str) -> None:
    """gpushare's own is there, made in either way; what its fields leave behind must not lead to nobody, or to both."""
    api = new_apiserver()
    theirs = {"app": "gpushare", "component": gpushare.EXTENDER_NAME}
    port = {"name": "http", "port": gpushare.PORT_MANIFEST, "targetPort": gpushare.PORT_MANIFEST}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": gpushare.EXTENDER_NAME, "namespace": gpushare.EXTENDER_NAMESPACE, "labels": theirs},
        "spec": {"type": "NodePort", "selector": theirs, "ports": [{**port, "nodePort": gpushare.PORT_NODE}]},
    }
    api.kubectl(how, "-f", "-", input=json.dumps(service))
    api.kubectl("apply", "-k", str(DEPLOY / "scheduler"))
    found = api.request("GET", f"/api/v1/namespaces/{gpushare.EXTENDER_NAMESPACE}/services/{gpushare.EXTENDER_NAME}")
    selector = found["spec"]["selector"].items()
    ours = one("scheduler", "Deployment", "shoal-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert selector <= ours.items(), "it leads to nobody"
    assert not selector <= theirs.items(), "it leads to gpushare's pods too"
    (led,) = found["spec"]["ports"]
    assert (led["targetPort"], led["nodePort"]) == ("extender", gpushare.PORT_NODE)


@pytest.mark.parametrize(("folder", "name"), [("scheduler", "shoal-scheduler"), ("scheduler-second", "gpu-scheduler")])
def test_a_budget_counts_the_pods_of_its_deployment(folder: str, name: str) -> None:
    budget, deployment = one(folder, "PodDisruptionBudget", name), one(folder, "Deployment", name)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["spec"]["replicas"] == 2


#: Verb, resource, namespace ("" for all) of what the scheduler does.
NEEDED = (
    *(
        (verb, resource, "")
        for resource in (
            *("nodes", "pods", "namespaces", "persistentvolumes", "persistentvolumeclaims"),
            *("storageclasses.storage.k8s.io", "poddisruptionbudgets.policy"),
        )
        for verb in ("list", "watch")
    ),
    ("get", "pods", "anywhere"),
    ("create", "pods/binding", "anywhere"),
    ("patch", "pods/status", "anywhere"),
    ("delete", "pods", "anywhere"),
    ("create", "events", "anywhere"),
    ("patch", "events", "anywhere"),
    ("patch", "persistentvolumeclaims", "anywhere"),
    ("patch", "persistentvolumes", ""),
    ("list", "configmaps", "kube-system"),
    ("watch", "configmaps", "kube-system"),
    ("list", "configmaps/gpu-scheduler-policy", ""),
    ("create", "leases.coordination.k8s.io", "kube-system"),
    ("update", "leases.coordination.k8s.io/shoal-scheduler", "kube-system"),
    ("get", f"secrets/{SECRET}", "kube-system"),
    ("update", f"secrets/{SECRET}", "kube-system"),
)
#: And of what it has no business with.
REFUSED = (
    ("get", "secrets", "kube-system"),
    ("list", "secrets", "kube-system"),
    ("create", "secrets", "kube-system"),
    ("delete", f"secrets/{SECRET}", "kube-system"),
    ("get", f"secrets/{SECRET}", "default"),
    ("list", "configmaps", ""),
    ("patch", "nodes", ""),
    ("create", "pods", "anywhere"),
    ("patch", "pods", "anywhere"),
    ("update", "leases.coordination.k8s.io/kube-scheduler", "kube-system"),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
)


def test_the_account_may_do_its_work_and_nothing_else(new_apiserver: Callable[[], ApiServer]) -> None:
    api = new_apiserver()
    api.kubectl("apply", "-f", str(DEPLOY / "scheduler" / "rbac.yaml"))

    def may(verb: str, resource: str, namespace: str) -> bool:
        where = ["-n", namespace] if namespace else ["--all-namespaces"]
        plain, _, sub = resource.partition("/")
        named = ["--subresource", sub] if sub in ("binding", "status") else []
        target = plain if named or not sub else resource
        said = api.kubectl("auth", "can-i", verb, target, *named, *where, "--as", ACCOUNT, check=False)
        return said.strip().splitlines()[-1].startswith("yes") or said.startswith("yes")

    assert [what for what in NEEDED if not may(*what)] == []
    assert [what for what in REFUSED if may(*what)] == []
