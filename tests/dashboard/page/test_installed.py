"""The page of an installation on a real API server, with the rights that the chart gives it: what a real operator and
its validators say of nodes, and what a real cluster manager tells of clusters.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml
from playwright.async_api import Browser, expect

from shoal.dashboard import app
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.model.contract.operator import ANNOTATION_VALIDATION
from shoal.operator import app as operator
from shoal.operator.config import OperatorConfig
from shoal.operator.crd import definition
from shoal.operator.writes import DAEMON_SETS, POLICIES
from tests.dashboard.joined import ACCOUNT, RELEASE, as_account, dashboard, ended, install, joined
from tests.dashboard.page.browser import watched
from tests.dashboard.page.stage import MARKUP
from tests.operator.scene import PRESENT, operands, validation
from tests.operator.site import CRDS
from tests.testbed.apiserver import ApiServer
from tests.testbed.fake_nodes import node

OPERATOR = "page-operator"
VALID, WAITS = "page-valid", "page-driver"
WHY = f"nvidia-smi says no device {MARKUP}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(apiserver: ApiServer, chromium: Browser) -> AsyncIterator[app.Serving]:
    """A dashboard beside an operator and a cluster manager, with its own account's rights."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(joined(apiserver))
        await stack.enter_async_context(operated(apiserver))
        config = install(apiserver, "dashboard.clusters=true")
        yield await stack.enter_async_context(dashboard(config, as_account(apiserver, RELEASE, ACCOUNT)))


@contextlib.asynccontextmanager
async def operated(server: ApiServer) -> AsyncIterator[None]:
    """Two nodes with cards, a ClusterPolicy and the operator. Its DaemonSets have pods on the first node."""
    since = int(time.time()) - 125
    waits = validation(0, since=since, why=WHY, fix="load the module")
    for name, said in ((VALID, validation(since=since)), (WAITS, waits)):
        made = node(name, 2)
        made["metadata"]["labels"] |= PRESENT
        made["metadata"]["annotations"][ANNOTATION_VALIDATION] = said
        server.request("POST", "/api/v1/nodes", made)
    server.create_namespace(OPERATOR)
    access = load_kubeconfig([server.kubeconfig()], environ={}, explicit=True)
    async with Client(access) as client:
        await client.apply(CRDS, definition(), field_manager="test", force=True)
        await _until(client, lambda policies: True)
        off = {name: {"enabled": False} for name in ("driver", "toolkit", "gfd", "dcgmExporter")}
        await client.create(POLICIES, {"metadata": {"name": "page-policy"}, "spec": off})
        with tempfile.TemporaryDirectory() as folder:
            for name, documents in operands().items():
                (Path(folder) / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
            config = OperatorConfig(namespace=OPERATOR, operands=folder, probe_port=None, metrics_port=None)
            task = asyncio.create_task(operator.run(config, access, identity="page"))
            try:
                await _until(client, lambda policies: bool(policies[0].get("status", {}).get("nodes")))
                for found in (await client.list(DAEMON_SETS, namespace=OPERATOR)).items:
                    _play_pod(server, found, VALID)
                await _until(client, lambda policies: policies[0]["status"]["ready"] == "1/2")
                yield
            finally:
                await ended(task)
                await client.patch(POLICIES, "page-policy", {"metadata": {"finalizers": None}})
                await client.delete(POLICIES, "page-policy")


def _play_pod(server: ApiServer, owner: Any, on: str) -> None:
    """The pod of a DaemonSet on a node, as the controller makes it and kubelet runs it."""
    meta = owner["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}
    labels = owner["spec"]["template"]["metadata"]["labels"]
    path = f"/api/v1/namespaces/{OPERATOR}/pods"
    name = f"{meta['name']}-play"
    made = {
        "metadata": {"name": name, "labels": labels, "ownerReferences": [{**reference, "controller": True}]},
        "spec": {"nodeName": on, "containers": [{"name": "main", "image": "x"}]},
    }
    server.request("POST", path, made)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    server.request("PATCH", f"{path}/{name}/status", {"status": status}, "application/merge-patch+json")


async def _until(client: Client, condition: Any) -> None:
    async with asyncio.timeout(300):
        while True:
            with contextlib.suppress(KubeError):
                if condition((await client.list(POLICIES)).items):
                    return
            await asyncio.sleep(0.1)


def link(serving: app.Serving, server: ApiServer) -> str:
    """Signs in as an administrator."""
    accounts = f"/api/v1/namespaces/{RELEASE}/serviceaccounts"
    server.try_request("POST", accounts, {"metadata": {"name": "page-looks"}})
    binding = {
        "metadata": {"name": "page-looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "page-looks", "namespace": RELEASE}],
    }
    server.try_request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    made = server.request("POST", f"{accounts}/page-looks/token", {"spec": {"expirationSeconds": 3600}})
    return serving.link(made["status"]["token"])


async def test_set_up_says_what_the_operator_and_validators_say(
    chromium: Browser, serving: app.Serving, apiserver: ApiServer
) -> None:
    # The page of a node asks for its past, and no collector has any.
    async with watched(chromium, serving.url, link(serving, apiserver), may_fail=True) as one:
        await one.go("/setup")
        main = one.page.locator("main")
        stats = one.page.locator("dl.stats")
        await expect(stats).to_contain_text("page-policy notReady")
        await expect(stats).to_contain_text("1 of 2 nodes")
        serves = one.page.locator("tr", has_text=VALID)
        await expect(serves.locator("td[data-label=State]")).to_have_text("serves")
        waits = one.page.locator("tr", has_text=WAITS)
        await expect(waits.locator("td[data-label=State]")).to_have_text("fails")
        await expect(waits.locator("td[data-label='Waits for']")).to_have_text("driver")
        await expect(waits.locator("td[data-label=Since]")).to_contain_text("2 min")
        await expect(waits).to_contain_text(WHY)
        await expect(waits).to_contain_text("load the module")
        assert await one.page.title() != "taken"
        await waits.get_by_role("link", name=WAITS).click()
        await expect(one.page.locator("h1")).to_have_text(WAITS)
        await expect(main).to_contain_text("nvidia-smi says no device")


async def test_clusters_are_shown_as_the_manager_tells_of_them(
    chromium: Browser, serving: app.Serving, apiserver: ApiServer
) -> None:
    async with watched(chromium, serving.url, link(serving, apiserver)) as one:
        await one.go("/clusters")
        row = one.page.locator("tr", has_text="west")
        await expect(row.locator("td[data-label=Cards]")).to_have_text("2")
        await expect(row.locator("td[data-label=State]")).to_contain_text("answers")
        await expect(row.locator("td[data-label=Models]")).to_contain_text("2 of 2 free")
        await expect(one.page.locator("tr", has_text="this one")).to_contain_text("no scheduler of Shoal there")
        await expect(one.page.locator("#tabs")).to_contain_text("Clusters")
        await row.get_by_role("link", name="west").click()
        await expect(one.page.locator("h1")).to_have_text("west")
        await expect(one.page.locator("main")).to_contain_text("NVIDIA A30")
