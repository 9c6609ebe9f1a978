"""The stock scheduler and controllers on fake nodes: what later suites wire Shoal into."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from aiohttp import web

from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.node import node_gpus
from tests.soak import times
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_kubelet import EXIT_CODE, RUNS_FOR
from tests.testbed.fake_nodes import CARD_MIB, FakeNodes, each

#: Nodes, and pods for them.
MANY = min(times(200), 1000)


def pod(name: str, annotations: dict[str, str] | None = None, **limits: str) -> dict:
    """A pod that asks for cards by GiB, or for what it is told."""
    wanted = limits or {"aliyun.com/gpu-mem": "4"}
    container = {"name": "main", "image": "shoal.test/busybox:1", "resources": {"limits": wanted}}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {"containers": [container]}}


async def until(client: Client, namespace: str, holds: Callable[[list[Pod]], bool], patience: float = 300) -> list[Pod]:
    """The pods of a namespace once something holds for them."""
    end = time.monotonic() + patience
    while True:
        pods = (await client.list(PODS, namespace=namespace)).items
        if holds(pods):
            return pods
        assert time.monotonic() < end, [(pod.metadata.name, pod.status.phase, pod.spec.node_name) for pod in pods][:20]
        await asyncio.sleep(0.2)


async def test_the_stock_scheduler_places_a_pod_for_each_of_many_nodes(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = await fake_nodes(MANY, gpus=8)
    await each([f"pod-{n}" for n in range(MANY)], lambda name: client.create(PODS, pod(name), namespace=room))
    start = time.monotonic()
    control_plane.start_scheduler()
    pods = await until(client, room, lambda pods: all(pod.spec.node_name for pod in pods))
    rate = len(pods) / (time.monotonic() - start)
    with capsys.disabled():
        print(f"\nkube-scheduler: {MANY:,} pods on {MANY:,} nodes, {rate:.0f} pods/s with its start")  # noqa: T201
    assert len(pods) == MANY
    assert {pod.spec.node_name for pod in pods} <= set(names)
    await until(client, room, lambda pods: all(pod.status.phase == "Running" for pod in pods))


async def test_fake_nodes_carry_their_cards(fake_nodes: FakeNodes, client: Client) -> None:
    names = await fake_nodes(2, gpus=4, prefix="carded")
    for name in names:
        node = await client.get(NODES.raw, name)
        inventory = node_gpus(node, unit=MemoryUnit.GIB)
        assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2, 3]
        assert {gpu.memory_mib for gpu in inventory.gpus} == {CARD_MIB}


async def test_pods_on_fake_nodes_run_end_and_go(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    await fake_nodes(2, gpus=1)
    control_plane.start_scheduler()
    kinds = {"stays": {}, "ends": {RUNS_FOR: "0.5"}, "fails": {RUNS_FOR: "0.5", EXIT_CODE: "3"}}
    for name, annotations in kinds.items():
        await client.create(PODS, pod(name, annotations), namespace=room)
    wanted = {"stays": "Running", "ends": "Succeeded", "fails": "Failed"}
    await until(client, room, lambda pods: {pod.metadata.name: pod.status.phase for pod in pods} == wanted)
    fake_nodes.kubelet.kill()
    await client.delete(PODS, "stays", namespace=room, grace_seconds=1)
    assert (await client.get(PODS, "stays", namespace=room)).metadata.deletion_timestamp
    fake_nodes.kubelet.start()  # a new one knows what is left to do
    await until(client, room, lambda pods: {pod.metadata.name for pod in pods} == {"ends", "fails"})


async def test_an_extender_is_asked_and_obeyed(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    names = await fake_nodes(3, gpus=1)
    asked: list[str] = []

    async def keep_last(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body["Pod"]["metadata"]["name"])
        return web.json_response({"NodeNames": [name for name in body["NodeNames"] if name == names[-1]]})

    app = web.Application()
    app.router.add_post("/filter", keep_last)
    runner = web.AppRunner(app)
    await runner.setup()
    port = control_plane.run.reservations.port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        control_plane.start_scheduler(
            {
                "extenders": [
                    {
                        "urlPrefix": f"http://127.0.0.1:{port}",
                        "filterVerb": "filter",
                        "nodeCacheCapable": True,
                        "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
                    }
                ]
            }
        )
        for name in ("a", "b"):
            await client.create(PODS, pod(name), namespace=room)
        await client.create(PODS, pod("other", cpu="1"), namespace=room)
        pods = await until(client, room, lambda pods: all(pod.spec.node_name for pod in pods))
    finally:
        await runner.cleanup()
    assert sorted(asked) == ["a", "b"], "the pod without cards is none of its business"
    assert {pod.spec.node_name for pod in pods if pod.metadata.name != "other"} == {names[-1]}


async def test_deployments_make_pods(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str
) -> None:
    await fake_nodes(1, gpus=1)
    control_plane.start_scheduler()
    template = pod("unused")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": template["spec"]},
        },
    }
    control_plane.api.kubectl("apply", "-n", room, "-f", "-", input=json.dumps(deployment))
    await until(client, room, lambda pods: [pod.status.phase for pod in pods] == ["Running"] * 3)
    control_plane.api.kubectl("wait", "-n", room, "deployment/web", "--for=condition=Available", "--timeout=120s")
    control_plane.api.kubectl("delete", "-n", room, "deployment/web")
    await until(client, room, lambda pods: not pods)
