"""Driver upgrades on a real control plane: Kubernetes' own DaemonSet, evictions and budgets over fake nodes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import EVENTS, NODES, POD_DISRUPTION_BUDGETS, PODS, RawObject, Resource
from shoal.kube.store import Change
from shoal.model.contract import nvidia
from shoal.model.contract.operator import ANNOTATION_UPGRADE, NAME_DRIVER
from tests.operator.scene import validation
from tests.operator.site import Site, eventually
from tests.operator.upgrade_model import OUT_OF_SERVICE
from tests.testbed.control_plane import ControlPlane, own_control_plane
from tests.testbed.fake_nodes import FakeNodes, each
from tests.testbed.processes import Run

REPLICA_SETS: Resource[RawObject] = Resource("apps", "v1", "replicasets", "ReplicaSet", dict)
STATE = nvidia.LABEL_UPGRADE_STATE


@pytest.fixture(scope="module")
def plane(testbed_run: Run) -> Iterator[ControlPlane]:
    """A control plane of this module's own: the operator looks at all nodes."""
    with own_control_plane(testbed_run, "upgrade") as plane:
        plane.start_scheduler()
        yield plane


@pytest.fixture
async def site(testbed_run: Run, plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace with manifests, and nodes that come and go with the test."""
    nodes = FakeNodes(testbed_run, plane.api)
    access = load_access(environ={}, home=Path("/"), kubeconfig=plane.api.kubeconfig())
    async with Client(access) as client:
        site = Site(plane, client, nodes, tmp_path)
        await site.begin()
        async with site.validators.pods:
            try:
                yield site
            finally:
                for one in (await client.list(REPLICA_SETS, namespace=site.namespace)).items:
                    await client.delete(REPLICA_SETS, one["metadata"]["name"], namespace=site.namespace)
                await site.end()
                await nodes.remove()
                nodes.stop()


class Machines:
    """What happens on nodes: new drivers are validated, or fail on broken ones. And who is out of service."""

    def __init__(self, site: Site) -> None:
        self._client = site.client
        self._seconds = itertools.count(1_800_000_000)
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()
        self.broken: set[str] = set()
        self.pods: Reflector[Pod] = Reflector(site.client, PODS, namespace=site.namespace, consumers=[self._on_pod])
        self.nodes: Reflector[Node] = Reflector(site.client, NODES, consumers=[self._on_node])
        #: The most that were ever out of service at once, as the watch tells it.
        self.most = 0

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[Machines]:
        async with self.nodes, self.pods:
            yield self

    def out_of_service(self) -> list[str]:
        return [
            node.metadata.name
            for node in self.nodes.store
            if node.spec.unschedulable or node.metadata.labels.get(STATE) in OUT_OF_SERVICE
        ]

    def states(self) -> dict[str, str]:
        return {node.metadata.name: node.metadata.labels.get(STATE, "") for node in self.nodes.store}

    def hashes(self) -> dict[str, str]:
        """The revision of each node's driver that runs and stays."""
        return {
            pod.spec.node_name: pod.metadata.labels["controller-revision-hash"]
            for pod in self.pods.store
            if pod.metadata.name.startswith(NAME_DRIVER) and pod.metadata.deletion_timestamp is None
        }

    def _on_node(self, change: Change[Node]) -> None:
        self.most = max(self.most, len(self.out_of_service()))

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is None or not pod.metadata.name.startswith(NAME_DRIVER) or pod.status.phase != "Running":
            return
        if pod.metadata.uid not in self._seen:
            self._seen.add(pod.metadata.uid)
            work = self.fail(pod) if pod.spec.node_name in self.broken else self.validate(pod.spec.node_name)
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def validate(self, node: str) -> None:
        """What the node's validator says of a new driver."""
        text = validation(since=next(self._seconds))
        with contextlib.suppress(NotFoundError):
            await self._client.patch(NODES, node, {"metadata": {"annotations": {"shoal.dev/validation": text}}})

    async def fail(self, pod: Pod) -> None:
        """What kubelet says of a driver that ends again and again."""
        await self.say(pod, ready=False, restarts=11)

    async def say(self, pod: Pod, *, ready: bool, restarts: int) -> None:
        meta = pod.metadata
        statuses = [
            {"name": one.name, "image": "none", "imageID": "none", "ready": ready, "restartCount": restarts}
            for one in pod.spec.containers
        ]
        conditions = [{"type": kind, "status": "True" if ready else "False"} for kind in ("ContainersReady", "Ready")]
        status = {"containerStatuses": statuses, "conditions": conditions}
        patch = {"metadata": {"uid": meta.uid}, "status": status}
        await self._client.patch(
            PODS, meta.name, patch, namespace=meta.namespace, subresource="status", kind="strategic"
        )


async def gpu_nodes(site: Site, count: int) -> list[str]:
    names = await site.fake_nodes(count, gpus=1)
    label = {"metadata": {"labels": {nvidia.LABEL_PRESENT: "true"}}}
    await each(names, lambda name: site.client.patch(NODES, name, label))
    return names


def policy(version: str, **upgrade: Any) -> dict[str, Any]:
    return {
        "driver": {
            "repository": "example.org",
            "image": "driver",
            "version": version,
            "upgradePolicy": {"maxParallelUpgrades": 0, **upgrade},
        }
    }


async def replica_set(site: Site, name: str, replicas: int, resource: str, amount: int) -> None:
    labels = {"app": name}
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: str(amount)}}}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        },
    }
    await site.client.create(REPLICA_SETS, {"metadata": {"name": name}, "spec": spec}, namespace=site.namespace)
    await runs(site, name, replicas)


async def runs(site: Site, name: str, replicas: int) -> None:
    async def running() -> bool:
        found = await site.client.get(REPLICA_SETS, name, namespace=site.namespace)
        return int(found["status"].get("readyReplicas", 0)) == replicas

    await eventually(running, f"running: {replicas} of {name}")


async def budget(site: Site, app: str, least: int) -> None:
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}
    body = {"metadata": {"name": f"keep-{app}"}, "spec": spec}
    await site.client.create(POD_DISRUPTION_BUDGETS.raw, body, namespace=site.namespace)

    async def known() -> bool:
        found = await site.client.get(POD_DISRUPTION_BUDGETS.raw, f"keep-{app}", namespace=site.namespace)
        return bool((found.get("status") or {}).get("currentHealthy"))

    await eventually(known, f"counting the pods of {app}")


async def ready_with_drivers(site: Site, machines: Machines, names: list[str]) -> set[str]:
    """Wait until the first driver is everywhere; its revision."""
    await site.until("ready", f"{len(names)}/{len(names)}")
    await eventually(lambda: machines.hashes().keys() == set(names), "a driver on every node")
    machines.most = 0
    return set(machines.hashes().values())


async def test_fifty_nodes_never_beyond_max_unavailable_and_one_that_fails_holds_up_no_other(site: Site) -> None:
    names = await gpu_nodes(site, 50)
    broken = names[7]
    async with Machines(site).followed() as machines, site.operator():
        await site.wish(**policy("1", maxUnavailable="25%"))
        old = await ready_with_drivers(site, machines, names)
        await replica_set(site, "shares", 50, "aliyun.com/gpu-mem", 8)
        await replica_set(site, "clients", 20, "keti.com/mpsgpu", 1)
        await budget(site, "shares", 46)
        machines.broken = {broken}

        await site.wish(**policy("2", maxUnavailable="25%"))
        others = {name for name in names if name != broken}

        def done() -> bool:
            states = machines.states()
            return all(states[name] == "upgrade-done" for name in others) and states[broken] == "upgrade-failed"

        await eventually(done, "upgraded but for one")
        assert 1 < machines.most <= 13
        assert machines.out_of_service() == [broken]
        assert old.isdisjoint(machines.hashes()[name] for name in others)
        await runs(site, "shares", 50)
        await runs(site, "clients", 20)
        found = await site.until("notReady", "49/50")
        assert [(one["name"], one["step"]) for one in found["nodes"]] == [(broken, "upgrade-failed")]
        assert "restarted 11 times" in found["nodes"][0]["why"]

        machines.broken.clear()
        (driver,) = [
            pod
            for pod in machines.pods.store
            if pod.spec.node_name == broken and pod.metadata.name.startswith(NAME_DRIVER)
        ]
        await machines.say(driver, ready=True, restarts=12)
        await machines.validate(broken)
        await site.until("ready", "50/50")
        await eventually(lambda: machines.out_of_service() == [], "in service")
        assert machines.most <= 13
        assert not any(ANNOTATION_UPGRADE in node.metadata.annotations for node in machines.nodes.store)


async def test_a_budget_that_blocks_is_named_and_holds_up_no_other(site: Site) -> None:
    names = await gpu_nodes(site, 3)
    async with Machines(site).followed() as machines, site.operator():
        await site.wish(**policy("1"))
        await ready_with_drivers(site, machines, names)
        await replica_set(site, "only", 1, "aliyun.com/gpu-mem", 8)
        await budget(site, "only", 1)
        (pod,) = (await site.client.list(PODS, namespace=site.namespace, labels="app=only")).items
        kept = pod.spec.node_name

        await site.wish(**policy("2", maxUnavailable=1, podDeletion={"timeoutSeconds": 10}))
        await eventually(
            lambda: sorted(machines.states().values()) == ["upgrade-done", "upgrade-done", "upgrade-failed"],
            "upgraded but for one",
        )
        assert machines.most == 1
        assert machines.states()[kept] == "upgrade-failed"
        assert machines.out_of_service() == []  # the old driver serves on
        found = await site.until("notReady", "2/3")
        assert "keep-only" in found["nodes"][0]["why"]

        async def told() -> set[str]:
            events = (await site.client.list(EVENTS.raw, namespace="default")).items
            return {one["reason"] for one in events if one["involvedObject"]["name"] == kept}

        async def told_both() -> bool:
            return {"DriverUpgradeBlocked", "DriverUpgradeFailed"} <= await told()

        await eventually(told_both, "told in Events")
        (still,) = (await site.client.list(PODS, namespace=site.namespace, labels="app=only")).items
        assert still.metadata.uid == pod.metadata.uid

        await site.client.delete(POD_DISRUPTION_BUDGETS, "keep-only", namespace=site.namespace)
        await site.client.patch(NODES, kept, {"metadata": {"labels": {STATE: "upgrade-required"}}})
        await site.until("ready", "3/3")
        await runs(site, "only", 1)


async def test_operators_that_are_killed_a_node_that_goes_and_a_server_that_restarts(site: Site) -> None:
    names = await gpu_nodes(site, 12)
    async with Machines(site).followed() as machines:
        operator = site.replica()
        await site.wish(**policy("1", maxUnavailable=3))
        old = await ready_with_drivers(site, machines, names)
        await replica_set(site, "shares", 6, "aliyun.com/gpu-mem", 8)
        await site.wish(**policy("2", maxUnavailable=3))

        def begun(count: int) -> bool:
            return sum(one not in old for one in machines.hashes().values()) >= count

        await eventually(lambda: begun(1), "begun")
        operator.kill()
        operator = site.replica()
        await eventually(lambda: begun(3), "going on")
        operator.kill()
        gone = next((name for name in machines.out_of_service()), names[-1])
        await site.client.delete(NODES, gone)
        site.plane.api.kill()
        site.plane.api.start()
        operator = site.replica()
        left = [name for name in names if name != gone]
        await eventually(
            lambda: all(machines.states()[name] == "upgrade-done" for name in left) and not machines.out_of_service(),
            "upgraded",
        )
        assert machines.most <= 3
        assert old.isdisjoint(machines.hashes()[name] for name in left)
        await runs(site, "shares", 6)
