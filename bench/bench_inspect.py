"""`kubectl inspect gpushare` on 1,000 nodes and 10,000 pods: the whole command, as a process from start to end.

Nodes carry Shoal's inventory with 8 cards each. Two pods in three hold a share, the third asks for no GPU; all have
the weight of ordinary pods: env, volumes, tolerations, an owner. Beside the whole stand its parts: what a Python that
only loads the command takes, and what remains of the time when the server's own answers are taken away. On a real API
server; `--embedded` takes the embedded one, which is Python and shares the machine with the command.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench.results as results
from shoal.analysis.inspect.objects import NODES, PODS, PartialNode, PartialPod
from shoal.analysis.inspect.reader import UseReader
from shoal.cli.inspect.tables import summary
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, shoal
from shoal.model.gpu import Gpu
from shoal.model.request import Share
from tests.suites.embedded import EmbeddedServer
from tests.testbed.apiserver import ApiServer
from tests.testbed.cluster import Api
from tests.testbed.fake_nodes import each, node
from tests.testbed.processes import Run

MANY_NODES, MANY_PODS, CARDS = 1_000, 10_000, 8
NAMESPACE = "bench"
SECONDS = 2.0
RUNS = 5
CARD_MIB = 81_920


@contextmanager
def server(*, embedded: bool) -> Iterator[Api]:
    """A fresh API server."""
    if not embedded:
        with Run() as run:
            yield ApiServer(run)
        return
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        api = EmbeddedServer(Path(directory))
        try:
            yield api
        finally:
            api.stop()


def pod(number: int) -> dict[str, Any]:
    """A bound pod; every third asks for no GPU."""
    on = f"node-{number % MANY_NODES}"
    limits = {"cpu": "2", "memory": "8Gi"}
    annotations = {"example.com/team": "research", "example.com/cost-centre": "4711"}
    if number % 3:
        limits[gpushare.RESOURCE_MEMORY] = "4"
        index = number // MANY_NODES % CARDS
        card = CardShare(f"GPU-{on}-{index}", index, Share(4096))
        allocation = Allocation(on, (ContainerAllocation("main", (card,)),), "fragmentation")
        annotations[shoal.ANNOTATION_ALLOCATION] = shoal.encode_allocation(allocation)
    mounts = [{"name": f"data-{n}", "mountPath": f"/data/{n}"} for n in range(3)]
    container = {
        "name": "main",
        "image": "shoal.test/train:1",
        "command": ["python", "-m", "train", "--config", "/data/0/config.yaml"],
        "env": [{"name": f"VARIABLE_{n}", "value": f"the value of variable {n}"} for n in range(15)],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": mounts,
    }
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "train-7d9c",
        "uid": f"u-{number}",
        "controller": True,
    }
    return {
        "metadata": {
            "name": f"train-{number}",
            "labels": {"app": "train", "pod-template-hash": "7d9c"},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": on,
            "containers": [container],
            "volumes": [{"name": mount["name"], "emptyDir": {}} for mount in mounts],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }


async def fill(client: Client) -> None:
    """Make all nodes and pods."""
    cards = {
        name: tuple(Gpu(f"GPU-{name}-{i}", i, CARD_MIB, "NVIDIA A100-SXM4-80GB") for i in range(CARDS))
        for name in (f"node-{n}" for n in range(MANY_NODES))
    }
    await each(cards, lambda name: client.create(NODES.raw, node(name, cards[name])))
    await each(map(str, range(MANY_PODS)), lambda n: client.create(PODS.raw, pod(int(n)), namespace=NAMESPACE))


def best(command: list[str]) -> tuple[float, float]:
    """Seconds by the clock and by the CPU, the least of some runs: the others were disturbed by their neighbours."""
    times = []
    for _ in range(RUNS):
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((time.perf_counter() - started, cpu))
    return min(clock for clock, _ in times), min(cpu for _, cpu in times)


async def parts(client: Client) -> list[results.Row]:
    """Where the time goes, inside one process."""
    query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    started = time.perf_counter()
    of_nodes, of_pods = await asyncio.gather(
        client.request("GET", "/api/v1/nodes"), client.request("GET", "/api/v1/pods", query=query)
    )
    answered = time.perf_counter()
    nodes: tuple[PartialNode, ...] = codec_of(NODES.type).page(of_nodes, asked="nodes").items or ()
    pods: tuple[PartialPod, ...] = codec_of(PODS.type).page(of_pods, asked="pods").items or ()
    decoded = time.perf_counter()
    cluster = UseReader().of(nodes, pods)
    counted = time.perf_counter()
    summary(cluster.sharing, cluster.unit)
    done = time.perf_counter()
    return [
        results.Row("both lists in one piece each, raw", answered - started, "s"),
        results.Row(
            f"their size ({len(nodes)} nodes, {len(pods)} pods)", (len(of_nodes) + len(of_pods)) / 2**20, "MiB"
        ),
        results.Row("decoding", decoded - answered, "s"),
        results.Row("counting what is allocated", counted - decoded, "s"),
        results.Row("laying out the table", done - counted, "s"),
    ]


def measure(api: Api) -> list[results.Row]:
    """All rows."""
    api.create_namespace(NAMESPACE)
    access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())

    async def inside(what: Any) -> Any:
        async with Client(access) as client:
            return await what(client)

    asyncio.run(inside(fill))
    python = [sys.executable, "-c"]
    loads = "import " + ", ".join(
        f"shoal.{name}" for name in ("cli.inspect.command", "cli.inspect.read", "kube.client")
    )
    inspect = [*python, "from shoal.cli.main import main; main()", "inspect", "--kubeconfig", str(api.kubeconfig())]
    whole, cpu = best(inspect)
    return [
        results.below("the summary, whole command", whole, "s", SECONDS),
        results.Row("the CPU time of the command in this", cpu, "s"),
        results.Row("the same for one node", best([*inspect, "node-1"])[0], "s"),
        results.Row("details, whole command", best([*inspect, "-d"])[0], "s"),
        results.Row("Python and the modules alone", best([*python, loads])[0], "s"),
        results.Row("Python alone", best([*python, "pass"])[0], "s"),
        *asyncio.run(inside(parts)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embedded", action="store_true", help="the embedded API server instead of a real one")
    embedded = parser.parse_args().embedded
    with server(embedded=embedded) as api:
        rows = measure(api)
    results.report("inspect-embedded" if embedded else "inspect", rows)


if __name__ == "__main__":
    main()
