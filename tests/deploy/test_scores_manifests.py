"""The manifests of KETI's analysis engine: under the names its scheduler looks for, and with no rights at all."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from shoal import __version__
from shoal.metrics.keti_settings import KetiGrpcSettings, KetiScoresSettings
from shoal.model.contract import keti
from tests.testbed.apiserver import ApiServer

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "metrics-scores"


def documents() -> list[dict[str, Any]]:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
    return list(itertools.chain.from_iterable(yaml.safe_load_all((FOLDER / name).read_text()) for name in listed))


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def test_names_and_ports_are_those_of_the_contract() -> None:
    engine = one("Deployment", keti.ENGINE_DEPLOYMENT)
    assert engine["metadata"]["namespace"] == keti.NAMESPACE
    pod = engine["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    settings = KetiScoresSettings(collectors=(container["args"][1].removeprefix("--collector="),))
    assert (container["args"][0], settings.port) == ("metrics-scores", container["ports"][0]["containerPort"])
    assert container["image"] == f"shoal:{__version__}"
    collectors = one("Service", keti.COLLECTOR_SERVICE)
    where = f"{keti.COLLECTOR_SERVICE}.{collectors['metadata']['namespace']}.svc"
    assert settings.collectors == (f"{where}:{KetiGrpcSettings().port}",)
    assert (collectors["spec"]["clusterIP"], collectors["spec"]["ports"][0]["port"]) == ("None", keti.PORT_COLLECTOR)
    (measuring,) = yaml.safe_load_all((DEPLOY / "metrics" / "daemonset.yaml").read_text())
    assert collectors["spec"]["selector"].items() <= measuring["spec"]["template"]["metadata"]["labels"].items()
    service = one("Service", keti.ENGINE_SERVICE)
    assert service["spec"]["selector"] == engine["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["port"] == keti.PORT_ENGINE


def test_it_has_no_rights_and_few_callers() -> None:
    pod = one("Deployment", keti.ENGINE_DEPLOYMENT)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    policy = one("NetworkPolicy", keti.ENGINE_DEPLOYMENT)["spec"]
    assert policy["ingress"] == [{"from": [{"podSelector": {}}], "ports": [{"port": 9322, "protocol": "TCP"}]}]


def test_a_real_api_server_takes_them(new_apiserver: Callable[[], ApiServer]) -> None:
    server = new_apiserver()
    server.create_namespace(keti.NAMESPACE)
    said = server.kubectl("apply", "-k", str(FOLDER), "--validate=strict", "--warnings-as-errors")
    assert "deployment.apps/keti-analysis-engine created" in said
