"""The table of policies, which the reader and a real API server are asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.cases import read_cases


class PolicyCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One spec, and what is said of it."""

    name: str
    spec: dict[str, Any]
    refused: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    stored: bool = False
    reads: dict[str, Any] = {}


CASES = msgspec.convert(read_cases(Path(__file__).parent / "policies.yaml"), list[PolicyCase])


def policy(spec: object, name: str = "cluster-policy") -> dict[str, Any]:
    """A policy with this spec."""
    return {"apiVersion": "shoal.dev/v1", "kind": "ClusterPolicy", "metadata": {"name": name}, "spec": spec}


def at(spec: dict[str, Any], path: str) -> Any:
    """A field of a spec, by its names."""
    found: Any = spec
    for name in path.split("."):
        found = found[name]
    return found
