"""A real API server with a cluster manager as the manifests install it, to which a cluster is joined, and a dashboard
with the rights that the chart gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.analysis.collectors import Measured
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.clusters import app as manager
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.joining import JoinWish, join
from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig
from shoal.embedded.nodes.cluster import few
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.model.contract.clusters import NAME_MANAGER, NAMESPACE_MANAGER
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer

ROOT = Path(__file__).parents[2]
RELEASE = "kube-system"
ACCOUNT = "shoal-dashboard"


def rendered(template: str, *values: str) -> list[Any]:
    """The objects of a template of the chart."""
    sets = [option for value in values for option in ("--set", value)]
    chart = [str(ROOT / "charts" / "shoal"), "--namespace", RELEASE, "--show-only", f"templates/{template}"]
    command = [str(binaries.find("helm")), "template", "shoal", *chart, *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def install(server: ApiServer, *values: str) -> DashboardConfig:
    """The dashboard's account, its rights and its settings, as the chart makes them with these values."""
    values = ("dashboard.enabled=true", *values)
    for namespace in ("shoal-history", "shoal-load", NAMESPACE_MANAGER):
        server.try_request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    objects = rendered("dashboard/rbac.yaml", *values)
    server.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))
    (settings,) = rendered("dashboard/settings.yaml", *values)
    given = yaml.safe_load(settings["data"]["dashboard.yaml"])
    own = {"host": "127.0.0.1", "port": 0, "tls": None, "probePort": None, "metricsPort": None}
    return msgspec.convert({**given, **own}, DashboardConfig)


def as_account(server: ApiServer, namespace: str, name: str) -> Access:
    """The API server as an account of it reaches it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    token = server.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    admin = load_kubeconfig([server.kubeconfig()], environ={}, explicit=True)
    return replace(admin, credentials=StoredCredential(token=Inline(token.encode())))


@dataclass
class Joined:
    """Home, and the cluster that is joined to it."""

    home: ApiServer
    west: EmbeddedCluster


@contextlib.asynccontextmanager
async def joined(server: ApiServer) -> AsyncIterator[Joined]:
    """A manager here, with the rights of its own account, and a cluster `west` of one node with two cards."""
    for name in ("namespace", "rbac", "clusters"):
        await asyncio.to_thread(
            server.kubectl, "apply", "-f", str(ROOT / "deploy" / "cluster-manager" / f"{name}.yaml")
        )
    plan = EmbeddedPlan(few(1, "2xA30-24G"), name="west", offers=True)
    async with contextlib.AsyncExitStack() as stack:
        # The sockets of plugins take a short path.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dj-"))
        west = await stack.enter_async_context(EmbeddedCluster(plan, Path(folder)))
        await west.ready()
        access = load_kubeconfig([server.kubeconfig()], environ={}, explicit=True)
        async with Client(access) as at_home, west.client() as there:
            await join(at_home, there, JoinWish("west", NAMESPACE_MANAGER, RELEASE, token_seconds=24 * 3600))
        config = ClusterManagerConfig(
            namespace=NAMESPACE_MANAGER, scheduler_namespace=RELEASE, probe_port=None, metrics_port=None
        )
        own = as_account(server, NAMESPACE_MANAGER, NAME_MANAGER)
        task = asyncio.create_task(manager.run(config, own, identity="manager", environ={}))
        stack.push_async_callback(ended, task)
        yield Joined(server, west)


@contextlib.asynccontextmanager
async def dashboard(config: DashboardConfig, access: Access) -> AsyncIterator[app.Serving]:
    """A dashboard with these rights, without collectors."""

    async def measure(names: Collection[str]) -> Measured:
        return Measured({}, dict.fromkeys(names, "no collector runs there"))

    told: asyncio.Future[app.Serving] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(config, access, measure=measure, serving=told.set_result))
    try:
        waiting: Sequence[asyncio.Future[Any]] = (told, task)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield told.result()
    finally:
        await ended(task)


async def ended(task: asyncio.Task[None]) -> None:
    """End a task, and wait until it has."""
    task.cancel()
    await asyncio.wait({task})
