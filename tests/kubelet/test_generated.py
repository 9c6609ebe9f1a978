"""The generated code in the tree is what `make proto` makes of the .proto files."""

import subprocess
import sys
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parents[1]
APIS = sorted(path for path in (SOURCE / "shoal").glob("*/api") if path.is_dir())


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.parent.name)
def test_generated_code_is_up_to_date(api: Path, tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "pyi")]
    protos = sorted(api.glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", SOURCE, *outputs, *protos], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / api.relative_to(SOURCE)).iterdir()}
    assert made == {path.name: path.read_text() for path in api.glob("*_pb2*")}
