"""Kubeconfigs and Secrets for tests of members."""

import base64
from typing import Any

import yaml

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import Secret


def kubeconfig(*names: str, current: str | None = None, cluster: Any = None, user: Any = None) -> dict[str, Any]:
    """One cluster, user and context of each name; the token is the name's own."""
    return {
        "clusters": [{"name": n, "cluster": {"server": f"https://{n}.example:6443", **(cluster or {})}} for n in names],
        "users": [{"name": f"{n}-admin", "user": user or {"token": f"token-of-{n}"}} for n in names],
        "contexts": [{"name": f"{n}-admin@{n}", "context": {"cluster": n, "user": f"{n}-admin"}} for n in names],
        "current-context": f"{names[0]}-admin@{names[0]}" if current is None else current,
    }


def secret(
    name: str, content: Any, *, label: str | None = None, annotations: dict[str, str] | None = None, created: str = ""
) -> Secret:
    """A labelled Secret with a kubeconfig, which may be anything."""
    written = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
    labels = {"shoal.dev/cluster": name if label is None else label}
    meta = ObjectMeta(
        name=name,
        namespace="shoal",
        labels=labels,
        annotations=annotations or {},
        creation_timestamp=created or "2026-01-01T00:00:00Z",
    )
    return Secret(metadata=meta, data={"kubeconfig": base64.b64encode(written).decode()})
