"""Whether a node takes a pod: kubelet's own check of resources, selectors and taints, in its words. Pure.

Devices come before this and elsewhere: `shoal.embedded.nodes.devices.manager`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from shoal.embedded.nodes.pods.states import containers_of
from shoal.embedded.rules.claims import served_by_claim
from shoal.embedded.rules.pods import is_extended
from shoal.kube.selectors import labels_term
from shoal.kube.taints import NO_EXECUTE, read_taints, read_tolerations, untolerated
from shoal.model import quantity
from shoal.model.request import phases

_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
Amounts = dict[str, Fraction]


@dataclass(frozen=True, slots=True)
class PodRefusal:
    """Why a pod is not taken."""

    reason: str
    message: str


def requests_of(pod: Mapping[str, Any], *, by_claim: bool = True) -> Amounts:
    """All that a pod needs at once, by resource; without `by_claim` only what no claim serves."""
    spec = pod["spec"]
    each = tuple(
        (kind, _requests(one, frozenset() if by_claim else served_by_claim(pod, one["name"])))
        for kind, one in containers_of(spec)
    )
    names = {name for _, amounts in each for name in amounts}
    needed = {
        name: max(sum((amounts.get(name, Fraction(0)) for amounts in phase), Fraction(0)) for phase in phases(each))
        for name in names
    }
    for name, amount in (spec.get("overhead") or {}).items():
        needed[name] = needed.get(name, Fraction(0)) + quantity.parse(amount)
    return needed


def _requests(container: Mapping[str, Any], left_out: Collection[str]) -> Amounts:
    return {
        name: quantity.parse(amount)
        for name, amount in ((container.get("resources") or {}).get("requests") or {}).items()
        if name not in left_out
    }


def check(
    pod: Mapping[str, Any],
    node: Mapping[str, Any],
    others: Iterable[Amounts],
    *,
    held: Mapping[str, int],
) -> PodRefusal | None:
    """Why the node does not take the pod. `others` is what each pod on it needs, `held` its devices in use."""
    spec = pod["spec"]
    present = list(others)
    allocatable = {name: quantity.parse(amount) for name, amount in node["status"].get("allocatable", {}).items()}
    # Devices that are in use count even if their plugin is gone, so that running pods are taken again.
    for name, count in held.items():
        allocatable[name] = max(allocatable.get(name, Fraction(0)), Fraction(count))
    capacity = int(allocatable.get("pods", Fraction(110)))
    if len(present) + 1 > capacity:
        return _short("pods", 1, len(present), capacity)
    needed = requests_of(pod, by_claim=False)
    for name in (*_NATIVE, *sorted(set(needed) - set(_NATIVE))):
        # An extended resource that the node does not know is somebody else's business.
        if not needed.get(name) or (name not in allocatable and is_extended(name)):
            continue
        used = sum((amounts.get(name, Fraction(0)) for amounts in present), Fraction(0))
        if needed[name] + used > allocatable.get(name, 0):
            scale = 1000 if name == "cpu" else 1
            numbers = (math.ceil(amount * scale) for amount in (needed[name], used, allocatable.get(name, Fraction(0))))
            return _short(name, *numbers)
    return _selected(spec, node)


def _short(name: str, requested: int, used: int, capacity: int) -> PodRefusal:
    text = f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
    return PodRefusal(f"OutOf{name}", text)


def _selected(spec: Mapping[str, Any], node: Mapping[str, Any]) -> PodRefusal | None:
    labels = node["metadata"].get("labels") or {}
    if not labels_term(spec.get("nodeSelector") or {}).matches(node["metadata"].get("name", ""), labels):
        why = "node(s) didn't match Pod's node affinity/selector"
        return PodRefusal("NodeAffinity", f"Predicate NodeAffinity failed: {why}")
    taints, tolerations = read_taints(node["spec"].get("taints")), read_tolerations(spec.get("tolerations"))
    if untolerated(taints, tolerations, (NO_EXECUTE,)):
        why = "node(s) had taints that the pod didn't tolerate"
        return PodRefusal("TaintToleration", f"Predicate TaintToleration failed: {why}")
    return None
