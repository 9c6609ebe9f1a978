"""The stock kube-scheduler and the filters agree, on clusters and pods out of dice.

kube-scheduler is given an extender that allows no node and writes down those it was asked about: exactly the nodes that
passed kube-scheduler's own filters. So every pod is judged, and none is ever bound. A pod that passed nowhere does not
reach the extender; its condition tells which filter refused how many nodes, and where preemption could have helped, and
that must agree too. Both sides read the same objects from the API server.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CLAIMS, NAMESPACES, NODES, PODS, STORAGE_CLASSES, VOLUMES, Resource
from shoal.scheduler.feasibility.feasibility import Feasibility, Verdict
from shoal.scheduler.feasibility.tables import ClusterTables
from tests.scheduler.feasibility.made_up import NAMESPACES as ROOMS
from tests.scheduler.feasibility.made_up import Dice
from tests.scheduler.feasibility.world import Manifest, World
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes, each

CLUSTERS = 8
NODE_COUNT = 20
PLACED = 100
ASKED = 260
#: Keeps deleted pods where they are, so that some are always being deleted.
FINALIZER = "testbed.shoal.dev/hold"


class Extender:
    """Writes down which nodes it is asked about, and allows none."""

    def __init__(self) -> None:
        self.asked: dict[str, set[str]] = {}

    async def filter(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.setdefault(body["Pod"]["metadata"]["uid"], set(body["NodeNames"]))
        return web.json_response({"NodeNames": []})


@pytest.fixture
async def extender(control_plane: ControlPlane) -> AsyncIterator[tuple[Extender, dict[str, object]]]:
    """The extender and the scheduler configuration that asks it."""
    extender = Extender()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/filter", extender.filter)
    runner = web.AppRunner(app)
    await runner.setup()
    port = control_plane.run.reservations.port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    told = {"urlPrefix": f"http://127.0.0.1:{port}", "filterVerb": "filter", "nodeCacheCapable": True}
    yield extender, {"extenders": [told], "percentageOfNodesToScore": 100}
    await runner.cleanup()


class Stage:
    """The cluster on the API server that the dice are thrown for."""

    def __init__(self, client: Client, dice: Dice, nodes: list[str]) -> None:
        self.client, self.dice, self.nodes = client, dice, nodes

    async def set_up(self) -> dict[str, list[str]]:
        """Other labels, taints, amounts, volumes and pods than before; the claims by namespace."""
        await each(self.nodes, self._set_node)
        world = World()
        self.dice.storage(world, self.nodes)
        await self._make(STORAGE_CLASSES, list(world.classes.values()))
        await self._make(VOLUMES, [unbound(volume) for volume in world.volumes.values()])
        await self._make(CLAIMS, [unbound(claim) for claim in world.claims.values()])
        await until(lambda: self._settled(world))
        claims: dict[str, list[str]] = {namespace: ["missing"] for namespace in self.dice.namespaces[1:]}
        for namespace, name in world.claims:
            claims.setdefault(namespace, []).append(name)
        await self._place(claims)
        await until(self._running)
        return claims

    async def tear_down(self) -> None:
        """Everything but the nodes goes."""
        for pod in (await self.client.list(PODS)).items:
            meta = pod.metadata
            if FINALIZER in meta.finalizers:
                patch = {"metadata": {"finalizers": None}}
                await self.client.patch(PODS, meta.name, patch, namespace=meta.namespace)
            await self._delete(PODS, meta.namespace, meta.name)
        for resource in (CLAIMS, VOLUMES, STORAGE_CLASSES):
            for found in (await self.client.list(resource.raw)).items:
                meta = found["metadata"]
                await self._delete(resource, meta.get("namespace", ""), meta["name"])
        await until(self._empty)

    async def _delete(self, resource: Resource[object], namespace: str, name: str) -> None:
        try:
            await self.client.delete(resource, name, namespace=namespace, grace_seconds=0)
        except NotFoundError:
            return  # gone by itself, as pods being deleted are

    async def _empty(self) -> bool:
        lists = [await self.client.list(resource.raw) for resource in (PODS, CLAIMS, VOLUMES)]
        return not any(found.items for found in lists)

    async def _set_node(self, name: str) -> object:
        made = self.dice.node(name)
        old = (await self.client.get(NODES, name)).metadata.labels
        gone = {key: None for key in old if "testbed" not in key}
        spec = {"unschedulable": made["spec"].get("unschedulable"), "taints": made["spec"].get("taints")}
        labels = {**gone, **made["metadata"]["labels"]}
        await self.client.patch(NODES, name, {"metadata": {"labels": labels}, "spec": spec})
        amounts = made["status"]["allocatable"]
        amounts = {"example.com/card": None, **amounts}
        status = {"capacity": amounts, "allocatable": amounts}
        return await self.client.patch(NODES, name, {"status": status}, subresource="status")

    async def _make(self, resource: Resource[object], manifests: list[Manifest]) -> None:
        for manifest in manifests:
            namespace = manifest["metadata"].get("namespace", "")
            await self.client.create(resource.raw, manifest, namespace=namespace)

    async def _place(self, claims: dict[str, list[str]]) -> None:
        for _ in range(PLACED):
            pod = self.dice.pod(claims=claims, wishes=0.6)
            pod["spec"]["nodeName"] = self.dice.one(*self.nodes)
            # Else a controller would evict it sooner or later.
            pod["spec"].setdefault("tolerations", []).append({"operator": "Exists", "effect": "NoExecute"})
            leaves = self.dice.chance(0.1)
            if leaves:
                pod["metadata"]["finalizers"] = [FINALIZER]
            meta = (await self.client.create(PODS, posted(pod))).metadata
            if leaves:
                await self.client.delete(PODS, meta.name, namespace=meta.namespace)

    async def _settled(self, world: World) -> bool:
        """The controllers have bound what can be bound and tainted what is cordoned."""
        volumes = {volume.metadata.name: volume for volume in (await self.client.list(VOLUMES)).items}
        for claim in (await self.client.list(CLAIMS)).items:
            if claim.spec.volume_name in volumes and claim.status.phase != "Bound":
                return False
        if any(volume.status.phase in ("", "Pending") for volume in volumes.values()):
            return False
        return all(
            node.spec.unschedulable == any(taint.key.endswith("/unschedulable") for taint in node.spec.taints)
            for node in (await self.client.list(NODES)).items
        )

    async def _running(self) -> bool:
        pods = (await self.client.list(PODS)).items
        return all(pod.status.phase == "Running" or pod.metadata.deletion_timestamp for pod in pods)


def unbound(thing: Manifest) -> Manifest:
    """Before the controllers have seen it: the uid is the server's to give, and the status theirs."""
    metadata = {key: value for key, value in thing["metadata"].items() if key != "uid"}
    if "bind-completed" in str(metadata.get("annotations")):
        del metadata["annotations"]
    spec = dict(thing.get("spec") or {})
    if "claimRef" in spec:
        spec["claimRef"] = {key: value for key, value in spec["claimRef"].items() if key != "uid"}
    rest = {key: value for key, value in thing.items() if key not in ("metadata", "status", "spec")}
    return {**rest, "metadata": metadata, **({"spec": spec} if spec else {})}


def posted(pod: Manifest) -> Manifest:
    metadata = {key: value for key, value in pod["metadata"].items() if key != "uid"}
    return {**pod, "metadata": metadata}


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition."""
    while True:
        if await holds():
            return
        await asyncio.sleep(0.2)


async def read(client: Client) -> tuple[Feasibility, list[str]]:
    """The filters on what the API server has, and the nodes by row."""
    cluster = ClusterTables()
    names = []
    for row, node in enumerate((await client.list(NODES)).items):
        cluster.set_node(row, node)
        names.append(node.metadata.name)
    for namespace in (await client.list(NAMESPACES)).items:
        cluster.set_namespace(namespace)
    for storage_class in (await client.list(STORAGE_CLASSES)).items:
        cluster.set_storage_class(storage_class)
    for volume in (await client.list(VOLUMES)).items:
        cluster.set_volume(volume)
    for claim in (await client.list(CLAIMS)).items:
        cluster.set_claim(claim)
    for pod in (await client.list(PODS)).items:
        if pod.spec.node_name:
            cluster.add_pod(pod, names.index(pod.spec.node_name))
    return Feasibility(cluster), names


def judged(pod: Pod) -> str | None:
    """What kube-scheduler wrote about the pod, once it has."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or ""
    return None


_COUNT = re.compile(r"([0-9]+) (.*)")


def told(message: str) -> tuple[Counter[str], int]:
    """How many nodes each reason refused, and at how many preemption was thought of."""
    first, _, preemption = message.partition(". ")
    reasons = Counter[str]()
    for part in first.partition(": ")[2].rstrip(".").split(", "):
        match = _COUNT.fullmatch(part)
        reasons[match[2] if match else part] = int(match[1]) if match else 0
    helped = re.search(r"([0-9]+) No preemption victims found", preemption)
    return reasons, int(helped[1]) if helped else 0


def own_words(verdict: Verdict) -> tuple[Counter[str], int]:
    """The same of a verdict. What holds for the pod and not for nodes has no count."""
    reasons = Counter[str]()
    resolvable = verdict.allowed & False
    for refusal in verdict.rejections:
        reasons[refusal.reason] += int(refusal.rows.sum()) if not of_the_pod(refusal.reason) else 0
        if refusal.resolvable:
            resolvable |= refusal.rows
    return reasons, int(resolvable.sum())


def of_the_pod(reason: str) -> bool:
    return reason.startswith(("pod has unbound", "persistentvolume"))


def names_nodes(pod: Pod) -> bool:
    """Node affinity by name is answered before the filters, in other words."""
    return "metadata.name" in str(pod.spec.affinity)


@pytest.mark.min_kube("1.36")  # older ones have other words
async def test_kube_scheduler_finds_the_same_nodes(
    control_plane: ControlPlane,
    fake_nodes: FakeNodes,
    client: Client,
    extender: tuple[Extender, dict[str, object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    namespaces = {f"{name}-{uuid.uuid4().hex[:6]}": labels for name, labels in ROOMS.items()}
    for name, labels in namespaces.items():
        control_plane.api.create_namespace(name)
        await client.patch(NAMESPACES, name, {"metadata": {"labels": labels}})
    nodes = await fake_nodes(NODE_COUNT, prefix="n")
    recorder, configuration = extender
    compared, texts, fitting = 0, 0, 0
    for number in range(CLUSTERS):
        stage = Stage(client, Dice(number, namespaces), nodes)
        claims = await stage.set_up()
        feasibility, by_row = await read(client)
        control_plane.start_scheduler(configuration)
        pods = await ask(client, stage.dice, claims)
        for pod in pods:
            verdict = feasibility.verdict(pod)
            ours = {by_row[row] for row in verdict.allowed.nonzero()[0].tolist()}
            theirs = recorder.asked.get(pod.metadata.uid, set())
            message = judged(pod) or ""
            assert ours == theirs, f"cluster {number}: {pod}\n{message}\n{verdict.rejections}"
            compared += 1
            fitting += bool(theirs)
            if not theirs and not names_nodes(pod):
                assert own_words(verdict) == told(message), f"cluster {number}: {pod}\n{message}"
                texts += 1
        control_plane.stop_schedulers()
        await stage.tear_down()
    with capsys.disabled():
        print(f"\n{compared} pods judged alike, {fitting} of them with nodes; {texts} refusals in the same words")  # noqa: T201
    assert compared >= 2000
    assert fitting > compared / 4
    assert texts > compared / 8


async def ask(client: Client, dice: Dice, claims: dict[str, list[str]]) -> list[Pod]:
    """Pods that kube-scheduler has judged."""
    made: dict[str, Manifest] = {}
    for _ in range(ASKED):
        pod = posted(dice.pod(claims=claims))
        made[pod["metadata"]["name"]] = pod
    await each(made, lambda name: client.create(PODS, made[name]))
    found: list[Pod] = []

    async def all_judged() -> bool:
        found[:] = [pod for pod in (await client.list(PODS)).items if not pod.spec.node_name]
        return len(found) == ASKED and all(judged(pod) is not None for pod in found)

    await until(all_judged)
    return found
