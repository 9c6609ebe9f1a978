"""The simulated kubelet under the agent, in this process."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.agent import app
from shoal.agent.config import AgentConfig
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Nvml
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kubelet.host_paths import HostPaths
from tests.agent.lab import Lab
from tests.embedded.nodes.conftest import (  # noqa: F401 - fixtures
    NewSimulatedNode,
    apiserver,
    namespace,
    new_node,
    short_folder,
    simulated,
)
from tests.embedded.nodes.simulated import SimulatedNode, SimulatedServer
from tests.kubelet.conftest import plugin_loop, pods  # noqa: F401 - fixtures
from tests.kubelet.pods import Pods


class InProcess:
    """An agent on the loop of the simulated cluster."""

    def __init__(
        self,
        server: SimulatedServer,
        node: SimulatedNode,
        settings: Mapping[str, object],
        nvml,
        kubeconfig: Path | None = None,
    ) -> None:
        self.port = 0
        self._loop = server.loop
        self._reloads: asyncio.Queue[AgentConfig] = asyncio.Queue()
        self._settings = {"host": "127.0.0.1", "port": 0}
        self._paths = paths_of(node)
        access = load_kubeconfig([kubeconfig or server.api.kubeconfig()], environ={}, explicit=True)
        self._task = self._loop.run(self._start(self._config(settings), access, nvml))

    async def _start(self, config: AgentConfig, access, nvml) -> asyncio.Task[None]:
        serving = asyncio.Event()

        def served(port: int) -> None:
            self.port = port
            serving.set()

        task = asyncio.create_task(
            app.run(config, access, nvml, self._paths, reloads=self._reloads, serving=served), name="agent"
        )
        await serving.wait()
        return task

    def stop(self) -> None:
        self._loop.run(self._stop())

    # In one process there is no other end than this; the real one is killed.
    kill = stop

    async def _stop(self) -> None:
        self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result

    def _config(self, settings: Mapping[str, object]) -> AgentConfig:
        return msgspec.convert({**self._settings, **settings}, AgentConfig)

    def reload(self, **settings: object) -> None:
        self._loop.run(self._reloads.put(self._config(settings)))


def paths_of(node: SimulatedNode) -> HostPaths:
    """The folders of a simulated node."""
    folders = node.inner.host.folders
    root = folders.root
    return HostPaths(
        folders.device_plugins,
        folders.pod_resources,
        folders.cdi,
        dev=root / "dev",
        run=folders.run,
        pod_cgroups=folders.cgroups,
        programs=root / "programs",
        cgroup2=root / "cgroup.controllers",
        plugins_registry=folders.plugins_registry,
        plugins=folders.plugins,
        host_plugins=folders.plugins,
    )


class SimulatedLab(Lab):
    """On a simulated kubelet."""

    def __init__(self, node: SimulatedNode, pods: Pods) -> None:  # noqa: F811
        super().__init__(node, pods)
        #: How the agent opens its driver.
        self.open_driver: Callable[[], Nvml] = lambda: node.inner.host.nvml
        #: How the agent reaches its API server, if not straight.
        self.kubeconfig: Path | None = None

    def launch(self, settings: Mapping[str, object]) -> InProcess:
        return InProcess(self.pods.apiserver, self.node, settings, self.open_driver, self.kubeconfig)

    def clean(self) -> None:
        access = load_kubeconfig([self.pods.apiserver.api.kubeconfig()], environ={}, explicit=True)
        config = msgspec.convert({"nodeName": self.node.name}, AgentConfig)
        self.pods.apiserver.loop.run(app.cleanup(config, access, paths_of(self.node), self.open_driver))


NewLab = Callable[..., SimulatedLab]


@pytest.fixture
def new_lab(new_node: NewSimulatedNode, pods: Pods) -> Iterator[NewLab]:  # noqa: F811
    """Nodes with an agent each."""
    made: list[SimulatedLab] = []

    def make(cards: object = "4xT4", *, start: bool = True, **settings: Any) -> SimulatedLab:
        lab = SimulatedLab(new_node(cards=parse_cards(cards)), pods)
        made.append(lab)
        if start:
            lab.start(**settings)
        return lab

    yield make
    for lab in made:
        lab.stop()
