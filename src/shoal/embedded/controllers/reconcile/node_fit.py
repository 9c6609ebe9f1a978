"""Whether a node is one for a pod: node selector, required node affinity, taints and tolerations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.embedded.store import Object


def fits_affinity(spec: Mapping[str, Any], node: Object) -> bool:
    """Whether the node has what the node selector and the required affinity ask for."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_fits_term(term, node) for term in required.get("nodeSelectorTerms") or ())


def untolerated(spec: Mapping[str, Any], node: Object, effects: Iterable[str]) -> bool:
    """Whether a taint with one of these effects keeps the pod away."""
    tolerations = spec.get("tolerations") or ()
    return any(
        taint.get("effect") in effects and not any(_tolerates(one, taint) for one in tolerations)
        for taint in node.get("spec", {}).get("taints") or ()
    )


def _fits_term(term: Mapping[str, Any], node: Object) -> bool:
    """A term that says nothing fits no node."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    labels = node["metadata"].get("labels") or {}
    names = {"metadata.name": node["metadata"]["name"]}
    return bool(expressions or fields) and (
        all(_holds(one, labels) for one in expressions) and all(_holds(one, names) for one in fields)
    )


def _holds(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value, wanted = values.get(requirement["key"]), requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _number(value) is not None and _compared(value, wanted) > 0
        case "Lt":
            return _number(value) is not None and _compared(value, wanted) < 0
    return False


def _compared(value: str | None, wanted: list[str]) -> int:
    """Above zero if the value is the larger one; zero as well if there is nothing to compare with."""
    here, there = _number(value), _number(wanted[0] if wanted else None)
    return 0 if here is None or there is None else here - there


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.removeprefix("-").isdigit() else None


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
