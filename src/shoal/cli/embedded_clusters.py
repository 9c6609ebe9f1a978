"""Several embedded clusters and a cluster manager in the first one, joined as users join real ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import yaml

from shoal.cli.embedded import EmbeddedCluster, run_anew
from shoal.clusters import app
from shoal.clusters.config import KEY_SETTINGS, ClusterManagerConfig
from shoal.clusters.join import references_binding
from shoal.clusters.joining import JoinWish, join
from shoal.embedded.policies.shipped import cluster_manager
from shoal.embedded.store import Object
from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.access.secret_files import write_secret
from shoal.kube.client import Client
from shoal.kube.resources import NAMESPACES, SECRETS
from shoal.model.contract import gpushare
from shoal.model.contract.clusters import (
    ENABLED,
    LABEL_ACCEPTS,
    LABEL_ACCEPTS_REFERENCES,
    LABEL_COPIES_REFERENCES,
    LABEL_DISPATCH,
    NAME_MANAGER,
    NAMESPACE_MANAGER,
    ROLE_REFERENCES_SUFFIX,
)
from shoal.scheduler.certificates import KEY_CA
from shoal.scheduler.config import SECRET

#: The namespace in which pods take part, in all clusters.
NAMESPACE: Final = "default"
_SCHEDULER_NAMESPACE: Final = gpushare.EXTENDER_NAMESPACE
#: A year: longer than such a cluster lasts.
_LIFETIME: Final = 365 * 24 * 3600


@contextlib.asynccontextmanager
async def managed(clusters: Sequence[EmbeddedCluster], kubeconfig: Path) -> AsyncIterator[None]:
    """Run a manager in the first of these clusters, to which the others are joined, while the block lasts.

    `kubeconfig` is written: a context for each cluster, the first one current.
    """
    home, *others = clusters
    _write_contexts(clusters, kubeconfig)
    for obj in (*cluster_manager(), _reading_references()):
        _create(home, obj)
    for cluster in clusters:
        async with cluster.client() as client:
            wanted = (LABEL_ACCEPTS, LABEL_ACCEPTS_REFERENCES)
            labels = dict.fromkeys((LABEL_DISPATCH, LABEL_COPIES_REFERENCES) if cluster is home else wanted, ENABLED)
            await client.patch(NAMESPACES, NAMESPACE, {"metadata": {"labels": labels}})
        await cluster.offering.wait()
    for other in others:
        await _join(home, other)
    config = ClusterManagerConfig(
        namespace=NAMESPACE_MANAGER,
        cluster_name=home.plan.name,
        scheduler_namespace=_SCHEDULER_NAMESPACE,
        memory_unit=home.plan.unit,
        offer_url=_offer_url(home),
        offer_ca=str(await _write_authority(home, kubeconfig)),
        host="127.0.0.1",
        probe_port=None,
        metrics_port=None,
    )
    _create(home, _settings(config))
    access = load_access(environ={}, home=Path("/"), kubeconfig=_manager_kubeconfig(home, kubeconfig))
    running = asyncio.Event()
    # One that fails ends the block with its error, before it runs too.
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_manage(config, access, running), name="cluster manager")
        await running.wait()
        try:
            yield
        finally:
            task.cancel()


async def _manage(config: ClusterManagerConfig, access: Access, running: asyncio.Event) -> None:
    part = partial(
        app.run, config, access, identity="embedded", environ=os.environ, serving=lambda ports: running.set()
    )
    await run_anew("the cluster manager", part)


async def _join(home: EmbeddedCluster, other: EmbeddedCluster) -> None:
    async with home.client() as at_home, other.client() as there:
        wish = JoinWish(
            other.plan.name,
            NAMESPACE_MANAGER,
            _SCHEDULER_NAMESPACE,
            offer_url=_offer_url(other),
            offer_authority=await _authority(there),
            token_seconds=_LIFETIME,
        )
        report = await join(at_home, there, wish)
        binding = references_binding(report.account, NAMESPACE)
        await there.apply(binding.resource, binding.manifest)


def _reading_references() -> Object:
    """The namespace lets the manager read what its pods name."""
    role = f"{NAME_MANAGER}{ROLE_REFERENCES_SUFFIX}"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME_MANAGER, "namespace": NAMESPACE_MANAGER}],
    }


def _settings(config: ClusterManagerConfig) -> Object:
    """The manager's settings where an installation has them: commands read them there."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME_MANAGER, "namespace": NAMESPACE_MANAGER},
        "data": {KEY_SETTINGS: yaml.safe_dump(msgspec.to_builtins(config))},
    }


def _offer_url(cluster: EmbeddedCluster) -> str:
    return f"https://127.0.0.1:{cluster.offer_port}"


async def _authority(client: Client) -> bytes:
    """The certificate that the scheduler's own is signed with."""
    found = await client.get(SECRETS, SECRET, namespace=_SCHEDULER_NAMESPACE)
    return base64.b64decode(found.data[KEY_CA])


async def _write_authority(home: EmbeddedCluster, beside: Path) -> Path:
    path = beside.with_name("offer-ca.crt")
    async with home.client() as client:
        path.write_bytes(await _authority(client))
    return path


def _create(cluster: EmbeddedCluster, obj: Object) -> None:
    registry = cluster.api.registry
    kind = next(one for one in registry.catalogue.all() if one.kind == obj["kind"] and one.group == _group(obj))
    registry.create(kind, obj["metadata"].get("namespace", ""), obj)


def _group(obj: Object) -> str:
    group, slash, _ = obj["apiVersion"].partition("/")
    return group if slash else ""


def _manager_kubeconfig(home: EmbeddedCluster, beside: Path) -> Path:
    """A kubeconfig of the manager's own account: it has its shipped rights and no more."""
    wanted = {"spec": {"expirationSeconds": _LIFETIME}}
    token = home.api.gate.tokens.request(NAMESPACE_MANAGER, NAME_MANAGER, wanted)["status"]["token"]
    config = yaml.safe_load(home.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = beside.with_name("manager.kubeconfig")
    write_secret(path, yaml.safe_dump(config, encoding="utf-8"))
    return path


def _write_contexts(clusters: Sequence[EmbeddedCluster], path: Path) -> None:
    merged: Object = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []}
    for cluster in clusters:
        name = cluster.plan.name
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        merged["clusters"].append({"name": name, "cluster": config["clusters"][0]["cluster"]})
        merged["users"].append({"name": name, "user": config["users"][0]["user"]})
        merged["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
    merged["current-context"] = clusters[0].plan.name
    write_secret(path, yaml.safe_dump(merged, encoding="utf-8"))
