"""`shoal up` as a process: clusters that answer, and end when told."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS
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
        directory = Path(re.findall(r"KUBECONFIG=(\S+)", said)[0]).parents[2]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "ERROR:" not in errors
        assert not directory.exists()


async def test_two_clusters_know_nothing_of_each_other() -> None:
    with running("--clusters", "2", "--nodes", "1", "--gpus", "1xT4") as (_, said):
        one, other = clients(said)
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
    ],
)
def test_bad_input_is_told(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-c", "from shoal.cli.main import main; main()", "up", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert words in result.stderr
