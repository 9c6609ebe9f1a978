"""The page over a real API server: real tokens, real reviews of rights, real Events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import pytest_asyncio
from playwright.async_api import Browser, expect

from shoal.analysis.collectors import Measured
from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from tests.cli.inspect.cluster import Cluster, objects
from tests.dashboard.page.browser import watched
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODES = {"page-1": {"cards": {0: 10240, 1: 10240}}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(apiserver: ApiServer, chromium: Browser) -> AsyncIterator[tuple[app.Serving, Cluster]]:
    """A dashboard over it, with pods in two namespaces."""
    cluster = Cluster(apiserver)
    pods = {
        "own": {"namespace": "page-own", "node": "page-1", "mem": 4, "index": 0},
        "other": {"namespace": "page-other", "node": "page-1", "mem": 2, "index": 0},
        "waits": {"namespace": "page-own", "mem": 30, "why": "0/1 nodes are available: no room"},
    }
    await asyncio.to_thread(cluster.put, objects(NODES, pods))

    async def measure(names: Collection[str]) -> Measured:
        return Measured({}, dict.fromkeys(names, "no collector runs there"))

    access = load_kubeconfig([apiserver.kubeconfig()], environ={}, explicit=True)
    told: asyncio.Future[app.Serving] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(DashboardConfig(port=0), access, measure=measure, serving=told.set_result))
    try:
        yield await told, cluster
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def token(cluster: Cluster, name: str, namespaces: Collection[str] | None) -> str:
    """A token of an account that may read pods of some namespaces, or everything."""
    demand = cluster.demand
    demand("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
    kind = "cluster-admin" if namespaces is None else "page-pods"
    if namespaces is not None:
        # No controller fills the role `view` here.
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        demand("POST", f"{RBAC}/clusterroles", {"metadata": {"name": kind}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": kind}
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": subjects}
    if namespaces is None:
        demand("POST", f"{RBAC}/clusterrolebindings", body)
    for namespace in namespaces or ():
        demand("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)
    for namespace in namespaces or ["default"]:
        await _allowed(cluster, name, namespace)
    access = load_kubeconfig([cluster.kubeconfig], environ={}, explicit=True)
    async with Client(access) as client:
        return (await client.token(name, namespace="default")).token


async def _allowed(cluster: Cluster, name: str, namespace: str) -> None:
    """Return when the server has heard of the rights: what it refuses before is remembered."""
    what = {"namespace": namespace, "verb": "list", "resource": "pods"}
    asked = {"spec": {"user": f"system:serviceaccount:default:{name}", "resourceAttributes": what}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    await until(lambda: cluster.demand("POST", path, asked)["status"]["allowed"], "the server knows the rights")


async def test_a_real_token_signs_in_and_shows_the_cluster(
    chromium: Browser, serving: tuple[app.Serving, Cluster]
) -> None:
    told, cluster = serving
    async with watched(chromium, told.url) as one:
        await one.go("/queue")
        await one.page.get_by_label("Token", exact=True).fill(await token(cluster, "page-admin", None))
        await one.page.keyboard.press("Enter")
        await expect(one.page.get_by_role("link", name="page-own/waits")).to_be_visible()
        await one.go("/cards")
        await expect(one.page.locator("main")).to_contain_text("page-other/other")
        await expect(one.page.locator("td[data-label=Used] .nodata").first).to_have_text("no data")


async def test_a_real_cluster_says_who_may_see_what(chromium: Browser, serving: tuple[app.Serving, Cluster]) -> None:
    told, cluster = serving
    link = told.link(await token(cluster, "page-viewer", ["page-own"]))
    async with watched(chromium, told.url, link, may_fail=True) as one:
        await one.go("/cards")
        await expect(one.page.locator("main")).to_contain_text("page-own/own")
        await expect(one.page.locator("main")).to_contain_text("pods you may not read")
        assert "page-other" not in await one.page.locator("body").inner_text()
        assert await one.go("/pods/page-other/other") == 404
