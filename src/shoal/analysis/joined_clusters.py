"""The clusters that are joined to this one: found as the cluster manager finds them, with the caller's rights; or as
it tells of them, for those who may not read its kubeconfigs.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import yaml

from shoal.analysis.installed import GRANTS, granted_namespace, namespace_of
from shoal.clusters.app import own_entry
from shoal.clusters.config import KEY_SETTINGS, ClusterManagerConfig
from shoal.clusters.fences import read_record
from shoal.clusters.joining import joined_secrets
from shoal.clusters.members import Members
from shoal.clusters.overview import ClustersOverview, overview, read_config_map
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS, LEASES
from shoal.model.contract import clusters
from shoal.model.contract.clusters import NAME_MANAGER, NAMESPACE_MANAGER, SilenceRecord, ToldClusters
from shoal.model.errors import CodecError

_NO_MANAGER: Final = "no cluster manager is installed: this cluster stands alone"


async def manager_namespace(home: Client, given: str = "") -> str:
    """The manager's namespace: the one that is given, else where it is installed."""
    return given or await namespace_of(home, NAME_MANAGER)


@contextlib.asynccontextmanager
async def joined_members(home: Client, namespace: str, files: Sequence[Path] = ()) -> AsyncIterator[Members]:
    """The joined clusters as a manager there finds them, home among them."""
    config = await manager_settings(home, namespace)
    async with Members(home, namespace=namespace, files=list(files), own=own_entry(config, home.access)) as members:
        yield members


async def manager_settings(home: Client, namespace: str) -> ClusterManagerConfig:
    """The settings of the manager that is installed there; the usual ones where they cannot be read."""
    try:
        found = await home.get(CONFIG_MAPS, NAME_MANAGER, namespace=namespace)
        given = yaml.safe_load(found.data.get(KEY_SETTINGS, "")) or {}
        return msgspec.convert({"namespace": namespace, **given}, ClusterManagerConfig)
    except (NotFoundError, ForbiddenError, yaml.YAMLError, msgspec.ValidationError, TypeError):
        return ClusterManagerConfig(namespace=namespace)


async def read_clusters(home: Client, namespace: str, files: Sequence[Path] = ()) -> ClustersOverview:
    """How the joined clusters are, once each has been asked. Raises KubeError where they may not be listed."""
    space = await manager_namespace(home, namespace)
    # Members outlast a refusal; whoever lists them shall hear of it.
    await joined_secrets(home, space)
    record = await _silences(home, space)
    async with joined_members(home, space, files) as members:
        return await overview(members, record)


async def _silences(home: Client, namespace: str) -> SilenceRecord | None:
    """What the manager has written of clusters that do not answer; None where it cannot be read."""
    settings = await manager_settings(home, namespace)
    try:
        return read_record(await home.get(LEASES, settings.lease_name, namespace=namespace))
    except (NotFoundError, ForbiddenError):
        return None


@dataclass(frozen=True, slots=True)
class ToldReading:
    """What the manager tells of the clusters, or why nothing is known of them."""

    told: ToldClusters | None = None
    why: str = ""


async def read_told(home: Client, namespace: str = "") -> ToldReading:
    """How the clusters are by the manager's own word, without any kubeconfig. Raises KubeError.

    `namespace` is the manager's; empty: where it is installed.
    """
    space = namespace or await _granted_manager_namespace(home)
    if not space:
        return ToldReading(why=_NO_MANAGER)
    where = f"ConfigMap {space}/{clusters.NAME_CLUSTERS}"
    try:
        written = (await read_config_map(home, space, clusters.NAME_CLUSTERS)).data.get(clusters.KEY_CLUSTERS, "")
        if not written:
            return ToldReading(why=f"the cluster manager has told nothing yet in {where}: look whether it runs")
        told = clusters.decode(ToldClusters, written, what=clusters.NAME_CLUSTERS, limit=clusters.MAX_TOLD)
        return ToldReading(told)
    except NotFoundError:
        return ToldReading(why=f"there is no {where}, in which a cluster manager tells of them: look whether one runs")
    except ForbiddenError:
        return ToldReading(
            why=f"the dashboard may not read {where}, in which the cluster manager tells of them: "
            "set dashboard.clusters of the chart"
        )
    except CodecError as error:
        return ToldReading(why=f"{where} cannot be read: {error}")


async def _granted_manager_namespace(home: Client) -> str:
    """Where the manager is installed; empty if it is not."""
    try:
        return granted_namespace(await home.get(GRANTS, NAME_MANAGER), NAME_MANAGER)
    except NotFoundError:
        return ""
    except ForbiddenError:
        return NAMESPACE_MANAGER
