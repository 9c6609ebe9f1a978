"""Kubernetes' filters once more, slowly: one node at a time, over plain manifests, from what the documentation says.

Nothing here comes from the package but the reading of quantities. `reference_volumes` has volumes, `reference_favour`
the preferences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from shoal.model.quantity import parse
from tests.scheduler.feasibility import reference_volumes
from tests.scheduler.feasibility.world import Manifest, World, holds, labels_of


def allowed(world: World, pod: Manifest) -> set[str]:
    """The nodes the pod may run on."""
    return {name for name, node in world.nodes.items() if fits(world, pod, node)}


def fits(world: World, pod: Manifest, node: Manifest) -> bool:
    return (
        not (node["spec"].get("unschedulable") and not tolerated(pod, CORDON))
        and named(pod, node)
        and not untolerated(pod, node, ("NoSchedule", "NoExecute"))
        and wanted(pod, node)
        and ports_free(pod, world.on(node["metadata"]["name"]))
        and enough(pod, node, list(world.on(node["metadata"]["name"])))
        and reference_volumes.fits(world, pod, node)
        and spread_fits(world, pod, node)
        and company_fits(world, pod, node)
    )


# Nodes

CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "value": ""}


def named(pod: Manifest, node: Manifest) -> bool:
    pin = (pod["metadata"].get("annotations") or {}).get("nodeName")
    return not pin or pin == node["metadata"]["name"]


def tolerated(pod: Manifest, taint: Manifest) -> bool:
    for toleration in pod["spec"].get("tolerations") or []:
        if toleration.get("effect") and toleration["effect"] != taint["effect"]:
            continue
        if toleration.get("key") and toleration["key"] != taint["key"]:
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists" or (operator == "Equal" and toleration.get("value", "") == taint.get("value", "")):
            return True
    return False


def untolerated(pod: Manifest, node: Manifest, effects: Iterable[str]) -> list[Manifest]:
    taints = node["spec"].get("taints") or []
    return [taint for taint in taints if taint["effect"] in effects and not tolerated(pod, taint)]


def term_matches(term: Manifest, node: Manifest) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    name = {"metadata.name": node["metadata"]["name"]}
    return all(holds(item, labels_of(node)) for item in expressions) and all(holds(item, name) for item in fields)


def wanted(pod: Manifest, node: Manifest) -> bool:
    selector = pod["spec"].get("nodeSelector") or {}
    if any(labels_of(node).get(key) != value for key, value in selector.items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(term_matches(term, node) for term in required["nodeSelectorTerms"])


# What is taken


def host_ports(pod: Manifest) -> list[tuple[str, int, str]]:
    sidecars = [c for c in pod["spec"].get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    return [
        (port.get("protocol") or "TCP", port["hostPort"], port.get("hostIP") or "0.0.0.0")
        for container in [*sidecars, *pod["spec"]["containers"]]
        for port in container.get("ports") or []
        if port.get("hostPort")
    ]


def ports_free(pod: Manifest, others: Iterable[Manifest]) -> bool:
    taken = [port for other in others for port in host_ports(other)]
    return not any(
        mine[:2] == theirs[:2] and (mine[2] == theirs[2] or "0.0.0.0" in (mine[2], theirs[2]))
        for mine in host_ports(pod)
        for theirs in taken
    )


def amount(container: Manifest, resource: str) -> Any:
    resources = container.get("resources") or {}
    given = (resources.get("requests") or {}).get(resource)
    return parse(given if given is not None else (resources.get("limits") or {}).get(resource, 0))


def needed(pod: Manifest, resource: str) -> int:
    spec = pod["spec"]
    apps = sum((amount(c, resource) for c in spec["containers"]), parse(0))
    sidecars = most = parse(0)
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            sidecars += amount(container, resource)
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + amount(container, resource))
    total = max(apps + sidecars, most)
    whole = (spec.get("resources") or {}).get("requests") or {}
    if resource in whole and resource in ("cpu", "memory"):
        total = parse(whole[resource])
    total += parse((spec.get("overhead") or {}).get(resource, 0))
    return math.ceil(total * 1000) if resource == "cpu" else math.ceil(total)


def resources_of(pod: Manifest) -> set[str]:
    spec = pod["spec"]
    containers = [*spec["containers"], *(spec.get("initContainers") or []), {"resources": spec.get("resources")}]
    found = {
        name
        for container in containers
        for kind in ("requests", "limits")
        for name in ((container.get("resources") or {}).get(kind) or {})
    }
    return found | set(spec.get("overhead") or {})


def enough(pod: Manifest, node: Manifest, others: list[Manifest]) -> bool:
    has = node["status"]["allocatable"]
    if len(others) + 1 > math.ceil(parse(has.get("pods", 0))):
        return False
    for resource in resources_of(pod):
        need = needed(pod, resource)
        total = math.ceil(parse(has.get(resource, 0)) * (1000 if resource == "cpu" else 1))
        if need and need > total - sum(needed(other, resource) for other in others):
            return False
    return True


# Pods and other pods


def selected(selector: Manifest | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    plain = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in plain) and all(holds(item, labels) for item in expressions)


def spread_selected(constraint: Manifest, pod: Manifest, other: Manifest) -> bool:
    """Whether the constraint of `pod` counts a pod with the labels of `other`."""
    if not selected(constraint.get("labelSelector"), labels_of(other)):
        return False
    mine = labels_of(pod)
    keys = [key for key in constraint.get("matchLabelKeys") or [] if key in mine]
    return all(labels_of(other).get(key) == mine[key] for key in keys)


def selects_all(constraint: Manifest, pod: Manifest) -> bool:
    """An empty selector, for which Kubernetes counts nobody."""
    selector = constraint.get("labelSelector")
    keys = [key for key in constraint.get("matchLabelKeys") or [] if key in labels_of(pod)]
    return (
        selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions") and not keys
    )


def counts_for(constraint: Manifest, constraints: list[Manifest], pod: Manifest, node: Manifest) -> bool:
    """Whether the node is in a domain of the constraint."""
    if any(other["topologyKey"] not in labels_of(node) for other in constraints):
        return False
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not wanted(pod, node):
        return False
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        return not untolerated(pod, node, ("NoSchedule", "NoExecute"))
    return True


def matching_pods(world: World, constraint: Manifest, pod: Manifest, node: Manifest) -> int:
    if selects_all(constraint, pod):
        return 0
    return sum(
        spread_selected(constraint, pod, other)
        for other in world.on(node["metadata"]["name"])
        if other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and not other["metadata"].get("deletionTimestamp")
    )


def spread_fits(world: World, pod: Manifest, node: Manifest) -> bool:
    constraints = [
        item
        for item in pod["spec"].get("topologySpreadConstraints") or []
        if item["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    for constraint in constraints:
        key = constraint["topologyKey"]
        if key not in labels_of(node):
            return False
        domains: dict[str, int] = {}
        for other in world.nodes.values():
            if counts_for(constraint, constraints, pod, other):
                domain = labels_of(other)[key]
                domains[domain] = domains.get(domain, 0) + matching_pods(world, constraint, pod, other)
        least = min(domains.values()) if len(domains) >= (constraint.get("minDomains") or 1) else 0
        itself = spread_selected(constraint, pod, pod)
        if domains.get(labels_of(node)[key], 0) + itself - least > constraint["maxSkew"]:
            return False
    return True


def means(world: World, term: Manifest, owner: Manifest, other: Manifest) -> bool:
    """Whether the affinity term of `owner` means `other`."""
    names, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    if not names and selector is None:
        names = [owner["metadata"]["namespace"]]
    there = other["metadata"]["namespace"]
    around = labels_of(world.namespaces[there]) if there in world.namespaces else {}
    if there not in names and not selected(selector, around):
        return False
    if not selected(term.get("labelSelector"), labels_of(other)):
        return False
    mine, theirs = labels_of(owner), labels_of(other)
    same = [key for key in term.get("matchLabelKeys") or [] if key in mine]
    differ = [key for key in term.get("mismatchLabelKeys") or [] if key in mine]
    return all(theirs.get(key) == mine[key] for key in same) and all(theirs.get(key) != mine[key] for key in differ)


def required(pod: Manifest, kind: str) -> list[Manifest]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []


def same_domain(one: Manifest, other: Manifest, key: str) -> bool:
    mine, theirs = labels_of(one), labels_of(other)
    return key in mine and mine[key] == theirs.get(key)


def company_fits(world: World, pod: Manifest, node: Manifest) -> bool:
    near = required(pod, "podAffinity")
    if near and not near_fits(world, near, pod, node):
        return False
    for other, there in world.here():
        for term in required(pod, "podAntiAffinity"):
            if means(world, term, pod, other) and same_domain(node, there, term["topologyKey"]):
                return False
        for term in required(other, "podAntiAffinity"):
            if means(world, term, other, pod) and same_domain(node, there, term["topologyKey"]):
                return False
    return True


def near_fits(world: World, terms: list[Manifest], pod: Manifest, node: Manifest) -> bool:
    keys = [term["topologyKey"] for term in terms]
    if any(key not in labels_of(node) for key in keys):
        return False
    meant = [there for other, there in world.here() if all(means(world, term, pod, other) for term in terms)]
    if all(any(same_domain(node, there, key) for there in meant) for key in keys):
        return True
    nobody = not any(key in labels_of(there) for there in meant for key in keys)
    return nobody and all(means(world, term, pod, pod) for term in terms)
