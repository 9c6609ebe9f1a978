"""Live load from end to end on the embedded cluster: cards, collectors, Leases, policies, scheduler, pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from shoal.analysis.dry_run import DryRun
from shoal.analysis.snapshot import read_snapshot
from shoal.analysis.why import explain_pod
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded.nodes.cluster import few
from shoal.gpu.simulated import SimulatedNvml
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import LEASES, PODS
from shoal.metrics.digest import DigestSettings
from shoal.model.contract.load import ANNOTATION_LOAD, NAMESPACE, decode_load
from shoal.model.contract.shoal import ANNOTATION_ALLOCATION
from tests.kube.waiting import until

GIB = 2**30
OFTEN = DigestSettings(least_seconds=0.2)


@asynccontextmanager
async def measured(folder: Path, nodes: int, cards: str) -> AsyncIterator[tuple[EmbeddedCluster, Client]]:
    """A cluster whose collectors read often and tell soon."""
    plan = EmbeddedPlan(few(nodes, cards), policy="binpack", metrics=True, metrics_seconds=0.1, digest=OFTEN)
    async with EmbeddedCluster(plan, folder) as cluster, cluster.client() as client:
        await cluster.ready()
        yield cluster, client


def driver(cluster: EmbeddedCluster, number: int = 0) -> SimulatedNvml:
    return list(cluster.nodes)[number].host.nvml


async def make(client: Client, name: str, gib: int, does: str = "", **spec: Any) -> None:
    limits = {"aliyun.com/gpu-mem": str(gib)}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    annotations = {"shoal.dev/simulate": does} if does else {}
    manifest = {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": [container], **spec}}
    await client.create(PODS.raw, manifest, namespace="default")


async def pod(client: Client, name: str) -> Pod:
    return await client.get(PODS, name, namespace="default")


async def told(client: Client, node: str, mib: int, *, overuse: int = 0, card: int = 0) -> None:
    """Return when the node's Lease tells so much memory of nobody, and so much beyond requests."""
    await holds(lambda: _tells(client, node, card), (mib, overuse), f"{mib} and {overuse} MiB of {node}")


async def _tells(client: Client, node: str, card: int) -> tuple[int | None, int | None]:
    for lease in (await client.list(LEASES, namespace=NAMESPACE)).items:
        if lease.metadata.name == node:
            digest = list(decode_load(lease.metadata.annotations[ANNOTATION_LOAD]).cards.values())[card]
            return digest.unattributed_mib, digest.overuse_mib
    return None, None


async def holds(question: Any, answer: object, what: str) -> None:
    """Return when a question has this answer."""
    async with asyncio.timeout(300):
        while (found := await question()) != answer:  # noqa: ASYNC110 - the API server has it, nobody signals it
            await asyncio.sleep(0.05)
    assert found == answer, what


async def heard(client: Client, node: str, limits: dict[str, str], words: str) -> None:
    """Return when the scheduler refuses such a pod on a node in these words: it has heard of the load."""
    number = 0
    async with asyncio.timeout(300):
        while True:
            number += 1
            name = f"probe-{number}"
            container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
            spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
            await client.create(PODS.raw, {"metadata": {"name": name}, "spec": spec}, namespace="default")
            while not (said := await refusal(client, name)):
                if (await pod(client, name)).spec.node_name:
                    break
                await asyncio.sleep(0.05)
            await client.delete(PODS.raw, name, namespace="default", grace_seconds=0)
            if words in said:
                return


async def placed(client: Client, name: str) -> tuple[str, list[int]]:
    """Node and cards of a pod, once it has them."""
    async with asyncio.timeout(300):
        while not (found := await pod(client, name)).spec.node_name:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    record = json.loads(found.metadata.annotations[ANNOTATION_ALLOCATION])
    return found.spec.node_name, [card["index"] for container in record["containers"] for card in container["cards"]]


async def refusal(client: Client, name: str) -> str:
    """What the scheduler says of a pod that waits."""
    conditions = (await pod(client, name)).status.conditions
    return next((one.message or "" for one in conditions if one.type == "PodScheduled"), "")


async def test_a_program_of_nobody_keeps_its_card_and_no_other(short_folder: Path) -> None:
    """A pod that does not fit beside it goes elsewhere; one that fits nowhere waits, and is woken by its end."""
    async with measured(short_folder, 1, "2xA30-24G") as (cluster, client):
        (kubelet,) = cluster.nodes
        cards = driver(cluster).uuids()
        driver(cluster).add_process(cards[0], 77, 10 * GIB, 50)
        await told(client, kubelet.name, 10 * 1024)
        await heard(client, kubelet.name, {"nvidia.com/gpu": "2"}, "wanted whole, 10240 MiB used by nobody's pod")
        await make(client, "beside", 16)
        assert await placed(client, "beside") == (kubelet.name, [1])
        await make(client, "fits", 12)
        assert await placed(client, "fits") == (kubelet.name, [0])
        await client.delete(PODS.raw, "fits", namespace="default", grace_seconds=0)
        await make(client, "large", 20)

        async def said() -> bool:
            words = await refusal(client, "large")
            return "10240 MiB used by nobody's pod" in words and "1 of them has room by requests" in words

        await holds(said, True, "refused by live load alone")
        snapshot = await read_snapshot(client)
        waits = explain_pod(DryRun(snapshot), await pod(client, "large"), details=10)
        assert waits.live_load == "live load counts"
        assert waits.unplaced is not None
        assert [node.by_live_load for node in waits.unplaced.nodes] == [True]
        assert [card.beyond_requests_mib for card in waits.unplaced.nodes[0].cards] == [10 * 1024, 0]
        driver(cluster).remove_process(cards[0], 77)
        assert await placed(client, "large") == (kubelet.name, [0])


async def test_who_uses_more_than_it_asked_for_leaves_less_to_others(short_folder: Path) -> None:
    """Of its own card; and no pod is evicted for memory that eviction is not known to free."""
    async with measured(short_folder, 2, "1xA30-24G") as (cluster, client):
        first, second = (kubelet.name for kubelet in cluster.nodes)
        await make(client, "greedy", 4, "memory=4Gi")
        node, _ = await placed(client, "greedy")
        other = second if node == first else first
        mine = next(kubelet for kubelet in cluster.nodes if kubelet.name == node).host
        await until(lambda: bool(mine.programs.cgroups), "the program runs")
        (pid,) = mine.programs.cgroups
        uuid = mine.nvml.uuids()[0]
        mine.nvml.add_process(uuid, pid, 18 * GIB, 10, cgroup=mine.programs.cgroups[pid])
        await told(client, node, 0, overuse=14 * 1024)
        await heard(client, node, {"aliyun.com/gpu-mem": "20"}, "14336 MiB used by pods beyond their requests")
        await make(client, "next", 16)
        assert (await placed(client, "next"))[0] == other
        await make(client, "small", 6)
        assert (await placed(client, "small"))[0] == node
