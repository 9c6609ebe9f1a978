"""The schema of the chart's values: what values.yaml has, with its comments as descriptions, and the fields of the
ClusterPolicy, so that a section takes what the policy takes. `make manifests` writes charts/shoal/values.schema.json.

Names that are nowhere are refused. Values that go to the ClusterPolicy have its types, choices and bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from shoal.operator.crd import definition

ROOT: Final = Path(__file__).parents[1]
VALUES: Final = ROOT / "charts" / "shoal" / "values.yaml"
SCHEMA: Final = ROOT / "charts" / "shoal" / "values.schema.json"

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_MAP: Final[Schema] = {"type": "object", "additionalProperties": _TEXT}
#: An object of Kubernetes, which the API server checks, or settings, which the service checks.
_ANY: Final[Schema] = {"type": "object"}
_ENV: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Name of the variable."},
            "value": {"type": "string", "description": "Value of the variable."},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}
_AMOUNTS: Final[Schema] = {
    "type": "object",
    "properties": {
        name: {"type": ["string", "number"], "description": words}
        for name, words in (
            ("cpu", "Cores, such as 100m."),
            ("memory", "Memory, such as 128Mi."),
            ("ephemeral-storage", "Disk, such as 1Gi."),
        )
    },
    "additionalProperties": False,
}
_NEEDS: Final[Schema] = {
    "type": "object",
    "properties": {
        "requests": {**_AMOUNTS, "description": "What is set aside for the container."},
        "limits": {**_AMOUNTS, "description": "The most that the container may take."},
    },
    "additionalProperties": False,
}
_TOLERATIONS: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "key": {"type": "string", "description": "Key of the taint."},
            "operator": {"enum": ["Exists", "Equal"], "description": "Whether the taint must have the value."},
            "value": {"type": "string", "description": "Value of the taint, with Equal."},
            "effect": {"type": "string", "description": "Effect of the taint; empty: every effect."},
            "tolerationSeconds": {"type": "integer", "description": "For how long, with effect NoExecute."},
        },
        "additionalProperties": False,
    },
}
#: By the last part of a value's name.
_BY_NAME: Final[Mapping[str, Schema]] = {
    "env": _ENV,
    "args": _TEXTS,
    "imagePullSecrets": _TEXTS,
    "schedulerNames": _TEXTS,
    "labels": _MAP,
    "annotations": _MAP,
    "additionalLabels": _MAP,
    "nodeSelector": _MAP,
    "resources": _NEEDS,
    "tolerations": _TOLERATIONS,
    "relabelings": {"type": "array", "items": _ANY},
    "metricsFrom": {"type": "array", "items": _ANY},
    "affinity": _ANY,
    "imagePullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
}
#: By a value's whole name; these win.
_BY_PATH: Final[Mapping[str, Schema]] = {
    "devicePlugin.config.data": _MAP,
    "dcgmExporter.config.data": _TEXT,
    "migManager.config.data": _MAP,
    "scheduler.settings": _ANY,
    "clusterManager.settings": _ANY,
    "dashboard.settings": _ANY,
    "dashboard.from": {"type": "array", "items": _ANY},
    "dashboard.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "clusterManager.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "scheduler.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "scheduler.second.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "scheduler.second.version": _TEXT,
    "operator.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "discovery.replicas": {"type": "integer", "minimum": 1, "maximum": 5},
    "discovery.graceSeconds": {"type": "number", "minimum": 0, "maximum": 86400},
    "operator.uninstallTimeoutSeconds": {"type": "integer", "minimum": 10, "maximum": 86400},
    "operator.logging.level": {"enum": ["debug", "info", "warning", "error"]},
    "operator.defaultRuntime": {"enum": ["", "docker", "crio", "containerd"]},
    "scheduler.service.type": {"enum": ["NodePort", "ClusterIP"]},
    "scheduler.service.nodePort": {"type": "integer", "minimum": 1, "maximum": 65535},
    "dcgmExporter.service.internalTrafficPolicy": {"enum": ["Cluster", "Local"]},
    "node-feature-discovery.gc": _ANY,
    "node-feature-discovery.master": _ANY,
    "node-feature-discovery.worker.config": _ANY,
    "node-feature-discovery.worker.serviceAccount": _ANY,
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
}
#: Words of the ClusterPolicy's schema that JSON Schema has too, and that hold for values.
_KEPT: Final = ("description", "type", "enum", "minimum", "maximum", "maxLength", "maxItems", "maxProperties")


def schema() -> Schema:
    """The whole schema."""
    policy = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    text = VALUES.read_text()
    (node,) = yaml.compose_all(text)
    made = _mapping(node, "", text.splitlines(), _converted(policy))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart shoal",
        **made,
    }


def text() -> str:
    """As the file has it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def comment_above(lines: list[str], number: int) -> str:
    """The comment right above a line, joined."""
    found: list[str] = []
    indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
    while number and lines[number - 1].startswith(f"{indent}#"):
        number -= 1
        found.insert(0, lines[number].strip().removeprefix("#").strip())
    return " ".join(found)


def _mapping(node: yaml.MappingNode, path: str, lines: list[str], known: Schema) -> Schema:
    """The object with what values.yaml has in it, and what the policy has beside that."""
    properties: Schema = {}
    others = known.get("properties", {}) if path else {}
    sections = known.get("properties", {})
    for key, value in node.value:
        name = key.value
        where = f"{path}.{name}" if path else name
        made = _value(value, where, lines, sections.get(name, {}))
        words = comment_above(lines, key.start_mark.line)
        properties[name] = {"description": words, **{k: v for k, v in made.items() if k != "description"}}
    for name, other in others.items():
        properties.setdefault(name, other)
    for where, extra in _BY_PATH.items():
        head, _, name = where.rpartition(".")
        if head == path and name not in properties:
            properties[name] = {"description": "Taken for NVIDIA's sake, and ignored.", **extra}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(node: yaml.Node, path: str, lines: list[str], known: Schema) -> Schema:
    name = path.rpartition(".")[2]
    if path in _BY_PATH:
        return dict(_BY_PATH[path])
    if isinstance(node, yaml.MappingNode) and name not in _BY_NAME:
        return _mapping(node, path, lines, known)
    if name in _BY_NAME and path != "sharing.resources":
        return dict(_BY_NAME[name])
    default = yaml.safe_load(yaml.serialize(node))
    if known:
        made = dict(known)
        if "enum" in made and default not in made["enum"]:
            made["enum"] = [default, *made["enum"]]
        return made
    if isinstance(default, list):
        return {"type": "array", "items": {}}
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": kinds[type(default)]}


def _converted(schema: Schema) -> Schema:
    """A schema of the API server's as JSON Schema."""
    made: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "items" in schema:
        made["items"] = _converted(schema["items"])
    if "properties" in schema:
        made["properties"] = {name: _converted(inner) for name, inner in schema["properties"].items()}
        made["additionalProperties"] = False
    elif "additionalProperties" in schema:
        made["additionalProperties"] = _converted(schema["additionalProperties"])
    return made
