"""Labels of 1,000 nodes on a real API server: by the leader from their facts, against raw writes of the same labels.

Raw writes are server-side applies of the labels alone, as many in flight as the leader has writers, before and after
it. The leader's time is from its start, with all nodes to list, to the last label. Then nothing changes, and nothing
may be written. One etcd (without fsync), one kube-apiserver and the client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import bench.results as results
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.labels import gpu_labels, pci_labels
from shoal.discovery.leader import Leader
from shoal.discovery.worker import NODE_METADATA
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import ANNOTATION_FACTS, CardFacts, GpuFacts, NodeFacts, encode_facts
from tests.testbed.apiserver import ApiServer
from tests.testbed.processes import Run

COUNT = 1_000
SETTINGS = DiscoveryConfig()
CARDS = (CardFacts(model="NVIDIA H100 80GB HBM3", count=8, memory=81559, capability=(9, 0), mig=False, pci="0302"),)
GPUS = GpuFacts(since=1_700_000_000, driver="580.95.05", cuda=(13, 0), machine="DGX H100", cards=CARDS)
FACTS = NodeFacts(version=1, pci=("0302",), gpus=GPUS)
LABELS = {**pci_labels(FACTS), **gpu_labels(GPUS), nvidia.LABEL_PRESENT: "true"}


async def each(names: Iterable[str], do: Callable[[str], Awaitable[object]], at_once: int) -> float:
    """Seconds for all of these, so many at a time."""
    todo = iter(names)

    async def work() -> None:
        for name in todo:
            await do(name)

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return time.perf_counter() - start


async def until(ready: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while True:
        if ready():
            return
        await asyncio.sleep(0.01)


def led_by(client: Client) -> tuple[Leader, asyncio.Task[None]]:
    """A leader that runs."""
    leader = Leader(SETTINGS, client)
    return leader, asyncio.create_task(leader.run())


async def ended(task: asyncio.Task[None]) -> None:
    """End a leader; its failure is the benchmark's."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def measure(api: ApiServer, rest: float) -> list[results.Row]:
    access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
    before, told, after = ([f"{kind}-{n:04}" for n in range(COUNT)] for kind in ("before", "told", "after"))
    async with Client(access) as client:

        async def create(name: str) -> None:
            annotations = {ANNOTATION_FACTS: encode_facts(FACTS)} if name in set_of_told else {}
            status = {"capacity": {"cpu": "64", "memory": "512Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
            labels = {"kubernetes.io/hostname": name}
            meta = {"name": name, "labels": labels, "annotations": annotations}
            await client.create(NODES.raw, {"metadata": meta, "status": status})

        async def raw(name: str) -> None:
            body = {"metadata": {"name": name, "labels": LABELS}}
            await client.apply(NODE_METADATA, body, field_manager="raw")

        set_of_told = set(told)
        warm = [f"warm-{n:04}" for n in range(COUNT // 5)]
        await each([*before, *told, *after, *warm], create, 32)
        await each(warm, raw, SETTINGS.writers)
        first = await each(before, raw, SETTINGS.writers)
        start = time.perf_counter()
        leader, task = led_by(client)
        await until(lambda: leader.writes >= COUNT or task.done())
        led = time.perf_counter() - start
        await ended(task)
        second = await each(after, raw, SETTINGS.writers)
        leader, task = led_by(client)
        await leader.reflector.wait_synced()
        await until(lambda: leader.idle)
        nodes = (await client.list(NODE_METADATA)).items
        wrong = [node for node in nodes if not LABELS.items() <= node.metadata.labels.items()]
        versions = {node.metadata.name: node.metadata.resource_version for node in nodes}
        await asyncio.sleep(rest)
        again = (await client.list(NODE_METADATA)).items
        changed = [node for node in again if versions[node.metadata.name] != node.metadata.resource_version]
        await ended(task)
    raw_seconds = (first + second) / 2
    return [
        results.Row(f"raw writes of {COUNT} nodes, before", first, "s"),
        results.Row(f"raw writes of {COUNT} nodes, after", second, "s"),
        results.Row(f"the leader, {COUNT} nodes", led, "s"),
        results.below("the leader by raw writes", led / raw_seconds, "", 1.5),
        results.below("nodes with wrong labels", len(wrong), "", 0),
        results.below(f"writes in {rest:.0f} s at rest", len(changed) + leader.writes, "", 0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rest", type=float, default=60.0, metavar="S", help="how long nothing changes")
    arguments = parser.parse_args()
    with Run() as run:
        rows = asyncio.run(measure(ApiServer(run), arguments.rest))
    results.report("discovery", rows)


if __name__ == "__main__":
    main()
