"""Tokens that the API server no longer takes, while a stream is open: it ends with a word, on both API servers."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from shoal.dashboard import api, app, viewers
from tests.cli.inspect.cluster import Cluster, objects
from tests.dashboard.background import in_background
from tests.dashboard.site import Readings
from tests.dashboard.test_cluster import DEPLOY, Served, account, dashboard, user

NODES = {"n1": {"cards": {0: 10240}}}
PODS = {"a": {"namespace": "red", "node": "n1", "mem": 4, "index": 0}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said of a token is remembered for a second, and looked at each second."""
    monkeypatch.setattr(app, "REVIEWED_SECONDS", 1.0)
    monkeypatch.setattr(viewers, "_VIEW_SECONDS", 0.5)
    monkeypatch.setattr(api, "_LOOK", 0.5)


async def heard(answer: aiohttp.ClientResponse, kind: str) -> Any:
    """What the next event of a kind says."""
    found = ""
    async with asyncio.timeout(300):
        async for line in answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                found = value
            elif name == "data" and found == kind:
                return json.loads(value)
    raise AssertionError(f"the stream ended without {kind}")


@contextlib.asynccontextmanager
async def stream(served: Served, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None)
    url = f"{served.url}/api/v1/stream"
    async with served.session.get(
        url, headers={"Accept-Encoding": "identity", **headers}, ssl=False, timeout=timeout
    ) as answer:
        assert answer.status == 200, await answer.text()
        yield answer


async def cookie_of(served: Served, token: str) -> str:
    headers = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    async with served.session.post(
        f"{served.url}/sign-in", data={"token": token}, headers=headers, ssl=False, allow_redirects=False
    ) as answer:
        assert answer.status == 303, await answer.text()
        return answer.headers["Set-Cookie"].partition(";")[0]


async def ends(served: Served, token: str, cluster: Cluster, revoked: str) -> None:
    """Streams by a cookie and by a token both end, and neither opens another."""
    cookie = await cookie_of(served, token)
    ways = ({"Cookie": cookie}, {"Authorization": f"Bearer {token}"})
    async with stream(served, **ways[0]) as page, stream(served, **ways[1]) as program:
        for one in (page, program):
            assert (await heard(one, "snapshot"))["nodes"]
        await asyncio.to_thread(cluster.demand, "DELETE", revoked)
        for one in (page, program):
            assert await heard(one, "end") == {"reason": "expired"}
    for headers in ways:
        async with served.session.get(f"{served.url}/api/v1/stream", headers=headers, ssl=False) as answer:
            assert answer.status == 401


def test_a_token_that_is_taken_away_ends_its_streams(cluster: Cluster, quick: None) -> None:
    cluster.apply(DEPLOY / "dashboard" / "rbac.yaml")
    own = account(cluster, "kube-system", "shoal-dashboard")
    cluster.put(objects(NODES, PODS))
    with in_background(dashboard(cluster, own, Readings())) as (served, run):
        run(shows(served, own))
        # The Secret goes that the token is bound to, and the account stays.
        name = account_of(user(cluster, role="cluster-admin"))
        run(ends(served, bound_token(cluster, name), cluster, f"/api/v1/namespaces/default/secrets/{name}"))
        # The account goes.
        token = user(cluster, role="cluster-admin")
        run(ends(served, token, cluster, f"/api/v1/namespaces/default/serviceaccounts/{account_of(token)}"))


async def shows(served: Served, token: str) -> None:
    """Return when the picture is there."""
    async with asyncio.timeout(300):
        while True:
            with contextlib.suppress(AssertionError):
                if (await served.get("/overview", token))["pods"]["total"]:
                    return
            await asyncio.sleep(0.1)


def account_of(token: str) -> str:
    """The account that a token names."""
    payload = token.split(".")[1]
    subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
    return str(subject.rpartition(":")[2])


def bound_token(cluster: Cluster, name: str) -> str:
    """A token of an account that is good while a Secret of the same name is there."""
    cluster.demand("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": name}})
    bound = {"apiVersion": "v1", "kind": "Secret", "name": name}
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    made = cluster.demand("POST", path, {"spec": {"expirationSeconds": 600, "boundObjectRef": bound}})
    return str(made["status"]["token"])
