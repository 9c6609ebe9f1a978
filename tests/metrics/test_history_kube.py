"""A collector's history on the real API server, with the rights that `deploy/metrics` gives it and no others."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.kube import reviews
from shoal.kube.access.credentials import Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, InvalidError
from shoal.kube.resources import LEASES
from shoal.metrics import history_wire as wire
from shoal.metrics.history_lease import announce
from shoal.metrics.history_wire import Announcement
from tests.metrics.history_site import HistorySite, served, token_of
from tests.metrics.snapshots import GIB, card, container, snapshot
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run

pytestmark = pytest.mark.kube

DEPLOY = Path(__file__).parents[2] / "deploy"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
NOW = snapshot([card(0, [container("a", 2 * GIB), container("b", GIB, namespace="other")])])


@pytest.fixture(scope="module")
def installed(testbed_run: Run) -> Iterator[ApiServer]:
    """An API server with what is shipped for collectors and viewers, a node, and the collector's pod on it."""
    server = ApiServer(testbed_run, f"history-{uuid.uuid4().hex[:6]}")
    server.create_namespace("team")
    server.kubectl("apply", "-k", str(DEPLOY / "metrics"))
    for name in ("viewer.yaml", "namespace-viewer.yaml"):
        server.kubectl("apply", "-f", str(DEPLOY / "rbac" / name))
    for node in ("n1", "n2"):
        server.request("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    spec = {"nodeName": "n1", "serviceAccountName": "shoal-metrics", "containers": [{"name": "c", "image": "x"}]}
    pod = {"metadata": {"name": "collector"}, "spec": {**spec, "automountServiceAccountToken": False}}
    server.request("POST", "/api/v1/namespaces/kube-system/pods", pod)
    yield server
    server.stop()


@pytest.fixture
async def admin(installed: ApiServer) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([installed.kubeconfig()], environ={}, explicit=True)) as client:
        yield client


@pytest.fixture
def token(installed: ApiServer) -> str:
    """The token of the collector's pod, as kubelet gives it."""
    pod = installed.request("GET", "/api/v1/namespaces/kube-system/pods/collector")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "collector", "uid": pod["metadata"]["uid"]}
    made: dict[str, Any] = installed.request(
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/shoal-metrics/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}},
    )
    return str(made["status"]["token"])


@pytest.fixture
async def collector(admin: Client, token: str) -> AsyncIterator[Client]:
    """The collector's own client."""
    stored = StoredCredential(token=Inline(token.encode()))
    async with Client(replace(admin.access, credentials=stored)) as client:
        yield client


@pytest.fixture
async def site(collector: Client, admin: Client, tmp_path: Path) -> AsyncIterator[HistorySite]:
    async with served(collector, tmp_path, NOW, reader=admin) as site:
        yield site


def pods(answer: dict[str, Any]) -> list[str]:
    return [f"{one['namespace']}/{one['pod']}" for card in answer["cards"] for one in card.get("containers", ())]


async def test_a_collector_tells_of_its_own_node_alone(collector: Client, admin: Client, site: HistorySite) -> None:
    lease = await admin.get(LEASES, "n1", namespace=wire.NAMESPACE)
    assert [owner.name for owner in lease.metadata.owner_references] == ["n1"], "it goes with its node"
    other = Announcement(node="n2", host="192.0.2.1", port=1, authority="x")
    refused = ""
    while "its own node only" not in refused:  # policies are in force some time after they are made
        try:
            await announce(collector, other, namespace=wire.NAMESPACE)
            await admin.delete(LEASES, "n2", namespace=wire.NAMESPACE)
        except InvalidError as error:
            refused = str(error)
        await asyncio.sleep(0.1)
    for namespace in ("default", "team"):
        with pytest.raises(ForbiddenError):
            await announce(collector, replace_node(other, "n1"), namespace=namespace)


def event(name: str, **changes: Any) -> dict[str, Any]:
    """An Event about over-use, as the collector of n1 writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "team"},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": "victim"},
        "reason": "GPUOveruse",
        "message": "uses more than it asked for",
        "type": "Warning",
        "source": {"component": "shoal-metrics", "host": "n1"},
        "reportingComponent": "shoal-metrics",
        "reportingInstance": "n1",
        **changes,
    }


async def test_a_stolen_token_writes_little_and_reads_what_is_documented(
    collector: Client, token: str, site: HistorySite
) -> None:
    """What docs/security.md says of a collector's token, with the token of its pod."""

    async def write(body: dict[str, Any]) -> str:
        try:
            await collector.request("POST", "/api/v1/namespaces/team/events", body=body)
        except (ForbiddenError, InvalidError) as error:
            return str(error)
        return ""

    other = {"source": {"component": "shoal-metrics", "host": "n2"}, "reportingInstance": "n2"}
    number = 0
    while "its own name" not in await write(event(f"other-node-{number}", **other)):
        number += 1  # policies are in force some time after they are made
        await asyncio.sleep(0.1)
    for why, changes in (
        ("over-use only", {"reason": "Evicted"}),
        ("about pods only", {"involvedObject": {"kind": "Node", "namespace": "team", "name": "n1"}}),
        ("at most 1024", {"message": "x" * 1025}),
        ("Warning", {"type": "Normal"}),
    ):
        assert why in await write(event(f"bad-{number}", **changes)), changes
    # It can accuse any pod, since no policy can see on which node a pod is.
    assert await write(event(f"good-{number}")) == ""
    # Reads that RBAC cannot narrow, and the reviews that the history needs: whose a token is, what somebody may do.
    assert await collector.request("GET", "/api/v1/pods")
    review = {"spec": {"token": token}}
    head = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
    assert b"shoal-metrics" in await collector.request("POST", REVIEWS, body={**head, **review})
    # Nothing else: neither Secrets, nor tokens of any account, nor the history, which asks for tokens made for it.
    for method, path in (
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/kube-system/configmaps"),
        ("GET", "/api/v1/nodes"),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/{wire.NAMESPACE}/leases"),
        ("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{wire.NAMESPACE}/leases/n1"),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/shoal-metrics/token"),
        ("POST", f"/api/v1/namespaces/{wire.NAMESPACE}/serviceaccounts/{wire.VIEWER_ACCOUNT}/token"),
        ("POST", "/api/v1/namespaces/team/pods"),
        ("PATCH", "/api/v1/namespaces/kube-system/pods/collector"),
    ):
        with pytest.raises(ForbiddenError):
            await collector.request(method, path, body=None if method in ("GET", "DELETE") else {})
    status, _ = await site.ask(wire.PATH_SNAPSHOT, token)
    assert status == 401


def replace_node(announcement: Announcement, node: str) -> Announcement:
    return Announcement(node=node, host=announcement.host, port=announcement.port, authority=announcement.authority)


async def test_callers_are_known_by_their_tokens_and_rights(admin: Client, site: HistorySite) -> None:
    status, answer = await site.ask(wire.PATH_SNAPSHOT, await token_of(admin, wire.NAMESPACE))
    assert (status, pods(answer)) == (200, ["team/a", "other/b"])
    status, answer = await site.ask(wire.PATH_SNAPSHOT, await token_of(admin, "team"), header=wire.TOKEN_HEADER)
    assert (status, pods(answer)) == (200, ["team/a"])
    assert "usedBytes" not in answer["cards"][0]
    for token in (await token_of(admin, wire.NAMESPACE, ""), await token_of(admin, "team", "elsewhere"), "forged"):
        assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 401


async def test_who_may_view_a_namespace_may_see_what_its_pods_use(
    installed: ApiServer, admin: Client, site: HistorySite
) -> None:
    """Without a controller manager nobody puts `view` together: what it would get is bound here."""
    installed.create_namespace("other")
    installed.kubectl("create", "serviceaccount", wire.VIEWER_ACCOUNT, "-n", "other")
    account = f"other:{wire.VIEWER_ACCOUNT}"
    installed.kubectl(
        *("create", "rolebinding", "view", "-n", "other"),
        *("--clusterrole=shoal-metrics-view", f"--serviceaccount={account}"),
    )
    _, answer = await site.ask(wire.PATH_SNAPSHOT, await token_of(admin, "other"))
    assert pods(answer) == ["other/b"]


async def test_a_revoked_token_ends_within_a_minute(installed: ApiServer, admin: Client, site: HistorySite) -> None:
    token = await token_of(admin, wire.NAMESPACE)
    assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 200
    installed.kubectl("delete", "serviceaccount", wire.VIEWER_ACCOUNT, "-n", wire.NAMESPACE)
    assert (await site.ask(wire.PATH_SNAPSHOT, token))[0] == 200, "remembered"
    status = 200
    while status == 200:  # the API server itself remembers tokens for some seconds
        site.clock.now += reviews.REMEMBERED_SECONDS
        status, _ = await site.ask(wire.PATH_SNAPSHOT, token)
        await asyncio.sleep(0.1)
    assert status == 401
    installed.kubectl("apply", "-f", str(DEPLOY / "metrics" / "history.yaml"))
