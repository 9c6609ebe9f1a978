"""The roles that every cluster begins with, as far as users of this one bind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shoal.embedded.access.rbac import GROUP
from shoal.embedded.access.users import AUTHENTICATED, MASTERS

_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_DISCOVERY: Final = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*")
_PUBLIC: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
#: What lives in a namespace, by group.
_WORK: Final = {
    "": (
        *("configmaps", "endpoints", "persistentvolumeclaims", "pods", "pods/log", "pods/status"),
        *("replicationcontrollers", "replicationcontrollers/scale", "serviceaccounts", "services"),
    ),
    "apps": (
        *("controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
        *("statefulsets", "statefulsets/scale"),
    ),
    "autoscaling": ("horizontalpodautoscalers",),
    "batch": ("cronjobs", "jobs"),
    "discovery.k8s.io": ("endpointslices",),
    "networking.k8s.io": ("ingresses", "networkpolicies"),
    "policy": ("poddisruptionbudgets",),
    "resource.k8s.io": ("resourceclaims", "resourceclaimtemplates"),
}


def _rule(verbs: Sequence[str], group: str, resources: Sequence[str]) -> dict[str, Any]:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


def _viewing() -> list[dict[str, Any]]:
    seen = ("bindings", "events", "limitranges", "namespaces", "resourcequotas")
    return [*(_rule(_READ, group, resources) for group, resources in _WORK.items()), _rule(_READ, "", seen)]


def _editing() -> list[dict[str, Any]]:
    return [
        *_viewing(),
        *(_rule(_WRITE, group, resources) for group, resources in _WORK.items()),
        _rule((*_READ, *_WRITE), "", ("secrets",)),
        _rule(("create",), "", ("pods/eviction", "serviceaccounts/token")),
        _rule(("impersonate",), "", ("serviceaccounts",)),
        _rule((*_READ, *_WRITE), "coordination.k8s.io", ("leases",)),
    ]


def _administration() -> list[dict[str, Any]]:
    return [
        *_editing(),
        _rule((*_READ, *_WRITE), GROUP, ("rolebindings", "roles")),
        _rule(("create",), "authorization.k8s.io", ("localsubjectaccessreviews",)),
    ]


def _basics() -> list[dict[str, Any]]:
    return [
        _rule(("create",), "authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        _rule(("create",), "authentication.k8s.io", ("selfsubjectreviews",)),
    ]


def _roles() -> dict[str, list[dict[str, Any]]]:
    everything = [_rule(("*",), "*", ("*",)), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return {
        "cluster-admin": everything,
        "admin": _administration(),
        "edit": _editing(),
        "view": _viewing(),
        "system:basic-user": _basics(),
        "system:discovery": [{"verbs": ["get"], "nonResourceURLs": [*_DISCOVERY, *_PUBLIC]}],
        "system:public-info-viewer": [{"verbs": ["get"], "nonResourceURLs": list(_PUBLIC)}],
    }


_BOUND: Final = {
    "cluster-admin": MASTERS,
    "system:basic-user": AUTHENTICATED,
    "system:discovery": AUTHENTICATED,
    "system:public-info-viewer": AUTHENTICATED,
}


def first_roles() -> Iterator[tuple[str, dict[str, Any]]]:
    """The roles and bindings to begin with, each with its plural."""
    for name, rules in _roles().items():
        yield "clusterroles", {"metadata": {"name": name, "labels": dict(_LABELS)}, "rules": rules}
    for name, group in _BOUND.items():
        yield (
            "clusterrolebindings",
            {
                "metadata": {"name": name, "labels": dict(_LABELS)},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group}],
            },
        )
