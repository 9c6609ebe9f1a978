"""Claims that are costly to decide on, on the embedded cluster: pods of others are placed, and the tenant is told why
its own are not, also by a scheduler that starts with the hostile claims in place.

A scheduler without these bounds never comes back from the first selector, and this test with it: take a bound out by
hand only.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded.nodes.cluster import few
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS, RESOURCE_CLAIMS
from shoal.model.contract import dra
from tests.attacks.arena import Tenant
from tests.attacks.embedded import Walled
from tests.scheduler.claims.test_costs import bound
from tests.suites.connection import Connection

COSTLY = bound("[device.attributes]", "[$, $]", 40, "$ == $")
DEEP = "(" * 40 + "device" + (".?a" * 45 + ")") * 40 + ".hasValue()"
BACKTRACKING = f'"{"a" * 80}b".matches("^{"(?:a|aa)" * 24}$")'


def asks(*expressions: str) -> dict[str, Any]:
    """A request for a device that all these expressions accept."""
    selectors = [{"cel": {"expression": one}} for one in expressions]
    return {"deviceClassName": dra.DEVICE_CLASS, "selectors": selectors}


def costly(number: int) -> list[dict[str, Any]]:
    """Requests with many alternatives, each with a selector of its own that costs as much as one may."""

    def alternatives(request: int) -> list[dict[str, Any]]:
        selectors = [f"{COSTLY} || '{number}-{request}-{one}' == device.driver" for one in range(8)]
        return [{"name": f"a{one}", **asks(selector)} for one, selector in enumerate(selectors)]

    return [{"name": f"r{request}", "firstAvailable": alternatives(request)} for request in range(8)]


#: Requests of a claim, and what the pod that has it is told.
HOSTILE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "compares": ([{"name": "gpu", "exactly": asks(COSTLY)}], "costs more than 10000 units for one device"),
    "backtracks": ([{"name": "gpu", "exactly": asks(BACKTRACKING)}], "publish no devices of gpu.shoal.dev"),
    "nests": ([{"name": "gpu", "exactly": asks(DEEP)}], "is nested too deep"),
    "multiplies": (costly(0), "deciding on its claims costs more than"),
}


class Cluster(Walled):
    """One whose agents offer claims, and whose scheduler can be started again."""

    _agent = EmbeddedCluster._agent


class Site:
    """The cluster, and pods on it."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    async def tenant(self) -> Tenant:
        return await asyncio.to_thread(lambda: Tenant(Connection(self.cluster.kubeconfig), "team"))

    async def honest(self, name: str) -> None:
        """A pod by memory and one by a claim are made, and get their nodes."""
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": asks()}]}}}
        claim["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": "1Gi"}}  # type: ignore[index]
        await self.client.create(RESOURCE_CLAIMS.raw, claim, namespace="default")
        await self.client.create(PODS.raw, with_claim(name), namespace="default")
        limits = {"aliyun.com/gpu-mem": "1"}
        container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
        by_memory = {"metadata": {"name": f"{name}-memory"}, "spec": {"containers": [container]}}
        await self.client.create(PODS.raw, by_memory, namespace="default")
        for one in (name, f"{name}-memory"):
            await self.until("default", one, lambda pod: bool(pod.spec.node_name))

    async def until(self, namespace: str, name: str, holds: Any) -> Pod:
        while not holds(pod := await self.client.get(PODS, name, namespace=namespace)):  # noqa: ASYNC110 - nobody signals it
            await asyncio.sleep(0.05)
        return pod


def with_claim(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    return {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": claims}}


def told(pod: Pod) -> str:
    """Why the pod waits."""
    return next((one.message or "" for one in pod.status.conditions if one.type == "PodScheduled"), "")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="sc-") as folder:
        plan = EmbeddedPlan(few(2, "2xA30-24G"), claims=True)
        cluster = Cluster(plan, Path(folder))
        async with cluster, cluster.client() as client:
            await cluster.ready()
            yield Site(cluster, client)


async def make(tenant: Tenant, name: str, requests: list[dict[str, Any]]) -> None:
    """The tenant makes a claim and a pod that has it, which nothing refuses."""
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}
    claims = f"/apis/resource.k8s.io/v1/namespaces/{tenant.namespace}/resourceclaims"
    for path, body in ((claims, claim), ("pods", with_claim(name))):
        answer = await asyncio.to_thread(tenant.send, "POST", path, body)
        assert answer.status == 201, answer.body


async def test_claims_that_are_costly_to_decide_on_stop_nobody_else(site: Site) -> None:
    tenant = await site.tenant()
    for name, (requests, _) in HOSTILE.items():
        await make(tenant, name, requests)
    await site.honest("before")
    for name, (_, words) in HOSTILE.items():
        pod = await site.until(tenant.namespace, name, lambda pod, words=words: words in told(pod))
        assert not pod.spec.node_name
        while not any(words in one["message"] for one in await asyncio.to_thread(tenant.events, name)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await site.cluster.end_scheduler()
    await site.honest("after")


async def test_a_namespace_that_costs_more_than_its_share_waits_alone(site: Site) -> None:
    tenant = await site.tenant()
    for number in range(4):
        await make(tenant, f"hostile-{number}", costly(number))
    deferred = f"deciding on claims of namespace {tenant.namespace} has cost more than"
    await site.until(tenant.namespace, "hostile-3", lambda pod: deferred in told(pod))
    await site.honest("meanwhile")
