"""A cluster for discovery: nodes, the accounts of deploy/discovery with their rights and fences, workers and a leader.

The same on the embedded API server and on a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.leader import Leader
from shoal.discovery.worker import NODE_METADATA, Worker
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, InvalidError, KubeError
from shoal.kube.objects.meta import Object
from shoal.kube.resources import NODES, PODS, Resource
from shoal.model.contract.discovery import ANNOTATION_FACTS, NAME_LEADER, NAME_WORKER, NodeFacts, encode_facts
from tests.discovery.machine import Hardware

DEPLOY = Path(__file__).parents[2] / "deploy" / "discovery"
SYSTEM = "kube-system"
PATIENCE = 300
_PLURALS = {
    "ServiceAccount": ("", "v1", "serviceaccounts"),
    "ClusterRole": ("rbac.authorization.k8s.io", "v1", "clusterroles"),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
    "Role": ("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "NetworkPolicy": ("networking.k8s.io", "v1", "networkpolicies"),
    "ValidatingAdmissionPolicy": ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"),
}
_NAMESPACED = ("NetworkPolicy", "ServiceAccount", "Role", "RoleBinding")


async def eventually(ready: Callable[[], Any], what: str) -> None:
    """Wait for a condition, which may be awaitable."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = ready()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.05)
    raise AssertionError(what)


class Site:
    """The cluster, as its administrator sees it."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.access = load_kubeconfig([kubeconfig], environ={}, explicit=True)
        self.client = Client(self.access)
        self._folder = folder
        self._nodes: list[str] = []

    async def install(self) -> None:
        """Create accounts, rights and fences, and wait until the fences hold."""
        for name in ("rbac.yaml", "own-node.yaml"):
            for document in yaml.safe_load_all((DEPLOY / name).read_text()):
                await self.apply(document)
        probe = await self.new_node()
        leader, worker = await self.as_leader(), await self.as_worker(probe)

        async def refused() -> bool:
            fresh = uuid.uuid4().hex  # what is written already would be no change
            said = [
                await self.refusal(leader, probe, {"labels": {"probe": fresh}}),
                await self.refusal(worker, probe, {"annotations": {"probe": fresh}}),
            ]
            return all("is not for the" in one for one in said)

        await eventually(refused, "the fences in force")
        await self.client.delete(NODES, probe)

    async def apply(self, document: dict[str, Any]) -> None:
        """Have an account, a right or a fence."""
        kind = document["kind"]
        group, version, plural = _PLURALS[kind]
        resource = Resource(group, version, plural, kind, dict[str, Any], kind in _NAMESPACED, whole=True)
        namespace = SYSTEM if kind in _NAMESPACED else ""
        await self.client.apply(resource, document, namespace=namespace, field_manager="test")

    async def new_node(self, labels: Mapping[str, str] | None = None) -> str:
        """Make a node; the pod of a worker is on it."""
        name = f"node-{uuid.uuid4().hex[:8]}"
        self._nodes.append(name)
        await self.client.create(NODES.raw, {"metadata": {"name": name, "labels": {"own": "x", **(labels or {})}}})
        return name

    async def remove(self) -> None:
        """Delete all nodes that were made."""
        for name in self._nodes:
            with contextlib.suppress(KubeError):
                await self.client.delete(NODES, name)

    async def node(self, name: str) -> Object:
        """A node as it is."""
        return await self.client.get(NODE_METADATA, name)

    async def labels(self, name: str) -> dict[str, str]:
        """The labels of a node without those it began with."""
        found = (await self.node(name)).metadata.labels
        return {key: value for key, value in found.items() if "/" in key}

    async def tell(self, name: str, facts: NodeFacts | str | None) -> None:
        """Write facts, as the administrator may."""
        text = encode_facts(facts) if isinstance(facts, NodeFacts) else facts
        await self.client.patch(NODES, name, {"metadata": {"annotations": {ANNOTATION_FACTS: text}}})

    async def patch_as(self, manager: str, name: str, metadata: object) -> None:
        """Write to a node as another program would, under its name."""
        await self.client.request(
            "PATCH",
            NODES.path(name=name),
            query={"fieldManager": manager},
            body={"metadata": metadata},
            content_type="application/merge-patch+json",
        )

    async def refusal(self, access: Access, name: str, metadata: object, **more: object) -> str:
        """What somebody is told who may not write this to a node; empty if it was written."""
        async with Client(access) as client:
            try:
                await client.patch(NODES, name, {"metadata": metadata, **more})
            except (ForbiddenError, InvalidError) as error:
                return error.message
        return ""

    async def refusal_of_status(self, access: Access, name: str) -> str:
        """What somebody is told who may not write a node's status; empty if it was written."""
        async with Client(access) as client:
            try:
                await client.patch(NODES, name, {"status": {"capacity": {"x.org/y": "1"}}}, subresource="status")
            except (ForbiddenError, InvalidError) as error:
                return error.message
        return ""

    async def forget(self, name: str) -> None:
        """Delete a node that somebody else made."""
        await self.client.delete(NODES, name)

    async def as_account(self, account: str) -> Access:
        """Who has a token of an account that is bound to no pod."""
        return await self._as(account)

    async def as_leader(self) -> Access:
        """Who the leader is."""
        return await self._as(NAME_LEADER)

    async def as_worker(self, node: str) -> Access:
        """Who the worker of a node is."""
        return await self.as_pod_of(NAME_WORKER, node)

    async def as_pod_of(self, account: str, node: str) -> Access:
        """Who a pod of an account is: its token is bound to a pod on that node."""
        spec = {
            "nodeName": node,
            "serviceAccountName": account,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "shoal.test/none:1"}],
        }
        name = f"worker-{uuid.uuid4().hex[:8]}"
        pod = await self.client.create(PODS.raw, {"metadata": {"name": name}, "spec": spec}, namespace=SYSTEM)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        return await self._as(account, bound)

    async def _as(self, account: str, bound: dict[str, str] | None = None) -> Access:
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, **({} if bound is None else {"boundObjectRef": bound})},
        }
        token = json.loads(await self.client.request("POST", path, body=request))["status"]["token"]
        return dataclasses.replace(self.access, credentials=StoredCredential(token=Inline(token.encode())))

    def hardware(self, cards: object = "2xT4") -> Hardware:
        """A machine with cards."""
        return Hardware(self._folder / f"sys-{uuid.uuid4().hex[:8]}", cards)

    @contextlib.asynccontextmanager
    async def worker(self, name: str, hardware: Hardware, **settings: Any) -> AsyncIterator[Worker]:
        """A worker of a node that reads this machine, with the rights of its account."""
        config = DiscoveryConfig(
            **{"node_name": name, "interval_seconds": 1.0, "sys_root": str(hardware.sys.root), **settings}
        )
        async with Client(await self.as_worker(name)) as client:
            worker = Worker(config, client, hardware.open)
            async with running(worker.run()):
                yield worker

    @contextlib.asynccontextmanager
    async def leader(self, clock: Callable[[], float] = time.monotonic, **settings: Any) -> AsyncIterator[Leader]:
        """The leader, with the rights of its account."""
        async with Client(await self.as_leader()) as client:
            leader = Leader(DiscoveryConfig(**settings), client, clock=clock)
            async with running(leader.run()):
                await leader.reflector.wait_synced()
                yield leader


@contextlib.asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    """Have something run meanwhile; its failure is the test's."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
