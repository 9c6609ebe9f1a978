"""A dashboard over an API server of the tests' own, and viewers with the rights that a test gives them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from shoal.analysis.collectors import Measured
from shoal.dashboard import app
from shoal.dashboard.config import DashboardConfig
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.kinds import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.metrics.history_wire import CardReading, ContainerReading, NodeReading
from tests.cli.inspect import cluster as shorthand
from tests.kube.waiting import until

Json = Any
RBAC = "rbac.authorization.k8s.io"
MIB = 1 << 20


@dataclass
class Readings:
    """What collectors say: by node, the cards with what is used, or why nothing is said."""

    nodes: dict[str, tuple[CardReading, ...]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    async def measure(self, names: Collection[str]) -> Measured:
        readings = {
            name: NodeReading(node=name, time=1.0, age_seconds=0.5, interval_seconds=5.0, sees_cards=True, cards=cards)
            for name, cards in self.nodes.items()
            if name in names
        }
        silent = {name: self.silent.get(name, "no collector runs there") for name in names if name not in readings}
        return Measured(readings, silent)

    def use(self, node: str, *cards: Mapping[str, int], unattributed: int = 0) -> None:
        """Cards by index, each with what pods, named NAMESPACE/POD, use of it in MiB."""
        self.nodes[node] = tuple(
            CardReading(
                uuid=f"GPU-{node}-{index}",
                index=index,
                used_bytes=(sum(card.values()) + unattributed) * MIB,
                unattributed_bytes=unattributed * MIB,
                utilisation=50,
                containers=tuple(
                    ContainerReading(
                        namespace=pod.split("/")[0],
                        pod=pod.split("/")[1],
                        container="c0",
                        used_bytes=used * MIB,
                        source="nvml",
                    )
                    for pod, used in card.items()
                ),
            )
            for index, card in enumerate(cards)
        )


@dataclass
class Site:
    """A running dashboard."""

    api: EmbeddedApi
    serving: app.Serving
    session: aiohttp.ClientSession
    readings: Readings

    @property
    def url(self) -> str:
        return self.serving.url

    # The cluster

    def put(self, nodes: Mapping[str, Any], pods: Mapping[str, Any]) -> None:
        for made in shorthand.objects(nodes, pods):
            if made["kind"] == "Node":
                self.api.registry.create(NODES, "", made)
            else:
                self._put_pod(made)

    def _put_pod(self, made: Json) -> None:
        meta = made["metadata"]
        self.namespace(meta["namespace"])
        self.api.registry.create(PODS, meta["namespace"], made)
        there = self.api.registry.get(PODS, meta["namespace"], meta["name"])
        self.api.registry.update(
            PODS, meta["namespace"], meta["name"], {**there, "status": made["status"]}, subresource="status"
        )

    def namespace(self, name: str) -> None:
        if self.api.registry.store.get(NAMESPACES.key, ("", name)) is None:
            self.api.registry.create(NAMESPACES, "", {"metadata": {"name": name}})

    def remove_pod(self, namespace: str, name: str) -> None:
        pod = self.api.registry.get(PODS, namespace, name)
        self.api.registry.remove(PODS, pod, pod)

    # Viewers

    @property
    def admin(self) -> str:
        """A token that may do everything."""
        return self.api.token

    def account(self, name: str, *, namespaces: Collection[str] = (), nodes: bool = False, seconds: int = 3600) -> str:
        """A token of somebody who may list pods of some namespaces, and nodes or not."""
        registry = self.api.registry
        registry.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": name}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        for namespace in namespaces:
            self.namespace(namespace)
            self._grant("Role", name, "pods", subject, namespace)
        if nodes:
            self._grant("ClusterRole", name, "nodes", subject, "")
        return self.token(name, seconds)

    def token(self, name: str, seconds: int = 3600) -> str:
        wanted = {"spec": {"expirationSeconds": seconds}}
        made = self.api.gate.tokens.request("default", name, wanted)
        return str(made["status"]["token"])

    def _grant(self, kind: str, name: str, resource: str, subject: Json, namespace: str) -> None:
        catalogue, registry = self.api.registry.catalogue, self.api.registry
        role = catalogue.find(RBAC, "v1", f"{kind.lower()}s")
        binding = catalogue.find(RBAC, "v1", f"{kind.lower()}bindings")
        assert role is not None
        assert binding is not None
        rules = [{"apiGroups": [""], "resources": [resource], "verbs": ["list", "get", "watch"]}]
        registry.create(role, namespace, {"metadata": {"name": name}, "rules": rules})
        reference = {"apiGroup": RBAC, "kind": kind, "name": name}
        registry.create(binding, namespace, {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference})

    # Asking

    async def ask(self, path: str, token: str = "", **query: str) -> tuple[int, Json]:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        async with self.session.get(f"{self.url}/api/v1{path}", headers=headers, params=query) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path: str, token: str = "", **query: str) -> Json:
        status, body = await self.ask(path, token, **query)
        assert status == 200, (status, body)
        return body

    async def current(self) -> None:
        """Return when the picture has all that was put into the cluster."""
        live = self.serving.live
        await until(lambda: not live.waiting_for, "read")
        number = live.current.number
        live._dirty.set()
        await until(lambda: live.current.number > number, "a new picture")


@contextlib.asynccontextmanager
async def dashboard(
    api: EmbeddedApi, readings: Readings, *, config: DashboardConfig | None = None
) -> AsyncIterator[Site]:
    """A dashboard while the block runs."""
    config = config or DashboardConfig(port=0, measure_seconds=0.2)
    access = load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)
    served: asyncio.Future[app.Serving] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(app.run(config, access, measure=readings.measure, serving=served.set_result))
    try:
        waiting: set[asyncio.Future[Any]] = {task, served}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            yield Site(api, served.result(), session, readings)
    finally:
        task.cancel()
        await asyncio.wait({task})


@contextlib.asynccontextmanager
async def site(directory: Path, readings: Readings | None = None) -> AsyncIterator[Site]:
    """An API server and a dashboard."""
    async with EmbeddedApi(directory / "api") as api, dashboard(api, readings or Readings()) as made:
        yield made
