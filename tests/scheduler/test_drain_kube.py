"""A drain of the leader's node on a real control plane: the budget keeps the leader until the other leads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.resources import LEASES, NODES, PODS
from shoal.scheduler import app
from shoal.scheduler.config import SchedulerConfig
from tests.kube.waiting import until
from tests.suites.scheduling.ways import service_account
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import node

BUDGET = Path(__file__).parents[2] / "deploy" / "scheduler" / "budget.yaml"
NAMESPACE = "kube-system"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
MERGE = "application/merge-patch+json"
#: Replicas, each on a node of its own.
REPLICAS = {"replica-1": "drained-1", "replica-2": "drained-2"}


class Replica:
    """A scheduler in this process under a pod's name; whether it is ready is written to the pod, as kubelet would."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self._pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        self._api = api
        self._port = 0
        self._name = name
        self.ready = False

    async def run(self, kubeconfig: Path) -> None:
        """Run it, and again when it has ended."""
        access = load_access(environ={}, home=Path("/"), kubeconfig=kubeconfig)
        config = SchedulerConfig(port=0, health_host="127.0.0.1", health_port=0, scheduler_names=())
        while True:
            await app.run(config, access, identity=self._name, serving=self._on_serving)

    def _on_serving(self, ports: app.Ports) -> None:
        self._port = ports.health

    async def probe(self) -> None:
        """Ask it, and tell the API server."""
        while True:
            answer = b""
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                # Closed also when the scheduler resets the connection while it stops.
                with contextlib.closing(writer):
                    writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                    answer = await reader.read()
            self.ready = b" 200 " in answer
            await asyncio.to_thread(self._tell)
            await asyncio.sleep(0.2)

    def _tell(self) -> None:
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if self.ready else "False"}],
            "containerStatuses": [
                {
                    "name": "scheduler",
                    "ready": self.ready,
                    "restartCount": 0,
                    "image": "x",
                    "imageID": "x",
                    "state": state,
                }
            ],
        }
        # A pod that was evicted is gone.
        self._api.try_request("PATCH", f"{self._pod}/status", {"status": status}, MERGE)

    def evict(self) -> int:
        """The status of an eviction."""
        meta = {"name": self._name, "namespace": NAMESPACE}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        return self._api.try_request("POST", f"{self._pod}/eviction", eviction)[0]


@pytest.fixture
async def replicas(control_plane: ControlPlane) -> AsyncIterator[dict[str, Replica]]:
    """Two replicas and their budget on the control plane, all gone after the test."""
    api = control_plane.api
    account = await service_account(api)
    api.kubectl("apply", "-f", str(BUDGET))
    made = {name: Replica(api, name) for name in REPLICAS}
    tasks: list[asyncio.Task[Any]] = []
    async with Client(load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())) as client:
        for name, on in REPLICAS.items():
            await client.create(NODES, node(on, 0))
            await client.create(PODS, replica_pod(name, on), namespace=NAMESPACE)
        try:
            for replica in made.values():
                tasks += [asyncio.create_task(replica.run(account)), asyncio.create_task(replica.probe())]
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            api.request("DELETE", f"{BUDGETS}/shoal-scheduler")
            for name, on in REPLICAS.items():
                api.try_request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0")
                await client.delete(NODES, on)
            await client.delete(LEASES, "shoal-scheduler", namespace=NAMESPACE)


def replica_pod(name: str, on: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "shoal-scheduler"}},
        "spec": {
            "nodeName": on,
            "serviceAccountName": "shoal-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "scheduler", "image": "shoal.test/none:1"}],
        },
    }


async def test_a_drain_waits_for_the_other_to_lead(control_plane: ControlPlane, replicas: dict[str, Replica]) -> None:
    api = control_plane.api

    def budget() -> dict[str, Any]:
        status: dict[str, Any] = api.request("GET", f"{BUDGETS}/shoal-scheduler")["status"]
        return status

    def leads(name: str) -> bool:
        return replicas[name].ready

    await until(lambda: any(map(leads, REPLICAS)), "one leads")
    first, second = sorted(REPLICAS, key=leads, reverse=True)
    await until(lambda: budget().get("currentHealthy") == 1, "counted")
    assert not replicas[second].ready
    assert budget()["disruptionsAllowed"] == 0
    assert await asyncio.to_thread(replicas[first].evict) == 429, "the leader is kept"
    node_path = f"/api/v1/nodes/{REPLICAS[first]}"
    await asyncio.to_thread(api.request, "PATCH", node_path, {"spec": {"unschedulable": True}}, MERGE)
    await until(lambda: leads(second) and not leads(first), "the other leads")
    await until(lambda: replicas[first].evict() != 429, "let go, as kubectl drain asks again and again")
    assert await asyncio.to_thread(replicas[first].evict) == 404, "evicted"
    await until(lambda: budget()["currentHealthy"] == 1, "the new leader counts")
    assert leads(second)
    assert await asyncio.to_thread(replicas[second].evict) == 429, "and is kept in turn"
