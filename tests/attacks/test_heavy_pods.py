"""Pods that a tenant writes to cost time: each is refused or placed in a bounded number of steps, and others are bound.

What the bounds are is tested where they are; here the whole loop meets such pods, as large as an API server takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Change, ChangeType
from shoal.model.request import ContainerRequest, Request, Share
from shoal.placement.classes import STEPS
from shoal.placement.engine import Engine
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.state.requests import placement_key
from tests.kube.waiting import until
from tests.placement import clusters
from tests.placement.clusters import ledger_of
from tests.scheduler.test_loop import Stage
from tests.testbed.fake_nodes import node

Object = dict[str, Any]
NODES_THERE = 20
IGNORED = "IgnoredDuringExecution"


def container(i: int, **limits: str) -> Object:
    return {"name": f"c{i}", "image": "none", "resources": {"limits": limits, "requests": limits}}


def gpu(i: int, gib: int = 1) -> Object:
    return container(i, **{"aliyun.com/gpu-mem": str(gib)})


def term(i: int) -> Object:
    return {"labelSelector": {"matchLabels": {"app": f"a{i}"}}, "topologyKey": f"k{i}", "namespaceSelector": {}}


def expression(i: int) -> Object:
    return {"matchExpressions": [{"key": f"k{i}", "operator": "In", "values": ["a"]}]}


TOO_MANY = "containers ask for GPUs, and at most 32 of a pod can: make several pods"
TOO_LONG = "the pod's constraints take"
#: By name, what is in the spec, and how the refusal reads.
HEAVY: dict[str, tuple[Object, str]] = {
    "containers with GPUs": ({"containers": [gpu(i) for i in range(2000)]}, f"2000 {TOO_MANY}"),
    "sidecars with GPUs": (
        {"containers": [gpu(0)], "initContainers": [{**gpu(i + 1), "restartPolicy": "Always"} for i in range(2000)]},
        f"2001 {TOO_MANY}",
    ),
    "resources": ({"containers": [container(i, **{f"a.b/r{i}": "1"}) for i in range(3000)]}, TOO_LONG),
    "node affinity": (
        {
            "affinity": {
                "nodeAffinity": {
                    f"requiredDuringScheduling{IGNORED}": {"nodeSelectorTerms": [expression(i) for i in range(9000)]}
                }
            }
        },
        TOO_LONG,
    ),
    "preferred nodes": (
        {
            "affinity": {
                "nodeAffinity": {
                    f"preferredDuringScheduling{IGNORED}": [
                        {"weight": 1, "preference": expression(i)} for i in range(9000)
                    ]
                }
            }
        },
        TOO_LONG,
    ),
    "affinity to pods": (
        {"affinity": {"podAffinity": {f"requiredDuringScheduling{IGNORED}": [term(i) for i in range(6000)]}}},
        TOO_LONG,
    ),
    "anti-affinity to pods": (
        {"affinity": {"podAntiAffinity": {f"requiredDuringScheduling{IGNORED}": [term(i) for i in range(6000)]}}},
        TOO_LONG,
    ),
    "topology spread": (
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": f"k{i}",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": f"a{i}"}},
                }
                for i in range(6000)
            ]
        },
        TOO_LONG,
    ),
    "volumes": (
        {"volumes": [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"p{i}"}} for i in range(9000)]},
        TOO_LONG,
    ),
    "tolerations": (
        {"tolerations": [{"key": f"k{i}", "operator": "Exists", "effect": "NoSchedule"} for i in range(9000)]},
        TOO_LONG,
    ),
}


def heavy(name: str) -> Object:
    """A pod with one of `HEAVY`, as the API server gives it out."""
    spec = {"schedulerName": "gpu-scheduler", "containers": [gpu(0)], **HEAVY[name][0]}
    return {"metadata": {"name": name.replace(" ", "-").lower(), "namespace": "default"}, "spec": spec}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with EmbeddedApi(tmp_path) as api:
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        async with Client(access) as client, Recorder(client, "test") as recorder:
            await client.create(NODES, node("a", 1))
            made = Stage(client, recorder)
            for i in range(NODES_THERE):
                there = msgspec.convert(node(f"n{i}", 8), Node)
                await client.create(NODES, node(f"n{i}", 8))
                made.state.on_node(Change(ChangeType.ADDED, None, there))
            running = asyncio.create_task(made.loop.run())
            yield made
            running.cancel()
            await asyncio.wait({running})


async def test_heavy_pods_are_refused_with_the_reason_and_others_are_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(Reporter, "waiting", lambda _, pod, why, **__: told.update({pod.metadata.name: why}))
    for name in HEAVY:
        stage.see(await stage.client.create(PODS, heavy(name), namespace="default"))
    honest = await stage.create("honest", 10)
    stage.see(honest)
    await until(lambda: honest.metadata.uid not in stage.loop.queue, "bound")
    assert await stage.node_of("honest")
    for name, (_, words) in HEAVY.items():
        assert words in told[heavy(name)["metadata"]["name"]], name


def test_what_is_remembered_of_a_heavy_pod_is_short() -> None:
    """Tables of thousands of templates outlive their pods."""
    for name in HEAVY:
        pod = msgspec.convert(heavy(name), Pod)
        assert len(placement_key(pod)) <= 1024, name


def test_the_affinity_of_a_heavy_pod_elsewhere_is_not_weighed_for_others(stage: Stage) -> None:
    """A tenant binds pods itself; what they want to be apart from is asked for every pod that comes later."""
    raw = heavy("anti-affinity to pods")
    raw["metadata"]["uid"] = "1"
    raw["spec"]["nodeName"] = "n0"
    info = stage.state.tables.reader.info(msgspec.convert(raw, Pod))
    assert info.affinity.anti == ()
    assert info.fault is not None
    assert "affinity to pods take" in info.fault[1]
    assert info.requests == (("aliyun.com/gpu-mem", 1),), "while what it takes of the node counts"


def test_containers_that_fit_nowhere_are_searched_for_in_bounded_steps() -> None:
    """Two fit on a card and there is one too many: the search goes through all assignments if nothing stops it."""
    nodes = 10
    ledger = ledger_of(*(clusters.node(f"n{i}", [10] * 8) for i in range(nodes)))
    sizes = [3420 + i for i in range(17)]  # two to a card of 10 GiB
    containers = tuple(ContainerRequest(f"c{i}", 1, Share(memory_mib=size)) for i, size in enumerate(sizes))
    engine = Engine(ledger)
    request = Request(containers)
    assert engine.decide(request) is None
    for row in range(nodes):
        assert engine.explain(request, ledger.node_at(row))
    used = STEPS - engine.class_of(request).steps
    assert STEPS < used <= STEPS + 4 * nodes * len(sizes), "one way through the containers where no steps are left"
    assert engine.decide(Request(containers[:16])) is not None
