"""Claims asked for where there are none to serve: the pod is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.resources import DEVICE_CLASSES, NODES, PODS
from shoal.scheduler.app import Scheduler
from shoal.scheduler.config import ElectionConfig, LiveLoadConfig, LoadSource, SchedulerConfig
from tests.kube.waiting import until
from tests.testbed.fake_nodes import node


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (True, "which this scheduler allocates with resource.k8s.io/v0 alone"),
        (True, "use the stock scheduler"),
        (False, "set claims: true in its settings"),
    ],
)
async def test_a_pod_with_claims_is_told_why_it_waits(
    tmp_path: Path, claims: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A version that no server has, as older servers have none of the others.
    monkeypatch.setattr("shoal.scheduler.app.DEVICE_CLASSES", replace(DEVICE_CLASSES, version="v0"))
    async with EmbeddedApi(tmp_path) as api:
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        async with Client(access) as client, Recorder(client, "test") as recorder:
            await client.create(NODES, node("a", 1))
            config = SchedulerConfig(
                claims=claims,
                port=0,
                health_host="127.0.0.1",
                health_port=0,
                election=ElectionConfig(enabled=False),
                live_load=LiveLoadConfig(source=LoadSource.OFF),
            )
            scheduler = Scheduler(client, recorder, config, identity="test")
            running = asyncio.create_task(scheduler.run())
            await until(lambda: scheduler.not_ready() == "", "ready")
            claims_of_pod = [{"name": "gpu", "resourceClaimName": "c"}]
            container = {"name": "main", "image": "none"}
            spec = {"schedulerName": "gpu-scheduler", "containers": [container], "resourceClaims": claims_of_pod}
            await client.create(PODS.raw, {"metadata": {"name": "with"}, "spec": spec}, namespace="default")
            said = ""
            async with asyncio.timeout(120):
                while words not in said:
                    await asyncio.sleep(0.05)
                    told = await client.get(PODS, "with", namespace="default")
                    said = " ".join(one.message or "" for one in told.status.conditions)
            assert not told.spec.node_name
            running.cancel()
            await asyncio.wait({running})
