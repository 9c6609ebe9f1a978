"""What the whole collector costs: `shoal metrics` in a process of its own, with all that deploy/metrics switches on.

The API server is the embedded one, in this process; `/proc` is a folder with the files of 200 processes in it, each of
a container of its own. Nothing of the collector is left out but a real driver.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import bench.results as results
from bench.usage import resident
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import NAMESPACES, PODS
from shoal.gpu.describe import CardDescription
from shoal.gpu.protocol import Driver, Process
from shoal.gpu.simulated import SimulatedNvml
from shoal.model.contract import load
from tests.metrics.pods import container_id, manifest
from tests.testbed.nvml.shim import Shim, build, describe

NODE = "node-1"
INTERVAL = 5.0
QUICK = 0.5
PROCESSES = 25
SHARE_GIB = 1
MEBIBYTE = 2**20
_FIRST_PID = 100_000
_SHOWN = re.compile(rb'^shoal_container_memory_used_bytes\{[^\n]*pod="round-(\d+)-', re.MULTILINE)
_PORT = re.compile(r"Prometheus is served on port (\d+)")
#: Seconds after which a collector is given up.
_PATIENCE = 300.0


class BusyNode:
    """An API server, a stand-in for NVIDIA's library and a `/proc`, all telling of the same 200 containers."""

    def __init__(self, api: EmbeddedApi, folder: Path, descriptions: tuple[CardDescription, ...]) -> None:
        self._api = api
        self._proc = folder / "proc"
        self._proc.mkdir()
        self.shim = Shim(build(folder), Path(tempfile.mkdtemp(dir=folder)))
        self._descriptions = descriptions
        truth = SimulatedNvml(descriptions, clock=time.monotonic)
        self._driver: Driver = truth.driver()
        self._cards = [(card, truth.sample(card.uuid)) for card in truth.survey().cards]
        self.uuids = [card.uuid for card, _ in self._cards]
        self.containers = len(self.uuids) * PROCESSES
        self._made: list[str] = []

    def renew(self, number: int) -> None:
        """All containers end, and as many others run in their place, under PIDs that were used before."""
        for name in self._made:
            old = self._api.registry.get(PODS, "default", name)
            self._api.registry.remove(PODS, old, old)
        self._made = []
        for place in range(self.containers):
            self._start(number, place)
        self.shim.write(
            describe(
                self._driver,
                [
                    (card, replace(sample, **self._use(index)), self._descriptions[index])
                    for index, (card, sample) in enumerate(self._cards)
                ],
            )
        )

    def _use(self, index: int) -> dict[str, Any]:
        first = _FIRST_PID + PROCESSES * index
        running = tuple(Process(first + place, 100 * MEBIBYTE, 3) for place in range(PROCESSES))
        return {"memory_used_bytes": PROCESSES * 100 * MEBIBYTE, "processes": running}

    def _start(self, number: int, place: int) -> None:
        name = f"round-{number}-{place}"
        known = container_id(1 + number * self.containers + place)
        shares = {"main": [(self.uuids[place // PROCESSES], SHARE_GIB)]}
        text = manifest(name, shares=shares, ids={"main": known}, node=NODE)
        made = self._api.registry.create(PODS, "default", text)
        self._api.registry.update(
            PODS, "default", name, {"metadata": {"name": name}, "status": text["status"]}, subresource="status"
        )
        self._made.append(name)
        pid = _FIRST_PID + place
        folder = self._proc / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = f"/../../kubepods/burstable/pod{made['metadata']['uid']}/{known}"
        hierarchies = ("devices", "memory", "pids", "cpu,cpuacct", "blkio", "freezer", "cpuset", "name=systemd")
        lines = [f"{9 - row}:{what}:{path}\n" for row, what in enumerate(hierarchies)]
        (folder / "cgroup").write_text("".join(lines))
        (folder / "stat").write_text(f"{pid} (python) S {'0 ' * 18}{1000 * number + place} 0")


class CollectorProcess:
    """`shoal metrics` of the node."""

    def __init__(self, api: EmbeddedApi, node: BusyNode, folder: Path, interval: float) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        settings = {
            "nodeName": NODE,
            "intervalSeconds": interval,
            "procRoot": str(folder / "proc"),
            "exporter": {"listen": "127.0.0.1:0"},
            "history": {"folder": str(self._folder / "history"), "host": "127.0.0.1", "port": 0},
            "digest": {},
        }
        path = self._folder / "metrics.yaml"
        path.write_text(yaml.safe_dump(settings))
        program = [sys.executable, "-c", "from shoal.cli.main import main; main()", "metrics"]
        command = [*program, f"--config={path}", f"--kubeconfig={api.kubeconfig()}"]
        # The stand-in looks for events again and again, where a driver would wait.
        environment = {**os.environ, "LD_LIBRARY_PATH": str(node.shim.directory), "NVML_PAUSE": "1000"}
        self._log = self._folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def failed(self) -> SystemExit:
        """Why there is no use in going on."""
        return SystemExit(f"the collector does not do its work:\n{self._log.read_text()[-2000:]}")

    def shown(self) -> dict[int, int]:
        """How many containers of each round it shows."""
        port = _PORT.search(self._log.read_text())
        if port is None:
            return {}
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=60) as answer:
                rounds = [int(number) for number in _SHOWN.findall(answer.read())]
        except (urllib.error.URLError, ConnectionError):
            return {}
        return {number: rounds.count(number) for number in set(rounds)}

    def cpu(self) -> float:
        """Seconds of CPU so far, of all its threads."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory_mb(self) -> float:
        """Resident memory."""
        return resident(self.process.pid)

    async def until_shown(self, number: int, count: int) -> None:
        """Until it shows so many containers of a round, and none of another."""
        end = time.monotonic() + _PATIENCE
        while await asyncio.to_thread(self.shown) != {number: count}:
            if self.process.poll() is not None or time.monotonic() > end:
                raise self.failed()
            await asyncio.sleep(0.02)

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


async def _measured(cards: tuple[CardDescription, ...], seconds: float, rounds: int) -> list[results.Row]:
    with tempfile.TemporaryDirectory(prefix="bm-") as place:
        folder = Path(place)
        async with EmbeddedApi(folder / "api") as api:
            api.registry.create(NAMESPACES, "", {"metadata": {"name": load.NAMESPACE}})
            node = BusyNode(api, folder, cards)
            return [
                *await _steady(api, node, folder, seconds),
                *await _churning(api, node, folder, rounds),
            ]


async def _steady(api: EmbeddedApi, node: BusyNode, folder: Path, seconds: float) -> list[results.Row]:
    """At the interval that it has on a node: its cost, and how long a new container is not seen."""
    node.renew(0)
    collector = CollectorProcess(api, node, folder, INTERVAL)
    try:
        await collector.until_shown(0, node.containers)
        await asyncio.sleep(INTERVAL)
        cpu, begun = collector.cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        part = 100 * (collector.cpu() - cpu) / (time.monotonic() - begun)
        memory = collector.memory_mb()
        late = 0.0
        for number in range(1, 4):
            node.renew(number)
            begun = time.monotonic()
            await collector.until_shown(number, node.containers)
            late = max(late, time.monotonic() - begun)
    finally:
        collector.end()
    return [
        results.below("collector, 8 cards x 25 containers, 5 s: CPU", part, "% of a core", 0.5),
        results.below("collector: memory", memory, "MB", 80),
        results.below("200 containers start: all attributed after", late / INTERVAL, "intervals", 1.1),
    ]


async def _churning(api: EmbeddedApi, node: BusyNode, folder: Path, rounds: int) -> list[results.Row]:
    """Containers come and go as fast as the collector sees them."""
    collector = CollectorProcess(api, node, folder, QUICK)
    sizes: list[float] = []
    try:
        for number in range(10, 10 + rounds):
            node.renew(number)
            await collector.until_shown(number, node.containers)
            sizes.append(collector.memory_mb())
    finally:
        collector.end()
    # The first rounds fill what is bounded.
    early, late = sizes[len(sizes) // 3], sizes[-1]
    return [
        results.Row("containers that came and went", rounds * node.containers, ""),
        results.Row("memory after a third of them", early, "MB"),
        results.below("memory at the end, of that", late / early, "x", 1.1),
        results.below("memory at the end", late, "MB", 80),
    ]


def collecting(cards: tuple[CardDescription, ...], *, seconds: float, rounds: int) -> list[results.Row]:
    """The rows of the whole collector."""
    return asyncio.run(_measured(cards, seconds, rounds))
