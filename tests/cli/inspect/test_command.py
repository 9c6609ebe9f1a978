"""The command beside its tables: names, documents, reasons, errors."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.model.contract import shoal
from tests.cli.inspect.cluster import Cluster, objects
from tests.testbed import binaries

TWO: dict[str, dict[str, Any]] = {"n1": {"mem": 30, "count": 2}, "n2": {"mem": 15, "cards": {"0": 15360}}}
ALLOCATION = (
    '{"version":1,"node":"n2","containers":[{"name":"c0","cards":[{"uuid":"GPU-n2-0","index":0,"memory":2048}]}]}'
)
PODS: dict[str, dict[str, Any]] = {
    "one": {"node": "n1", "mem": 3, "index": 1},
    "two": {"node": "n2", "mem": 2, "annotations": {shoal.ANNOTATION_ALLOCATION: ALLOCATION}},
    "lost": {"node": "n1", "mem": 4},
    "waits": {"mem": 20, "why": "0/2 nodes are available: 2 Insufficient GPU Memory in one device."},
}


def test_nodes_can_be_named(cluster: Cluster) -> None:
    cluster.put(objects(TWO, PODS))
    one, both = cluster.inspect("n2"), cluster.inspect("n2", "n1")
    assert [line.split()[0] for line in one.output.splitlines()[:2]] == ["NAME", "n2"]
    assert one.output.splitlines()[-1] == "2/15 (13%)  "
    assert [line.split()[0] for line in both.output.splitlines()[:3]] == ["NAME", "n1", "n2"]


def test_a_node_that_is_not_there(cluster: Cluster) -> None:
    cluster.put(objects(TWO, {}))
    for names in (["n3"], ["n1", "n3"]):
        result = cluster.inspect(*names)
        assert result.exit_code == 1
        assert result.stderr == 'Failed due to nodes "n3" not found: see `kubectl get nodes` for their names\n'
        assert result.stdout == ""


def test_json_and_yaml_say_the_same(cluster: Cluster) -> None:
    cluster.put(objects(TWO, PODS))
    document = json.loads(cluster.inspect("-o", "json").output)
    assert document == yaml.safe_load(cluster.inspect("-o", "yaml").output)
    assert (document["memoryUnit"], document["allocatedMiB"], document["totalMiB"]) == ("GiB", 9 * 1024, 45 * 1024)
    first, second = document["nodes"]
    assert [gpu["allocatedMiB"] for gpu in first["gpus"]] == [0, 3072]
    assert first["gpus"][0]["uuid"] is None
    assert first["gpus"][0]["healthy"] is None
    assert [(pod["name"], pod["memoryMiB"]) for pod in first["pending"]] == [("lost", 4096)]
    assert second["gpus"][0]["uuid"] == "GPU-n2-0"
    assert second["gpus"][0]["isolation"] == "none"
    assert second["gpus"][0]["memoryLimitEnforced"] is False
    (holder,) = second["gpus"][0]["pods"]
    assert (holder["namespace"], holder["name"], holder["memoryMiB"]) == ("default", "two", 2048)
    assert [container["name"] for container in holder["containers"]] == ["c0"]
    assert document["waiting"][0]["why"] == PODS["waits"]["why"]


def test_cordoned_nodes_are_told_apart_for_programs(cluster: Cluster) -> None:
    cluster.put(objects(TWO | {"n2": TWO["n2"] | {"cordoned": True}}, PODS))
    document = json.loads(cluster.inspect("-o", "json").output)
    assert [node["cordoned"] for node in document["nodes"]] == [False, True]
    assert document["totalMiB"] == 45 * 1024
    assert document["schedulable"] == {"allocatedMiB": 7 * 1024, "totalMiB": 30 * 1024}


def test_pods_without_a_card_are_explained_when_asked(cluster: Cluster) -> None:
    cluster.put(objects(TWO, PODS))
    plain, explained = cluster.inspect().output, cluster.inspect("--pending").output
    assert explained == plain + (
        "\nWithout a card:\n"
        "  default/lost (4 GiB): it is bound to node n1 without a card: no GPU scheduler placed it\n"
        "  default/waits (20 GiB): 0/2 nodes are available: 2 Insufficient GPU Memory in one device.\n"
    )


def test_text_of_others_cannot_steer_the_terminal(cluster: Cluster) -> None:
    card = {"memory_mib": 15360, "model": "T4 \x1b[31m", "healthy": False, "fault": "Xid\n79"}
    cluster.put(objects({"n1": {"mem": 15, "cards": {"0": card}}}, {"waits": {"mem": 1, "why": "no \x1b]0;room"}}))
    out = cluster.inspect("-o", "wide", "--pending").output
    assert "\x1b" not in out
    assert "T4  [31m" in out
    assert "Unhealthy (Xid 79)" in out


def test_a_node_that_cannot_be_read_is_told(cluster: Cluster) -> None:
    cluster.put(objects(TWO | {"n3": {"annotations": {shoal.ANNOTATION_GPUS: "{}"}}}, {}))
    result = cluster.inspect("--pending")
    assert result.exit_code == 0
    assert "Not read:\n  node n3: " in result.output
    assert cluster.inspect().output.splitlines()[-1] == "0/45 (0%)  "


def test_the_unit_can_be_said(cluster: Cluster) -> None:
    cluster.put(objects({"n1": {"mem": 80, "count": 1}}, {"p": {"node": "n1", "mem": 8, "index": 0}}))
    assert "GPU Memory(GiB)" in cluster.inspect().output
    said = cluster.inspect("--memory-unit", "MiB").output
    assert "GPU Memory(MiB)" in said
    assert "8/80 (10%)" in said
    assert json.loads(cluster.inspect("--memory-unit", "MiB", "-o", "json").output)["allocatedMiB"] == 8


TEAMS: dict[str, dict[str, Any]] = {
    "ours": {"node": "n1", "mem": 3, "index": 1, "namespace": "team"},
    "ours-lost": {"node": "n1", "mem": 2, "namespace": "team"},
    "ours-later": {"mem": 20, "namespace": "team", "why": "no room"},
    "theirs": {"node": "n1", "mem": 4, "index": 1},
    "theirs-lost": {"node": "n1", "mem": 5},
    "theirs-later": {"mem": 21, "why": "no room"},
}


def test_a_namespace_chooses_who_is_named_not_what_is_counted(cluster: Cluster) -> None:
    cluster.put(objects(TWO, TEAMS))
    assert cluster.inspect("-n", "team").output == cluster.inspect().output
    for arguments in (("-d",), ("-o", "wide"), ("-o", "json"), ("--pending",)):
        everybody, ours = cluster.inspect(*arguments).output, cluster.inspect(*arguments, "-n", "team").output
        assert "ours" in ours
        assert "theirs" not in ours
        assert "theirs" in everybody
        assert cluster.inspect(*arguments, "-A").output == everybody
        assert cluster.inspect(*arguments, "-A", "-n", "team").output == everybody
    details = cluster.inspect("-d", "-n", "team").output
    assert "Allocated :  14 (46%)" in details
    assert re.search(r"^ours +team +0 +3 +0 +$", details, re.MULTILINE)
    assert re.search(r"^ours-lost +team +0 +0 +2 +$", details, re.MULTILINE)
    document = json.loads(cluster.inspect("-o", "json", "-n", "team").output)
    assert document["namespace"] == "team"
    assert document["allocatedMiB"] == 14 * 1024
    assert document["nodes"][0]["gpus"][1]["allocatedMiB"] == 7 * 1024
    assert [pod["name"] for pod in document["nodes"][0]["gpus"][1]["pods"]] == ["ours"]
    assert [pod["name"] for pod in document["waiting"]] == ["ours-later"]


def test_memory_of_pods_that_are_not_named_is_told(cluster: Cluster) -> None:
    cluster.put(objects({"n1": TWO["n1"]}, {"lost": {"node": "n1", "mem": 4}}))
    rows = cluster.inspect("-o", "wide", "-n", "team").stdout.splitlines()
    assert rows[-1].split() == ["n1", "Ready", "?", "<none>", "<none>", "4", "<none>", "<none>", "<none>"]


def test_a_namespace_without_pods_is_told(cluster: Cluster) -> None:
    cluster.put(objects(TWO, PODS))
    result = cluster.inspect("-d", "-n", "defualt")
    assert result.exit_code == 0
    assert result.stderr == "Note: no pod of namespace 'defualt' asks for a GPU here.\n"
    assert cluster.inspect("-d", "-n", "default").stderr == ""
    assert cluster.inspect("-d").stderr == ""


def test_details_have_no_other_form() -> None:
    result = CliRunner().invoke(main, ["inspect", "-d", "-o", "json"])
    assert result.exit_code == 2
    assert "leave out -o json" in result.output


@pytest.mark.parametrize("more", [(), ("-w",)])
def test_a_cluster_that_cannot_be_reached(tmp_path: Path, more: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "config"
    config.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
            }
        )
    )
    result = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(config), *more])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Failed due to ")
    assert server.removeprefix("https://") in result.stderr
    assert "secret" not in result.stderr


def test_no_kubeconfig() -> None:
    result = CliRunner().invoke(main, ["inspect", "--kubeconfig", "/nowhere"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Failed due to ")


@pytest.mark.usefixtures("testbed_run")
def test_kubectl_finds_the_plugin(cluster: Cluster, tmp_path: Path) -> None:
    """The script comes with the install."""
    kubectl = binaries.find("kubectl")
    script = Path(sys.executable).with_name("kubectl-inspect-gpushare")
    cluster.put(objects(TWO, PODS))
    path = os.pathsep.join([str(script.parent), os.environ["PATH"]])
    command = [str(kubectl), "inspect", "gpushare"]
    environ = {"PATH": path, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert shutil.which(script), "the script is not installed: run make .venv/.installed"
    assert done.stdout == cluster.inspect().output, done.stderr


def test_a_viewer_may_use_it(real_cluster: Cluster) -> None:
    """The right to list nodes and pods is enough, named nodes included."""
    cluster = real_cluster
    cluster.put(objects(TWO, PODS))
    kubeconfig = str(cluster.viewer())
    for arguments in ((), ("n1",), ("-o", "json")):
        command = ["inspect", "--kubeconfig", kubeconfig, *arguments]
        assert CliRunner().invoke(main, command).output == cluster.inspect(*arguments).output
    refused = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(cluster.api.kubeconfig("stranger"))])
    assert refused.exit_code == 1
    assert "forbidden" in refused.stderr
