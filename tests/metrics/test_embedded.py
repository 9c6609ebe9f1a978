"""Collectors on the embedded cluster: a pod that the scheduler placed and the agent started is measured."""

import asyncio
from pathlib import Path

from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded.nodes.cluster import few
from shoal.kube.resources import PODS
from shoal.metrics.attribution import UseSource
from shoal.metrics.snapshot import ContainerSnapshot, LatestSnapshot

GIB = 2**30


def pod(name: str, gib: int, does: str) -> dict[str, object]:
    return {
        "metadata": {"name": name, "annotations": {"shoal.dev/simulate": does}},
        "spec": {
            "containers": [{"name": "main", "image": "cuda", "resources": {"limits": {"aliyun.com/gpu-mem": str(gib)}}}]
        },
    }


async def test_two_pods_share_a_card_and_a_program_of_nobody_is_seen(short_folder: Path) -> None:
    plan = EmbeddedPlan(few(1, "1xA30-24G"), metrics=True, metrics_seconds=0.1)
    async with EmbeddedCluster(plan, short_folder) as cluster, cluster.client() as client:
        await cluster.ready()
        for name, gib, does in (("one", 8, "memory=6Gi utilisation=30"), ("two", 4, "memory=1Gi utilisation=10")):
            await client.create(PODS.raw, pod(name, gib, does), namespace="default")
        kubelet = next(iter(cluster.nodes))
        nvml = kubelet.host.nvml
        latest = cluster.measured[kubelet.name]
        found = await using(latest, 2)
        assert [(one.name.pod, one.name.container, one.requested_bytes, one.used_bytes) for one in found] == [
            ("one", "main", 8 * GIB, 6 * GIB),
            ("two", "main", 4 * GIB, GIB),
        ]
        assert {one.source for one in found} == {UseSource.CGROUP}
        nvml.add_process(nvml.uuids()[0], 77, 2 * GIB, 0)
        assert latest.current is not None
        number = latest.current.number
        while (snapshot := await latest.after(number)).cards[0].unattributed_bytes != 2 * GIB:
            number = snapshot.number
        await client.delete(PODS.raw, "one", namespace="default", grace_seconds=0)
        assert [one.name.pod for one in await using(latest, 1)] == ["two"]


async def using(latest: LatestSnapshot, count: int) -> list[ContainerSnapshot]:
    """Those who use the card, once there are so many and all are named."""
    number = 0
    while True:
        snapshot = await latest.after(number)
        number = snapshot.number
        found = [one for card in snapshot.cards for one in card.containers if one.used_bytes]
        if len(found) == count and all(one.name.container for one in found):
            return found


async def test_collectors_can_be_left_out(short_folder: Path) -> None:
    async with EmbeddedCluster(EmbeddedPlan(few(1, "1xT4")), short_folder) as cluster:
        await asyncio.wait_for(cluster.ready(), 300)
        assert cluster.measured == {}
