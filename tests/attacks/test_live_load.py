"""Lies about load, on the embedded cluster with its policies in force: whoever tells them, no other card looks fuller,
none emptier, and nobody who runs is touched.

The liars: a tenant with all rights in its own namespace, and a collector that somebody has taken over, with its token.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.embedded.nodes.cluster import few
from shoal.kube.client import Client
from shoal.kube.resources import LEASES, PODS
from shoal.model.contract.load import ANNOTATION_LOAD, MAX_CARDS
from tests.admission.guarded import lease
from tests.suites.connection import Answer, Connection

SYSTEM = "/api/v1/namespaces/kube-system"
LOADS = "/apis/coordination.k8s.io/v1/namespaces/shoal-load/leases"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CARD_MIB = 24 * 1024


@dataclasses.dataclass
class Site:
    """A cluster of two nodes with one card each, and tokens."""

    cluster: EmbeddedCluster
    client: Client
    tokens: dict[str, str]
    nodes: list[str]
    cards: dict[str, str]
    made: int = 0

    async def ask(self, who: str, method: str, path: str, body: object = None) -> Answer:
        """One request by somebody, or by the administrator."""
        data = None if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return await asyncio.to_thread(
            Connection(self.cluster.kubeconfig).request,
            *(method, path, data, {"Content-Type": kind}),
            token=self.tokens.get(who),
        )

    async def must(self, method: str, path: str, body: object) -> Any:
        answer = await self.ask("admin", method, path, body)
        assert answer.status < 300, answer.body
        return answer.body

    async def runs(self, name: str, gib: int, node: str) -> None:
        """A pod of that size gets that node, sooner or later."""
        await self._make(name, gib, node)
        async with asyncio.timeout(300):
            while not await self._outcome(name, node, refused=False):  # noqa: ASYNC110 - nobody signals it
                await asyncio.sleep(0.05)

    async def waits(self, gib: int, node: str) -> None:
        """A pod of that size is refused on that node, once the scheduler has heard of the load."""
        async with asyncio.timeout(300):
            while True:
                self.made += 1
                name = f"probe-{self.made}"
                await self._make(name, gib, node)
                while not (found := await self._outcome(name, node, refused=True)):  # noqa: ASYNC110 - nor this
                    await asyncio.sleep(0.05)
                await self.client.delete(PODS.raw, name, namespace="default", grace_seconds=0)
                if found == "refused":
                    return

    async def _make(self, name: str, gib: int, node: str) -> None:
        limits = {"aliyun.com/gpu-mem": str(gib)}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}],
        }
        await self.client.create(PODS.raw, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    async def _outcome(self, name: str, node: str, *, refused: bool) -> str:
        pod = await self.client.get(PODS, name, namespace="default")
        if pod.spec.node_name:
            assert pod.spec.node_name == node
            return "placed"
        told = any(one.type == "PodScheduled" and one.message for one in pod.status.conditions)
        return "refused" if refused and told else ""

    async def tell(self, who: str, node: str, digest: object) -> Answer:
        """Somebody writes a node's Lease."""
        written = digest if isinstance(digest, str) else json.dumps(digest)
        found = await self.ask(who, "POST", LOADS, lease(node, written))
        if found.status != 409:
            return found
        return await self.ask(
            who, "PATCH", f"{LOADS}/{node}", {"metadata": {"annotations": {ANNOTATION_LOAD: written}}}
        )


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="sl-") as folder:
        plan = EmbeddedPlan(few(2, "1xA30-24G"), policy="binpack")
        async with EmbeddedCluster(plan, Path(folder)) as cluster, cluster.client() as client:
            await cluster.ready()
            nodes = [kubelet.name for kubelet in cluster.nodes]
            cards = {kubelet.name: kubelet.host.nvml.uuids()[0] for kubelet in cluster.nodes}
            site = Site(cluster, client, {}, nodes, cards)
            await prepare(site)
            yield site


async def prepare(site: Site) -> None:
    """The token of each node's collector, as kubelet gives it, and a tenant's."""
    await site.must("POST", f"{SYSTEM}/serviceaccounts", {"metadata": {"name": "shoal-metrics"}})
    for node in site.nodes:
        spec = {"nodeName": node, "serviceAccountName": "shoal-metrics", "containers": [{"name": "c", "image": "x"}]}
        made = await site.must("POST", f"{SYSTEM}/pods", {"metadata": {"name": f"metrics-{node}"}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": f"metrics-{node}", "uid": made["metadata"]["uid"]}
        site.tokens[node] = await token(site, SYSTEM, "shoal-metrics", {"boundObjectRef": bound})
    await site.must("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    team = "/api/v1/namespaces/team"
    await site.must("POST", f"{team}/serviceaccounts", {"metadata": {"name": "tenant"}})
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await site.must("POST", f"{RBAC}/namespaces/team/roles", {"metadata": {"name": "all"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"}
    subjects = [{"kind": "ServiceAccount", "name": "tenant", "namespace": "team"}]
    await site.must(
        "POST",
        f"{RBAC}/namespaces/team/rolebindings",
        {"metadata": {"name": "all"}, "roleRef": role, "subjects": subjects},
    )
    site.tokens["tenant"] = await token(site, team, "tenant", {})


async def token(site: Site, where: str, account: str, spec: dict[str, Any]) -> str:
    made = await site.must("POST", f"{where}/serviceaccounts/{account}/token", {"spec": spec})
    return str(made["status"]["token"])


def full(*cards: str) -> dict[str, Any]:
    """A digest that says: there is no room on these."""
    told = [{"uuid": card, "used": CARD_MIB, "unattributed": CARD_MIB, "overuse": CARD_MIB} for card in cards]
    return {"version": 1, "cards": told}


async def test_a_tenant_makes_no_card_look_full(site: Site) -> None:
    mine, other = site.nodes
    assert (await site.tell("tenant", mine, full(site.cards[mine]))).status == 403
    answer = await site.ask(
        "tenant", "PATCH", f"{LOADS}/{mine}", {"metadata": {"annotations": {ANNOTATION_LOAD: "{}"}}}
    )
    assert answer.status == 403
    # Wherever it may write Leases, nobody reads them.
    for name in site.nodes:
        forged = lease(name, json.dumps(full(*site.cards.values())))
        forged["metadata"]["namespace"] = "team"
        answer = await site.ask("tenant", "POST", "/apis/coordination.k8s.io/v1/namespaces/team/leases", forged)
        assert answer.status == 201
    await site.runs("one", 24, mine)
    await site.runs("two", 24, other)


async def test_a_collector_speaks_of_its_own_node_alone(site: Site) -> None:
    mine, other = site.nodes
    answer = await site.tell(mine, other, full(site.cards[other]))
    assert answer.status == 422
    assert "a collector writes the Lease of its own node only" in answer.body["message"]
    # In its own Lease it may claim what it likes of others' cards.
    assert (await site.tell(mine, mine, full(site.cards[other], "GPU-nobody-knows"))).status == 201
    await site.runs("one", 24, other)
    await site.runs("two", 24, mine)


async def test_a_collector_that_lies_of_its_own_card_keeps_others_off_it_and_no_more(site: Site) -> None:
    mine, other = site.nodes
    await site.runs("runs", 8, mine)
    for lie in (full(site.cards[mine]), {"version": 1, "cards": [{"uuid": site.cards[mine], "unattributed": 2**31}]}):
        assert (await site.tell(mine, mine, lie)).status < 300
        await site.waits(1, mine)
        await site.runs(f"elsewhere-{len(str(lie))}", 1, other)
    pod = await site.client.get(PODS, "runs", namespace="default")
    assert (pod.spec.node_name, pod.metadata.deletion_timestamp) == (mine, None), "who runs is not touched"


async def test_no_digest_makes_room_that_was_booked(site: Site) -> None:
    mine, _ = site.nodes
    await site.runs("runs", 20, mine)
    empty = {"version": 1, "cards": [{"uuid": site.cards[mine], "used": 0, "unattributed": 0, "overuse": 0}]}
    assert (await site.tell(mine, mine, empty)).status == 201
    await site.waits(8, mine)


async def test_garbage_counts_for_nothing(site: Site) -> None:
    """Whatever stands in the annotation, requests count and the scheduler goes on."""
    mine, _ = site.nodes
    many = {"version": 1, "cards": [{"uuid": f"GPU-{n}"} for n in range(MAX_CARDS + 1)]}
    twice = full(site.cards[mine], site.cards[mine])
    lies: list[object] = [
        "",
        "x" * 65536,
        "[" * 60000,
        '{"version":2}',
        many,
        twice,
        '{"version":1,"cards":[{"uuid":"\\n"}]}',
    ]
    for number, lie in enumerate(lies):
        assert (await site.tell(mine, mine, full(site.cards[mine]))).status < 300
        assert (await site.tell(mine, mine, lie)).status < 300
        await site.runs(f"pod-{number}", 1, mine)
    assert (await site.tell(mine, mine, "x" * 65537)).status == 422
    assert len((await site.client.list(LEASES, namespace="shoal-load")).items) == 1
