"""In which namespace Shoal is installed: that is a choice, and only a cluster's administrator is believed about it.

The ClusterRoleBinding of a service names its account and so its namespace, and nobody writes one without owning the
cluster; a Deployment or ConfigMap of Shoal's name can be anybody's.
"""

from __future__ import annotations

from typing import Final

from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.resources import RawObject, Resource
from shoal.model.contract import gpushare, shoal

GRANTS: Final[Resource[RawObject]] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", dict, namespaced=False, whole=True
)
#: Believed where nothing is known: deploy/ and gpushare's own manifests are there.
DEFAULT: Final = gpushare.EXTENDER_NAMESPACE


async def namespace_of(client: Client, service: str = shoal.NAME_SCHEDULER) -> str:
    """The namespace of a service; the usual one if it has no rights here, or if they may not be read."""
    try:
        return granted_namespace(await client.get(GRANTS, service), service) or DEFAULT
    except (ForbiddenError, NotFoundError):
        return DEFAULT


def granted_namespace(binding: RawObject, service: str) -> str:
    """The namespace of the account that a service's ClusterRoleBinding names; empty if it names none."""
    for subject in binding.get("subjects") or ():
        if subject.get("kind") == "ServiceAccount" and subject.get("name") == service:
            return str(subject.get("namespace") or "")
    return ""
