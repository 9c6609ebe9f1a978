"""Many pods at once, on a server that forgets quickly; and the workload controllers over simulated nodes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.deletion import DeleteOptions
from shoal.embedded.kinds import DEPLOYMENTS, EVENTS, JOBS, PODS, Kind
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import parse
from shoal.embedded.store import Object
from shoal.embedded.subresources import bind
from tests.kube.waiting import until

NODES = 20
MANY = 300


def pods(api: EmbeddedApi) -> list[Object]:
    return api.registry.store.objects(PODS.key, "default")


async def test_many_pods_on_a_server_that_forgets(tmp_path: Path) -> None:
    api = EmbeddedApi(tmp_path / "api", history=10)
    nodes = Nodes(api, parse([{"name": "n", "count": NODES, "devicePlugins": False}]), tmp_path / "n")
    await nodes.start()
    for number in range(MANY):
        spec = {"containers": [{"name": "c", "image": "x", "command": ["sh", "-c", "trap 'exit 0' TERM; sleep inf"]}]}
        api.registry.create(PODS, "default", {"metadata": {"name": f"p{number}"}, "spec": spec})
        bind(api.registry, "default", f"p{number}", {"target": {"name": f"n-{number % NODES + 1}"}})
        if number % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: {one["status"]["phase"] for one in pods(api)} == {"Running"}, "all pods run")
    assert len({one["status"]["podIP"] for one in pods(api)}) == MANY
    assert Counter(one["status"]["hostIP"] for one in pods(api)).most_common(1)[0][1] == MANY // NODES
    started = [one for one in api.registry.store.objects(EVENTS.key, "default") if one["reason"] == "Started"]
    assert Counter(one["count"] for one in started) == {1: MANY}, "each is started once"
    for number in range(0, MANY, 2):
        api.deletion.delete(PODS, "default", f"p{number}", DeleteOptions(grace_seconds=30))
    await until(lambda: len(pods(api)) == MANY // 2, "half of them are gone")
    await until(lambda: sum(len(kubelet.host.runs) for kubelet in nodes) == MANY // 2, "and forgotten")
    await nodes.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    """A server with controllers and a node."""
    api = EmbeddedApi(tmp_path / "api")
    nodes = Nodes(api, parse([{"name": "n", "devicePlugins": False}]), tmp_path / "n")
    controllers = asyncio.create_task(Controllers(api.registry, api.deletion, node_away=timedelta(seconds=40)).run())
    await nodes.start()
    yield api
    controllers.cancel()
    await asyncio.gather(controllers, return_exceptions=True)
    await nodes.stop()


def template(simulate: str, **spec: object) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": "a"}, "annotations": {"shoal.dev/simulate": simulate}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x"}], **spec},
    }


def status(api: EmbeddedApi, kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = api.registry.get(kind, "default", "w").get("status", {})
    return found


async def test_a_job_completes(cluster: EmbeddedApi) -> None:
    spec = {"completions": 3, "parallelism": 2, "template": template("duration=200ms", restartPolicy="Never")}
    cluster.registry.create(JOBS, "default", {"metadata": {"name": "w"}, "spec": spec})
    await until(lambda: status(cluster, JOBS).get("succeeded") == 3, "three pods have succeeded")
    await until(
        lambda: any(one["type"] == "Complete" for one in status(cluster, JOBS).get("conditions", ())), "it is complete"
    )
    assert {one["status"]["phase"] for one in pods(cluster)} == {"Succeeded"}


async def test_a_job_fails(cluster: EmbeddedApi) -> None:
    spec = {"backoffLimit": 0, "template": template("duration=0s exit=3", restartPolicy="Never")}
    cluster.registry.create(JOBS, "default", {"metadata": {"name": "w"}, "spec": spec})
    await until(
        lambda: any(one["type"] == "Failed" for one in status(cluster, JOBS).get("conditions", ())), "it has failed"
    )
    assert [one["status"]["phase"] for one in pods(cluster)] == ["Failed"]


async def test_a_deployment_rolls(cluster: EmbeddedApi) -> None:
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "a"}}, "template": template("ready=100ms")}
    made = cluster.registry.create(DEPLOYMENTS, "default", {"metadata": {"name": "w"}, "spec": spec})
    await until(lambda: status(cluster, DEPLOYMENTS).get("availableReplicas") == 4, "all are available")
    old = {one["metadata"]["uid"] for one in pods(cluster)}
    present = cluster.registry.get(DEPLOYMENTS, "default", "w")
    changed = {**present, "spec": {**present["spec"], "template": template("ready=200ms")}}
    cluster.registry.update(DEPLOYMENTS, "default", "w", changed)

    def rolled() -> bool:
        now = status(cluster, DEPLOYMENTS)
        return now.get("updatedReplicas") == now.get("availableReplicas") == now.get("replicas") == 4 and not (
            old & {one["metadata"]["uid"] for one in pods(cluster)}
        )

    await until(rolled, "all are new")
    cluster.deletion.delete(DEPLOYMENTS, "default", "w", DeleteOptions(uid=made["metadata"]["uid"]))
    await until(lambda: not pods(cluster), "nothing is left")
