"""Dispatches of the cluster manager on three real control planes, against a bare client that makes the same calls.

The calls of a dispatch: claim at home, create the copy, read home, open the copy. Held pods are there before either
begins, and as many are in flight for both; the manager's time is from its start, with all pods to list, to the last
copy that is open. Then pods are made one after another, and it is measured how long each takes until its copy is open,
as a watch in the member shows it. Three etcds (without fsync), three kube-apiservers and the client share the machine.

Then ten clusters (`many_clusters`), and a join and a burst on real ones (`real_clusters`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import statistics
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import bench.results as results
from bench import many_clusters, real_clusters
from shoal.clusters import execute
from shoal.clusters.choice import ClusterChoice
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.copies import DISPATCHED_PODS, DispatchedPod, gates_of
from shoal.clusters.dispatch import Absent
from shoal.clusters.manager import ClusterManager
from shoal.clusters.member import Member
from shoal.clusters.members import cluster_uid
from shoal.clusters.opened import NamespaceTerms
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.reflector import Reflector
from shoal.kube.resources import RawObject
from shoal.kube.store import Change
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterSelector, CopyOrigin, Sent
from tests.clusters.site import StaticMembers, pod
from tests.testbed.apiserver import ApiServer
from tests.testbed.fake_nodes import IN_FLIGHT, each
from tests.testbed.processes import Run

COUNT = 600
ONE_BY_ONE = 150
CONFIG = ClusterManagerConfig(workers=IN_FLIGHT, mirror_seconds=0.5, probe_port=None, metrics_port=None)


async def in_turn(
    pod: RawObject, selector: ClusterSelector, members: Mapping[str, Member], siblings: Collection[str] = ()
) -> ClusterChoice:
    """A choice that costs nothing: by the last character of the name."""
    names = sorted(members)
    return ClusterChoice(names[ord(pod["metadata"]["name"][-1]) % len(names)], ())


class Bed:
    """Home and two members with a client for each."""

    def __init__(self, home: Client, members: list[Member], home_cluster: str) -> None:
        self.home = home
        self.members = members
        self.home_cluster = home_cluster
        self.opened: dict[str, float] = {}
        self.changed = asyncio.Event()

    def took(self, change: Change[DispatchedPod]) -> None:
        """Note when a copy is open."""
        if change.new is not None and clusters.GATE_COPY not in gates_of(change.new):
            self.opened.setdefault(change.new.metadata.name, time.perf_counter())
            self.changed.set()

    async def until_open(self, names: Iterable[str]) -> None:
        """Wait for copies."""
        waited = set(names)
        while not waited <= self.opened.keys():
            self.changed.clear()
            await self.changed.wait()

    async def hold(self, namespace: str, count: int) -> list[str]:
        """So many held pods."""
        names = [f"{namespace}-{number}" for number in range(count)]
        await each(names, lambda name: self.home.create(DISPATCHED_PODS, pod(name), namespace=namespace))
        return names

    async def dispatch(self, namespace: str, name: str) -> None:
        """The calls of one dispatch, and nothing else."""
        member = self.members[ord(name[-1]) % len(self.members)]
        held = _pod((await execute.read(self.home, namespace, name)).pod)
        start = Sent(attempt=1, cluster=member.name, uid=member.uid)
        claimed = _pod((await execute.write_dispatch(self.home, held, start)).pod)
        origin = CopyOrigin(cluster=self.home_cluster, uid=claimed.metadata.uid, attempt=1)
        terms, account = NamespaceTerms(), member.pod_account
        answer = await execute.create_copy(member.client, claimed, origin, terms, pod_account=account)
        copy = _pod(answer.pod)
        await execute.read(self.home, namespace, name)
        _pod((await execute.open_copy(member.client, copy)).pod)

    @contextlib.asynccontextmanager
    async def managing(self) -> Any:
        """A manager at work."""
        async with Recorder(self.home, clusters.NAME_MANAGER, per_second=10) as recorder:
            table = StaticMembers(*self.members)
            manager = ClusterManager(CONFIG, self.home, table, in_turn, recorder, home_cluster=self.home_cluster)
            async with manager:
                work = asyncio.create_task(manager.run())
                yield manager
                work.cancel()
                await asyncio.wait({work})


def _pod(found: DispatchedPod | Absent) -> DispatchedPod:
    assert isinstance(found, DispatchedPod), found
    return found


async def measure(bed: Bed, servers: list[ApiServer], count: int, one_by_one: int) -> list[results.Row]:
    """Both ways twice, in turn, and the latency."""
    bare, managed = [], []
    for _ in range(2):
        namespace = new_namespace(servers)
        names = await bed.hold(namespace, count)
        start = time.perf_counter()
        # One read too many, which the manager has from its list: it is not counted against it.
        await each(names, functools.partial(bed.dispatch, namespace))
        bare.append(count / (time.perf_counter() - start))
        namespace = new_namespace(servers)
        names = await bed.hold(namespace, count)
        start = time.perf_counter()
        async with bed.managing():
            await bed.until_open(names)
            managed.append(count / (time.perf_counter() - start))
    taken = await latencies(bed, servers, one_by_one)
    return [
        results.Row("bare client", max(bare), "dispatches/s"),
        results.above("manager", max(managed), "dispatches/s", 100),
        results.above("manager to bare client", max(managed) / max(bare), "x", 0.6),
        results.below("create to opened, p50", statistics.median(taken) * 1000, "ms", 50),
        results.below("create to opened, p99", statistics.quantiles(taken, n=100)[98] * 1000, "ms", 250),
    ]


async def latencies(bed: Bed, servers: list[ApiServer], count: int) -> list[float]:
    """Seconds from before a pod is made until its copy is open, one after another."""
    namespace, taken = new_namespace(servers), []
    async with bed.managing() as manager:
        # What is left of the bursts before is to be mirrored first.
        while len(manager.queue) or not manager.homes.reflector.synced.is_set():  # noqa: ASYNC110 - nobody signals it
            await asyncio.sleep(0.1)
        await asyncio.sleep(2 * CONFIG.mirror_seconds)
        for number in range(count):
            name = f"{namespace}-{number}"
            start = time.perf_counter()
            await bed.home.create(DISPATCHED_PODS, pod(name), namespace=namespace)
            await bed.until_open([name])
            taken.append(bed.opened[name] - start)
    return taken


def new_namespace(servers: list[ApiServer]) -> str:
    """A namespace in all of them."""
    name = f"bench-{uuid.uuid4().hex[:6]}"
    for server in servers:
        server.create_namespace(name)
    return name


async def run_all(count: int, one_by_one: int) -> list[results.Row]:
    """On three control planes."""
    with Run() as run:
        servers = [ApiServer(run, name) for name in ("home", "east", "west")]
        async with contextlib.AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(Client(load_kubeconfig([server.kubeconfig()], environ={})))
                for server in servers
            ]
            home, *others = made
            members = [
                Member(server.name, await cluster_uid(client), client)
                for server, client in zip(servers[1:], others, strict=True)
            ]
            bed = Bed(home, members, await cluster_uid(home))
            for client in others:
                labels = f"{clusters.LABEL_ORIGIN}={bed.home_cluster}"
                watch = Reflector(client, DISPATCHED_PODS, labels=labels, consumers=[bed.took])
                await stack.enter_async_context(watch)
                await watch.wait_synced()
            return await measure(bed, servers, count, one_by_one)


def dispatches(count: int, one_by_one: int) -> list[results.Row]:
    """Dispatches against a bare client."""
    return asyncio.run(run_all(count, one_by_one))


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="pods that are there at once")
    parser.add_argument("--one-by-one", type=int, default=ONE_BY_ONE, help="pods that come one after another")
    parts: dict[str, Callable[[], list[results.Row]]] = {
        "dispatches": lambda: dispatches(given.count, given.one_by_one),
        "choice": many_clusters.choice,
        "memory": lambda: many_clusters.memory(many_clusters.COPIES),
        "planes": lambda: asyncio.run(real_clusters.measure()),
    }
    parser.add_argument("--only", choices=parts, action="append", help="measure this alone")
    given = parser.parse_args()
    results.report("clusters", [row for name in given.only or parts for row in parts[name]()])


if __name__ == "__main__":
    main()
