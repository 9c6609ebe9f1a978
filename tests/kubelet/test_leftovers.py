"""Nothing of a test run stays in the system: not after a clean end, and not when the tests are killed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet import one_node
from tests.testbed import binaries
from tests.testbed.processes import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def other_run(testbed_run: Run) -> Iterator[subprocess.Popen[str]]:
    """Another run of the test bed beside this one, in a process of its own."""
    assert binaries.find("kubelet").exists()
    process = subprocess.Popen(
        [sys.executable, "-m", one_node.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with process:
        yield process
        process.kill()


def traces(made: dict) -> dict[str, list[str]]:
    """What there is of a run, by kind."""
    name = Path(made["run"]).name
    found: dict[str, list[str]] = {"processes": [], "mounts": []}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if name in (process / "cmdline").read_text() + (process / "cgroup").read_text():
                found["processes"].append(process.name)
            if name in (process / "mountinfo").read_text():
                found["mounts"].append(process.name)
        except OSError:
            continue  # it has just ended
    found["cgroups"] = [folder for folder in made["cgroups"] if Path(folder).exists()]
    found["interfaces"] = [one for one in [made["interface"]] if (Path("/sys/class/net") / one).exists()]
    found["folders"] = [str(path) for path in Path(made["run"]).parent.glob(f"{name}*")]
    return found


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_nothing_is_left(other_run: subprocess.Popen[str], how: str):
    assert other_run.stdout is not None
    assert other_run.stdin is not None
    made = json.loads(other_run.stdout.readline())
    before = traces(made)
    assert all(before.values()), before
    assert before["cgroups"] == made["cgroups"]
    if how == "killed":
        other_run.kill()
        other_run.wait()
    else:
        other_run.stdin.close()
        assert other_run.wait(120) == 0
    left = before
    end = time.monotonic() + 60
    while any(left.values()) and time.monotonic() < end:
        time.sleep(0.1)
        left = traces(made)
    assert not any(left.values()), left
