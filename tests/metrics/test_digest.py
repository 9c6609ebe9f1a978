"""The digest of a snapshot, when it is written, and by whom: pure parts by numbers, the writer on an API server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.others import Lease
from shoal.kube.resources import LEASES, NODES, PODS, Resource
from shoal.metrics.digest import DigestPace, DigestSettings, DigestWriter, digest_of
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.contract.load import ANNOTATION_LOAD, NAMESPACE, CardDigest, LoadDigest, decode_load, encode_load
from tests.metrics.snapshots import GIB, card, container, snapshot
from tests.suites.connection import Connection

SIZES = {"GPU-n1-0": 16 * 1024}
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict[str, Any], whole=True)


# The digest


def test_what_is_told_of_a_card() -> None:
    pods = [
        container("over", 6 * GIB, requested=2 * GIB),
        container("over", 1 * GIB, requested=4 * GIB, name="c1"),
        container("under", 1 * GIB, requested=4 * GIB),
        container("none", 2 * GIB),
        container("idle", requested=GIB),
    ]
    digest = digest_of(snapshot([card(0, pods, unattributed=3 * GIB), card(1), card(2, unattributed=None)]))
    assert digest.cards == {
        "GPU-n1-0": CardDigest(13 * 1024, 3 * 1024, (1 + 2) * 1024, 40, 55, 70),
        "GPU-n1-1": CardDigest(0, 0, 0, 40, 55, 70),
    }
    assert (digest.cpu, digest.memory, digest.storage) == (19, None, None)


def test_memory_that_may_be_somebodys_is_nobodys_fault() -> None:
    """Where the driver did not list all processes, what is unattributed is not known."""
    seen = card(0, unattributed=3 * GIB)
    assert seen.sample is not None
    seen = dataclasses.replace(seen, sample=dataclasses.replace(seen.sample, processes_known=False))
    assert digest_of(snapshot([seen])).cards["GPU-n1-0"].unattributed_mib is None


def test_a_moment_is_not_enough() -> None:
    """Between its start and the watch's news a container is in nobody's name."""
    calm, odd = snapshot([card(0)]), snapshot([card(0, [container("p", 5 * GIB, requested=GIB)], unattributed=2 * GIB)])
    told = digest_of(odd, calm).cards["GPU-n1-0"]
    assert (told.used_mib, told.unattributed_mib, told.overuse_mib) == (7 * 1024, 0, 0)
    told = digest_of(odd, odd).cards["GPU-n1-0"]
    assert (told.unattributed_mib, told.overuse_mib) == (2 * 1024, 4 * 1024)
    told = digest_of(calm, odd).cards["GPU-n1-0"]
    assert (told.unattributed_mib, told.overuse_mib) == (0, 0)


amounts = st.none() | st.integers(0, 2**50)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), amounts, amounts), max_size=6),
    st.none() | st.integers(0, 2**50),
)
def test_whatever_is_measured_can_be_written(
    uses: list[tuple[str, int | None, int | None]], nobodys: int | None
) -> None:
    pods = [container(pod, used, requested=asked, name=f"c{n}") for n, (pod, used, asked) in enumerate(uses)]
    digest = digest_of(snapshot([card(0, pods, unattributed=nobodys)]))
    assert decode_load(encode_load(digest)) == digest
    for told in digest.cards.values():
        assert told.used_mib is not None
        assert told.overuse_mib is not None
        assert 0 <= told.overuse_mib <= told.used_mib + 1


# When


def of(**parts: int) -> LoadDigest:
    return LoadDigest({"GPU-n1-0": CardDigest(**{"unattributed_mib": 0, "overuse_mib": 0, **parts})})


def writes(digests: Any, *, seconds: int = 3600, settings: DigestSettings | None = None, seed: int = 1) -> list[int]:
    """When a collector that samples each 5 s writes, `digests` being what it sees at each time."""
    pace = DigestPace(settings or DigestSettings(), Random(seed))
    found = []
    for now in range(0, seconds, 5):
        if pace.is_due(digests(now), SIZES, now):
            pace.wrote(digests(now), now)
            found.append(now)
    return found


def test_while_nothing_changes_three_times_in_its_time_to_live() -> None:
    times = writes(lambda now: of(used_mib=100, utilisation=50))
    assert times[0] <= 10
    gaps = {late - early for early, late in pairwise(times)}
    assert min(gaps) >= 45
    assert max(gaps) <= 60


def test_nodes_that_start_together_do_not_write_together() -> None:
    started = [writes(lambda now: of(), seconds=1200, seed=seed) for seed in range(200)]
    at_once = max(sum(now in times for times in started) for now in range(600, 1200, 5))
    assert at_once < 60


def test_memory_is_told_soon_and_what_only_weighs_later() -> None:
    stray = writes(lambda now: of(unattributed_mib=0 if now < 300 else 4096), seconds=400)
    assert min(now for now in stray if now >= 300) - 300 <= 10
    gone = writes(lambda now: of(unattributed_mib=300 if now < 300 else 0), seconds=400)
    assert min(now for now in gone if now >= 300) - 300 <= 10
    flapping = writes(lambda now: of(utilisation=100 * (now // 5 % 2)))
    assert len(flapping) <= 3600 / 24 + 1
    small = writes(lambda now: of(unattributed_mib=100 + now // 5 % 2))
    assert len(small) <= 3600 / 45 + 1


# The writer


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[EmbeddedApi]:
    """An API server with Shoal's policies in force, and two nodes with a collector's pod each."""
    async with EmbeddedApi(tmp_path / "api", admission=MemoryUnit.GIB) as api:
        async with Client(admin(api)) as client:
            await client.create(ACCOUNTS, {"metadata": {"name": "shoal-metrics"}}, namespace="kube-system")
            for node in ("n1", "n2"):
                await client.create(NODES.raw, {"metadata": {"name": node}})
                spec = {
                    "nodeName": node,
                    "serviceAccountName": "shoal-metrics",
                    "containers": [{"name": "c", "image": "x"}],
                }
                await client.create(PODS.raw, {"metadata": {"name": node}, "spec": spec}, namespace="kube-system")
        yield api


def admin(api: EmbeddedApi) -> Access:
    return load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)


async def collector_of(api: EmbeddedApi, node: str) -> Client:
    """A client with the token that kubelet gives the collector on a node: bound to its pod."""
    async with Client(admin(api)) as client:
        pod = await client.get(PODS, node, namespace="kube-system")
    bound = {"kind": "Pod", "apiVersion": "v1", "name": node, "uid": pod.metadata.uid}
    path = "/api/v1/namespaces/kube-system/serviceaccounts/shoal-metrics/token"
    body = json.dumps({"spec": {"boundObjectRef": bound}}).encode()
    headers = {"Content-Type": "application/json"}
    answer = await asyncio.to_thread(Connection(api.kubeconfig()).request, "POST", path, body, headers)
    token = Inline(answer.body["status"]["token"].encode())
    return Client(dataclasses.replace(admin(api), credentials=StoredCredential(token=token)))


def seen(number: int, stray: int = 0) -> Snapshot:
    return dataclasses.replace(snapshot([card(0, unattributed=stray)], number=number), monotonic=number * 5.0)


async def lease_of(api: EmbeddedApi, node: str) -> Lease | None:
    async with Client(admin(api)) as client:
        found = (await client.list(LEASES, namespace=NAMESPACE)).items
    return next((lease for lease in found if lease.metadata.name == node), None)


async def test_a_collector_writes_the_lease_of_its_node(guarded: EmbeddedApi) -> None:
    """With the rights of deploy/metrics; what is not known of it is nobody's business."""
    async with await collector_of(guarded, "n1") as client:
        writer = DigestWriter(DigestSettings(least_seconds=0.1), client, "n1", rng=Random(1))
        assert not await writer.tell(seen(1), None)
        assert not await writer.tell(seen(2), seen(1)), "the first waits a little"
        assert await writer.tell(seen(3), seen(2))
        lease = await lease_of(guarded, "n1")
        assert lease is not None
        assert (lease.spec.holder_identity, lease.spec.lease_duration_seconds) == ("n1", 180)
        assert lease.spec.renew_time == "1970-01-12T13:46:40.000000Z"
        assert decode_load(lease.metadata.annotations[ANNOTATION_LOAD]) == digest_of(seen(3))
        assert not await writer.tell(seen(4), seen(3)), "nothing has changed"
        assert await writer.tell(seen(6, 2 * GIB), seen(5, 2 * GIB))
        lease = await lease_of(guarded, "n1")
        assert lease is not None
        found = decode_load(lease.metadata.annotations[ANNOTATION_LOAD])
        assert found.cards["GPU-n1-0"].unattributed_mib == 2048


async def test_a_refusal_costs_the_digest_alone(guarded: EmbeddedApi, caplog: pytest.LogCaptureFixture) -> None:
    """A token of another node, for instance."""
    async with await collector_of(guarded, "n2") as client:
        writer = DigestWriter(DigestSettings(least_seconds=0.1), client, "n1", rng=Random(1))
        for number in range(2, 10):
            assert not await writer.tell(seen(number), seen(number - 1))
    assert await lease_of(guarded, "n1") is None
    told = [record.getMessage() for record in caplog.records if "live load of this node is not told" in record.message]
    assert 1 <= len(told) <= 4
    assert "a collector writes the Lease of its own node only" in told[0]


async def test_it_runs_on_snapshots(guarded: EmbeddedApi) -> None:
    latest = LatestSnapshot()
    async with await collector_of(guarded, "n1") as client:
        settings = DigestSettings(ttl_seconds=0.3, least_seconds=0.1)
        task = asyncio.create_task(DigestWriter(settings, client, "n1").run(latest))
        try:
            times = set[str | None]()
            number = 0
            async with asyncio.timeout(300):
                while len(times) < 3:
                    number += 1
                    latest.put(dataclasses.replace(seen(number), time=1e6 + number))
                    await asyncio.sleep(0.02)
                    lease = await lease_of(guarded, "n1")
                    times |= {lease.spec.renew_time} if lease is not None else set()
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()
