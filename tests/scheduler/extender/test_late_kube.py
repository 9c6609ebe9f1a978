"""kube-scheduler hears of pods before the extender does: what it then asks, and what comes of it."""

import asyncio
import functools
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from shoal.kube.client import Client
from shoal.kube.resources import PODS
from tests.kube.relay import Relay
from tests.scheduler.chaos.replicas import through
from tests.scheduler.extender.live import live
from tests.scheduler.extender.pods import CLASSES, all_bound, pod, until, used
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes


async def test_a_card_that_is_freed_unheard_of_is_given_when_it_is_heard_of(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str, tmp_path: Path
) -> None:
    """kube-scheduler asks at once, is refused, and has no reason of its own to ask again."""
    await fake_nodes(1, gpus=2)
    async with Relay(control_plane.api.port) as relay:
        through(control_plane.api.kubeconfig(), tmp_path / "kubeconfig", relay.port)
        async with live(control_plane, kubeconfig=tmp_path / "kubeconfig") as extender:
            control_plane.start_scheduler(extender.configuration())
            for name in ("first", "second"):
                await client.create(PODS, pod(name, mem="10"), namespace=room)
            await until(client, room, all_bound)
            # Room on the node, which kube-scheduler counts by itself, and on no card.
            await client.create(PODS, pod("third", mem="10"), namespace=room)
            refused = functools.partial(extender.metrics.decisions.value, "extender", "refused")
            await until(client, room, lambda _: refused() > 0)
            await until_quiet(refused)
            before = refused()
            await relay.block()
            # Not by force: what ran has a time to end then, on nodes where nobody tells of its end.
            await client.delete(PODS, "first", namespace=room)
            await until(client, room, lambda _: refused() > before)
            await until_quiet(refused)
            relay.unblock()
            pods = await until(client, room, all_bound)
    assert {pod.metadata.name for pod in pods} == {"second", "third"}
    assert max(used(pods).values()) == 10 * 1024, "a card each"


async def until_quiet(count: Callable[[], float]) -> None:
    """Return when nothing was counted for longer than kube-scheduler lets a pod wait before its next try."""
    seen, since = count(), time.monotonic()
    while time.monotonic() - since < 12:
        await asyncio.sleep(0.2)
        if count() != seen:
            seen, since = count(), time.monotonic()


async def test_nobody_is_evicted_for_a_pod_whose_card_was_freed_unheard_of(
    control_plane: ControlPlane, fake_nodes: FakeNodes, client: Client, room: str, tmp_path: Path
) -> None:
    """The first victim is gone, and the scheduler does not know it: the second would be evicted for nothing."""
    await fake_nodes(2, gpus=1)
    classes = {name: f"{name}-{uuid.uuid4().hex[:6]}" for name in ("low", "high")}
    for name, value in (("low", 1), ("high", 1000)):
        await client.create(CLASSES, {"metadata": {"name": classes[name]}, "value": value})
    async with Relay(control_plane.api.port) as relay:
        through(control_plane.api.kubeconfig(), tmp_path / "kubeconfig", relay.port)
        async with live(control_plane, kubeconfig=tmp_path / "kubeconfig") as extender:
            control_plane.start_scheduler(extender.configuration())
            await client.create(PODS, pod("lowest", mem="10"), namespace=room)
            await client.create(PODS, pod("low", mem="10", priority=classes["low"]), namespace=room)
            await until(client, room, all_bound)
            # Both must know the pod before only one of them hears on: the extender decides on nothing else.
            control_plane.stop_schedulers()
            high = await client.create(PODS, pod("high", mem="10", priority=classes["high"]), namespace=room)
            await until(client, room, lambda _: extender.state.pod(high.metadata.uid) is not None)
            await relay.block()
            control_plane.start_scheduler(extender.configuration())
            await until(client, room, lambda pods: "lowest" not in {pod.metadata.name for pod in pods})
            await until_quiet(functools.partial(extender.metrics.decisions.value, "extender", "refused"))
            relay.unblock()
            pods = await until(client, room, all_bound)
    for name in classes.values():
        await client.delete(CLASSES, name)
    assert {pod.metadata.name for pod in pods} == {"low", "high"}
