"""`deploy/cluster-manager` and KETI's overlay of it against the code: settings, accounts, ports."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from shoal.clusters.config import KEY_SETTINGS, ClusterManagerConfig
from shoal.model.contract import gpushare, keti
from shoal.model.contract.clusters import NAME_MANAGER, NAMESPACE_MANAGER

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(*names: str) -> list[dict[str, Any]]:
    return [one for name in names for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]


def settings(found: list[dict[str, Any]]) -> ClusterManagerConfig:
    (one,) = [obj for obj in found if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == NAME_MANAGER]
    return msgspec.convert(yaml.safe_load(one["data"][KEY_SETTINGS]), ClusterManagerConfig)


def deployment(found: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = [obj for obj in found if obj["kind"] == "Deployment"]
    return one


def test_settings_can_be_read_and_name_the_schedulers_namespace() -> None:
    config = settings(documents("cluster-manager/settings.yaml"))
    assert config.namespace == NAMESPACE_MANAGER
    assert config.scheduler_namespace == gpushare.EXTENDER_NAMESPACE
    assert config.keti is None, "in plain text only where it is asked for"
    # The right to ask home's own scheduler is in that namespace.
    roles = [one for one in documents("cluster-manager/rbac.yaml") if one["metadata"]["name"].endswith("-offers")]
    assert {one["metadata"]["namespace"] for one in roles} == {config.scheduler_namespace}


def test_keti_overlay_serves_ketis_clients() -> None:
    config = settings(documents("keti/cluster-manager.yaml"))
    assert config.namespace == keti.NAMESPACE
    assert config.keti is not None
    assert (config.keti.plaintext, config.keti.port) == (True, keti.PORT_MANAGER)


@pytest.mark.parametrize("names", [("cluster-manager/deployment.yaml",), ("keti/cluster-manager.yaml",)])
def test_ports_and_paths_are_those_of_the_code(names: tuple[str, ...]) -> None:
    spec = deployment(documents(*names))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == ["cluster-manager", f"--config=/etc/shoal/{KEY_SETTINGS}"]
    assert spec["serviceAccountName"] == NAME_MANAGER
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    default = ClusterManagerConfig()
    assert (ports["health"], ports["metrics"]) == (default.probe_port, default.metrics_port)
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
