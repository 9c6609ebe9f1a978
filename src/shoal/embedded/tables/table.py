"""Puts objects of one kind into a `meta.k8s.io/v1` Table."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.schema import BUILT_IN_GROUPS
from shoal.embedded.tables import cluster, workloads
from shoal.embedded.tables.layout import Column, Layout, age, text
from shoal.embedded.tables.pod import POD

_LAYOUTS: Final = {
    ("", "ConfigMap"): cluster.CONFIG_MAP,
    ("", "Event"): cluster.EVENT,
    ("", "Namespace"): cluster.NAMESPACE,
    ("", "Node"): cluster.NODE,
    ("", "Pod"): POD,
    ("", "Secret"): cluster.SECRET,
    ("", "Service"): cluster.SERVICE,
    ("", "ServiceAccount"): cluster.NAMED,
    ("apps", "DaemonSet"): workloads.DAEMON_SET,
    ("apps", "Deployment"): workloads.DEPLOYMENT,
    ("apps", "ReplicaSet"): workloads.REPLICA_SET,
    ("apps", "StatefulSet"): workloads.STATEFUL_SET,
    ("batch", "CronJob"): workloads.CRON_JOB,
    ("batch", "Job"): workloads.JOB,
    ("coordination.k8s.io", "Lease"): cluster.LEASE,
    ("events.k8s.io", "Event"): cluster.EVENT,
    ("policy", "PodDisruptionBudget"): cluster.DISRUPTION_BUDGET,
    ("resource.k8s.io", "DeviceClass"): cluster.NAMED,
    ("resource.k8s.io", "ResourceClaim"): cluster.RESOURCE_CLAIM,
    ("resource.k8s.io", "ResourceClaimTemplate"): cluster.NAMED,
    ("resource.k8s.io", "ResourceSlice"): cluster.RESOURCE_SLICE,
    ("scheduling.k8s.io", "PriorityClass"): cluster.PRIORITY_CLASS,
}
_CUSTOM: Final = Layout(
    (Column("Name"), Column("Age", "date")), lambda value, now: [cluster.name_of(value), age(value, now)]
)
_BUILT_IN: Final = Layout(
    (Column("Name"), Column("Created At", "date")),
    lambda value, _: [cluster.name_of(value), text(value, "metadata", "creationTimestamp")],
)


def table_of(
    kind: str,
    group: str,
    items: list[dict[str, Any]],
    *,
    now: datetime,
    list_meta: dict[str, Any],
    include: str,
    layout: Layout | None = None,
) -> dict[str, Any]:
    """The table of these objects, in a layout of its own or the kind's.

    `include` is the request's `includeObject`: Metadata (or nothing), Object or None.
    """
    if include not in ("", "Metadata", "Object", "None"):
        why = f"includeObject: Invalid value: \"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        raise ApiStatus(400, "BadRequest", f"Unable to convert to Table as requested: {why}")
    layout = layout or _LAYOUTS.get((group, kind)) or (_BUILT_IN if group in BUILT_IN_GROUPS else _CUSTOM)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_meta,
        "columnDefinitions": [column.definition() for column in layout.columns],
        "rows": [_row(layout, item, now, include) for item in items],
    }


def _row(layout: Layout, item: dict[str, Any], now: datetime, include: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": layout.cells(item, now)}
    conditions = layout.conditions(item)
    if conditions:
        row["conditions"] = conditions
    return row | {"object": _included(item, include)}


def _included(item: dict[str, Any], include: str) -> dict[str, Any] | None:
    if include == "None":
        return None
    if include == "Object":
        return item
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item.get("metadata", {})}
