"""The standalone loop on the embedded API server, with a watch that the test plays."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Change, ChangeType, Store
from shoal.scheduler.loop import Loop
from shoal.scheduler.queue.queue import QueuePlace
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.volume_claims import VolumeClaims
from tests.kube.waiting import until
from tests.scheduler.extender.scene import clearing_of, context_of, state_of
from tests.testbed.fake_nodes import node


class Stage:
    """The loop and all it needs but reflectors: what it knows is what the test has told it."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self.client = client
        self.state = state_of()
        reporter = Reporter(client, recorder, now=lambda: datetime.now(UTC), may_write=lambda: True)
        context = replace(context_of(self.state, client), reporter=reporter)
        self.loop = Loop(
            context,
            claims=VolumeClaims(client, self.state.tables, context.feasibility),
            clearing=clearing_of(context, Store()),
            names=["gpu-scheduler"],
            cluster="",
            binds=8,
        )
        self.state.on_node(Change(ChangeType.ADDED, None, msgspec.convert(node("a", 1), Node)))

    def see(self, pod: Pod) -> None:
        """The watch brings a pod as it is here."""
        change = Change(ChangeType.MODIFIED, pod, pod)
        self.state.on_pod(change)
        self.loop.on_pod(change)

    async def create(self, name: str, gib: int) -> Pod:
        limits = {"aliyun.com/gpu-mem": str(gib)}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        spec = {"schedulerName": "gpu-scheduler", "containers": [container]}
        return await self.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    async def node_of(self, name: str) -> str:
        return (await self.client.get(PODS, name, namespace="default")).spec.node_name


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with EmbeddedApi(tmp_path) as api:
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        async with Client(access) as client, Recorder(client, "test") as recorder:
            await client.create(NODES, node("a", 1))
            made = Stage(client, recorder)
            running = asyncio.create_task(made.loop.run())
            yield made
            running.cancel()
            await asyncio.wait({running})


async def test_a_watch_that_is_late_takes_nothing_from_a_pod_that_is_bound(stage: Stage) -> None:
    """The Binding is accepted; then comes what happened to the pod before it, such as its condition."""
    first = await stage.create("first", 10)
    stage.see(first)
    await until(lambda: first.metadata.uid not in stage.loop.queue, "bound")
    assert await stage.node_of("first") == "a"
    stage.see(first)
    await until(lambda: stage.loop.queue.place_of(first.metadata.uid) is not QueuePlace.ACTIVE, "tried")
    assert stage.state.engine.ledger.booking(first.metadata.uid) is not None
    second = await stage.create("second", 10)
    stage.see(second)
    await until(lambda: stage.loop.queue.place_of(second.metadata.uid) is QueuePlace.PARKED, "parked")
    assert await stage.node_of("second") == ""


async def test_a_pod_counts_as_demand_from_its_arrival(stage: Stage) -> None:
    demand = stage.state.engine.demand
    pods = [await stage.create(name, 2) for name in ("first", "second")]
    for pod in pods:
        stage.see(pod)
    # The loop had no turn yet: both stand in the queue, and none was tried.
    assert stage.loop.queue.place_of(pods[0].metadata.uid) is QueuePlace.ACTIVE
    assert list(demand.counts.values()) == [2]


async def test_a_pod_is_tried_again_when_kubernetes_has_made_its_claim(stage: Stage) -> None:
    """Only its status changes then."""
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "none-yet"}]
    spec = {"schedulerName": "gpu-scheduler", "containers": [container], "resourceClaims": claims}
    pod = await stage.client.create(PODS, {"metadata": {"name": "own"}, "spec": spec}, namespace="default")
    uid = pod.metadata.uid
    stage.see(pod)
    await until(lambda: stage.loop.queue.place_of(uid) is QueuePlace.PARKED, "parked")
    stage.see(pod)
    assert stage.loop.queue.place_of(uid) is QueuePlace.PARKED, "nothing changed"
    made = {"metadata": {"uid": uid}, "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "it"}]}}
    stage.see(await stage.client.patch(PODS, "own", made, namespace="default", subresource="status"))
    assert stage.loop.queue.place_of(uid) in (QueuePlace.BACKOFF, QueuePlace.ACTIVE)
