"""The clusters view of an installation: on a real API server, under the dashboard's own account with the rights that
the chart gives it, beside a manager that runs with the rights of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from shoal.dashboard import app
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError
from shoal.model.contract import clusters
from shoal.model.contract.clusters import NAMESPACE_MANAGER
from tests.dashboard.joined import ACCOUNT, RELEASE, Joined, as_account, dashboard, install, joined
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run

pytestmark = pytest.mark.kube
TOLD = f"/api/v1/namespaces/{NAMESPACE_MANAGER}/configmaps/{clusters.NAME_CLUSTERS}"


@pytest.fixture
async def scene(testbed_run: Run) -> AsyncIterator[Joined]:
    server = ApiServer(testbed_run, f"joined-{uuid.uuid4().hex[:6]}")
    try:
        async with joined(server) as made:
            yield made
    finally:
        server.stop()


async def asked(serving: app.Serving, server: ApiServer) -> Any:
    """What the view says to an administrator."""
    token = server.request(
        "POST", f"/api/v1/namespaces/{RELEASE}/serviceaccounts/looks/token", {"spec": {"expirationSeconds": 3600}}
    )["status"]["token"]
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{serving.url}/api/v1/clusters", headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return json.loads(await answer.read())


async def until(ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], bool]) -> Any:
    """The answer, once it is as it should be."""
    async with asyncio.timeout(300):
        while True:
            found = await ask()
            if condition(found):
                return found
            await asyncio.sleep(0.5)


def _administrator(server: ApiServer) -> None:
    server.kubectl("create", "serviceaccount", "-n", RELEASE, "looks")
    server.kubectl(
        *("create", "clusterrolebinding", "looks", "--clusterrole=cluster-admin", f"--serviceaccount={RELEASE}:looks")
    )


async def test_a_dashboard_shows_joined_clusters_and_reads_no_kubeconfig(scene: Joined) -> None:
    server = scene.home
    _administrator(server)
    # As it is installed unless asked for: it says why there is nothing.
    config = install(server)
    own = as_account(server, RELEASE, ACCOUNT)
    async with dashboard(config, own) as serving:
        found = await asked(serving, server)
    assert (found["managed"], found["items"]) == (False, [])
    assert "may not read ConfigMap shoal-clusters/shoal-clusters" in found["why"]
    assert "dashboard.clusters" in found["why"]

    config = install(server, "dashboard.clusters=true")
    async with dashboard(config, own) as serving:

        def has_room(found: Any) -> bool:
            return any(one["name"] == "west" and one["cards"] == 2 for one in found["items"])

        found = await until(lambda: asked(serving, server), has_room)
        home, west = sorted(found["items"], key=lambda one: one["name"])
        assert (found["managed"], found["staleSince"], found["problems"]) == (True, None, {})
        assert (home["name"], home["own"], home["state"]) == ("home", True, "answers")
        assert home["problem"] == "no scheduler of Shoal there tells its room"
        assert (west["own"], west["state"], west["nodes"], west["free"]) == (False, "answers", 1, 2)
        assert [(one["cards"], one["free"]) for one in west["models"]] == [(2, 2)]
        await _is_denied_all_else(server, own)
        await _says_what_is_old_or_nothing(serving, server)


async def _is_denied_all_else(server: ApiServer, own: Any) -> None:
    kubeconfigs = server.request("GET", f"/api/v1/namespaces/{NAMESPACE_MANAGER}/secrets")["items"]
    (secret,) = [one for one in kubeconfigs if clusters.LABEL_CLUSTER in one["metadata"].get("labels", {})]
    spaces = f"/api/v1/namespaces/{NAMESPACE_MANAGER}"
    denied = [
        ("GET", f"{spaces}/secrets/{secret['metadata']['name']}"),
        ("GET", f"{spaces}/secrets"),
        ("GET", f"{spaces}/secrets?watch=true"),
        ("GET", "/api/v1/secrets"),
        ("GET", f"/api/v1/namespaces/{RELEASE}/secrets"),
        ("GET", f"{spaces}/configmaps"),
        ("GET", f"{spaces}/configmaps/shoal-cluster-manager"),
        ("PATCH", TOLD),
        ("DELETE", TOLD),
        ("POST", f"{spaces}/serviceaccounts/{clusters.NAME_MANAGER}/token"),
    ]
    async with Client(own) as client:
        assert json.loads(await client.request("GET", TOLD))["metadata"]["name"] == clusters.NAME_CLUSTERS
        for method, path in denied:
            with pytest.raises(ForbiddenError):
                await client.request(method, path, body=None if method == "GET" else {})
    # What is told has nothing of a credential in it.
    told = server.request("GET", TOLD)["data"][clusters.KEY_CLUSTERS]
    assert not any(word in told for word in ("token", "certificate", "https://", "kubeconfig"))


async def _says_what_is_old_or_nothing(serving: app.Serving, server: ApiServer) -> None:
    """A manager that no longer tells, as its ConfigMap would be then; and what anybody may have written into it."""
    written = json.loads(server.request("GET", TOLD)["data"][clusters.KEY_CLUSTERS])

    def put(content: str) -> None:
        server.request("PATCH", TOLD, {"data": {clusters.KEY_CLUSTERS: content}}, "application/merge-patch+json")

    old = f"{datetime.fromtimestamp(time.time() - 600, UTC):%Y-%m-%dT%H:%M:%SZ}"
    put(json.dumps({**written, "time": old}))
    found = await until(lambda: asked(serving, server), lambda found: found["staleSince"] is not None)
    assert found["staleSince"] == old
    assert [one["name"] for one in found["items"]] == ["home", "west"]
    put("[" * 10_000)
    found = await until(lambda: asked(serving, server), lambda found: not found["managed"])
    assert "cannot be read" in found["why"]
