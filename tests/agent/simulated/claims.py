"""A simulated node whose agent offers claims, with the controllers and Shoal's own scheduler in the same process."""

import asyncio
import contextlib
import http.client
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from shoal.embedded.controllers.loop import Controllers
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import NodeDescription
from shoal.gpu.describe import parse_cards
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.model.contract import kubernetes
from shoal.scheduler import app as scheduler
from shoal.scheduler.config import ElectionConfig, SchedulerConfig
from tests.agent.claiming import ROOT, Claiming
from tests.agent.simulated.conftest import SimulatedLab
from tests.embedded.nodes.simulated import TIMING, SimulatedNode, SimulatedServer
from tests.kubelet.device_plugin import PluginLoop
from tests.kubelet.pods import Pods
from tests.testbed.waiting import wait_for

CONFIG = SchedulerConfig(
    scheduler_names=(kubernetes.DEFAULT_SCHEDULER, "gpu-scheduler"),
    host="127.0.0.1",
    port=0,
    health_host="127.0.0.1",
    health_port=0,
    claims=True,
    tls=None,
    open_inspect=True,
    election=ElectionConfig(enabled=False),
)


class SimulatedClaimsLab(Claiming, SimulatedLab):
    """On a simulated kubelet."""

    def __init__(self, node: SimulatedNode, pods: Pods) -> None:
        super().__init__(node, pods)
        self.said = _Said()
        #: Where the scheduler answers.
        self.scheduler_port = 0

    def inspect(self) -> dict[str, Any]:
        """The scheduler's ledger as gpushare's clients see it, by node."""
        connection = http.client.HTTPConnection("127.0.0.1", self.scheduler_port, timeout=60)
        try:
            connection.request("GET", "/gpushare-scheduler/inspect")
            return {node["name"]: node for node in json.load(connection.getresponse())["nodes"]}
        finally:
            connection.close()

    def wait_logged(self, *words: str) -> None:
        def said() -> bool:
            return any(all(one in line for one in words) for line in self.said.lines)

        wait_for(said, f"said by the agent: {' … '.join(words)}")

    def pause_kubelet(self) -> None:
        self.node.kubelet.stop()

    def resume_kubelet(self) -> None:
        self.node.kubelet.start()

    def lose_card(self, index: int) -> None:
        self.node.inner.host.nvml.lose(self.card(index).uuid)

    def mend_cards(self) -> None:
        for uuid in self.node.inner.host.nvml.uuids():
            self.node.inner.host.nvml.restore(uuid)


class _Said(logging.Handler):
    """What the agent logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger("shoal.agent")
        self._level = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)

    def stop(self) -> None:
        """Listen no longer."""
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def simulated_claims(
    loop: PluginLoop,
    folder: Path,
    cards: str = "4xT4",
    *,
    kind: type[SimulatedClaimsLab] = SimulatedClaimsLab,
    **settings: Any,
) -> Iterator[SimulatedClaimsLab]:
    """A cluster of one node, whose agent offers claims that Shoal's scheduler allocates."""
    server = SimulatedServer(loop, folder)
    server.create_namespace("tenant")
    device_class = yaml.safe_load((ROOT / "deploy/agent-claims/device-class.yaml").read_text())
    server.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", device_class)
    access = load_kubeconfig([server.api.kubeconfig()], environ={}, explicit=True)

    serving: asyncio.Queue[scheduler.Ports] = asyncio.Queue()

    async def start() -> tuple[Nodes, list[asyncio.Task[None]]]:
        nodes = Nodes(server.api, (), folder / "n", timing=TIMING)
        await nodes.start()
        return nodes, [
            asyncio.create_task(Controllers(server.api.registry, server.api.deletion).run()),
            asyncio.create_task(scheduler.run(CONFIG, access, identity="simulated", serving=serving.put_nowait)),
        ]

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in results), results
        await nodes.stop()

    nodes, tasks = loop.run(start())
    node = SimulatedNode(server, nodes, NodeDescription("claims", cards=parse_cards(cards)))
    lab = kind(node, Pods(server, "tenant"))  # type: ignore[arg-type]
    lab.scheduler_port = loop.run(serving.get()).extender
    lab.given_settings = {"claims": True, **settings}
    try:
        lab.start(**lab.given_settings)
        yield lab
    finally:
        lab.stop()
        lab.said.stop()
        loop.run(stop())
        server.stop()
