"""`shoal scheduler` allocates claims on a real control plane, with the rights that it is deployed with.

Nodes are made up and their slices written by hand: no kubelet is needed to allocate. What the stock scheduler counts of
it is asked of the stock scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.objects.claims import ResourceClaim
from shoal.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from tests.scheduler.claims.test_allocator import SEQUENCE
from tests.scheduler.claims.world import CLASS, asks, counters_of, slice_of
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import service_account
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes, each
from tests.testbed.room import client, room

__all__ = ["client", "room"]

pytestmark = pytest.mark.min_kube("1.36")
RIGHTS = Path(__file__).parents[3] / "deploy" / "scheduler-claims" / "rbac.yaml"
Manifest = dict[str, Any]
#: A priority class that every cluster has.
IMPORTANT = "system-cluster-critical"


class Stage:
    """A namespace with nodes that publish their cards."""

    def __init__(self, client: Client, room: str, plane: ControlPlane, nodes: FakeNodes) -> None:
        self.client, self.room, self.plane = client, room, plane
        self._nodes = nodes
        self.cards: dict[str, list[Gpu]] = {}
        self._schedulers: list[SchedulerProcess] = []

    async def add_node(self, name: str, sizes: list[int], *, partitions: int = 0) -> str:
        """A node with cards of these sizes in GiB, each cut into so many partitions."""
        cards = [Gpu(f"GPU-{self.room}-{name}-{i}", i, gib * 1024, "T") for i, gib in enumerate(sizes)]
        if partitions:
            cards = [_cut(card, partitions) for card in cards]
        (made,) = await self._nodes(1, gpus=cards, prefix=f"{self.room}-{name}")
        self.cards[made] = cards
        await self.client.create(RESOURCE_SLICES.raw, slice_of(made, cards))
        if partitions:
            await self.client.create(RESOURCE_SLICES.raw, counters_of(made, cards))
        return made

    async def scheduler(self, policy: str = "fragmentation") -> SchedulerProcess:
        """Shoal's, with the rights of its ServiceAccount."""
        api = self.plane.api
        account = await service_account(api)
        await asyncio.to_thread(api.kubectl, "apply", "-f", str(RIGHTS))
        settings = api.directory / f"{self.room}.yaml"
        settings.write_text(yaml.safe_dump({"claims": True, "policy": policy, "schedulerNames": [self.room]}))
        number = len(self._schedulers)
        options = ["--config", str(settings), "--no-leader-elect"]
        process = SchedulerProcess(self.plane.run, f"claims-{self.room}-{number}", account, options)
        self._schedulers.append(process)
        await asyncio.to_thread(process.start)
        return process

    def stop(self) -> None:
        for process in self._schedulers:
            process.kill()

    async def claim(self, name: str, *requests: Manifest) -> ResourceClaim:
        made = {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}
        await self.client.create(RESOURCE_CLAIMS.raw, made, namespace=self.room)
        return await self.claim_now(name)

    async def claim_now(self, name: str) -> ResourceClaim:
        return await self.client.get(RESOURCE_CLAIMS, name, namespace=self.room)

    async def template(self, name: str, *requests: Manifest) -> None:
        made = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": list(requests)}}}}
        await self.client.create(RESOURCE_CLAIM_TEMPLATES.raw, made, namespace=self.room)

    async def pod(
        self,
        name: str,
        *,
        scheduler: str = "",
        tolerations: list[Manifest] | None = None,
        priority: str = "",
        **source: str,
    ) -> None:
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "schedulerName": scheduler or self.room,
            "containers": [container],
            "tolerations": tolerations or [],
            "resourceClaims": [{"name": "gpu", **source}],
            **({"priorityClassName": priority} if priority else {}),
        }
        await self.client.create(PODS.raw, {"metadata": {"name": name}, "spec": spec}, namespace=self.room)

    async def places(self) -> dict[str, str]:
        pods = (await self.client.list(PODS, namespace=self.room)).items
        return {pod.metadata.name: pod.spec.node_name for pod in pods}

    async def until_placed(self, *names: str) -> None:
        async def placed() -> bool:
            now = await self.places()
            return all(now[name] for name in names)

        await eventually(placed, f"{', '.join(names)} bound")

    async def generated(self, pod: str) -> ResourceClaim:
        for claim in (await self.client.list(RESOURCE_CLAIMS, namespace=self.room)).items:
            if any(owner.name == pod for owner in claim.metadata.owner_references):
                return claim
        raise AssertionError(f"no claim of {pod}")

    async def told(self, pod: str) -> str:
        found = await self.client.get(PODS, pod, namespace=self.room)
        return next((one.message or "" for one in found.status.conditions if one.type == "PodScheduled"), "")


def _cut(card: Gpu, count: int) -> Gpu:
    size = card.memory_mib // count
    parts = tuple(MigInstance(f"MIG-{card.uuid[4:]}-{number}", "1g", size) for number in range(count))
    return replace(card, mig=True, mig_instances=parts)


async def eventually(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(300):
            while not await holds():  # noqa: ASYNC110 - another process, which signals nothing
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not {what} in time") from None


@pytest.fixture
async def stage(control_plane: ControlPlane, client: Client, room: str, fake_nodes: FakeNodes) -> AsyncIterator[Stage]:
    made = Stage(client, room, control_plane, fake_nodes)
    await client.create(DEVICE_CLASSES.raw, CLASS)
    yield made
    made.stop()
    await client.delete(DEVICE_CLASSES, dra.DEVICE_CLASS)

    async def remove(name: str) -> None:
        try:
            await client.delete(RESOURCE_SLICES, name)
        except NotFoundError:
            return

    await each([dra.slice_name(name, number) for name in made.cards for number in (0, 1)], remove)


async def test_a_pod_whose_claim_is_late_says_so_and_runs_once_its_status_names_it(stage: Stage) -> None:
    node = await stage.add_node("n", [24])
    await stage.scheduler()
    await stage.pod("late", resourceClaimTemplateName="none-yet")

    async def says() -> bool:
        return "waits for Kubernetes to make its claim 'gpu'" in await stage.told("late")

    await eventually(says, "a condition that names the claim")
    pod = await stage.client.get(PODS, "late", namespace=stage.room)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "late", "uid": pod.metadata.uid}
    claim = {
        "metadata": {"name": "by-hand", "ownerReferences": [owner]},
        "spec": {"devices": {"requests": [asks(memory="3Gi")]}},
    }
    await stage.client.create(RESOURCE_CLAIMS.raw, claim, namespace=stage.room)
    made = {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "by-hand"}]}}
    await stage.client.patch(PODS, "late", made, namespace=stage.room, subresource="status")
    await stage.until_placed("late")
    assert (await stage.places())["late"] == node


async def test_claims_are_allocated_as_the_stock_scheduler_counts_them(stage: Stage) -> None:
    node = await stage.add_node("n", [24, 24])
    await stage.template("g3", asks(memory="3Gi", compute=20))
    await stage.template("whole", asks())
    await stage.scheduler()
    for number in range(3):
        await stage.pod(f"p{number}", resourceClaimTemplateName="g3")
    await stage.until_placed("p0", "p1", "p2")
    results = []
    for number in range(3):
        claim = await stage.generated(f"p{number}")
        assert dra.FINALIZER in claim.metadata.finalizers
        assert [one.name for one in claim.status.reserved_for] == [f"p{number}"]
        assert claim.status.allocation is not None
        (result,) = claim.status.allocation.devices.results
        assert (result.driver, result.pool) == (dra.DRIVER, node)
        assert result.consumed_capacity == {"memory": "3Gi", "compute": "20"}
        results.append(result)
    assert len({result.device for result in results}) == 1, "packed on one card"
    assert len({result.share_id for result in results}) == 3
    # The stock scheduler gives whole cards only where no share is.
    stage.plane.start_scheduler()
    await stage.pod("w1", scheduler="default-scheduler", resourceClaimTemplateName="whole")
    await stage.until_placed("w1")
    whole = await stage.generated("w1")
    assert whole.status.allocation is not None
    assert whole.status.allocation.devices.results[0].device != results[0].device
    # And Shoal's counts that: the second card is taken, the first has 15 GiB left.
    await stage.template("g16", asks(memory="16Gi"))
    await stage.template("g15", asks(memory="15Gi"))
    await stage.pod("p3", resourceClaimTemplateName="g16")
    await stage.pod("p4", resourceClaimTemplateName="g15")
    await stage.until_placed("p4")
    await eventually(lambda: _says(stage, "p3", "0/1 nodes are available"), "told why it waits")
    assert (await stage.places())["p3"] == ""


async def _says(stage: Stage, pod: str, words: str) -> bool:
    return words in await stage.told(pod)


async def test_pods_give_way_to_a_more_important_one_with_a_claim(stage: Stage) -> None:
    """Two share a claim and go together, one has its own and stays; the claim of those that went is deallocated."""
    node = await stage.add_node("n", [24])
    await stage.scheduler()
    await stage.claim("shared", asks(memory="16Gi"))
    await stage.claim("own", asks(memory="8Gi"))
    for name, claim in (("one", "shared"), ("two", "shared"), ("three", "own")):
        await stage.pod(name, resourceClaimName=claim)
    await stage.until_placed("one", "two", "three")
    await stage.claim("large", asks(memory="12Gi"))
    await stage.pod("high", priority=IMPORTANT, resourceClaimName="large")
    await stage.until_placed("high")
    assert await stage.places() == {"three": node, "high": node}
    left = await stage.claim_now("shared")
    assert (left.status.allocation, left.status.reserved_for) == (None, ())
    # And to one that asks by number.
    limits = {"limits": {"aliyun.com/gpu-mem": "8"}}
    spec = {
        "schedulerName": stage.room,
        "priorityClassName": IMPORTANT,
        "containers": [{"name": "main", "image": "none", "resources": limits}],
    }
    await stage.client.create(PODS.raw, {"metadata": {"name": "number"}, "spec": spec}, namespace=stage.room)
    await stage.until_placed("number")
    assert await stage.places() == {"high": node, "number": node}


async def test_partitions_are_given_once_whoever_gives_them(stage: Stage) -> None:
    """One is given by the stock scheduler, one by Shoal's, and the next pod waits."""
    await stage.add_node("n", [40], partitions=2)
    await stage.template("part", asks(select=[f'device.attributes["{dra.DRIVER}"].type == "mig"']))
    stage.plane.start_scheduler()
    await stage.pod("stock", scheduler="default-scheduler", resourceClaimTemplateName="part")
    await stage.until_placed("stock")
    await stage.scheduler()
    await stage.pod("own", resourceClaimTemplateName="part")
    await stage.until_placed("own")
    await stage.pod("late", resourceClaimTemplateName="part")
    await eventually(lambda: _says(stage, "late", "no MIG partitions free that the claims accept"), "told why it waits")
    given = [(await stage.generated(name)).status.allocation for name in ("stock", "own")]
    results = [one.devices.results[0] for one in given if one is not None]
    assert len({result.device for result in results}) == 2
    assert [(result.share_id, result.consumed_capacity) for result in results] == [(None, {}), (None, {})]
    await stage.client.delete(PODS, "stock", namespace=stage.room)
    await stage.until_placed("late")


async def test_pods_that_share_a_claim_go_to_its_node(stage: Stage) -> None:
    await stage.add_node("a", [24])
    await stage.add_node("b", [24])
    await stage.claim("shared", asks(memory="3Gi"))
    await stage.scheduler()
    names = [f"p{number}" for number in range(6)]
    await each(names, lambda name: stage.pod(name, resourceClaimName="shared"))
    await stage.until_placed(*names)
    assert len(set((await stage.places()).values())) == 1
    claim = await stage.claim_now("shared")
    assert {one.name for one in claim.status.reserved_for} == set(names)


async def test_what_a_killed_scheduler_left_is_used_or_given_back(stage: Stage) -> None:
    """It wrote allocations and was killed before it bound the pods: one can still go there, one cannot."""
    here, there = [await stage.add_node(name, [24]) for name in ("a", "b")]
    for name in ("stays", "moves"):
        claim = await stage.claim(name, asks(memory="3Gi"))
        tolerations = [{"operator": "Exists"}] if name == "stays" else []
        await stage.pod(name, tolerations=tolerations, resourceClaimName=name)
        pod = await stage.client.get(PODS, name, namespace=stage.room)
        result = {
            "request": "gpu",
            "driver": dra.DRIVER,
            "pool": here,
            "device": dra.device_name(stage.cards[here][0].uuid),
            "shareID": pod.metadata.uid,
            "consumedCapacity": {"memory": "3Gi", "compute": "0"},
        }
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [here]}]}]
        status = {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod.metadata.uid}],
        }
        meta = claim.metadata
        patch = {"metadata": {"finalizers": [dra.FINALIZER]}}
        await stage.client.patch(RESOURCE_CLAIMS, meta.name, patch, namespace=stage.room)
        await stage.client.patch(
            RESOURCE_CLAIMS, meta.name, {"status": status}, namespace=stage.room, subresource="status"
        )
    # The taint keeps away who does not tolerate it.
    taints = [{"key": "closed", "effect": "NoSchedule"}]
    await stage.client.patch(NODES, here, {"spec": {"taints": taints}})
    await stage.scheduler()
    await stage.until_placed("stays", "moves")
    assert await stage.places() == {"stays": here, "moves": there}
    moved = await stage.claim_now("moves")
    assert moved.status.allocation is not None
    assert [one.pool for one in moved.status.allocation.devices.results] == [there]


async def test_a_bind_that_is_refused_gives_back_what_it_took(stage: Stage) -> None:
    await stage.add_node("a", [24])
    api = stage.plane.api
    policy = _refuses_bindings(stage.room)
    for document in policy:
        await asyncio.to_thread(api.kubectl, "apply", "-f", "-", input=yaml.safe_dump(document))
    await stage.template("whole", asks())
    process = await stage.scheduler()
    await stage.pod("refused", resourceClaimTemplateName="whole")
    await eventually(lambda: _says(stage, "refused", "binding to"), "refused at the API server")

    async def given_back() -> bool:
        claim = await stage.generated("refused")
        return claim.status.allocation is None and not claim.status.reserved_for

    await eventually(given_back, "given back")
    for document in reversed(policy):
        await asyncio.to_thread(api.kubectl, "delete", "-f", "-", input=yaml.safe_dump(document))
    await stage.until_placed("refused")
    assert process.alive


async def test_a_scheduler_that_is_killed_again_and_again_sells_no_card_twice(stage: Stage) -> None:
    nodes = [await stage.add_node(name, [24, 24]) for name in ("a", "b")]
    names = [f"p{number}" for number in range(30)]
    await each(names, lambda name: stage.claim(name, asks(memory="3Gi")))
    process = await stage.scheduler()
    await each(names, lambda name: stage.pod(name, resourceClaimName=name))
    for part in (1, 2):
        # As soon as some more are bound: others are half way.
        least = part * 5
        await eventually(partial(_bound, stage, least), f"{least} bound")
        process.kill()
        await asyncio.to_thread(process.start)
    await stage.until_placed(*names)
    places, used = await stage.places(), Counter[str]()
    for name in names:
        claim = await stage.claim_now(name)
        assert claim.status.allocation is not None
        (result,) = claim.status.allocation.devices.results
        assert result.pool == places[name]
        assert [one.name for one in claim.status.reserved_for] == [name]
        used[result.device] += 3
    assert set(places.values()) <= set(nodes)
    assert max(used.values()) <= 24


async def _bound(stage: Stage, least: int) -> bool:
    return sum(bool(node) for node in (await stage.places()).values()) >= least


async def test_two_schedulers_of_one_name_agree_on_every_claim(stage: Stage) -> None:
    """Each claim is allocated once, where its pod is, by whoever was faster; nobody takes it back from the other."""
    for name in ("a", "b"):
        await stage.add_node(name, [24, 24, 24, 24])
    names = [f"p{number}" for number in range(16)]
    for name in names:
        await stage.claim(name, asks(memory="5Gi"))
    await stage.scheduler()
    await stage.scheduler()
    await each(names, lambda name: stage.pod(name, resourceClaimName=name))
    await stage.until_placed(*names)
    places = await stage.places()
    for name in names:
        claim = await stage.claim_now(name)
        assert claim.status.allocation is not None
        assert [one.pool for one in claim.status.allocation.devices.results] == [places[name]]
        assert [one.name for one in claim.status.reserved_for] == [name]


def _refuses_bindings(room: str) -> list[Manifest]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": room}},
        },
        "validations": [{"expression": "false", "message": "not today"}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1"}
    name = f"no-bindings-{room}"
    return [
        {**head, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            **head,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


async def test_best_fit_places_more_of_the_reference_pods_than_the_stock_scheduler(stage: Stage) -> None:
    """One node of four cards of 24 GiB: of twenty pods first fit leaves five waiting, best fit three."""
    await stage.add_node("n", [24, 24, 24, 24])
    await stage.scheduler("binpack")
    for number, gib in enumerate(SEQUENCE):
        name = f"p{number}"
        await stage.claim(name, asks(memory=f"{gib}Gi"))
        await stage.pod(name, resourceClaimName=name)

        async def settled(pod: str = name) -> bool:
            return bool((await stage.places())[pod]) or "nodes are available" in await stage.told(pod)

        await eventually(settled, f"{name} decided")
    assert sum(not node for node in (await stage.places()).values()) == 3
