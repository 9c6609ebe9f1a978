"""The past from a real Prometheus that scrapes real collectors of simulated cards: number for number what it answers
itself, and from the collectors' rings whenever it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.analysis.past import SERIES
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig, PrometheusConfig
from shoal.embedded.nodes.cluster import few
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import PODS
from shoal.metrics.exporter.server import Exporter
from shoal.metrics.exporter.settings import ExporterSettings
from tests.dashboard.page.stage import GIB, pod_object
from tests.testbed.processes import Run
from tests.testbed.prometheus import PrometheusServer

pytestmark = pytest.mark.kube

MIB = 1 << 20
STEP, LAST = 5, 60
#: What Prometheus is asked by hand, for a card; and in how many of a MiB, a percent, a degree or a watt it answers.
CARD_SERIES = {
    "used": ("DCGM_FI_DEV_FB_USED", 1),
    "unattributed": ("shoal_card_memory_unattributed_bytes", MIB),
    "utilisation": ("DCGM_FI_DEV_GPU_UTIL", 1),
    "temperature": ("DCGM_FI_DEV_GPU_TEMP", 1),
    "power": ("DCGM_FI_DEV_POWER_USAGE", 1),
}


@dataclass
class Scene:
    """A node of two cards with a pod on the first, its collector, Prometheus and the dashboard."""

    cluster: EmbeddedCluster
    prometheus: PrometheusServer
    url: str
    session: aiohttp.ClientSession
    #: What Prometheus scrapes.
    exporter: asyncio.Task[None]

    @property
    def card(self) -> str:
        return str(self.cluster_nvml.uuids()[0])

    @property
    def cluster_nvml(self) -> Any:
        return next(iter(self.cluster.nodes)).host.nvml

    async def past(self, of: str, name: str, series: str) -> Any:
        query = {"of": of, "name": name, "series": series, "last": str(LAST), "step": str(STEP)}
        headers = {"Authorization": f"Bearer {self.cluster.api.token}"}
        async with self.session.get(f"{self.url}/api/v1/history", params=query, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return json.loads(await answer.read())

    async def until_past(self, condition: Callable[[Any], bool], of: str, name: str, series: str) -> Any:
        """The past, once it is as it should be."""
        async with asyncio.timeout(300):
            while True:
                found = await self.past(of, name, series)
                if condition(found):
                    return found
                await asyncio.sleep(0.5)

    async def asked_by_hand(self, expression: str, document: Any, scale: float) -> list[float | None]:
        """What Prometheus itself says at the end of each step of an answer."""
        since = datetime.datetime.fromisoformat(document["since"]).timestamp()
        steps = len(document["lines"][0]["values"])
        form: dict[str, str | float] = {"query": expression, "step": STEP}
        form |= {"start": since + STEP, "end": since + steps * STEP}
        async with self.session.get(f"{self.prometheus.url}/api/v1/query_range", params=form) as answer:
            (series,) = (await answer.json())["data"]["result"]
        known = {round(at): round(float(text) / scale, 2) for at, text in series["values"]}
        return [known.get(round(since + number * STEP)) for number in range(1, steps + 1)]


@pytest.fixture
async def scene(testbed_run: Run) -> AsyncIterator[Scene]:
    plan = EmbeddedPlan(few(1, "2xA30-24G"), metrics=True, metrics_seconds=0.5)
    async with contextlib.AsyncExitStack() as stack:
        # The sockets of plugins take a short path.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dp-")))
        cluster = await stack.enter_async_context(EmbeddedCluster(plan, folder))
        await cluster.ready()
        client = await stack.enter_async_context(cluster.client())
        await _running_pod(client)
        (latest,) = cluster.measured.values()
        ports: asyncio.Queue[int] = asyncio.Queue()
        exporter = Exporter(ExporterSettings(listen="127.0.0.1:0", network_policy=True), serving_at=ports.put_nowait)
        exporting = _in_task(stack, exporter.run(latest))
        target = {"targets": [f"127.0.0.1:{await ports.get()}"]}
        scrape = {"job_name": "shoal-metrics", "honor_labels": True, "static_configs": [target]}
        prometheus = PrometheusServer(testbed_run, folder.name, [scrape])
        stack.callback(prometheus.process.kill)
        serving: asyncio.Future[app.Serving] = asyncio.get_running_loop().create_future()
        config = DashboardConfig(port=0, prometheus=PrometheusConfig(url=prometheus.url), measure_seconds=1.0)
        access = load_kubeconfig([cluster.kubeconfig], environ={}, explicit=True)
        _in_task(stack, app.run(config, access, serving=serving.set_result))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        made = Scene(cluster, prometheus, (await serving).url, session, exporting)
        await _shown(made)
        yield made


async def _running_pod(client: Client) -> None:
    await client.create(PODS.raw, pod_object("trainer", 8, "memory=6Gi utilisation=40"), namespace="default")
    async with asyncio.timeout(300):
        while True:
            if (await client.get(PODS, "trainer", namespace="default")).status.phase == "Running":
                return
            await asyncio.sleep(0.1)


async def _shown(scene: Scene) -> None:
    """Return when the dashboard has seen the node."""
    headers = {"Authorization": f"Bearer {scene.cluster.api.token}"}
    async with asyncio.timeout(300):
        while True:
            async with scene.session.get(f"{scene.url}/api/v1/cards/{scene.card}", headers=headers) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


def _in_task(stack: contextlib.AsyncExitStack, work: Any) -> asyncio.Task[None]:
    task: asyncio.Task[None] = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    stack.push_async_callback(end)
    return task


def _known(document: Any) -> list[float]:
    return [value for line in document["lines"] for value in line["values"] if value is not None]


async def test_the_past_is_what_prometheus_answers_and_the_rings_when_it_does_not(scene: Scene) -> None:
    card, pod = scene.card, ("pod", "default/trainer", "used")

    def from_prometheus(found: Any) -> bool:
        return bool(found["source"] == "prometheus")

    await scene.until_past(lambda found: from_prometheus(found) and len(_known(found)) >= 2, "card", card, "used")
    # A program of nobody comes: the past is no straight line.
    scene.cluster_nvml.add_process(card, 77, 3 * GIB, 0)
    used = await scene.until_past(
        lambda found: from_prometheus(found) and 9 * 1024 in _known(found), "card", card, "used"
    )
    assert set(_known(used)) >= {6 * 1024, 9 * 1024}

    for series, (name, scale) in CARD_SERIES.items():
        found = await scene.past("card", card, series)
        assert (found["source"], found["unit"]) == ("prometheus", SERIES[series].unit)
        assert [line["card"] for line in found["lines"]] == [card]
        assert found["lines"][0]["values"] == await scene.asked_by_hand(f'{name}{{UUID="{card}"}}', found, scale)
        assert _known(found), series
    found = await scene.past(*pod)
    expression = 'shoal_container_memory_used_bytes{namespace="default",pod="trainer"}'
    assert found["source"] == "prometheus"
    assert found["lines"][0]["values"] == await scene.asked_by_hand(expression, found, MIB)
    assert set(_known(found)) == {6 * 1024}
    busy = await scene.past("pod", "default/trainer", "utilisation")
    assert busy["source"] == "collectors", "Prometheus has no such series"
    node = await scene.past("node", next(iter(scene.cluster.nodes)).name, "used")
    assert [len(line["values"]) for line in node["lines"]] == [LAST // STEP] * 2

    await _without_prometheus(scene)


async def _without_prometheus(scene: Scene) -> None:
    """It hangs, dies, comes back, and comes back without knowing anything."""
    card, process = scene.card, scene.prometheus.process

    def from_collectors(found: Any) -> bool:
        return bool(found["source"] == "collectors" and 9 * 1024 in _known(found))

    os.kill(process.pid, signal.SIGSTOP)
    try:
        await scene.until_past(from_collectors, "card", card, "used")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    await scene.until_past(lambda found: found["source"] == "prometheus", "card", card, "used")
    process.kill()
    found = await scene.until_past(from_collectors, "card", card, "used")
    # The ring has means of each step, so that one in which a value changed may lie between.
    assert {6 * 1024, 9 * 1024} <= set(_known(found))
    assert set(_known(await scene.past("pod", "default/trainer", "used"))) == {6 * 1024}
    process.start()
    await scene.until_past(lambda found: found["source"] == "prometheus", "card", card, "used")
    process.kill()
    scene.exporter.cancel()
    shutil.rmtree(scene.prometheus.data)
    process.start()
    await asyncio.to_thread(process.wait_until, scene.prometheus.is_ready, "ready")
    await scene.until_past(from_collectors, "card", card, "used")
