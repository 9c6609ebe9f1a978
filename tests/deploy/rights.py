"""The rights that the manifests of `deploy/` grant, one line for each account and resource."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
WRITTEN = Path(__file__).with_name("rights.txt")
#: The namespaces that Shoal's components run in, by folder of `deploy/`: they have the same rights in each.
_HOMES = ("kube-system", "gpu", "shoal-clusters")
#: Roles of Kubernetes' own, which are not in `deploy/`.
_FOREIGN = ("system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader")

Object = dict[str, Any]


def granted() -> set[str]:
    """A line for each resource of each rule, as `ACCOUNT SCOPE GROUP/RESOURCE VERBS [NAMES]`."""
    objects = list(_objects())
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
    }
    lines: set[str] = set()
    for one in objects:
        if one["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace, role = one["metadata"].get("namespace", ""), one["roleRef"]
        scope = "cluster" if one["kind"] == "ClusterRoleBinding" else _home(namespace)
        home = namespace if role["kind"] == "Role" else ""
        rules = roles.get((role["kind"], home, role["name"]))
        assert rules is not None or role["name"] in _FOREIGN, f"no {role['kind']} {role['name']} for a binding"
        for subject in one["subjects"]:
            who = subject["name"] if subject["kind"] == "ServiceAccount" else f"{subject['kind']}:{subject['name']}"
            lines |= {f"{who} {scope} {right}" for right in _rights(rules, role["name"])}
    return lines


def _rights(rules: list[Object] | None, role: str) -> Iterator[str]:
    if rules is None:
        yield f"role={role}"
        return
    for rule in rules:
        names = f" [{' '.join(sorted(rule['resourceNames']))}]" if "resourceNames" in rule else ""
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield f"{group or 'core'}/{resource} {' '.join(sorted(rule['verbs']))}{names}"


def _home(namespace: str) -> str:
    return "own" if namespace in _HOMES else namespace


def _objects() -> Iterator[Object]:
    for path in sorted(DEPLOY.rglob("*.yaml")):
        if path.name != "kustomization.yaml" and "grafana" not in path.parts:
            for found in yaml.safe_load_all(path.read_text()):
                if isinstance(found, dict) and "kind" in found:
                    yield from found["items"] if found["kind"] == "List" else [found]
