"""Objects and the rows that kubectl prints of them, read from `cases/*.yaml`. All are five minutes old at `NOW`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cases import read_cases

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CREATED = "2026-01-01T23:55:00Z"
PLACES = {
    ("", "ConfigMap"): "/api/v1/namespaces/{namespace}/configmaps",
    ("", "Event"): "/api/v1/namespaces/{namespace}/events",
    ("", "LimitRange"): "/api/v1/namespaces/{namespace}/limitranges",
    ("", "Namespace"): "/api/v1/namespaces",
    ("", "Node"): "/api/v1/nodes",
    ("", "Pod"): "/api/v1/namespaces/{namespace}/pods",
    ("", "Secret"): "/api/v1/namespaces/{namespace}/secrets",
    ("", "Service"): "/api/v1/namespaces/{namespace}/services",
    ("", "ServiceAccount"): "/api/v1/namespaces/{namespace}/serviceaccounts",
    ("apps", "DaemonSet"): "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    ("apps", "Deployment"): "/apis/apps/v1/namespaces/{namespace}/deployments",
    ("apps", "ReplicaSet"): "/apis/apps/v1/namespaces/{namespace}/replicasets",
    ("apps", "StatefulSet"): "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    ("batch", "CronJob"): "/apis/batch/v1/namespaces/{namespace}/cronjobs",
    ("batch", "Job"): "/apis/batch/v1/namespaces/{namespace}/jobs",
    ("coordination.k8s.io", "Lease"): "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
    ("events.k8s.io", "Event"): "/apis/events.k8s.io/v1/namespaces/{namespace}/events",
    ("rbac.authorization.k8s.io", "Role"): "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    ("policy", "PodDisruptionBudget"): "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    ("scheduling.k8s.io", "PriorityClass"): "/apis/scheduling.k8s.io/v1/priorityclasses",
}


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object without its name, and the cells after the name (of an event: before it)."""

    title: str = ""
    kind: str
    group: str = ""
    labels: dict[str, str] = {}
    body: dict[str, Any] = {}
    cells: list[Any] = []


def _rows() -> list[Row]:
    files = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
    return [row for file in files for row in msgspec.convert(read_cases(file), list[Row])]


ROWS = _rows()
every_row = pytest.mark.parametrize("row", ROWS, ids=[f"{row.kind}: {row.title}" for row in ROWS])
