"""The generated code in the tree is what `make proto` makes of the .proto files."""

import subprocess
import sys
from pathlib import Path

import shoal.kubelet.api

API = Path(shoal.kubelet.api.__file__).parent
SOURCE = API.parents[2]


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "pyi")]
    protos = sorted(API.glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", SOURCE, *outputs, *protos], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / API.relative_to(SOURCE)).iterdir()}
    assert made == {path.name: path.read_text() for path in API.glob("*_pb2*")}
