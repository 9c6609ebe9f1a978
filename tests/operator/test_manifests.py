"""The folder of manifests: what is read, and the words for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shoal.operator.errors import OperandsError
from shoal.operator.manifests import read_manifests, state_of
from tests.operator.scene import operands


def test_files_by_name(tmp_path: Path) -> None:
    for name, documents in operands().items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    (tmp_path / "README").write_text("no manifest")
    (tmp_path / "..data.yaml").write_text("{")
    assert read_manifests(tmp_path) == operands()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no YAML"),
        ("[1]", "write Kubernetes objects"),
        ("{apiVersion: v1, kind: Secret, metadata: {name: x}}", "operands are DaemonSet"),
        ("{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: x}, spec: {}}", "without a container"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a.yaml: '{'}}", "no YAML"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a.yaml: '[1]'}}", "write key: value"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a.yaml: 1}}", "write text"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: [1]}", "write files by name"),
        ("# " + "x" * (1 << 20), "more than"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "agent.yaml").write_text(text)
    with pytest.raises(OperandsError, match=words) as error:
        read_manifests(tmp_path)
    assert "agent.yaml" in str(error.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OperandsError, match="shoal-operands"):
        read_manifests(tmp_path / "absent")
    assert state_of(tmp_path / "absent") == ()


def test_a_mounted_config_map_that_changes(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "agent.yaml").write_text(f"# {version}")
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "..data").symlink_to(tmp_path / "1")
    (mount / "agent.yaml").symlink_to("..data/agent.yaml")
    before = state_of(mount)
    assert before == state_of(mount)
    (mount / "..new").symlink_to(tmp_path / "2")
    (mount / "..new").rename(mount / "..data")
    assert state_of(mount) != before
