"""Preferences once more, slowly: kube-scheduler's scores of the plugins that weigh what people wrote."""

from __future__ import annotations

import math

from tests.scheduler.feasibility.reference import (
    counts_for,
    matching_pods,
    means,
    required,
    term_matches,
    untolerated,
)
from tests.scheduler.feasibility.world import Manifest, World, labels_of

Scores = dict[str, int]


def favour(world: World, pod: Manifest, names: set[str]) -> dict[str, float]:
    """The weighted mean of the scores that tell nodes apart; empty when none does."""
    nodes = [world.nodes[name] for name in sorted(names)]
    parts = [(3, taints(pod, nodes)), (2, near_nodes(pod, nodes)), (2, spread(world, pod, nodes))]
    parts.append((2, company(world, pod, nodes)))
    told = [(weight, scores) for weight, scores in parts if scores]
    if not told or not nodes:
        return {}
    total = sum(weight for weight, _ in told)
    return {name: sum(weight * scores[name] for weight, scores in told) / total for name in names}


def name_of(node: Manifest) -> str:
    return str(node["metadata"]["name"])


def taints(pod: Manifest, nodes: list[Manifest]) -> Scores:
    counts = {name_of(node): len(untolerated(pod, node, ("PreferNoSchedule",))) for node in nodes}
    most = max(counts.values(), default=0)
    return {name: 100 - 100 * count // most for name, count in counts.items()} if most else {}


def near_nodes(pod: Manifest, nodes: list[Manifest]) -> Scores:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    if not terms:
        return {}
    sums = {
        name_of(node): sum(term["weight"] for term in terms if term_matches(term["preference"], node)) for node in nodes
    }
    most = max(sums.values(), default=0)
    return {name: 100 * value // most if most else 0 for name, value in sums.items()}


def spread(world: World, pod: Manifest, nodes: list[Manifest]) -> Scores:
    given = pod["spec"].get("topologySpreadConstraints") or []
    soft = [item for item in given if item["whenUnsatisfiable"] == "ScheduleAnyway"]
    if not soft:
        return {}
    judged = [node for node in nodes if all(item["topologyKey"] in labels_of(node) for item in soft)]
    cost: Scores = {}
    for node in judged:
        value = 0.0
        for item in soft:
            key = item["topologyKey"]
            if key == "kubernetes.io/hostname":
                size, pods = len(judged), matching_pods(world, item, pod, node)
            else:
                size = len({labels_of(other)[key] for other in judged})
                pods = sum(
                    matching_pods(world, item, pod, other)
                    for other in world.nodes.values()
                    if counts_for(item, soft, pod, other) and labels_of(other)[key] == labels_of(node)[key]
                )
            value += pods * math.log(size + 2) + item["maxSkew"] - 1
        cost[name_of(node)] = math.floor(value + 0.5)
    most, least = max(cost.values(), default=0), min(cost.values(), default=0)
    scores = {name: 100 * (most + least - value) // most if most else 100 for name, value in cost.items()}
    return {name_of(node): scores.get(name_of(node), 0) for node in nodes}


def preferred(pod: Manifest, kind: str) -> list[Manifest]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []


def company(world: World, pod: Manifest, nodes: list[Manifest]) -> Scores:
    sums: dict[tuple[str, str], int] = {}
    for other, there in world.here():
        weighted = [
            *((item["podAffinityTerm"], item["weight"], pod, other) for item in preferred(pod, "podAffinity")),
            *((item["podAffinityTerm"], -item["weight"], pod, other) for item in preferred(pod, "podAntiAffinity")),
            *((term, 1, other, pod) for term in required(other, "podAffinity")),
            *((item["podAffinityTerm"], item["weight"], other, pod) for item in preferred(other, "podAffinity")),
            *((item["podAffinityTerm"], -item["weight"], other, pod) for item in preferred(other, "podAntiAffinity")),
        ]
        for term, weight, owner, met in weighted:
            key = term["topologyKey"]
            if means(world, term, owner, met) and key in labels_of(there):
                domain = (key, labels_of(there)[key])
                sums[domain] = sums.get(domain, 0) + weight
    if not sums:
        return {}
    raw = {name_of(node): sum(sums.get(item, 0) for item in labels_of(node).items()) for node in nodes}
    least, most = min(raw.values(), default=0), max(raw.values(), default=0)
    return {name: int(100 * ((value - least) / (most - least))) if most > least else 0 for name, value in raw.items()}
