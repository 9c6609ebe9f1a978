"""A real Prometheus scrapes real endpoints: numbers, dashboards and alerts by its own answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.agent.app import serve_probes
from shoal.embedded.certificates import make_pki
from shoal.gpu.protocol import Sample
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.metrics import app
from shoal.metrics.config import MetricsConfig
from shoal.metrics.exporter.counters_csv import SERVED
from shoal.metrics.exporter.passwords import bcrypt
from shoal.metrics.exporter.render import SnapshotText
from shoal.metrics.exporter.server import Exporter, InfluxSource
from shoal.metrics.exporter.settings import ExporterSettings
from shoal.metrics.influx import InfluxBuffer
from shoal.metrics.processes import ContainerRef
from shoal.metrics.snapshot import CardSnapshot, LatestSnapshot, Snapshot
from shoal.model.request import Share
from shoal.scheduler import health
from shoal.scheduler.metrics import LedgerSource, Metrics, WatchSource
from tests.metrics.exporter.snapshots import GIB, MIB, card_snapshot, container_of, renamed, snapshot_of
from tests.metrics.machine import Machine
from tests.metrics.pods import NODE, container_id
from tests.metrics.test_collector import make
from tests.placement.clusters import booking, ledger_of, node
from tests.testbed.processes import Run
from tests.testbed.prometheus import PrometheusServer, promtool
from tests.testbed.waiting import wait_for

pytestmark = pytest.mark.kube

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "shoal.json"
PASSWORD = "scrape-me"
SALT = "$2b$04$abcdefghijklmnopqrstuu"


def node_snapshot(name: str) -> Snapshot:
    """A node with every kind of card: idle, of one pod, shared with over-use and nobody's memory, lost."""
    cards: list[CardSnapshot] = [
        card_snapshot(0),
        card_snapshot(1, [container_of(1, GIB)]),
        card_snapshot(2, [container_of(2, 6 * GIB), container_of(3, 2 * GIB)], unattributed=GIB),
        card_snapshot(3, sampled=False),
    ]
    named = [replace(card, card=replace(card.card, uuid=f"GPU-{name}-{card.card.index}")) for card in cards]
    return replace(snapshot_of(named, interval=300.0), node=name)


class Scene:
    """Two collectors' ports, a scheduler's and an agent's, served by a thread of their own."""

    def __init__(self, folder: Path) -> None:
        self.ports: dict[str, int] = {}
        self.pki = make_pki(folder / "pki", now=datetime.now(UTC))
        self.snapshots = {name: node_snapshot(name) for name in ("gpu-1", "gpu-2")}
        self._web = folder / "web.yaml"
        self._web.write_text(
            f"tls_server_config: {{cert_file: {self.pki.certificate}, key_file: {self.pki.key}}}\n"
            f"basic_auth_users: {{prometheus: {bcrypt(PASSWORD.encode(), SALT)}}}\n"
        )
        self._failed: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        wait_for(lambda: len(self.ports) == 4 or bool(self._failed), "serving")
        if self._failed:
            raise self._failed[0]

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told in the thread of the test
            self._failed.append(error)

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = []
            for name, settings in (
                ("gpu-1", ExporterSettings(listen="127.0.0.1:0", network_policy=True)),
                ("gpu-2", ExporterSettings(listen="127.0.0.1:0", web_config_file=str(self._web))),
            ):
                latest = LatestSnapshot()
                latest.put(self.snapshots[name])
                exporter = Exporter(
                    settings,
                    sources=[InfluxSource(InfluxBuffer())],
                    serving_at=lambda port, name=name: self.ports.__setitem__(name, port),  # type: ignore[misc]
                )
                tasks.append(group.create_task(exporter.run(latest)))
            metrics = Metrics()
            ledger = ledger_of(node("gpu-1", [80.0, 80.0, 80.0, 80.0]))
            ledger.assume(booking("train-1", "gpu-1", {1: Share(memory_mib=4096)}))
            metrics.registry.add(LedgerSource(ledger))
            metrics.registry.add(WatchSource({}))
            metrics.queue.set(3, "waiting")
            metrics.refusals.inc("memory")
            self.ports["scheduler"] = await stack.enter_async_context(
                health.serve("127.0.0.1", 0, metrics=metrics, not_ready=lambda: "", clock=time.monotonic)
            )
            self.ports["agent"] = await stack.enter_async_context(serve_probes("127.0.0.1", 0, lambda: ""))
            await asyncio.to_thread(self._over.wait)
            for task in tasks:
                task.cancel()

    def scrapes(self) -> list[dict[str, Any]]:
        """As deploy/prometheus/scrape.yaml names the jobs; the nodes' names are their instances."""

        def to(name: str) -> dict[str, Any]:
            return {"targets": [f"localhost:{self.ports[name]}"], "labels": {"instance": name}}

        secured = {
            "scheme": "https",
            "basic_auth": {"username": "prometheus", "password": PASSWORD},
            "tls_config": {"ca_file": str(self.pki.authority), "server_name": "localhost"},
        }
        return [
            {"job_name": "shoal-metrics", "honor_labels": True, "static_configs": [to("gpu-1")]},
            {"job_name": "shoal-metrics-tls", "honor_labels": True, "static_configs": [to("gpu-2")], **secured},
            {"job_name": "shoal-scheduler", "static_configs": [to("scheduler")]},
            {"job_name": "shoal-agent", "static_configs": [to("agent")]},
        ]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("scene"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def prometheus(scene: Scene, testbed_run: Run) -> Iterator[PrometheusServer]:
    server = PrometheusServer(testbed_run, "prometheus", scene.scrapes(), rules=[ALERTS])

    def scraped() -> bool:
        counts = server.values("count_over_time(up[5m]) and up == 1", "instance")
        return len(counts) == 4 and min(counts.values()) >= 3

    server.process.wait_until(scraped, "scraping all four, three times")
    yield server
    server.process.kill()


def test_every_target_is_scraped_also_with_tls_and_a_password(prometheus: PrometheusServer) -> None:
    assert {target["labels"]["instance"]: target["lastError"] for target in prometheus.targets()} == dict.fromkeys(
        ("gpu-1", "gpu-2", "scheduler", "agent"), ""
    )


def test_numbers_come_back_as_the_cards_told_them(prometheus: PrometheusServer, scene: Scene) -> None:
    def told(read: Any) -> dict[tuple[str, str], float]:
        return {
            (node, str(card.card.index)): float(read(card))
            for node, snapshot in scene.snapshots.items()
            for card in snapshot.cards
            if card.sample is not None
        }

    def sample(card: CardSnapshot) -> Sample:
        assert card.sample is not None
        return card.sample

    for name, read in {
        "DCGM_FI_DEV_GPU_TEMP": lambda card: sample(card).temperature_c,
        "DCGM_FI_DEV_POWER_USAGE": lambda card: (sample(card).power_mw or 0) / 1000,
        "DCGM_FI_DEV_SM_CLOCK": lambda card: sample(card).sm_clock_mhz,
        "DCGM_FI_DEV_GPU_UTIL": lambda card: sample(card).utilisation,
        "DCGM_FI_DEV_FB_USED": lambda card: card.used_bytes // MIB,
        "DCGM_FI_DEV_FB_FREE": lambda card: (sample(card).memory_free_bytes or 0) // MIB,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda card: sample(card).energy_mj,
        "DCGM_FI_DEV_THERMAL_VIOLATION": lambda card: sample(card).violation_ns["thermal"],
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda card: 0.25,
        "shoal_card_memory_used_bytes": lambda card: card.used_bytes,
        "shoal_card_memory_unattributed_bytes": lambda card: card.unattributed_bytes,
    }.items():
        assert prometheus.values(name, "instance", "gpu") == told(read), name
        assert len(prometheus.query(name)) == 6, name
    assert prometheus.values("shoal_card_up", "instance", "gpu")[("gpu-1", "3")] == 0
    containers = {
        (node, container.name.namespace, container.name.pod, container.name.container, str(card.card.index)): container
        for node, snapshot in scene.snapshots.items()
        for card in snapshot.cards
        for container in card.containers
    }
    at = ("instance", "namespace", "pod", "container", "gpu")
    for what in ("requested", "limit", "used"):
        found = prometheus.values(f"shoal_container_memory_{what}_bytes", *at)
        assert found == {key: getattr(container, f"{what}_bytes") for key, container in containers.items()}
    # Rule 1 of docs/metrics.md, by Prometheus's own sums.
    odd = prometheus.query(
        "(sum by (instance, gpu) (shoal_container_memory_used_bytes) or sum by (instance, gpu) (shoal_card_up * 0))"
        " + on (instance, gpu) shoal_card_memory_unattributed_bytes"
        " != on (instance, gpu) shoal_card_memory_used_bytes"
    )
    assert odd == []


def test_the_queries_of_dashboard_12239_answer_with_the_right_numbers(prometheus: PrometheusServer) -> None:
    one = 'instance=~"gpu-1",gpu=~"0|1|2|3"'
    assert prometheus.label_values("instance", "DCGM_FI_DEV_GPU_TEMP") == ["gpu-1", "gpu-2"]
    assert prometheus.label_values("gpu", "DCGM_FI_DEV_GPU_TEMP") == ["0", "1", "2"]
    assert prometheus.values(f"DCGM_FI_DEV_GPU_TEMP{{{one}}}", "gpu") == {("0",): 60, ("1",): 61, ("2",): 62}
    assert prometheus.values(f"avg(DCGM_FI_DEV_GPU_TEMP{{{one}}})") == {(): 61}
    assert prometheus.values(f"DCGM_FI_DEV_POWER_USAGE{{{one}}}", "gpu") == {("0",): 100, ("1",): 101.5, ("2",): 103}
    # Once per card, however many pods share it.
    assert prometheus.values(f"sum(DCGM_FI_DEV_POWER_USAGE{{{one}}})") == {(): 304.5}
    assert prometheus.values(f"DCGM_FI_DEV_SM_CLOCK{{{one}}} * 1000000", "gpu")[("0",)] == 1410e6
    assert prometheus.values(f"DCGM_FI_DEV_GPU_UTIL{{{one}}}", "gpu") == {("0",): 50, ("1",): 51, ("2",): 52}
    assert prometheus.values(f"DCGM_FI_DEV_FB_USED{{{one}}}", "gpu") == {("0",): 0, ("1",): 1024, ("2",): 9216}
    assert prometheus.values(f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{one}}}", "gpu")[("2",)] == 0.25


def _expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]


def _filled(expression: str) -> str:
    filled = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$(instance|gpu|namespace|pod)\b", ".*", filled)


def test_every_query_of_the_dashboard_returns_data(prometheus: PrometheusServer) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = _expressions(dashboard)
    assert len(expressions) > 40
    empty = [(title, text) for title, text in expressions if not prometheus.query(_filled(text))]
    assert empty == []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", _filled(variable["query"]["query"]))
            assert found, variable
            assert prometheus.label_values(found[2], found[1]), variable


def test_the_alerts_that_have_cause_are_raised_and_no_others(prometheus: PrometheusServer) -> None:
    # The cards of the scene: one is lost, all had XID 31, retire pages, and one has memory that is nobody's.
    expected = {"ShoalCardLost", "ShoalXidOfProgram", "ShoalRowsRemapped", "ShoalMemoryUnattributed"}

    def raised() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.alerts()}

    prometheus.process.wait_until(lambda: raised() >= expected, "raising alerts")
    assert raised() == expected


def test_every_expression_of_the_alerts_is_answered(prometheus: PrometheusServer) -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert len(rules) >= 18
    for rule in rules:
        prometheus.query(rule["expr"])
        for name in re.findall(r"\b(?:DCGM|shoal)_\w+", rule["expr"]):
            if name != "shoal_scheduler_watch_up":  # there is no watch in this scene
                assert prometheus.query(name), f"{rule['alert']}: nobody exports {name}"


def test_the_rules_do_what_their_tests_say() -> None:
    status, words = promtool("test", "rules", "alerts-test.yaml", folder=ALERTS.parent)
    assert status == 0, words
    tests = yaml.safe_load((ALERTS.parent / "alerts-test.yaml").read_text())["tests"]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert {test["name"] for test in tests} == {rule["alert"] for rule in rules}


def test_promtool_reads_the_scrape_jobs_and_the_rules(tmp_path: Path) -> None:
    settings = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())
    for job in settings["scrape_configs"]:
        # Debian's program is built without Kubernetes: it reads the rest.
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    config = tmp_path / "prometheus.yaml"
    config.write_text(yaml.safe_dump({**settings, "rule_files": [str(ALERTS)]}))
    status, words = promtool("check", "config", config)
    assert status == 0, words


def test_promtool_reads_the_text_whatever_names_hold() -> None:
    hostile = ['a"b\\c\nd', "x" * (64 << 10), 'x"} 1\nDCGM_FI_DEV_GPU_TEMP{gpu="9', "\0\x1b[31m", "\ud800é😀", "# HELP"]
    containers = [
        renamed(container_of(number, GIB), pod=name, namespace=name, container=name)
        for number, name in enumerate(hostile)
    ]
    card = card_snapshot(0, containers)
    card = replace(card, card=replace(card.card, model=hostile[0] + hostile[1]))
    text = "\n".join([*SnapshotText(ExporterSettings()).lines(snapshot_of([card]), SERVED, names_pods=True), ""])
    status, words = promtool("check", "metrics", stdin=text.encode(errors="replace"))
    # 3: names that are not to its taste, which are DCGM's. 1: a text that cannot be read.
    assert status in (0, 3), words
    assert "error while linting" not in words


@contextlib.asynccontextmanager
async def collecting(access: Access, machine: Machine) -> AsyncIterator[tuple[LatestSnapshot, int]]:
    """A collector with simulated cards and its port."""
    latest = LatestSnapshot()
    ports: asyncio.Queue[int] = asyncio.Queue()
    config = MetricsConfig(node_name=NODE, interval_seconds=1.0)
    tasks = [
        asyncio.create_task(
            app.run(
                config,
                access,
                lambda: machine.nvml,
                owners=machine.containers,
                folders=machine.containers,
                latest=latest,
            )
        ),
        asyncio.create_task(
            Exporter(ExporterSettings(listen="127.0.0.1:0", network_policy=True), serving_at=ports.put_nowait).run(
                latest
            )
        ),
    ]
    try:
        yield latest, await ports.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_simulated_cards_are_shown_as_they_are(access: Access, client: Client, testbed_run: Run) -> None:
    machine = Machine()
    first, _ = machine.uuids
    one = await make(client, "one", shares={"main": [(first, 8)]}, ids={"main": container_id(1)})
    two = await make(client, "two", shares={"main": [(first, 4)]}, ids={"main": container_id(2)})
    machine.run(11, 9 * GIB, container=ContainerRef(one, container_id(1)), load=30)
    machine.run(12, 3 * GIB, container=ContainerRef(two, container_id(2)), load=10)
    machine.run(13, 2 * GIB)
    machine.nvml.raise_xid(first, 31)
    async with collecting(access, machine) as (latest, port):
        await latest.after(0)
        machine.nvml.raise_xid(first, 79)
        scrape = {"job_name": "cards", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        server = PrometheusServer(testbed_run, "prometheus-cards", [scrape])
        try:
            used = "shoal_container_memory_used_bytes"
            wanted = {("one", "0"): 9 * GIB, ("two", "0"): 3 * GIB}
            await asyncio.to_thread(
                server.process.wait_until, lambda: server.values(used, "pod", "gpu") == wanted, "showing both pods"
            )
            ask = asyncio.to_thread
            assert await ask(server.values, "shoal_card_memory_unattributed_bytes", "gpu") == {
                ("0",): 2 * GIB,
                ("1",): 0,
            }
            assert await ask(server.values, "DCGM_FI_DEV_FB_USED", "gpu") == {("0",): 14 * 1024, ("1",): 0}
            sample = machine.nvml.sample(first)
            assert (await ask(server.values, "DCGM_FI_DEV_GPU_UTIL", "UUID"))[(first,)] == sample.utilisation
            assert (await ask(server.values, "DCGM_FI_DEV_GPU_TEMP", "UUID"))[(first,)] == sample.temperature_c
            power = (await ask(server.values, "DCGM_FI_DEV_POWER_USAGE", "UUID"))[(first,)]
            assert power == (sample.power_mw or 0) / 1000
            await ask(
                server.process.wait_until,
                lambda: server.values("shoal_card_xid_total", "UUID", "xid").get((first, "79")) == 1,
                "showing the XID",
            )
            over = "shoal_container_overuse_seconds_total"
            await ask(
                server.process.wait_until, lambda: server.values(over, "pod").get(("one",), 0) > 0, "showing over-use"
            )
            assert (await ask(server.values, over, "pod"))[("two",)] == 0
        finally:
            server.process.kill()
