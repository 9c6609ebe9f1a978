"""Three real control planes with fake nodes, Shoal's schedulers and `shoal cluster-manager`, each with its own rights.

How long it takes until a cluster of 1,000 nodes that joins is used: pods that name it wait for it at home. Then 500
Jobs that come at once, each for a whole card, while there are 520 in clusters of different size: how far what each
cluster got is from its share, and how many have no node while another cluster has room.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

import bench.results as results
from shoal.clusters.join import secret_name
from shoal.clusters.joining import JoinWish, join
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES, PODS, SECRETS
from shoal.model.contract.clusters import ENABLED, LABEL_ACCEPTS, LABEL_DISPATCH, NAME_MANAGER, NAMESPACE_MANAGER
from shoal.scheduler.certificates import decode
from shoal.scheduler.config import SECRET
from tests.clusters.site import JOBS
from tests.scheduler.offer.site import token_of
from tests.scheduler.offer.test_offer_kube import running
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_kubelet import RUNS_FOR
from tests.testbed.fake_nodes import FakeNodes, each
from tests.testbed.processes import Run

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
SHOAL: Final = (sys.executable, "-c", "from shoal.cli.main import main; main()")
SYSTEM: Final = "kube-system"
TEAM: Final = "team"
CARDS: Final = 8
#: Nodes of eight cards in each cluster.
NODES_OF: Final = {"home": 13, "east": 20, "west": 32}
MANY: Final = 1_000
JOINS: Final = 5
BURST: Final = 500


@dataclass
class _Cluster:
    name: str
    plane: ControlPlane
    client: Client
    nodes: FakeNodes
    offer_url: str = ""
    authority: bytes = field(default=b"", repr=False)

    async def bound(self) -> int:
        """How many pods of the team have a node."""
        found = (await self.client.list(PODS, namespace=TEAM)).items
        return sum(bool(one.spec.node_name) for one in found)


async def _until(holds: Callable[[], Awaitable[bool]], pause: float) -> None:
    while not await holds():  # noqa: ASYNC110 - it is another program's state
        await asyncio.sleep(pause)


def _job(name: str, **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "metadata": {"annotations": {RUNS_FOR: "36000", **annotations}},
        "spec": {"restartPolicy": "Never", "schedulerName": "gpu-scheduler", "containers": [container]},
    }
    return {"metadata": {"name": name}, "spec": {"template": template}}


class _Bed:
    """The clusters, of which none is joined yet, and the manager at home."""

    def __init__(self, run: Run, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._run, self._folder, self._stack = run, folder, stack
        self.clusters: dict[str, _Cluster] = {}

    @property
    def home(self) -> _Cluster:
        return self.clusters["home"]

    async def add(self, name: str, nodes: int) -> None:
        """A control plane. All are started before the first scheduler, whose Lease does not wait for it."""
        plane = self._stack.enter_context(own_control_plane(self._run, name))
        access = load_kubeconfig([plane.api.kubeconfig()], environ={}, explicit=True)
        made = FakeNodes(self._run, plane.api)
        self._stack.callback(made.stop)
        cluster = _Cluster(name, plane, await self._stack.enter_async_context(Client(access)), made)
        plane.api.kubectl("apply", "-k", str(DEPLOY / "scheduler-offer"))
        plane.api.create_namespace(TEAM)
        label = LABEL_DISPATCH if name == "home" else LABEL_ACCEPTS
        plane.api.kubectl("label", "namespace", TEAM, f"{label}={ENABLED}")
        await made(nodes, gpus=CARDS)
        await self.usable(cluster, nodes)
        self.clusters[name] = cluster

    async def offer(self, cluster: _Cluster) -> None:
        """Its scheduler, which makes offers."""
        offering = await self._stack.enter_async_context(running(cluster.client))
        cluster.offer_url = f"https://127.0.0.1:{offering.port}"
        held = (await cluster.client.get(SECRETS, SECRET, namespace=SYSTEM)).data
        cluster.authority = decode(held).authority.certificate

    async def usable(self, cluster: _Cluster, count: int) -> None:
        """So many nodes, and no controller's taint on them."""

        async def ready() -> bool:
            found = (await cluster.client.list(NODES)).items
            return len(found) == count and not any(one.spec.taints for one in found)

        await _until(ready, 1.0)

    async def manage(self) -> None:
        """The manager, with the token of its account."""
        authority = self._folder / "ca.crt"
        authority.write_bytes(self.home.authority)
        settings = {
            "namespace": NAMESPACE_MANAGER,
            "schedulerNamespace": SYSTEM,
            "offerUrl": self.home.offer_url,
            "offerCa": str(authority),
            "probePort": None,
            "metricsPort": None,
        }
        (self._folder / "manager.yaml").write_text(yaml.safe_dump(settings))
        config = yaml.safe_load(self.home.plane.api.kubeconfig().read_text())
        token = await token_of(self.home.client, NAME_MANAGER, namespace=NAMESPACE_MANAGER)
        config["users"][0]["user"] = {"token": token}
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(config))
        arguments = (f"--config={self._folder / 'manager.yaml'}", f"--kubeconfig={self._folder / 'kubeconfig'}")
        manager = self._run.process("manager", [*SHOAL, "cluster-manager", *arguments])
        manager.start()
        self._stack.callback(manager.stop)

    async def join(self, cluster: _Cluster) -> float:
        """Join it; the moment at which its Secret stood at home."""
        written: list[float] = []

        def say(words: str) -> None:
            if "is written at home" in words:
                written.append(time.perf_counter())

        wish = JoinWish(
            cluster.name, NAMESPACE_MANAGER, SYSTEM, offer_url=cluster.offer_url, offer_authority=cluster.authority
        )
        await join(self.home.client, cluster.client, wish, say=say)
        return written[0]


async def _joining(bed: _Bed) -> list[results.Row]:
    """Pods wait at home for a cluster of 1,000 nodes, which joins several times."""
    west = bed.clusters["west"]
    taken = [await _join_once(bed, west, f"waiting-{number}") for number in range(JOINS)]
    await bed.join(west)
    await west.nodes.remove()
    await west.nodes(NODES_OF["west"], gpus=CARDS, prefix="small")
    await bed.usable(west, NODES_OF["west"])
    joins, uses = zip(*taken, strict=True)
    name = f"cluster of {MANY:,} nodes"
    return [
        results.Row(f"{name}, join, median of {JOINS}", statistics.median(joins), "s"),
        results.below(f"{name}, from its Secret at home to a pod on a node there", statistics.median(uses), "s", 2),
    ]


async def _join_once(bed: _Bed, west: _Cluster, name: str) -> tuple[float, float]:
    """Seconds of the join, and from its Secret at home until the pod has a node there. Then it is undone."""
    home = bed.home.client
    await home.create(JOBS, _job(name, clusterName="west"), namespace=TEAM)

    async def waits() -> bool:
        found = (await home.list(PODS, namespace=TEAM)).items
        return any("no joined cluster is called" in (c.message or "") for one in found for c in one.status.conditions)

    await _until(waits, 0.1)
    start = time.perf_counter()
    written = await bed.join(west)

    async def runs() -> bool:
        return await west.bound() == 1

    await _until(runs, 0.02)
    end = time.perf_counter()
    await home.delete(JOBS, name, namespace=TEAM, propagation="Background")

    async def gone() -> bool:
        return not any([(await one.list(PODS, namespace=TEAM)).items for one in (home, west.client)])

    await _until(gone, 0.2)
    await home.delete(SECRETS, secret_name("west"), namespace=NAMESPACE_MANAGER)
    return written - start, end - written


async def _burst(bed: _Bed) -> list[results.Row]:
    start = time.perf_counter()
    client = bed.home.client
    names = [f"burst-{number}" for number in range(BURST)]
    await each(names, lambda name: client.create(JOBS, _job(name), namespace=TEAM))
    counts: dict[str, int] = {}
    changed = start

    async def settled() -> bool:
        nonlocal counts, changed
        found = {name: await one.bound() for name, one in bed.clusters.items()}
        if found != counts:
            counts, changed = found, time.perf_counter()
        # What has no node after so long gets none.
        return sum(counts.values()) >= BURST or time.perf_counter() - changed > 120

    await _until(settled, 0.5)
    cards = {name: number * CARDS for name, number in NODES_OF.items()}
    shares = {name: BURST * number / sum(cards.values()) for name, number in cards.items()}
    off = max(abs(counts[name] - share) / share for name, share in shares.items())
    print(f"burst of {BURST} Jobs: {counts}, shares { ({name: round(share) for name, share in shares.items()}) }")
    return [
        results.Row(f"burst of {BURST} Jobs, all on nodes after", changed - start, "s"),
        results.below("burst, farthest from its share by cards", off * 100, "%", 10),
        results.below("burst, without a node while there is room", BURST - sum(counts.values()), "pods", 0),
    ]


async def measure() -> list[results.Row]:
    """Both, on the same clusters."""
    with Run() as run, tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            bed = _Bed(run, Path(folder), stack)
            for name, count in (NODES_OF | {"west": MANY}).items():
                await bed.add(name, count)
            for name in ("namespace", "rbac", "gates"):
                bed.home.plane.api.kubectl("apply", "-f", str(DEPLOY / "cluster-manager" / f"{name}.yaml"))
            for cluster in bed.clusters.values():
                await bed.offer(cluster)
            await bed.manage()
            await bed.join(bed.clusters["east"])
            return [*await _joining(bed), *await _burst(bed)]
