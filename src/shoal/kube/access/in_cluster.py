"""The credentials of a pod: its service account, as kubelet mounts it and renews it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shoal.kube.access.credentials import Access, FileContent, StoredCredential
from shoal.kube.errors import ConfigError

FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_in_cluster(environ: Mapping[str, str], folder: Path = FOLDER) -> bool:
    """Whether this process has a service account to use."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (folder / "token").is_file()


def in_cluster(environ: Mapping[str, str], folder: Path = FOLDER) -> Access:
    """Access as the pod's service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this is no pod, give a kubeconfig")
    token = FileContent(folder / "token", what="the service account's token")
    authority = FileContent(folder / "ca.crt", what="the cluster's certificate")
    token.read()
    authority.read()
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""  # only projected volumes made by hand leave it out
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=StoredCredential(token=token),
        authority=authority,
        namespace=namespace or "default",
    )
