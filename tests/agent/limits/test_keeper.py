"""`shoal agent --mps-only`: a process that keeps the MPS daemon running, without a cluster."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.agent.real.conftest import describe_machine
from tests.gpu.conftest import nvml_library  # noqa: F401 - fixture
from tests.testbed.mps.daemons import STAND_IN
from tests.testbed.nvml.shim import Shim
from tests.testbed.waiting import wait_for


class Keeper:
    """The process, and the folder of its daemon."""

    def __init__(self, shim: Shim, folder: Path) -> None:
        self.pipe = folder / "pipe"
        self._shim = shim
        self._settings = folder / "agent.yaml"
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        self._settings.write_text(yaml.safe_dump({"nodeName": "n", "mpsDirectory": str(self.pipe), **settings}))
        env = {"LD_LIBRARY_PATH": str(self._shim.directory), "MPS_STAND_IN_OF": str(os.getpid())}
        program = str(Path(sys.executable).parent / "shoal")
        command = [program, "agent", f"--config={self._settings}", "--mps-only"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **env}, stderr=log)
        return self.process

    @property
    def pid(self) -> int:
        """The daemon's; 0 while there is none."""
        path = self.pipe / "nvidia-cuda-mps-control.pid"
        return int(path.read_text() or "0") if path.exists() else 0


@pytest.fixture
def keeper(nvml_library: Path, tmp_path: Path) -> Iterator[Keeper]:  # noqa: F811
    shim = Shim(nvml_library, tmp_path)
    shim.write(describe_machine("1xA30"))
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    keeper = Keeper(shim, folder)
    yield keeper
    assert keeper.process is not None
    keeper.process.kill()
    keeper.process.wait()
    if keeper.pid:
        os.kill(keeper.pid, signal.SIGKILL)
    shutil.rmtree(folder)


def test_daemon_is_kept_and_outlives_its_keeper(keeper: Keeper, tmp_path: Path) -> None:
    process = keeper.start(mpsProgram=str(STAND_IN), mpsLogDirectory=str(tmp_path / "log"))
    wait_for(lambda: keeper.pid > 0, "running")
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: keeper.pid not in (0, first), "running again")
    assert json.loads((keeper.pipe / "started").read_text()) == {"protocol": 3, "multi_user": True}
    process.terminate()
    assert process.wait() == 0
    os.kill(keeper.pid, 0)


def test_without_a_program_there_is_nothing_to_keep(keeper: Keeper) -> None:
    assert keeper.start().wait() == 1
    assert "there is no MPS daemon to keep: set mpsProgram" in keeper.log.read_text()
