"""`shoal metrics` as a process of its own beside a real kubelet, with the stand-in for NVIDIA's library."""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from tests.agent.real.conftest import NewLab, RealLab, new_lab  # noqa: F401 - fixture
from tests.gpu.conftest import nvml_library  # noqa: F401 - fixture
from tests.kubelet.conftest import plugin_loop, pods  # noqa: F401 - fixtures
from tests.testbed.cgroups import NodeCgroup
from tests.testbed.nvml.shim import describe
from tests.testbed.processes import Process, Run
from tests.testbed.waiting import wait_for

_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: By card's index and PID, the bytes that a process uses.
Uses = Mapping[tuple[int, int], int]
INTERVAL = 0.5


def described(cards: str, uses: Uses) -> str:
    """The file of the stand-in library for cards with these processes."""
    descriptions = {one.index: one for one in parse_cards(cards)}
    truth = SimulatedNvml(descriptions.values(), clock=lambda: 1000.0)
    for (index, pid), memory in uses.items():
        truth.add_process(truth.uuids()[index], pid, memory, 10)
    known = [(card, truth.sample(card.uuid), descriptions[card.index]) for card in truth.survey().cards]
    return describe(truth.driver(), known)


class CollectorProcess:
    """One collector. `apart`: in PID and cgroup namespaces of its own, with the host's /proc mounted elsewhere."""

    def __init__(self, lab: RealLab, run: Run, folder: Path, *, apart: bool, **settings_of_parts: object) -> None:
        self.lab = lab
        self.port = run.reservations.port()
        settings = folder / "metrics.yaml"
        proc = folder / "host-proc" if apart else Path("/proc")
        settings.write_text(
            yaml.safe_dump(
                {
                    "nodeName": lab.node.name,
                    "intervalSeconds": INTERVAL,
                    "procRoot": str(proc),
                    "exporter": {"listen": f"127.0.0.1:{self.port}", "podLabels": "always"},
                    "history": {"folder": str(folder / "history"), "host": "127.0.0.1", "port": 0},
                    **settings_of_parts,
                }
            )
        )
        program = Path(sys.executable).parent / "shoal"
        command: list[str | Path] = [program, "metrics", f"--config={settings}", f"--kubeconfig={lab.kubeconfig}"]
        if apart:
            proc.mkdir(exist_ok=True)
            cgroup = NodeCgroup(run, f"{lab.node.name}-collector")
            cgroup.make()
            entered = "".join(f"echo $$ > {place}/cgroup.procs; " for place in cgroup.folders)
            # As a container has it: a cgroup of its own whose root it takes for the root, and its own processes alone.
            inside = (
                f"{entered} mount --bind /proc {proc} && exec unshare --cgroup --pid --fork --kill-child --mount-proc"
            )
            caps = "setpriv --bounding-set=-all --inh-caps=-all"
            command = ["unshare", "--mount", "sh", "-c", f'{inside} {caps} -- "$@"', "sh", *command]
        env = {**os.environ, "LD_LIBRARY_PATH": str(lab.shim.directory)}
        self.process: Process = run.process(f"{lab.node.name}-metrics", command, env)

    def series(self) -> list[tuple[str, dict[str, str], float]]:
        """All that the collector shows now; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return []
        found = []
        for line in text.splitlines():
            match = None if line.startswith("#") else _SERIES.fullmatch(line)
            if match:
                found.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))
        return found

    def used(self) -> dict[tuple[str, str, str], float]:
        """By pod, container and card's number."""
        return {
            (labels["pod"], labels["container"], labels["gpu"]): value
            for name, labels, value in self.series()
            if name == "shoal_container_memory_used_bytes"
        }

    def unattributed(self) -> dict[str, float]:
        """By card's number."""
        return {
            labels["gpu"]: value
            for name, labels, value in self.series()
            if name == "shoal_card_memory_unattributed_bytes"
        }

    def wait_used(self, expected: Mapping[tuple[str, str, str], float]) -> None:
        """Wait until exactly this is used."""
        try:
            self.process.wait_until(lambda: self.used() == expected, "showing what is used", 120)
        except Exception as error:
            raise AssertionError(f"{json.dumps(str(self.used()))}, not {expected}: {error}") from error


NewCollector = Callable[..., CollectorProcess]


@pytest.fixture
def new_collector(testbed_run: Run, tmp_path: Path) -> Iterator[NewCollector]:
    """Collectors, started."""
    made: list[CollectorProcess] = []

    def make(lab: RealLab, *, apart: bool = False, **settings: object) -> CollectorProcess:
        collector = CollectorProcess(lab, testbed_run, tmp_path, apart=apart, **settings)
        made.append(collector)
        collector.process.start()
        return collector

    yield make
    for collector in made:
        collector.process.stop()


def pid_of(mark: str) -> int:
    """The process with this word in its command line, as this machine counts PIDs."""
    found: list[int] = []

    def look() -> bool:
        found.clear()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0] == b"/bin/sh" and any(mark.encode() in word for word in words):
                    found.append(int(folder.name))
        return len(found) == 1

    wait_for(look, f"one process with {mark}")
    return found[0]
