"""Objects as tests create them."""

from typing import Any

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap


def config_map(name: str, namespace: str, *, labels: dict[str, str] | None = None, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels or {}), data=data)


def pod(name: str, namespace: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one container that fits anywhere and that no scheduler takes."""
    container = {"name": "app", "image": "busybox:1"}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"containers": [container], "schedulerName": "none", **spec},
    }


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}
