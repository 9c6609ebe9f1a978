"""What somebody who only reaches the plain port can do: at most have a pod that waits placed where it fits."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Change, ChangeType
from shoal.scheduler.errors import BindError, UnknownPodError
from shoal.scheduler.extender.holds import HOLD_SECONDS
from shoal.scheduler.extender.pod_lookup import MOST, PodLookup
from tests.scheduler.extender.requests import args, binding, pod, preemption
from tests.scheduler.extender.scene import Scene
from tests.testbed.fake_nodes import node as node_object

NAMES = ["a", "b"]


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    for name in NAMES:
        scene.add_node(name, 1)
    return scene


def untouched(scene: Scene) -> bool:
    return (
        [scene.free(name) for name in NAMES] == [[16], [16]]
        and not list(scene.state.engine.ledger.bookings())
        and len(scene.verbs.holds) == 0
    )


def test_nothing_is_held_for_a_pod_that_does_not_exist(scene: Scene) -> None:
    for verb in (scene.verbs.filter, scene.verbs.prioritize):
        with pytest.raises(UnknownPodError):
            verb(args(pod("ghost", gpu="1"), NAMES))
    with pytest.raises(UnknownPodError):
        scene.verbs.preempt(preemption(pod("ghost", priority=9), {"a": ["uid-x"]}))
    assert untouched(scene)
    assert not scene.state.engine.demand.counts


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"schedulingGates": [{"name": "later"}]}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"status": {"phase": "Succeeded"}},
    ],
    ids=["gated", "being deleted", "finished"],
)
def test_nothing_is_held_for_a_pod_that_does_not_wait(scene: Scene, change: dict[str, Any]) -> None:
    manifest = pod("p")
    scene.add_pod({key: {**manifest[key], **change.get(key, {})} for key in manifest})
    with pytest.raises(UnknownPodError):
        scene.verbs.filter(args(manifest, NAMES))
    assert untouched(scene)


def test_what_the_request_says_of_a_pod_does_not_count(scene: Scene) -> None:
    scene.add_pod(pod("p", mem="2"))
    greedy = pod("p", gpu="1")
    greedy["metadata"] |= {"name": "q\nroot", "namespace": "kube-system", "annotations": {"x": "y" * 1000}}
    scene.verbs.filter(args(greedy, ["a"]))
    assert scene.free("a") == [14], "what the API server shows"
    (known,) = [scene.state.pod("uid-p")]
    assert known is not None
    assert known.metadata.name == "p"


def test_a_pod_that_waits_holds_its_own_share_once_and_for_a_while(scene: Scene) -> None:
    scene.add_pod(pod("p", mem="4"))
    for _ in range(100):
        scene.verbs.filter(args(pod("p"), ["a"]))
        scene.verbs.prioritize(args(pod("p"), NAMES))
    assert sum(scene.free("a") + scene.free("b")) == 28
    scene.now += HOLD_SECONDS + 1
    scene.verbs.tend()
    assert untouched(scene)


def test_requests_leave_nothing_behind(scene: Scene) -> None:
    """600 filters with UIDs of 1 MB took half a gigabyte."""

    def ask(number: int) -> None:
        uid = f"{number}-" + "x" * 1_000_000
        body = pod("p")
        body["metadata"]["uid"] = uid
        body["metadata"]["annotations"] = {"a": uid}
        for verb in (scene.verbs.filter, scene.verbs.prioritize):
            with pytest.raises(UnknownPodError):
                verb(args(body, NAMES))

    for number in range(5):
        ask(number)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(60):
            ask(number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 2_000_000, "two of the sixty would be more"


async def test_waiting_for_the_watch_is_bounded(scene: Scene) -> None:
    waiting = PodLookup(scene.state)
    tasks = [asyncio.create_task(waiting.until_shown(ObjectMeta(uid=f"u{n}"), seconds=60)) for n in range(MOST - 1)]
    tasks.append(asyncio.create_task(waiting.until_shown(ObjectMeta(uid="uid-p"), seconds=60)))
    await asyncio.sleep(0)
    async with asyncio.timeout(45):
        await waiting.until_shown(ObjectMeta(uid="one more"), seconds=60)
        scene.add_pod(pod("p"))
        waiting.on_pod(Change(ChangeType.ADDED, None, msgspec.convert(pod("p"), Pod)))
        await tasks.pop()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await waiting.until_shown(ObjectMeta(uid="again"), seconds=0.01)


@pytest.mark.parametrize(
    ("shown", "asked", "waits"),
    [("9", "10", True), ("10", "9", False), ("10", "10", False), ("10", "", False), ("10", "soon", False)],
)
async def test_a_pod_is_decided_on_as_new_as_the_caller_has_it(
    scene: Scene, shown: str, asked: str, waits: bool
) -> None:
    """A policy nobody knows is put right; kube-scheduler's watch is the faster one, and it asks once."""
    old, new = pod("p", mem="2"), pod("p", mem="2")
    old["metadata"] |= {"resourceVersion": shown, "annotations": {"shoal.dev/policy": "tetris"}}
    new["metadata"]["resourceVersion"] = asked
    scene.add_pod(old)
    answer = asyncio.create_task(scene.verbs.on_newest(scene.verbs.filter, args(new, ["a"])))
    await asyncio.sleep(0)
    assert answer.done() == (not waits)
    if waits:
        scene.add_pod(new)
        scene.verbs.pods.on_pod(Change(ChangeType.MODIFIED, None, msgspec.convert(new, Pod)))
        assert json.loads(await answer)["NodeNames"] == ["a"]
    else:
        assert "tetris" in (await answer).decode()


# bind


@pytest.mark.parametrize(
    "change",
    [
        {"PodName": ""},
        {"PodNamespace": ""},
        {"PodUID": ""},
        {"Node": ""},
        {"PodName": "x" * 300},
        {"PodUID": "x" * 1_000_000},
        {"Node": None},
    ],
)
async def test_bind_refuses_names_that_cannot_be(scene: Scene, change: dict[str, Any]) -> None:
    scene.add_pod(pod("p"))
    body = json.dumps(json.loads(binding(pod("p"), "a")) | change).encode()
    async with asyncio.timeout(45):
        error = json.loads(await scene.verbs.bind(body))["Error"]
    assert "characters: give 1 to 253" in error
    assert len(error) < 200
    assert untouched(scene)


@pytest.mark.parametrize("change", [{"PodName": "other"}, {"PodNamespace": "other"}, {"PodUID": "other"}])
async def test_bind_of_a_pod_that_is_not_shown_ends_at_once(scene: Scene, change: dict[str, Any]) -> None:
    scene.add_pod(pod("p"))
    body = json.dumps(json.loads(binding(pod("p"), "a")) | change).encode()
    async with asyncio.timeout(45):
        assert "has not shown such a pod" in json.loads(await scene.verbs.bind(body))["Error"]
    assert untouched(scene)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Scene]:
    """Two nodes on an API server, known to the scheduler."""
    async with (
        EmbeddedApi(tmp_path / "api") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        scene = Scene(client=client)
        for name in NAMES:
            await client.create(NODES, node_object(name, 1))
            scene.add_node(name, 1)
        yield scene


async def test_what_the_api_server_refuses_for_good_ends_and_frees_the_cards(cluster: Scene) -> None:
    """A pod in the state that is gone, one that is another by now, and one with a name no object can have."""
    first = await cluster.client.create(PODS, pod("p"), namespace="default")
    await cluster.client.delete(PODS, "p", namespace="default", grace_seconds=0)
    again = await cluster.client.create(PODS, pod("p"), namespace="default")
    assert again.metadata.uid != first.metadata.uid
    ghosts = [pod("ghost"), pod("p"), pod(".."), pod("p", namespace="no-such-namespace")]
    ghosts[1]["metadata"]["uid"] = first.metadata.uid
    for ghost in ghosts:
        shown = cluster.add_pod(ghost)
        allocation = cluster.state.place(shown, node="a")
        assert allocation is not None
        async with asyncio.timeout(120):
            with pytest.raises(BindError):
                await cluster.binder.bind(shown, allocation)
        assert untouched(cluster), ghost["metadata"]
