"""A cluster as plain manifests, and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]


@dataclass
class World:
    """All there is, as manifests. Pods are those on nodes."""

    nodes: dict[str, Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    namespaces: dict[str, Manifest] = field(default_factory=dict)
    volumes: dict[str, Manifest] = field(default_factory=dict)
    claims: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    classes: dict[str, Manifest] = field(default_factory=dict)

    def on(self, node: str) -> Iterator[Manifest]:
        return (pod for pod in self.pods.values() if pod["spec"]["nodeName"] == node)

    def here(self) -> Iterator[tuple[Manifest, Manifest]]:
        """Pods with their nodes, for nodes that are there."""
        return (
            (pod, self.nodes[pod["spec"]["nodeName"]])
            for pod in self.pods.values()
            if pod["spec"]["nodeName"] in self.nodes
        )


def labels_of(thing: Manifest) -> dict[str, str]:
    return thing["metadata"].get("labels") or {}


def holds(expression: Manifest, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    try:
        have, bound = int(labels[key]), int(values[0])
    except (KeyError, ValueError):
        return False
    return have > bound if operator == "Gt" else have < bound
