"""What somebody gets who installs the package and has no clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal.embedded.policies.shipped import shipped
from shoal.model.contract.gpushare import MemoryUnit

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_commands_are_there(wheel: zipfile.ZipFile) -> None:
    (path,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    commands = {line.split(" = ")[0] for line in wheel.read(path).decode().splitlines() if " = " in line}
    plugins = {"shoal", "inspect-gpushare"}
    assert commands == {"shoal", *(f"{kind}-{name}" for kind in ("kubectl", "kubectl_complete") for name in plugins)}


def test_the_demo_has_its_examples(wheel: zipfile.ZipFile) -> None:
    inside = {name.removeprefix("shoal/examples/") for name in wheel.namelist() if name.startswith("shoal/examples/")}
    assert inside == {str(path.relative_to(ROOT / "examples")) for path in (ROOT / "examples").rglob("*.*")}


def test_the_embedded_server_has_its_policies(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    told = (
        "from shoal.embedded.policies.shipped import shipped; from shoal.model.contract.gpushare import MemoryUnit\n"
        "print(shipped.__code__.co_filename, *(len(shipped(unit)) for unit in MemoryUnit))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, env=environment, check=True)
    path, *counts = done.stdout.split()
    assert Path(path).is_relative_to(tmp_path)
    assert len(set(counts)) == 1
    assert int(counts[0]) == len(shipped(MemoryUnit.GIB))


def test_the_hook_can_be_built(wheel: zipfile.ZipFile) -> None:
    assert "shoal/agent/limits/hook/shoal-limit.c" in wheel.namelist()
