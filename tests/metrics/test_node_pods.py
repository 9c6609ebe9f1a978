"""The node's pods: whose a container is, and what was booked for it."""

from typing import Any

import msgspec
import pytest

from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import PODS
from shoal.kube.store import Change, ChangeType
from shoal.metrics.node_pods import BookedShare, KnownPod, NodeContainers, known_pod
from shoal.metrics.processes import ContainerRef
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from tests.kube.waiting import until
from tests.metrics.pods import NODE, container_id, manifest, pod, pod_uid

GIB = 2**30
CARDS = NodeGpus(NODE, (Gpu("GPU-a", 0, 24 * 1024), Gpu("GPU-b", 1, 24 * 1024)))
UID = pod_uid(1)


def known(**parts: Any) -> KnownPod:
    return known_pod(pod("p", uid=UID, **parts), CARDS, MemoryUnit.GIB)


def test_what_was_booked_by_container_and_card() -> None:
    found = known(shares={"one": [("GPU-a", 8)], "two": [("GPU-b", 4)]})
    assert found.booked == {("one", "GPU-a"): BookedShare(8 * GIB), ("two", "GPU-b"): BookedShare(4 * GIB)}
    assert not found.unknown
    whole = known(wholes={"one": ["GPU-a", "GPU-b"]})
    assert whole.booked == {("one", "GPU-a"): BookedShare(whole=True), ("one", "GPU-b"): BookedShare(whole=True)}


@pytest.mark.parametrize(
    ("tier", "limit"),
    [
        ("cgroup", 8 * GIB),
        ("cgroup+mps-namespace", 8 * GIB),
        ("mps-namespace", None),
        ("mps", None),
        ("none", None),
        ("", None),
    ],
)
def test_a_share_is_a_memory_limit_where_the_pod_cannot_lift_it(tier: str, limit: int | None) -> None:
    found = known(shares={"one": [("GPU-a", 8)]}, annotations={shoal.ANNOTATION_ISOLATION: tier})
    assert found.booked == {("one", "GPU-a"): BookedShare(8 * GIB, limit)}


def test_the_request_bounds_the_record() -> None:
    """A record that was copied or forged books nothing, and it is not known what its containers have."""
    bigger = manifest("p", shares={"one": [("GPU-a", 20)]})["metadata"]["annotations"]
    found = known(shares={"one": [("GPU-a", 8)]}, annotations=bigger)
    assert (found.booked, found.unknown) == ({}, frozenset({"one"}))
    for_nothing = known(plain=["one"], annotations=bigger)
    assert (for_nothing.booked, for_nothing.unknown) == ({}, frozenset())
    elsewhere = manifest("p", shares={"one": [("GPU-x", 8)]})["metadata"]["annotations"]
    found = known(shares={"one": [("GPU-a", 8)]}, annotations=elsewhere)
    assert (found.booked, found.unknown) == ({}, frozenset({"one"}))


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "aliyun.com/gpu-mem"])
def test_what_is_not_booked_by_memory_is_not_known(resource: str) -> None:
    text = manifest("p", plain=["one", "two"])
    text["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    found = known_pod(msgspec.convert(text, Pod), CARDS, MemoryUnit.GIB)
    assert (found.booked, found.unknown) == ({}, frozenset({"one"}))


async def test_the_watch_is_followed(access: Access, client: Client) -> None:
    async with Client(access) as own:
        pods = NodeContainers(own, NODE, unit=MemoryUnit.GIB)
        assert not pods.synced
        made = await client.create(PODS.raw, manifest("p", plain=["main"]), namespace="default")
        uid = made["metadata"]["uid"]
        await client.create(PODS.raw, manifest("other", plain=["main"], node="node-2"), namespace="default")
        async with pods.reflector:
            await pods.reflector.wait_synced()
            # kubelet has not told of the container yet
            ref = ContainerRef(uid, container_id(7))
            found = pods.find(ref)
            assert found is not None
            assert (found[0].namespace, found[0].name, found[1]) == ("default", "p", "")
            status = {"status": {"containerStatuses": [{"name": "main", "containerID": f"cri-o://{container_id(7)}"}]}}
            await client.patch(PODS.raw, "p", status, namespace="default", subresource="status")
            await until(lambda: (now := pods.find(ref)) is not None and now[1] == "main", "named")
            # the name is another pod's: what the cgroup says counts
            stolen = pods.find(ContainerRef(pod_uid(99), container_id(7)))
            assert stolen is None
            await client.delete(PODS.raw, "p", namespace="default", grace_seconds=0)
            await until(lambda: pods.find(ref) is None, "gone")
    assert not pods._pods
    assert not pods._owners


async def test_nobody_claims_the_containers_of_another_pod(client: Client) -> None:
    """By an annotation and a status that it may write."""
    pods = NodeContainers(client, NODE, unit=MemoryUnit.GIB)
    ids = {"one": container_id(1)}
    put(pods, pod("victim", uid=pod_uid(2), shares={"one": [("GPU-a", 8)]}, ids=ids))
    claims = {"kubernetes.io/config.hash": pod_uid(2)}
    put(pods, pod("thief", uid=pod_uid(3), plain=["one"], ids=ids, annotations=claims))
    found = pods.find(ContainerRef(pod_uid(2), container_id(1)))
    assert found is not None
    assert (found[0].name, found[1]) == ("victim", "one")


async def test_a_static_pod_is_known_by_its_hash(client: Client) -> None:
    pods = NodeContainers(client, NODE, unit=MemoryUnit.GIB)
    hashed = "ab" * 16
    annotations = {"kubernetes.io/config.hash": hashed}
    put(pods, pod("static", uid=UID, plain=["m"], ids={"m": container_id(1)}, annotations=annotations))
    found = pods.find(ContainerRef(hashed, container_id(1)))
    assert found is not None
    assert (found[0].name, found[1]) == ("static", "m")
    # A hash is no proof: without a container that kubelet has told, a pod that claims another's gets nothing.
    assert pods.find(ContainerRef(hashed, container_id(2))) is None
    victim = pod("victim", uid=pod_uid(2), plain=["m"], ids={"m": container_id(3)})
    put(pods, victim)
    claims = {"kubernetes.io/config.hash": pod_uid(2)}
    put(pods, pod("thief", uid=pod_uid(3), plain=["m"], ids={"m": container_id(4)}, annotations=claims))
    got = pods.find(ContainerRef(pod_uid(2), container_id(3)))
    assert got is not None
    assert got[0].name == "victim"


def put(pods: NodeContainers, one: Pod) -> None:
    """As the watch would."""
    pods.on_pod(Change(ChangeType.ADDED, None, one))
