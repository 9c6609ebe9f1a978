"""The claims of pods from their template to their end, beside an API server in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.deletion import DeleteOptions
from shoal.embedded.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_TEMPLATES
from shoal.embedded.subresources import bind
from shoal.model.contract import dra

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]}}
TEMPLATE = {"metadata": {"name": "t"}, "spec": {"spec": SPEC}}


class Cluster:
    """The API server, whose controllers run, with a scheduler's and a kubelet's writes."""

    def __init__(self, api: EmbeddedApi) -> None:
        self.api = api

    def pod(self, name: str, **source: str) -> None:
        spec = {
            "containers": [{"name": "main", "image": "busybox:1", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", **source}],
        }
        self.api.registry.create(PODS, "default", {"metadata": {"name": name}, "spec": spec})

    def get(self, pod: str) -> dict[str, Any]:
        return self.api.registry.get(PODS, "default", pod)

    def claims(self) -> list[dict[str, Any]]:
        return self.api.registry.store.objects(RESOURCE_CLAIMS.key)

    def claim(self) -> dict[str, Any]:
        (one,) = self.claims()
        return one

    def allocate(self, claim: str) -> None:
        """As a scheduler does: the finalizer, then the allocation."""
        registry = self.api.registry
        found = registry.get(RESOURCE_CLAIMS, "default", claim)
        metadata = {**found["metadata"], "finalizers": [dra.FINALIZER]}
        found, _ = registry.update(RESOURCE_CLAIMS, "default", claim, {**found, "metadata": metadata})
        status: dict[str, Any] = {"allocation": {"devices": {"results": []}}}
        registry.update(RESOURCE_CLAIMS, "default", claim, {**found, "status": status}, subresource="status")

    def bind(self, pod: str) -> None:
        bind(self.api.registry, "default", pod, {"target": {"name": "node"}})

    def phase(self, pod: str, phase: str) -> None:
        found = self.get(pod)
        status = {**found["status"], "phase": phase}
        self.api.registry.update(PODS, "default", pod, {**found, "status": status}, subresource="status")

    def users(self, claim: str) -> list[str]:
        found = self.api.registry.get(RESOURCE_CLAIMS, "default", claim)
        return [one["name"] for one in found.get("status", {}).get("reservedFor", ())]


@pytest.fixture
async def cluster(api: EmbeddedApi) -> AsyncIterator[Cluster]:
    task = asyncio.create_task(Controllers(api.registry, api.deletion).run())
    yield Cluster(api)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the controllers tell nobody when they are done
        await asyncio.sleep(0.01)


def made(cluster: Cluster, pod: str) -> bool:
    return "resourceClaimStatuses" in cluster.get(pod)["status"]


async def test_claim_from_its_template_to_its_end(cluster: Cluster) -> None:
    cluster.pod("p", resourceClaimTemplateName="t")
    await asyncio.sleep(0)
    cluster.api.registry.create(RESOURCE_TEMPLATES, "default", TEMPLATE)
    await until(lambda: made(cluster, "p"))
    name = cluster.claim()["metadata"]["name"]
    assert name.startswith("p-gpu-")
    assert cluster.get("p")["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": name}]
    cluster.allocate(name)
    cluster.bind("p")
    await until(lambda: cluster.users(name) == ["p"])
    cluster.phase("p", "Succeeded")
    await until(lambda: not cluster.claims())
    assert cluster.get("p")["status"]["phase"] == "Succeeded", "the pod is still there"


async def test_claim_goes_with_its_pod(cluster: Cluster) -> None:
    cluster.api.registry.create(RESOURCE_TEMPLATES, "default", TEMPLATE)
    cluster.pod("p", resourceClaimTemplateName="t")
    await until(lambda: made(cluster, "p"))
    cluster.allocate(cluster.claim()["metadata"]["name"])
    cluster.bind("p")
    await until(lambda: bool(cluster.users(cluster.claim()["metadata"]["name"])))
    cluster.api.deletion.delete(PODS, "default", "p", DeleteOptions(grace_seconds=0))
    await until(lambda: not cluster.claims())


async def test_claim_of_two_pods_is_deallocated_with_the_last(cluster: Cluster) -> None:
    registry = cluster.api.registry
    registry.create(RESOURCE_CLAIMS, "default", {"metadata": {"name": "c"}, "spec": SPEC})
    for name in ("a", "b"):
        cluster.pod(name, resourceClaimName="c")
        cluster.bind(name)
    cluster.allocate("c")
    await until(lambda: sorted(cluster.users("c")) == ["a", "b"])
    cluster.api.deletion.delete(RESOURCE_CLAIMS, "default", "c", DeleteOptions())
    cluster.phase("a", "Failed")
    await until(lambda: cluster.users("c") == ["b"])
    assert "allocation" in cluster.claim()["status"]
    cluster.phase("b", "Succeeded")
    await until(lambda: not cluster.claims())


async def test_claim_that_nobody_deletes_is_free_for_others(cluster: Cluster) -> None:
    registry = cluster.api.registry
    registry.create(RESOURCE_CLAIMS, "default", {"metadata": {"name": "c"}, "spec": SPEC})
    cluster.pod("a", resourceClaimName="c")
    cluster.allocate("c")
    cluster.bind("a")
    await until(lambda: cluster.users("c") == ["a"])
    cluster.phase("a", "Succeeded")
    await until(lambda: "allocation" not in cluster.claim().get("status", {}))
    assert "finalizers" not in cluster.claim()["metadata"]


async def test_claims_that_were_there_before_the_controllers(api: EmbeddedApi) -> None:
    cluster = Cluster(api)
    api.registry.create(RESOURCE_TEMPLATES, "default", TEMPLATE)
    cluster.pod("p", resourceClaimTemplateName="t")
    task = asyncio.create_task(Controllers(api.registry, api.deletion).run())
    await until(lambda: made(cluster, "p"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
