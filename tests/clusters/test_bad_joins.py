"""Clusters that cannot be joined: each is told with cause and fix by `shoal clusters list`, and keeps no other away."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.clusters.config import ClusterManagerConfig
from tests.suites.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedServer]]:
    """Home and a member."""
    made = [EmbeddedServer(tmp_path_factory.mktemp(name)) for name in ("home", "member")]
    yield made
    for one in made:
        one.stop()


def config(at: EmbeddedServer, name: str, **cluster: Any) -> dict[str, Any]:
    """Its kubeconfig, as a file calls the cluster, with some of it replaced."""
    read: dict[str, Any] = yaml.safe_load(at.kubeconfig().read_text())
    read["clusters"][0]["name"] = read["contexts"][0]["context"]["cluster"] = name
    read["clusters"][0]["cluster"].update(cluster)
    return read


def test_what_cannot_be_joined_is_listed_and_keeps_nobody_away(servers: list[EmbeddedServer], tmp_path: Path) -> None:
    home, member = servers
    folder = tmp_path / "clusters"
    folder.mkdir()
    stranger = config(member, "revoked")
    stranger["users"][0]["user"] = {"token": "not-one-of-yours"}
    files = {
        "good": {key: value for key, value in config(member, "good").items() if key != "current-context"},
        "unknown-ca": config(member, "unknown-ca", **{"certificate-authority": str(home.ca)}),
        "nobody-there": config(member, "nobody-there", server="https://127.0.0.1:1"),
        "revoked": stranger,
    }
    for name, content in files.items():
        (folder / name).write_text(yaml.safe_dump(content))
    (folder / "rubbish").write_bytes(b"\x00\xff\xfe")
    (folder / "no-yaml").write_text("a: [")
    (folder / "subfolder").mkdir()
    (folder / "dangling").symlink_to(folder / "nowhere")

    arguments = ["clusters", "list", f"--kubeconfig={home.kubeconfig()}", f"--member-kubeconfig={folder}"]
    result = CliRunner().invoke(main, [*arguments, "-n", "default", "-o", "json"])
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    states = {one["name"]: one["state"] for one in found["clusters"]}
    assert (states["good"], states["home"]) == ("answers", "answers")
    problems = {Path(where).name: words for where, words in found["problems"].items()}
    expected = {
        "unknown-ca": "certificate-authority",
        "nobody-there": "no connection",
        "revoked": "401",
        "rubbish": "is no YAML",
        "no-yaml": "is no YAML",
        "subfolder": "move its files up",
        "dangling": "is not there",
    }
    assert set(problems) == set(expected)
    for name, words in expected.items():
        assert words in problems[name], name
        assert ": " in problems[name], "cause and fix"
    shown = CliRunner().invoke(main, [*arguments, "-n", "default"])
    assert shown.exit_code == 1
    for name in expected:
        assert name in shown.output


def test_settings_are_read_back_as_they_were_written() -> None:
    """Empty names too: `clusterName: ""` says that home takes no pods itself."""
    for settings in (ClusterManagerConfig(), ClusterManagerConfig(cluster_name="")):
        assert msgspec.convert(msgspec.to_builtins(settings), ClusterManagerConfig) == settings
    for bad in ({"clusterName": "a b"}, {"namespace": "-a"}, {"schedulerNamespace": "A"}, {"leaseSeconds": 1}):
        with pytest.raises(msgspec.ValidationError, match=next(iter(bad))):
            msgspec.convert(bad, ClusterManagerConfig)
