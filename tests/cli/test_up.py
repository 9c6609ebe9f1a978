"""`shoal up` as a process: clusters that answer, and end when told."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.up import up
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.node import Node
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tests.cli.shoal_up import running
from tests.kube.waiting import until


def clients(said: str) -> list[Client]:
    paths = re.findall(r"KUBECONFIG=(\S+)", said)
    return [Client(load_kubeconfig([Path(path)], environ={}, explicit=True)) for path in paths]


async def test_cluster_serves_and_ends_cleanly() -> None:
    with running("--nodes", "2", "--gpus", "2xT4") as (process, said):
        assert "A cluster of 2 nodes with 4 simulated GPUs" in said
        async with clients(said)[0] as client:
            assert [node.metadata.name for node in (await client.list(NODES)).items] == ["node-1", "node-2"]
            container = {"name": "c", "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": "3"}}}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
            await client.create(PODS.raw, pod, namespace="default")
            async with Reflector(client, PODS) as pods:
                await until(lambda: any(pod.status.phase == "Running" for pod in pods.store), "the pod runs")
            log = await client.log("p", namespace="default")
            assert "ALIYUN_COM_GPU_MEM_CONTAINER=3" in log
            assert re.search(r"NVIDIA_VISIBLE_DEVICES=GPU-[0-9a-f-]+\n", log)
            async with Reflector(client, NODES) as nodes:
                await until(lambda: _labelled(nodes, "Tesla-T4") == 2, "labelled with what the nodes have")
        directory = Path(re.findall(r"KUBECONFIG=(\S+)", said)[0]).parents[2]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "ERROR:" not in errors
        assert not directory.exists()


async def test_cards_are_offered_as_claims() -> None:
    """As a newcomer does it: the example, unchanged."""
    example = Path(__file__).parents[2] / "examples" / "dra" / "01-three-gib.yaml"
    with running("--nodes", "1", "--gpus", "2xT4", "--no-metrics", "--dashboard-port", "-1") as (process, said):
        async with clients(said)[0] as client:
            for document in yaml.safe_load_all(example.read_text()):
                kind = PODS.raw if document["kind"] == "Pod" else RESOURCE_CLAIM_TEMPLATES.raw
                await client.create(kind, document, namespace="default")
            async with Reflector(client, PODS) as pods:
                await until(lambda: any(pod.status.phase == "Running" for pod in pods.store), "the pod runs")
            log = await client.log("three-gib", namespace="default")
            assert re.search(r"NVIDIA_VISIBLE_DEVICES=GPU-[0-9a-f-]+\n", log)
            (claim,) = (await client.list(RESOURCE_CLAIMS, namespace="default")).items
            assert claim.metadata.name.startswith("three-gib-gpu-")
            await client.delete(PODS, "three-gib", namespace="default", grace_seconds=1)
            async with Reflector(client, RESOURCE_CLAIMS) as claims:
                await until(lambda: not list(claims.store), "the claim is given back")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")


def test_grpc_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end with the cluster, and gRPC logs that; an unknown tracer it logs at once."""
    monkeypatch.setenv("GRPC_TRACE", "no-such-tracer")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    with running("--nodes", "2", "--gpus", "2xT4") as (process, _):
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert errors == ""
        assert process.returncode == 0


async def test_the_cluster_file_of_the_examples() -> None:
    file = Path(__file__).parents[2] / "examples" / "cluster.yaml"
    with running("--cluster-file", str(file)) as (_, said):
        assert "A cluster of 6 nodes with 19 simulated GPUs" in said
        async with clients(said)[0] as client, Reflector(client, NODES) as nodes:
            await until(lambda: _whole(nodes, "broken") == "1", "two of three cards are out of use")
            assert {name: _whole(nodes, name) for name in ("linked-1", "mixed-2", "split")} == {
                "linked-1": "4",
                "mixed-2": "3",
                "split": "1",
            }


def _labelled(nodes: Reflector[Node], product: str) -> int:
    """How many nodes say that they have such cards."""
    labels = [node.metadata.labels for node in nodes.store]
    return sum(
        one.get("nvidia.com/gpu.product") == product and one["nvidia.com/gpu.present"] == "true" for one in labels
    )


def _whole(nodes: Reflector[Node], name: str) -> object:
    """How many whole cards a node offers."""
    found = (node.status.allocatable for node in nodes.store if node.metadata.name == name)
    return next((allocatable.get("nvidia.com/gpu") for allocatable in found), None)


async def test_two_clusters_know_nothing_of_each_other() -> None:
    with running("--clusters", "2", "--nodes", "1", "--gpus", "1xT4") as (_, said):
        path = Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1])
        one, other = (
            Client(load_kubeconfig([path], environ={}, explicit=True, context=name))
            for name in ("cluster1", "cluster2")
        )
        async with one, other:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "only-here"}}
            await one.request("POST", "/api/v1/namespaces", body=namespace)
            answer = await other.request("GET", "/api/v1/namespaces")
            assert b"only-here" not in answer


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "4xFoo"], "there is no model 'Foo' to simulate"),
        (["--policy", "best"], "choose one of"),
        (["--cluster-file", "/nowhere"], "No such file"),
        (["--directory", "/proc/nowhere"], "give another --directory"),
        (["--directory", "/tmp/" + "x" * 120], "use a shorter folder"),
    ],
)
def test_bad_input_is_told(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-c", "from shoal.cli.main import main; main()", "up", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cluster_file_and_a_number_of_nodes_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: []")
    result = CliRunner().invoke(up, ["--nodes", "2", "--cluster-file", str(tmp_path / "cluster.yaml")])
    assert result.exit_code == 2
    assert "leave out --nodes" in result.output


@pytest.fixture
def short() -> Iterator[str]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="su-") as folder:
        yield folder


def test_only_the_owner_reads_tokens_and_keys(short: str) -> None:
    """Whatever the umask, and whatever was in the folder before."""
    before = os.umask(0)
    try:
        folder = Path(short) / "d"
        own = (
            *("--nodes", "1", "--gpus", "1xT4", "--no-metrics", "--dashboard-port", "-1"),
            "--directory",
            str(folder),
        )
        with running("--clusters", "2", *own) as (process, said):
            merged = yaml.safe_load(Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1]).read_text())
            secrets = ["PRIVATE KEY", "token: ", *(user["user"]["token"] for user in merged["users"])]
            found = _files_with(folder, secrets)
            assert {path.name for path in found} == {"kubeconfig", "manager.kubeconfig", "server.key"}
            assert {path: oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077} == {}
            assert folder.stat().st_mode & 0o777 == 0o700
            process.kill()
        # What was there is not written into: another may have made it, or have it open.
        for path in found:
            path.chmod(0o666)
        with running(*own):
            left = [path for path in _files_with(folder / "cluster", secrets) if path.stat().st_mode & 0o077]
            assert left == []
    finally:
        os.umask(before)


def _files_with(folder: Path, words: list[str]) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_socket()]
    return [path for path in files if any(word.encode() in path.read_bytes() for word in words)]


async def test_a_directory_has_one_cluster_and_a_killed_one_leaves_it(short: str) -> None:
    arguments = ("--nodes", "1", "--gpus", "1xT4", "--directory", short)
    with running(*arguments) as (process, _):
        result = CliRunner().invoke(up, arguments)
        assert result.exit_code == 1
        assert f"another shoal up runs in {short}: end it" in result.output
        process.kill()
    with running(*arguments) as (_, said):
        async with clients(said)[0] as client:
            assert [node.metadata.name for node in (await client.list(NODES)).items] == ["node-1"]
