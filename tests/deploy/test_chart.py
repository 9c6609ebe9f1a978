"""The chart as files: the schema of its values, the words on each value, and that nothing is bound to a namespace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import generate, values_schema
from shoal import __version__
from shoal.operator.crd import definition

TEMPLATES = generate.CHART / "templates"
VALUES: dict[str, Any] = yaml.safe_load(values_schema.VALUES.read_text())
SCHEMA: dict[str, Any] = json.loads(values_schema.SCHEMA.read_text())
#: Sections that hold whatever Kubernetes or a service takes there, and are checked by it.
FREE = {
    "operator.affinity",
    "scheduler.settings",
    "clusterManager.settings",
    "dashboard.settings",
    "node-feature-discovery.gc",
    "node-feature-discovery.master",
    "node-feature-discovery.worker.config",
    "node-feature-discovery.worker.serviceAccount",
}
#: Values that NVIDIA's guide sets, or its users do.
GUIDE = (
    "nfd.enabled",
    "driver.enabled",
    "driver.repository",
    "driver.image",
    "driver.version",
    "migManager.enabled",
    "vgpuManager.enabled",
    "vgpuDeviceManager.enabled",
    "vfioManager.enabled",
    "daemonsets.tolerations",
    "node-feature-discovery.worker.tolerations",
    "toolkit.enabled",
    "toolkit.env",
    "toolkit.version",
    "toolkit.installDir",
    "devicePlugin.config.name",
    "devicePlugin.config.create",
    "devicePlugin.config.default",
    "devicePlugin.config.data",
    "devicePlugin.enabled",
    "dcgmExporter.enabled",
    "dcgmExporter.serviceMonitor.enabled",
    "dcgmExporter.config.name",
    "dcgm.enabled",
    "gfd.enabled",
    "mig.strategy",
    "validator.plugin.env",
    "operator.runtimeClass",
    "operator.defaultRuntime",
    "operator.upgradeCRD",
    "operator.cleanupCRD",
    "operator.tolerations",
    "driver.upgradePolicy.autoUpgrade",
    "driver.upgradePolicy.maxUnavailable",
    "driver.upgradePolicy.gpuPodDeletion.force",
    "driver.upgradePolicy.drain.enable",
    "driver.rdma.enabled",
    "driver.kernelModuleType",
    "driver.usePrecompiled",
    "driver.licensingConfig.secretName",
    "driver.repoConfig.configMapName",
    "driver.certConfig.name",
    "driver.manager.version",
    "sandboxWorkloads.enabled",
    "sandboxWorkloads.defaultWorkload",
    "psa.enabled",
    "cdi.enabled",
    "gds.enabled",
    "gdrcopy.enabled",
    "ccManager.enabled",
    "hostPaths.rootFS",
    "hostPaths.driverInstallDir",
    "nodeStatusExporter.enabled",
    "platform.openshift",
)


def leaves(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        yield where, value
        if isinstance(value, dict):
            yield from leaves(value, where)


def section_of(path: str) -> dict[str, Any]:
    found = SCHEMA
    for name in path.split("."):
        found = found["properties"][name]
    return found


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object":
        yield path, schema
    for name, inner in (schema.get("properties") or {}).items():
        yield from objects(inner, f"{path}.{name}" if path else name)
    yield from objects(schema.get("items"), f"{path}[]")
    yield from objects(schema.get("additionalProperties"), f"{path}.*")


def test_the_schema_is_made_from_the_values_and_the_policy() -> None:
    assert values_schema.SCHEMA.read_text() == values_schema.text(), "run make manifests"


def test_every_value_is_told_of() -> None:
    lines = values_schema.VALUES.read_text().splitlines()
    (node,) = yaml.compose_all(values_schema.VALUES.read_text())

    def keys(mapping: yaml.MappingNode, path: str) -> Iterator[tuple[str, int]]:
        for key, value in mapping.value:
            where = f"{path}.{key.value}" if path else key.value
            yield where, key.start_mark.line
            # What is written in one line is Kubernetes' own, such as requests and limits.
            if isinstance(value, yaml.MappingNode) and key.value not in ("resources", "nodeSelector"):
                yield from keys(value, where)

    untold = [where for where, line in keys(node, "") if not values_schema.comment_above(lines, line)]
    assert untold == []


def test_every_part_of_the_schema_is_described() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, inner in (schema.get("properties") or {}).items():
            where = f"{path}.{name}"
            if not inner.get("description"):
                yield where
            yield from undescribed(inner, where)

    assert list(undescribed(SCHEMA, "")) == []


def test_names_that_are_nowhere_are_refused_everywhere() -> None:
    open_ones = {path for path, schema in objects(SCHEMA) if schema.get("additionalProperties", True) is True}
    assert {path for path in open_ones if "[]" not in path} == FREE
    # Lists of objects of Kubernetes and Prometheus.
    assert {path.rpartition(".")[2] for path in open_ones if "[]" in path} == {
        "relabelings[]",
        "metricsFrom[]",
        "from[]",
    }


@pytest.mark.parametrize("path", GUIDE)
def test_values_of_nvidias_guide_are_there(path: str) -> None:
    assert section_of(path)["description"]


def test_sections_of_the_policy_take_what_the_policy_takes() -> None:
    spec = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for name, section in spec.items():
        if name == "psp":  # gone from Kubernetes, and never a value of NVIDIA's chart of these days
            continue
        assert section["properties"].keys() - SCHEMA["properties"][name]["properties"].keys() == set(), name


def test_defaults_hold_to_the_schema() -> None:
    for path, value in leaves(VALUES):
        schema = section_of(path) if not re.search(r"resources\.|nodeSelector\.", path) else {}
        if "enum" in schema:
            assert value in schema["enum"], path


def test_the_charts_version_is_the_codes() -> None:
    chart = yaml.safe_load((generate.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_nothing_is_bound_to_a_namespace() -> None:
    """kube-system is named only for what Kubernetes or gpushare has there."""
    allowed = {
        Path("admission/visible-devices/_policy.tpl"),  # let off, with the release's own
        Path("admission/writers.yaml"),  # the account of Kubernetes' claim controller
        Path("cluster-manager/rbac.yaml"),  # by whose UID a cluster is known
        Path("scheduler/rbac.yaml"),  # gpushare's lists of cards
        Path("scheduler-second/rbac.yaml"),  # Kubernetes' role for those who ask about tokens
        Path("scheduler-second/settings.yaml"),  # a name in a certificate
    }
    found = {
        path.relative_to(TEMPLATES)
        for path in TEMPLATES.rglob("*")
        if path.is_file() and "kube-system" in path.read_text()
    }
    assert found <= allowed


def test_no_registry_is_named() -> None:
    for path in generate.CHART.rglob("*"):
        if path.is_file():
            assert not re.search(r"\b(nvcr|ghcr|quay|docker|gcr)\.(io|com)\b", path.read_text()), path
