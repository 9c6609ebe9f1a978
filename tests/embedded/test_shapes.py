"""Whatever stands in a field, the server refuses it or takes it; it never breaks over it."""

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NAMESPACES, Catalogue
from shoal.embedded.registry import Registry
from shoal.embedded.rules.shapes import check_shape
from shoal.embedded.store import ObjectStore

JUNK: list[Any] = [None, 0, -1, 1.5, "", "x", "A B", True, [], {}, [1], ["a"], [None], [{}], {"a": 1}, {"a": None}]
JUNK += [{"a": []}, {"": ""}, 10**20, "9" * 400]

CONTAINER = {
    "name": "c",
    "image": "b",
    "ports": [{"containerPort": 1}],
    "env": [{"name": "A", "value": "b"}],
    "resources": {"limits": {"cpu": "1", "aliyun.com/gpu-mem": "3"}, "requests": {"cpu": "1"}},
    "volumeMounts": [{"name": "v", "mountPath": "/x"}],
}
SPEC = {
    "nodeName": "n",
    "tolerations": [{"key": "a"}],
    "initContainers": [{"name": "i", "image": "x"}],
    "containers": [CONTAINER],
    "volumes": [{"name": "v", "emptyDir": {}}],
}
OWNER = {"apiVersion": "v1", "kind": "X", "name": "n", "uid": "u"}
METADATA = {
    "name": "a",
    "labels": {"a": "b"},
    "annotations": {"x": "y"},
    "ownerReferences": [OWNER],
    "finalizers": ["a/b"],
}
WORKLOAD = {
    "selector": {"matchLabels": {"a": "b"}},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": SPEC},
}
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
NODE_STATUS = {"capacity": {"cpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]}
OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    ("", "Pod"): {"spec": SPEC},
    ("apps", "Deployment"): {"spec": {**WORKLOAD, "replicas": 1, "strategy": ROLLING}},
    ("apps", "StatefulSet"): {"spec": {**WORKLOAD, "serviceName": "x", "updateStrategy": {"type": "RollingUpdate"}}},
    ("apps", "DaemonSet"): {"spec": {**WORKLOAD, "updateStrategy": {"type": "RollingUpdate"}}},
    ("batch", "Job"): {"spec": {"template": {"spec": {**SPEC, "restartPolicy": "Never"}}, "parallelism": 2}},
    ("", "Node"): {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": NODE_STATUS},
    ("", "ConfigMap"): {"data": {"a": "b"}},
    ("", "Secret"): {"stringData": {"a": "b"}, "type": "Opaque"},
    ("", "Event"): {"involvedObject": {"kind": "Pod", "name": "x", "namespace": "default"}, "count": 1},
    ("coordination.k8s.io", "Lease"): {"spec": {"holderIdentity": "x", "renewTime": "2026-01-01T00:00:00.000000Z"}},
    ("", "Service"): {"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}},
}


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path to every value inside."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inside:
        yield from places(below, (*path, name))


def with_junk(obj: dict[str, Any], path: tuple[str | int, ...], junk: object) -> dict[str, Any]:
    """The object with something else at one place."""
    changed = copy.deepcopy(obj)
    at: Any = changed
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = copy.deepcopy(junk)
    return changed


@pytest.mark.parametrize("which", OBJECTS, ids=lambda which: which[1])
def test_any_value_at_any_place_is_taken_or_refused(which: tuple[str, str]) -> None:
    catalogue = Catalogue()
    registry = Registry(ObjectStore(), catalogue, clock=lambda: datetime.now(UTC))
    registry.create(NAMESPACES, "", {"metadata": {"name": "default"}})
    kind = next(kind for kind in catalogue.all() if (kind.group, kind.kind) == which)
    whole = {"metadata": METADATA, **OBJECTS[which]}
    refused = 0
    for path in places(whole):
        for junk in JUNK:
            obj = with_junk(whole, path, junk)
            try:
                check_shape(obj, kind)
                registry.create(kind, "default" if kind.namespaced else "", obj, dry_run=True)
            except ApiStatus:  # some with 500, as the real server does over lists without their keys
                refused += 1
    assert refused > 20
