"""`deploy/dashboard` against the code: settings, ports, and rights that only read."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.dashboard.config import DashboardConfig
from shoal.metrics import history_wire
from shoal.model.contract import load

FOLDER = Path(__file__).parents[2] / "deploy" / "dashboard"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def test_settings_are_the_codes_and_ports_are_the_settings() -> None:
    (settings,) = documents("settings.yaml")
    config = msgspec.convert(yaml.safe_load(settings["data"]["dashboard.yaml"]), DashboardConfig)
    assert config.tls is not None
    (deployment,) = documents("deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": config.port, "metrics": config.metrics_port, "health": config.probe_port}
    assert container["args"] == ["dashboard", "--config=/etc/shoal/dashboard.yaml"]
    (policy,) = documents("network.yaml")
    reached = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert reached == {config.port, config.metrics_port}


def test_it_may_write_nothing_but_reviews_and_a_token_for_collectors() -> None:
    roles = [one for one in documents("rbac.yaml") if one["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    writing = {
        resource
        for rule in rules
        for resource in rule["resources"]
        if not {"get", "list", "watch"} >= set(rule["verbs"])
    }
    assert writing == {"tokenreviews", "subjectaccessreviews", "serviceaccounts/token"}
    (token,) = [rule for rule in rules if "serviceaccounts/token" in rule["resources"]]
    assert token["resourceNames"] == [history_wire.VIEWER_ACCOUNT]
    assert not any("secrets" in rule["resources"] or "*" in rule["verbs"] for rule in rules)
    places = {role["metadata"].get("namespace") for role in roles}
    assert places == {None, history_wire.NAMESPACE, load.NAMESPACE}
