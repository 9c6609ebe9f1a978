"""The folder of manifests: what is read, and the words for what cannot be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from shoal.operator.errors import OperandsError
from shoal.operator.manifests import digest_of, read_manifests, state_of
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


def pod(**fields: object) -> str:
    """A DaemonSet of the agent's file, with these fields of its pods."""
    spec = {"serviceAccountName": "shoal-agent", "containers": [{"name": "agent"}], **fields}
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "shoal-agent"},
            "spec": {"template": {"spec": spec}},
        }
    )


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("agent", pod().replace("name: shoal-agent", "name: evil"), "holds DaemonSet 'evil': write shoal-agent"),
        ("agent", pod(serviceAccountName="shoal-operator"), "runs as ServiceAccount 'shoal-operator'"),
        ("agent", pod(serviceAccount="shoal-operator"), "runs as ServiceAccount"),
        ("agent", "{apiVersion: v1, kind: ConfigMap, metadata: {name: shoal-operands}}", "write shoal-agent"),
        ("mps", pod().replace("name: shoal-agent", "name: shoal-mps"), "write ''"),
        ("evil", pod(), "is no file of an operand"),
    ],
)
def test_a_file_holds_its_own_operand_and_account_only(tmp_path: Path, file: str, text: str, words: str) -> None:
    (tmp_path / f"{file}.yaml").write_text(text)
    with pytest.raises(OperandsError, match=words):
        read_manifests(tmp_path)


def test_an_operand_without_an_account_has_no_token(tmp_path: Path) -> None:
    (tmp_path / "mps.yaml").write_text(pod(serviceAccountName="").replace("name: shoal-agent", "name: shoal-mps"))
    with pytest.raises(OperandsError, match="automountServiceAccountToken: false"):
        read_manifests(tmp_path)


def test_only_files_with_the_digest_are_taken(tmp_path: Path) -> None:
    for name, documents in operands().items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    digest = digest_of({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    shell = subprocess.run(
        "sha256sum *.yaml | sha256sum", shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert digest == f"sha256:{shell.stdout.split()[0]}"
    assert read_manifests(tmp_path, digest) == operands()
    with (tmp_path / "agent.yaml").open("a") as file:
        file.write("\n")
    now = digest_of({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    with pytest.raises(OperandsError) as error:
        read_manifests(tmp_path, digest)
    assert all(word in str(error.value) for word in ("ConfigMap shoal-operands", digest, now, "helm upgrade"))
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump_all(operands()["agent"]))
    (tmp_path / "cleanup.yaml").write_text("")
    with pytest.raises(OperandsError, match=digest):
        read_manifests(tmp_path, digest)


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
