"""The choice between a kubeconfig and the pod's own service account."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.kube.access.credentials import Access
from shoal.kube.access.in_cluster import FOLDER, in_cluster, is_in_cluster
from shoal.kube.access.kubeconfig import kubeconfig_paths, load_kubeconfig


def load_access(
    *,
    environ: Mapping[str, str],
    home: Path,
    kubeconfig: Path | None = None,
    context: str = "",
    terminal: bool = False,
    service_account: Path = FOLDER,
) -> Access:
    """Access by a named kubeconfig, else $KUBECONFIG, else the service account of this pod, else ~/.kube/config."""
    if kubeconfig is not None:
        return load_kubeconfig([kubeconfig], environ=environ, context=context, explicit=True, terminal=terminal)
    if not environ.get("KUBECONFIG") and not context and is_in_cluster(environ, service_account):
        return in_cluster(environ, service_account)
    return load_kubeconfig(kubeconfig_paths(environ, home), environ=environ, context=context, terminal=terminal)
