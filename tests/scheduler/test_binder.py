"""Bindings and their outcomes, on an API server behind a relay that loses answers."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.binder import Binder
from shoal.scheduler.errors import BindError
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.state.cluster_state import ClusterState
from tests.kube.relay import Relay
from tests.kube.waiting import until
from tests.testbed.fake_nodes import node as node_object

CARDS = [Gpu(uuid=f"GPU-{index}", index=index, memory_mib=16384) for index in range(2)]


class Stage:
    """A node, books that know it, and a binder whose way to the server can be cut."""

    def __init__(self, direct: Client, relayed: Client, relay: Relay) -> None:
        self.direct = direct
        self.relay = relay
        self.state = ClusterState(
            Engine(Ledger(), POLICIES["binpack"]),
            ClusterTables(),
            unit=MemoryUnit.GIB,
            news=lambda _: None,
            report=lambda *_: None,
        )
        self.leads = True
        self.binder = Binder(relayed, self.state, may_write=lambda: self.leads, now_ns=lambda: 1, rng=random.Random(1))

    async def begin(self) -> None:
        await self.direct.create(NODES.raw, node_object("n0", CARDS))
        self.state.on_node(Change(ChangeType.ADDED, None, await self.direct.get(NODES, "n0")))

    async def pod(self, name: str) -> Pod:
        limits = {"aliyun.com/gpu-mem": "4"}
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
        }
        await self.direct.create(PODS.raw, manifest)
        pod = await self.now(name)
        self.state.on_pod(Change(ChangeType.ADDED, None, pod))
        return pod

    async def now(self, name: str) -> Pod:
        return await self.direct.get(PODS, name, namespace="default")

    def place(self, pod: Pod) -> Allocation:
        allocation = self.state.place(pod)
        assert allocation is not None
        return allocation

    def booked(self, pod: Pod) -> list[str] | None:
        booking = self.state.engine.ledger.booking(pod.metadata.uid)
        return None if booking is None else list(booking.allocation.held())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with EmbeddedApi(tmp_path / "embedded") as api:
        access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
        port = urlsplit(access.server).port
        assert port is not None
        async with Relay(port) as relay:
            detour = replace(access, server=f"https://127.0.0.1:{relay.port}")
            async with Client(access) as direct, Client(detour) as relayed:
                stage = Stage(direct, relayed, relay)
                await stage.begin()
                yield stage


async def test_binding_carries_node_and_all_annotations(stage: Stage) -> None:
    pod = await stage.pod("a")
    await stage.binder.bind(pod, stage.place(pod))
    bound = await stage.now("a")
    assert bound.spec.node_name == "n0"
    assert bound.metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert bound.metadata.annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    assert '"GPU-0"' in bound.metadata.annotations["shoal.dev/allocation"]
    assert stage.booked(pod) == ["GPU-0"]


async def test_lost_answer_is_asked_for_again_and_found_done(stage: Stage) -> None:
    pod, other = await stage.pod("a"), await stage.pod("b")
    await stage.binder.bind(other, stage.place(other))  # the connection is there
    stage.relay.lose_answers(1)
    await stage.binder.bind(pod, stage.place(pod))
    assert (await stage.now("a")).spec.node_name == "n0"
    assert stage.booked(pod) == ["GPU-0"]


async def test_server_away_keeps_the_booking_until_it_is_back(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    await stage.relay.block()
    task = asyncio.create_task(stage.binder.bind(pod, allocation))
    await until(lambda: stage.relay.refused > 0, "the server is away")
    assert stage.booked(pod) == ["GPU-0"]
    stage.relay.unblock()
    await task
    assert (await stage.now("a")).spec.node_name == "n0"


async def test_pod_bound_by_somebody_else_is_booked_as_they_did(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    theirs = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "4"}
    await stage.direct.bind(pod, "n0", annotations=theirs)
    with pytest.raises(BindError, match="already assigned to node"):
        await stage.binder.bind(pod, allocation)
    assert stage.booked(pod) == ["GPU-1"]


async def test_pod_that_is_gone_frees_its_cards(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    await stage.direct.delete(PODS, "a", namespace="default", grace_seconds=0)
    with pytest.raises(BindError, match="not found"):
        await stage.binder.bind(pod, allocation)
    assert stage.booked(pod) is None


async def test_pod_made_anew_under_the_name_is_not_bound(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    await stage.direct.delete(PODS, "a", namespace="default", grace_seconds=0)
    await stage.pod("a")
    with pytest.raises(BindError, match="UID in precondition"):
        await stage.binder.bind(pod, allocation)
    assert not (await stage.now("a")).spec.node_name
    assert stage.booked(pod) is None


async def test_who_does_not_lead_writes_nothing(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    stage.leads = False
    with pytest.raises(asyncio.CancelledError):
        await stage.binder.bind(pod, allocation)
    assert not (await stage.now("a")).spec.node_name


async def test_second_bind_of_a_pod_waits_for_no_one(stage: Stage) -> None:
    pod = await stage.pod("a")
    allocation = stage.place(pod)
    first = asyncio.create_task(stage.binder.bind(pod, allocation))
    await asyncio.sleep(0)
    with pytest.raises(BindError, match="being bound to n0 already"):
        await stage.binder.bind(pod, allocation)
    await first


async def test_a_decision_that_cannot_be_written_is_not_booked_for_ever(stage: Stage) -> None:
    pod = await stage.pod("p")
    allocation = stage.place(pod)
    odd = replace(allocation, containers=(replace(allocation.containers[0], cards=None),))  # type: ignore[arg-type]
    with pytest.raises(BindError, match="binding failed"):
        await stage.binder.bind(pod, odd)
    assert stage.booked(pod) is None
    await stage.binder.bind(pod, stage.place(pod))
    assert (await stage.now("p")).spec.node_name == "n0"
