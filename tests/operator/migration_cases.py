"""The table of migrations, for the command and for a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tests.cases import read_cases


class MigrationCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A spec of NVIDIA's, and what becomes of it."""

    name: str
    nvidia: dict[str, Any]
    spec: dict[str, Any]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


MIGRATIONS = msgspec.convert(read_cases(Path(__file__).parent / "migrations.yaml"), list[MigrationCase])


def nvidia_policy(spec: object, **meta: Any) -> dict[str, Any]:
    """A policy of NVIDIA's, as its API server stores it."""
    metadata = {
        "name": "cluster-policy",
        "uid": "d94925c5-42f6-4009-9d5c-d7f4338d208b",
        "resourceVersion": "206",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "helm", "operation": "Update"}],
        "labels": {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "gpu-operator-v26.7.0"},
        "annotations": {
            "meta.helm.sh/release-name": "gpu-operator",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    }
    status = {"state": "ready", "namespace": "gpu-operator"}
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": metadata | meta,
        "spec": spec,
        "status": status,
    }
