"""The dashboard with the rights that deploy/dashboard gives it, for users with rights of RBAC, on both API servers."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig, DashboardTlsConfig
from shoal.kube.access.credentials import Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from tests.cli.inspect.cluster import Cluster, objects
from tests.dashboard.background import in_background
from tests.dashboard.site import Readings

DEPLOY = Path(__file__).parents[2] / "deploy"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODES = {"n1": {"cards": {0: 10240, 1: 10240}}, "n2": {"mem": 30, "count": 2}}
PODS = {
    "a": {"namespace": "red", "node": "n1", "mem": [3, 1], "index": 0},
    "hidden": {"namespace": "blue", "node": "n1", "mem": 2, "index": 0},
    "other": {"namespace": "blue", "node": "n2", "mem": 7, "index": 1},
    "w": {"namespace": "red", "mem": 30, "why": "0/2 nodes are available"},
    "hidden-w": {"namespace": "blue", "mem": 40},
}


@dataclass
class Served:
    """A dashboard, and how it is asked."""

    url: str
    session: aiohttp.ClientSession

    async def get(self, path: str, token: str) -> Any:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(f"{self.url}/api/v1{path}", headers=headers, ssl=False) as answer:
            assert answer.status == 200, (path, await answer.text())
            return json.loads(await answer.read())


def account(cluster: Cluster, namespace: str, name: str) -> str:
    """A token of a new ServiceAccount."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with contextlib.suppress(AssertionError):  # the manifests may have made it
        cluster.demand("POST", path, {"metadata": {"name": name}})
    made = cluster.demand("POST", f"{path}/{name}/token", {"spec": {"expirationSeconds": 3600}})
    return str(made["status"]["token"])


def user(cluster: Cluster, *, pods_in: Collection[str] = (), nodes: bool = False, role: str = "") -> str:
    """A token of somebody with some rights."""
    name = f"user-{uuid.uuid4().hex[:6]}"
    token = account(cluster, "default", name)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}

    def grant(kind: str, where: str, role_kind: str, role_name: str) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role_name}
        body = {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
        cluster.demand("POST", f"{RBAC}{where}/{kind}", body)

    if role:
        grant("clusterrolebindings", "", "ClusterRole", role)
    for namespace in pods_in:
        rules = [{"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list", "watch"]}]
        body = {"metadata": {"name": name}, "rules": rules}
        cluster.demand("POST", f"{RBAC}/namespaces/{namespace}/roles", body)
        grant("rolebindings", f"/namespaces/{namespace}", "Role", name)
    if nodes:
        rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
        cluster.demand("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        grant("clusterrolebindings", "", "ClusterRole", name)
    return token


@contextlib.asynccontextmanager
async def dashboard(cluster: Cluster, token: str, readings: Readings) -> AsyncIterator[Served]:
    """A dashboard with the rights of a token, which serves with a certificate that it made itself."""
    admin = load_kubeconfig([cluster.kubeconfig], environ={}, explicit=True)
    access = replace(admin, credentials=StoredCredential(token=Inline(token.encode())))
    config = DashboardConfig(port=0, tls=DashboardTlsConfig(), measure_seconds=0.5)
    served: asyncio.Future[app.Serving] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(config, access, measure=readings.measure, serving=served.set_result))
    waiting: set[asyncio.Future[Any]] = {task, served}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(served.result().url, session)
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def installed(cluster: Cluster) -> str:
    """The token of the dashboard's own account, with the rights of its manifests and no others."""
    cluster.apply(DEPLOY / "dashboard" / "rbac.yaml")
    return account(cluster, "kube-system", "shoal-dashboard")


def test_users_see_what_rbac_gives_them(cluster: Cluster, installed: str) -> None:
    cluster.put(objects(NODES, PODS))
    admin, viewer = user(cluster, role="cluster-admin"), user(cluster, pods_in=["red"])
    with_nodes, nobody = user(cluster, pods_in=["red"], nodes=True), user(cluster)
    readings = Readings()
    readings.use("n1", {"red/a": 1000, "blue/hidden": 500}, {})
    target = {"kind": "Pod", "namespace": "blue", "name": "hidden", "uid": "x"}
    told = {
        "metadata": {"name": f"e-{uuid.uuid4().hex[:6]}"},
        "involvedObject": target,
        "reason": "R",
        "message": "hidden",
    }
    cluster.demand("POST", "/api/v1/namespaces/blue/events", told)
    with in_background(dashboard(cluster, installed, readings)) as (served, run):

        def get(path: str, token: str) -> Any:
            return run(served.get(path, token))

        _until(lambda: get("/overview", admin)["pods"]["total"] == 5, "all pods")
        _until(lambda: get("/overview", admin)["memory"]["usedMiB"] == 1500, "a reading")
        _until(lambda: get("/events", admin)["total"] == 1, "the event")
        command = json.loads(cluster.inspect("-o", "json").stdout)
        assert get("/inspect", admin) == command
        paths = ("/overview", "/inspect", "/nodes", "/cards", "/pods", "/events", "/map", "/waste", "/pods/red/w/why")
        for token in (viewer, with_nodes):
            for path in paths:
                text = json.dumps(get(path, token))
                assert "hidden" not in text, path
                assert "blue" not in text, path
        assert {pod["name"] for pod in get("/pods", viewer)["items"]} == {"a", "w"}
        assert [node["name"] for node in get("/nodes", viewer)["items"]] == ["n1"]
        assert [node["name"] for node in get("/nodes", with_nodes)["items"]] == ["n1", "n2"]
        card = get("/cards/GPU-n1-0", viewer)
        assert [(one["pod"], one["requestedMiB"], one["usedMiB"]) for one in card["holders"]] == [
            ("a", 4096, 1000),
            (None, 2048, 500),
        ]
        assert get("/map", nobody)["nodes"] == []
        why = get("/pods/red/w/why", admin)
        assert why["state"] == "pending"
        assert why["unplaced"]["nodes"]
        assert get("/setup", with_nodes)["policy"] is None
        told = get("/clusters", with_nodes)
        assert (told["managed"], told["items"], told["problems"]) == (False, [], {})
        assert told["why"] == "no cluster manager is installed: this cluster stands alone"


def _until(condition: Any, what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)
