"""The agent as a process of its own, on a real kubelet, with the stand-in for NVIDIA's library."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from tests.agent.lab import Lab
from tests.gpu.conftest import nvml_library  # noqa: F401 - fixture
from tests.kubelet.conftest import plugin_loop, pods  # noqa: F401 - fixtures
from tests.kubelet.pods import Pods
from tests.testbed.node import Node
from tests.testbed.node_fixtures import NewNode
from tests.testbed.nvml.shim import Shim, describe
from tests.testbed.processes import Process, Run

NewLab = Callable[..., Lab]


class Program:
    """`shoal agent` in a process of its own."""

    def __init__(self, process: Process, port: int, settings: Path) -> None:
        self.process = process
        self.port = port
        self._settings = settings
        process.start()

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def reload(self, **settings: object) -> None:
        self._settings.write_text(yaml.safe_dump(settings))
        os.kill(self.process.pid, signal.SIGHUP)


class RealLab(Lab):
    """On a real kubelet."""

    def __init__(self, node: Node, pods: Pods, run: Run, shim: Shim, environment: Mapping[str, str]) -> None:  # noqa: F811
        super().__init__(node, pods)
        self.program: Program | None = None
        #: Further variables of the agent's process.
        self.environment = dict(environment)
        #: What brings the agent's process into the node, if it is to see the node's file system.
        self.within: Sequence[str | Path] = ()
        self._run = run
        self.shim = shim
        self._folder = run.folder(f"{node.name}-agent")
        self.kubeconfig: Path = pods.apiserver.kubeconfig()
        self.dev = run.folder(f"{node.name}-agent", "dev")
        self._starts = 0

    def command(self, *more: str) -> Sequence[str | Path]:
        """The program with the paths of the node."""
        return [
            *self.within,
            *(Path(sys.executable).parent / "shoal", "agent"),
            f"--config={self._folder / 'agent.yaml'}",
            f"--kubeconfig={self.kubeconfig}",
            f"--device-plugins={self.node.device_plugins}",
            f"--pod-resources={self.node.pod_resources}",
            f"--cdi={self.node.cdi}",
            f"--dev={self.dev}",
            f"--host-dev={self.dev}",
            *more,
        ]

    def launch(self, settings: Mapping[str, object]) -> Program:
        path = self._folder / "agent.yaml"
        port = self._run.reservations.port()
        path.write_text(yaml.safe_dump(json.loads(json.dumps(settings))))
        self._starts += 1
        name = f"{self.node.name}-agent-{self._starts}"
        process = self._run.process(name, self.command("--host=127.0.0.1", f"--port={port}"), self._env())
        self.program = Program(process, port, path)
        return self.program

    def clean(self) -> None:
        command = self.command("--cleanup")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._env())
        assert done.returncode == 0, done.stderr

    def _env(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.shim.directory), **self.environment}


def describe_machine(cards: object, *, lost: Collection[int] = ()) -> str:
    """The file of the stand-in library for these cards, of which some have fallen off the bus."""
    descriptions = {one.index: one for one in parse_cards(cards)}
    truth = SimulatedNvml(descriptions.values(), clock=lambda: 1000.0)
    return describe(
        truth.driver(),
        [
            (card, None if card.index in lost else truth.sample(card.uuid), descriptions[card.index])
            for card in truth.survey().cards
        ],
    )


@pytest.fixture
def new_lab(
    new_node: NewNode,
    pods: Pods,  # noqa: F811
    testbed_run: Run,
    nvml_library: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NewLab]:
    """Nodes with an agent each."""
    made: list[RealLab] = []

    def make(cards: object = "4xT4", *, start: bool = True, **settings: Any) -> Lab:
        shim = Shim(nvml_library, tmp_path_factory.mktemp("machine"))
        if cards is not None:
            shim.write(describe_machine(cards))
        lab = RealLab(new_node(), pods, testbed_run, shim, {})
        made.append(lab)
        if start:
            lab.start(**settings)
        return lab

    yield make
    for lab in made:
        lab.stop()
