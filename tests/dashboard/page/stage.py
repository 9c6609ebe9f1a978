"""A cluster with something of everything, its dashboard, and people who look at it: what the tests of the page use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.analysis.collectors import Collectors, Measured
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.dashboard import app as dashboard
from shoal.dashboard.config import DashboardConfig
from shoal.embedded.nodes.cluster import few
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import NODES, PODS
from tests.kube.relay import Relay

GIB = 2**30
#: What a tenant can write where Kubernetes takes any text.
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>{{7*7}}"

#: Namespace, name, memory in GiB, what its program does.
WORK = [
    ("research", "trainer-0", 16, "memory=14Gi utilisation=90"),
    ("research", "trainer-1", 16, "memory=9Gi utilisation=55"),
    ("research", "notebook", 4, "memory=1Gi utilisation=3"),
    ("serving", "chat-0", 8, "memory=6Gi utilisation=40"),
    ("serving", "chat-1", 8, "memory=7Gi utilisation=35"),
    ("serving", "embedder", 4, "memory=5Gi utilisation=20"),  # more than it asked for
    ("batch", "sleeper", 12, "memory=0 utilisation=0"),
]


@dataclass
class Stage:
    """The running parts."""

    cluster: EmbeddedCluster
    client: Client
    relay: Relay
    serving: dashboard.Serving
    #: Between browsers and the dashboard.
    front: Relay
    #: Nodes whose collectors are not heard.
    silent: set[str] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where browsers find the dashboard."""
        return f"http://127.0.0.1:{self.front.port}"

    async def token(self, *, admin: bool = True, namespaces: Collection[str] = (), seconds: int = 3600) -> str:
        """A token of somebody who may read everything, or the pods of some namespaces."""
        name = "admin" if admin else "viewer-" + "-".join(sorted(namespaces) or ["nothing"])
        await self._account(name, admin=admin, namespaces=namespaces)
        return (await self.client.token(name, namespace="default", seconds=seconds)).token

    async def link(self) -> str:
        """An address that signs in as somebody who may read everything."""
        return self.link_of(await self.token())

    def link_of(self, token: str) -> str:
        """An address that signs in as the owner of a token."""
        return f"{self.url}/sign-in/{self.serving.viewers.link(token)}"

    async def revoke(self, name: str) -> None:
        """Make the tokens of an account invalid."""
        await self.client.request("DELETE", f"/api/v1/namespaces/default/serviceaccounts/{name}")

    async def _account(self, name: str, *, admin: bool, namespaces: Collection[str]) -> None:
        subject = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
        group = "rbac.authorization.k8s.io"
        role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" if admin else "view"}
        objects: list[tuple[str, dict[str, object]]] = [
            ("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        ]
        if admin:
            path = f"/apis/{group}/v1/clusterrolebindings"
            objects.append((path, {"metadata": {"name": name}, "roleRef": role, "subjects": subject}))
        for namespace in namespaces:
            path = f"/apis/{group}/v1/namespaces/{namespace}/rolebindings"
            objects.append((path, {"metadata": {"name": name}, "roleRef": role, "subjects": subject}))
        for path, content in objects:
            await self.create(path, content)

    async def create(self, path: str, content: dict[str, object]) -> None:
        """Create an object unless it is there."""
        from shoal.kube.errors import AlreadyExistsError

        with contextlib.suppress(AlreadyExistsError):
            await self.client.request("POST", path, body=content)

    async def pod(self, namespace: str, name: str, gib: int, does: str = "", **more: object) -> None:
        """Create a pod that asks for memory of a card."""
        await self.client.create(PODS.raw, pod_object(name, gib, does, **more), namespace=namespace)

    async def running(self, namespace: str, names: Collection[str]) -> None:
        """Return when these pods run."""
        while True:
            pods = (await self.client.list(PODS, namespace=namespace)).items
            there = {pod.metadata.name for pod in pods if pod.status.phase == "Running"}
            if there >= set(names):
                return
            await asyncio.sleep(0.1)

    async def annotate_node(self, name: str, **annotations: str) -> None:
        """Write annotations on a node; `_` stands for `/`."""
        await self.client.patch(NODES, name, {"metadata": {"annotations": annotations}})


def pod_object(name: str, gib: int, does: str = "", **more: object) -> dict[str, object]:
    """A pod that asks for memory of a card."""
    annotations = {"shoal.dev/simulate": does} if does else {}
    limits = {"limits": {"aliyun.com/gpu-mem": str(gib)}}
    return {
        "metadata": {"name": name, "annotations": annotations, **more},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": limits}]},
    }


def whole_cards(name: str, cards: int) -> dict[str, object]:
    """A pod that asks for whole cards."""
    limits = {"limits": {"nvidia.com/gpu": str(cards)}}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "cuda", "resources": limits}]},
    }


@contextlib.asynccontextmanager
async def staged(folder: Path, *, nodes: int = 3, gpus: str = "4xA30-24G") -> AsyncIterator[Stage]:
    """A cluster of that size, empty, and its dashboard behind a relay to the API server."""
    plan = EmbeddedPlan(few(nodes, gpus), metrics=True, metrics_seconds=0.5)
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(EmbeddedCluster(plan, folder))
        await cluster.ready()
        client = await stack.enter_async_context(cluster.client())
        access = load_kubeconfig([cluster.kubeconfig], environ={}, explicit=True)
        relay = await stack.enter_async_context(Relay(int(access.server.rsplit(":", 1)[1])))
        relayed = replace(access, server=f"https://127.0.0.1:{relay.port}")
        silent: set[str] = set()
        collectors = Collectors(await stack.enter_async_context(Client(access)))

        async def measure(names: Collection[str]) -> Measured:
            found = await collectors.snapshots([name for name in names if name not in silent])
            return Measured(found.nodes, {**found.silent, **dict.fromkeys(silent & set(names), "it does not answer")})

        told: asyncio.Future[dashboard.Serving] = asyncio.get_running_loop().create_future()
        config = DashboardConfig(port=0, measure_seconds=0.5)
        task = asyncio.create_task(dashboard.run(config, relayed, measure=measure, serving=told.set_result))
        stack.push_async_callback(_ended, task)
        waiting: set[asyncio.Future[Any]] = {told, task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        front = await stack.enter_async_context(Relay(told.result().port))
        yield Stage(cluster, client, relay, told.result(), front, silent)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def filled(stage: Stage) -> None:
    """Pods that share, use more than they asked for, idle and wait; a program of nobody, a broken card."""
    for namespace in sorted({namespace for namespace, *_ in WORK}):
        await stage.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for namespace, name, gib, does in WORK:
        await stage.pod(namespace, name, gib, does)
    for namespace in sorted({namespace for namespace, *_ in WORK}):
        await stage.running(namespace, [name for of, name, *_ in WORK if of == namespace])
    last = list(stage.cluster.nodes)[-1]
    nvml = last.host.nvml
    nvml.add_process(nvml.uuids()[1], 77, 3 * GIB, 0)
    await stage.annotate_node(last.name, **{"shoal.dev/simulate.gpu3": "xid=79"})
    await stage.pod("research", "too-big", 40)
    await stage.client.create(PODS.raw, whole_cards("no-room", 4), namespace="batch")
