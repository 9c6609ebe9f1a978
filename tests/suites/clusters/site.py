"""What a test of several clusters asks of them, whatever they are: pods at home, their copies, and who ran twice."""

import contextlib
from collections.abc import Mapping
from typing import Any

from shoal.clusters.copies import DISPATCHED_PODS
from shoal.clusters.members import cluster_uid
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.reflector import Reflector
from shoal.kube.resources import PODS, RawObject, Resource
from shoal.model.contract import clusters
from tests.clusters.site import Ledger, eventually
from tests.testbed import fake_kubelet

SIMULATE = "shoal.dev/simulate"
_ACCOUNTS: Resource[RawObject] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)


class ClusterSite:
    """Clients of the clusters by name, home first; a namespace in each; and what has happened in the members."""

    def __init__(self, given: Mapping[str, Client], namespace: str) -> None:
        self.clients = dict(given)
        self.namespace = namespace
        self.home_name, *self.members = self.clients
        self.ledger = Ledger()

    @property
    def home(self) -> Client:
        """The client of home."""
        return self.clients[self.home_name]

    async def until_ready(self) -> None:
        """Wait until pods can be made: a controller gives each namespace an account."""

        async def there() -> bool:
            for client in self.clients.values():
                try:
                    await client.get(_ACCOUNTS, "default", namespace=self.namespace)
                except NotFoundError:
                    with contextlib.suppress(Exception):
                        # Members of the test bed have no controllers.
                        account = {"metadata": {"name": "default"}}
                        await client.create(_ACCOUNTS, account, namespace=self.namespace)
                    return False
            return True

        await eventually(there, "pods can be made")

    async def watch(self, stack: contextlib.AsyncExitStack) -> None:
        """Follow the members."""
        self.ledger.home_cluster = await cluster_uid(self.home)
        for name in self.members:
            reflector = Reflector(
                self.clients[name],
                DISPATCHED_PODS,
                namespace=self.namespace,
                labels=clusters.LABEL_ORIGIN,
                consumers=[self.ledger.took],
            )
            await stack.enter_async_context(reflector)
            await reflector.wait_synced()

    # What is made

    def pod(self, name: str = "", *, runs_for: float | None = None, **labels: str) -> RawObject:
        """A pod or its template, for a card of another cluster than home."""
        annotations = {clusters.ANNOTATION_AVOID_CLUSTERS: self.home_name}
        return {
            "metadata": {"labels": labels, "annotations": annotations | ends_after(runs_for), **_named(name)},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": "none:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            },
        }

    async def create(self, resource: Resource[Any], manifest: RawObject) -> RawObject:
        """Make an object at home."""
        made: RawObject = await self.home.create(resource, manifest, namespace=self.namespace)
        return made

    async def delete(self, resource: Resource[Any], name: str) -> None:
        """Delete an object at home, and what it owns."""
        await self.home.delete(resource, name, namespace=self.namespace, propagation="Background")

    # What is there

    async def at_home(self, resource: Resource[Any], name: str) -> RawObject:
        """An object at home."""
        found: RawObject = await self.home.get(resource, name, namespace=self.namespace)
        return found

    async def pods(self) -> list[RawObject]:
        """The pods at home."""
        return (await self.home.list(PODS.raw, namespace=self.namespace)).items

    async def copies(self) -> list[tuple[str, RawObject]]:
        """The pods of the members, and where each is."""
        return [
            (name, pod)
            for name in self.members
            for pod in (await self.clients[name].list(PODS.raw, namespace=self.namespace)).items
        ]

    async def until_all_gone(self) -> None:
        """Wait until no pod is left anywhere."""

        async def gone() -> bool:
            return not await self.pods() and not await self.copies()

        await eventually(gone, "nothing is left anywhere")


def _named(name: str) -> dict[str, str]:
    return {"name": name} if name else {}


def ends_after(seconds: float | None) -> dict[str, str]:
    """What makes a pod end by itself, as simulated nodes and fake kubelets read it; None: it stays."""
    if seconds is None:
        return {SIMULATE: "duration=3600s"}
    return {SIMULATE: f"duration={seconds:g}s", fake_kubelet.RUNS_FOR: f"{seconds:g}"}
