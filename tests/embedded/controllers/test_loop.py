"""The controllers at work beside an API server of the test's own, in this process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.deletion import DeleteOptions
from shoal.embedded.kinds import DEPLOYMENTS, EVENTS, JOBS, NODES, PODS, REPLICA_SETS, Kind

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
}


def deployment(replicas: int, name: str = "web") -> dict[str, Any]:
    selector = {"matchLabels": {"app": "web"}}
    return {"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": selector, "template": TEMPLATE}}


@pytest.fixture
async def working(api: EmbeddedApi) -> AsyncIterator[EmbeddedApi]:
    task = asyncio.create_task(Controllers(api.registry, api.deletion, node_away=timedelta(0)).run())
    yield api
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the controllers tell nobody when they are done
        await asyncio.sleep(0.01)


def run_pods(api: EmbeddedApi) -> None:
    """Play the kubelet: every pod is ready."""
    for pod in api.registry.store.objects(PODS.key):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T12:00:00Z"}
        status = {**pod["status"], "phase": "Running", "conditions": [ready]}
        name = pod["metadata"]["name"]
        api.registry.update(PODS, "default", name, {**pod, "status": status}, subresource="status")


def all_of(api: EmbeddedApi, kind: Kind) -> list[dict[str, Any]]:
    return api.registry.store.objects(kind.key)


async def test_what_was_there_before_is_looked_after(api: EmbeddedApi) -> None:
    api.registry.create(DEPLOYMENTS, "default", deployment(2))
    task = asyncio.create_task(Controllers(api.registry, api.deletion).run())
    await until(lambda: len(all_of(api, PODS)) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    api.registry.create(DEPLOYMENTS, "default", deployment(2, "later"))
    await asyncio.sleep(0)
    assert len(all_of(api, REPLICA_SETS)) == 1, "it does not listen after its end"


async def test_a_large_deployment_comes_up(working: EmbeddedApi) -> None:
    working.registry.create(DEPLOYMENTS, "default", deployment(500))
    await until(lambda: len(all_of(working, PODS)) == 500)
    run_pods(working)
    await until(lambda: all_of(working, DEPLOYMENTS)[0]["status"].get("availableReplicas") == 500)
    assert len(all_of(working, PODS)) == 500
    # Nine alone, the others in one: a storm of pods is no storm of events.
    assert len([event for event in all_of(working, EVENTS) if event["reason"] == "SuccessfulCreate"]) == 10
    working.deletion.delete(DEPLOYMENTS, "default", "web", DeleteOptions(propagation="Background"))
    await until(lambda: not all_of(working, PODS) and not all_of(working, REPLICA_SETS))


async def test_an_object_without_sense_stops_nobody(working: EmbeddedApi, caplog: pytest.LogCaptureFixture) -> None:
    broken = deployment(1, "broken")
    broken["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": "many"}}
    with caplog.at_level(logging.ERROR):
        working.registry.create(DEPLOYMENTS, "default", broken)
        working.registry.create(DEPLOYMENTS, "default", deployment(1))
        await until(lambda: len(all_of(working, PODS)) == 1)
        await until(lambda: "cannot make sense of default/broken" in caplog.text)


async def test_a_namespace_ends_with_its_workloads(working: EmbeddedApi) -> None:
    kinds = {kind.plural: kind for kind in working.registry.catalogue.all()}
    working.registry.create(kinds["namespaces"], "", {"metadata": {"name": "room"}})
    working.registry.create(DEPLOYMENTS, "room", deployment(3))
    spec = {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
    working.registry.create(JOBS, "room", {"metadata": {"name": "sum"}, "spec": spec})
    await until(lambda: len(all_of(working, PODS)) == 4)
    working.deletion.delete(kinds["namespaces"], "", "room", DeleteOptions())
    await until(lambda: working.registry.store.get(("", "namespaces"), ("", "room")) is None)
    assert all_of(working, PODS) == []


async def test_pods_of_a_deleted_node_are_given_up(working: EmbeddedApi) -> None:
    working.registry.create(NODES, "", {"metadata": {"name": "n1"}})
    spec = {**TEMPLATE["spec"], "nodeName": "n1"}
    working.registry.create(PODS, "default", {"metadata": {"name": "stays"}, "spec": TEMPLATE["spec"]})
    working.registry.create(PODS, "default", {"metadata": {"name": "goes"}, "spec": spec})
    ends: list[dict[str, Any]] = []
    working.registry.observers.append(lambda kind, before, after: ends.append(before or {}) if not after else None)
    working.deletion.delete(NODES, "", "n1", DeleteOptions())
    await until(lambda: [pod["metadata"]["name"] for pod in all_of(working, PODS)] == ["stays"])
    (last,) = [obj for obj in ends if obj["kind"] == "Pod"]
    assert last["status"]["phase"] == "Failed"
    assert last["status"]["conditions"][-1]["reason"] == "DeletionByPodGC"


async def test_pods_of_a_node_that_comes_back_are_kept(api: EmbeddedApi) -> None:
    task = asyncio.create_task(Controllers(api.registry, api.deletion, node_away=timedelta(milliseconds=50)).run())
    await asyncio.sleep(0)
    api.registry.create(NODES, "", {"metadata": {"name": "n1"}})
    api.registry.create(PODS, "default", {"metadata": {"name": "a"}, "spec": {**TEMPLATE["spec"], "nodeName": "n1"}})
    api.deletion.delete(NODES, "", "n1", DeleteOptions())
    api.registry.create(NODES, "", {"metadata": {"name": "n1"}})
    # The node of this one never was. Its turn comes after that of the other.
    api.registry.create(PODS, "default", {"metadata": {"name": "b"}, "spec": {**TEMPLATE["spec"], "nodeName": "n2"}})
    await until(lambda: "b" not in [pod["metadata"]["name"] for pod in all_of(api, PODS)])
    assert [pod["metadata"]["name"] for pod in all_of(api, PODS)] == ["a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
