"""Another scheduler on the same cards is noticed: by itself, and by two real ones on one API server."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import EVENTS, NODES, PODS
from shoal.kube.store import Change, ChangeType
from shoal.scheduler import rivals
from shoal.scheduler.app import COMPONENT, Scheduler
from shoal.scheduler.config import ElectionConfig, SchedulerConfig
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.rivals import Rivals
from tests.scheduler.extender.requests import pod
from tests.testbed.fake_nodes import node as node_object


class Seen:
    """What is said, at a time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.since: float | None = 0.0
        self.told: list[str] = []
        self.metrics = Metrics()
        self.rivals = Rivals(
            metrics=self.metrics,
            leads_since=lambda: self.since,
            clock=lambda: self.now,
            report=lambda pod, reason, message: self.told.append(pod.metadata.name),
        )

    def shown(self, name: str, *, decided: bool = True, kind: ChangeType = ChangeType.MODIFIED) -> None:
        """The watch shows a pod that has got a node."""
        manifest: dict[str, Any] = pod(name)
        waiting = msgspec.convert(manifest, Pod)
        manifest["spec"]["nodeName"] = "n"
        manifest["metadata"]["annotations"] = {"shoal.dev/allocation": "{}"} if decided else {}
        bound = msgspec.convert(manifest, Pod)
        self.rivals.on_pod(Change(kind, waiting if kind is ChangeType.MODIFIED else None, bound))
        self.rivals.on_pod(Change(ChangeType.MODIFIED, bound, bound))


def test_what_was_bound_here_or_carries_no_decision_is_no_rival() -> None:
    seen = Seen()
    seen.rivals.on_bind("uid-ours")
    seen.shown("ours")
    seen.shown("plain", decided=False)
    seen.shown("listed", kind=ChangeType.ADDED)
    seen.since = None
    seen.shown("another leads")
    seen.since = seen.now - rivals.QUIET_SECONDS + 1
    seen.shown("of the last leader")
    assert seen.told == []
    assert seen.metrics.foreign_bindings.value() == 0


def test_a_rival_is_told_of_once_and_counted_always() -> None:
    seen = Seen()
    seen.shown("one")
    seen.shown("two")
    assert seen.told == ["one"]
    assert seen.metrics.foreign_bindings.value() == 2
    seen.now += rivals.AGAIN_SECONDS
    seen.shown("three")
    assert seen.told == ["one", "three"]


async def test_two_schedulers_without_a_common_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "QUIET_SECONDS", 0.0)
    async with EmbeddedApi(tmp_path / "api") as api, contextlib.AsyncExitStack() as stack:
        access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
        client = await stack.enter_async_context(Client(access))
        await client.create(NODES, node_object("a", 2))
        recorder = await stack.enter_async_context(Recorder(client, COMPONENT))
        schedulers = []
        for name in ("one", "two"):
            config = SchedulerConfig(
                scheduler_names=(name,),
                port=0,
                health_host="127.0.0.1",
                health_port=0,
                election=ElectionConfig(enabled=False),
            )
            scheduler = Scheduler(client, recorder, config, identity=name)
            schedulers.append(scheduler)
            task = asyncio.create_task(scheduler.run())
            stack.push_async_callback(_ended, task)
        async with asyncio.timeout(60):
            while any(scheduler.not_ready() for scheduler in schedulers):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)
            manifest = pod("p")
            manifest["spec"] |= {"schedulerName": "one", "tolerations": [{"operator": "Exists"}]}
            await client.create(PODS, manifest, namespace="default")
            while schedulers[1].metrics.foreign_bindings.value() == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while not (found := [e for e in (await client.list(EVENTS)).items if e.reason == rivals.REASON]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert "give both the same lease" in (found[0].message or "")
        assert schedulers[0].metrics.foreign_bindings.value() == 0


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
