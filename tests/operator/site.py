"""A real control plane with fake nodes for the operator: its kind, its manifests, accounts, and validators that play.

DaemonSets are Kubernetes' own; their pods are played by the fake kubelet, and the validators' annotation here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import yaml

from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ConflictError, KubeError, LeadershipLostError, NotFoundError
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NAMESPACES, NODES, PODS, RawObject, Resource
from shoal.kube.store import Change
from shoal.model.contract.operator import ANNOTATION_VALIDATION, NAME_OPERATOR
from shoal.operator.app import Operator
from shoal.operator.config import OperatorConfig
from shoal.operator.crd import definition
from shoal.operator.manifests import digest_of
from shoal.operator.writes import DAEMON_SETS, POLICIES, RUNTIME_CLASSES
from tests.operator.scene import operands, validation
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes
from tests.testbed.processes import Process

ACCOUNTS: Resource[RawObject] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)
CRDS: Resource[RawObject] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", dict, namespaced=False
)
PATIENCE = 300


async def eventually(ready: Callable[[], Any], what: str) -> None:
    """Wait for a condition, which may be awaitable."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(NotFoundError):
                    found = ready()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not {what}") from None


class PlayedValidators:
    """Writes the annotation of nodes on which the pod of a validator runs."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._told: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Nodes whose validator says nothing, or this.
        self.words: dict[str, str] = {}
        self.pods: Reflector[Pod] = Reflector(client, PODS, namespace=namespace, consumers=[self._on_pod])
        self.nodes: Reflector[Node] = Reflector(client, NODES)

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.new
        if pod is None or not pod.metadata.name.startswith("shoal-validator-") or pod.status.phase != "Running":
            return
        if pod.metadata.uid not in self._told and "runtime" not in pod.metadata.name:
            self._told.add(pod.metadata.uid)
            task = asyncio.get_running_loop().create_task(self.tell(pod.spec.node_name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def tell(self, node: str) -> None:
        """Write what the validator of a node says."""
        text = self.words.get(node, validation())
        with contextlib.suppress(NotFoundError):
            await self._client.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION_VALIDATION: text}}})


@contextlib.asynccontextmanager
async def _going_on(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs beside the body, which ends it; its error is raised."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class Site:
    """A namespace of a control plane, with the operator's manifests in a folder."""

    def __init__(self, plane: ControlPlane, client: Client, nodes: FakeNodes, folder: Path) -> None:
        self.plane = plane
        self.client = client
        self.fake_nodes = nodes
        self.folder = folder / "operands"
        self.namespace = f"gpu-{uuid.uuid4().hex[:8]}"
        self.validators = PlayedValidators(client, self.namespace)
        self._processes: list[Process] = []

    async def begin(self) -> None:
        """Make the kind, the namespace, the accounts and the manifests."""
        await self.client.apply(CRDS, definition(), field_manager="test", force=True)

        async def served() -> bool:
            await self.client.list(POLICIES)
            return True

        await eventually(served, "serving ClusterPolicies")
        await self.client.create(NAMESPACES.raw, {"metadata": {"name": self.namespace}})
        for name in ("agent", "discovery-worker", "metrics", "validator", "driver"):
            with contextlib.suppress(AlreadyExistsError):
                account = {"metadata": {"name": f"shoal-{name}"}}
                await self.client.create(ACCOUNTS, account, namespace=self.namespace)
        self.folder.mkdir()
        for name, documents in operands().items():
            self.write_operand(name, *documents)

    def write_operand(self, name: str, *documents: dict[str, Any]) -> None:
        """Write the file of an operand."""
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))

    def digest(self) -> str:
        """The digest of the manifests as they are now."""
        return digest_of({path.name: path.read_bytes() for path in self.folder.iterdir()})

    async def end(self) -> None:
        """Take away what belongs to no namespace."""
        for process in self._processes:
            process.kill()
        for policy in (await self.client.list(POLICIES)).items:
            with contextlib.suppress(KubeError):
                name = policy["metadata"]["name"]
                await self.client.patch(POLICIES, name, {"metadata": {"finalizers": None}})
                await self.client.delete(POLICIES, name)
        for one in (await self.client.list(RUNTIME_CLASSES)).items:
            with contextlib.suppress(NotFoundError):
                await self.client.delete(RUNTIME_CLASSES, one["metadata"]["name"])
        for one in (await self.client.list(DAEMON_SETS, namespace=self.namespace)).items:
            with contextlib.suppress(NotFoundError):
                await self.client.delete(DAEMON_SETS, one["metadata"]["name"], namespace=self.namespace)

        async def empty() -> bool:
            return not (await self.client.list(PODS, namespace=self.namespace)).items

        await eventually(empty, "without pods")

    def config(self, **settings: Any) -> OperatorConfig:
        """Settings of an operator here."""
        return OperatorConfig(
            **{
                "namespace": self.namespace,
                "operands": str(self.folder),
                "operands_seconds": 0.2,
                "nvidia_seconds": 0.5,
                "host": "127.0.0.1",
                "probe_port": 0,
                "metrics_port": 0,
                **settings,
            }
        )

    @contextlib.asynccontextmanager
    async def operator(self, **settings: Any) -> AsyncIterator[Operator]:
        """An operator in this process."""
        async with Client(self.client.access) as client, Recorder(client, NAME_OPERATOR) as recorder:
            operator = Operator(client, recorder, self.config(**settings), identity="test")
            async with _going_on(operator.run()):
                yield operator

    @contextlib.asynccontextmanager
    async def restarted_operator(self) -> AsyncIterator[None]:
        """An operator in this process that starts again when it loses its Lease, as kubelet has it."""
        async with Client(self.client.access) as client, Recorder(client, NAME_OPERATOR) as recorder:

            async def run() -> None:
                while True:
                    with contextlib.suppress(LeadershipLostError):
                        await Operator(client, recorder, self.config(), identity="test").run()

            async with _going_on(run()):
                yield

    def replica(self) -> Process:
        """An operator as a process of its own."""
        process = self.plane.run.process(
            f"operator-{uuid.uuid4().hex[:6]}",
            [
                *(Path(sys.executable).with_name("shoal"), "operator", "--namespace", self.namespace),
                *("--operands", str(self.folder), "--kubeconfig", self.plane.api.kubeconfig()),
                *("--probe-port", "0", "--metrics-port", "0"),
            ],
        )
        self._processes.append(process)
        process.start()
        return process

    async def gpu_nodes(self, count: int) -> list[str]:
        """New nodes that are meant to serve cards."""
        names = await self.fake_nodes(count)
        for name in names:
            await self.client.patch(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        return names

    async def wish(self, name: str = "cluster-policy", **spec: Any) -> RawObject:
        """Make a policy, or change it."""
        try:
            return await self.client.create(POLICIES, {"metadata": {"name": name}, "spec": spec})
        except AlreadyExistsError:
            while True:
                found = await self.client.get(POLICIES, name)
                with contextlib.suppress(ConflictError):
                    return await self.client.replace(POLICIES, {**found, "spec": spec})

    async def status(self, name: str = "cluster-policy") -> dict[str, Any]:
        """The status of a policy."""
        return dict((await self.client.get(POLICIES, name)).get("status") or {})

    async def until(self, state: str, ready: str = "", name: str = "cluster-policy") -> dict[str, Any]:
        """Wait for the state of a policy; its status."""
        found: dict[str, Any] = {}

        async def there() -> bool:
            found.clear()
            found.update(await self.status(name))
            generation = (await self.client.get(POLICIES, name))["metadata"]["generation"]
            return (
                found.get("state") == state
                and (not ready or found.get("ready") == ready)
                and found.get("observedGeneration") == generation
            )

        try:
            await eventually(there, f"{state} {ready}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from error
        return found

    async def daemon_sets(self) -> dict[str, RawObject]:
        """The DaemonSets of the namespace."""
        found = (await self.client.list(DAEMON_SETS, namespace=self.namespace)).items
        return {one["metadata"]["name"]: one for one in found}

    async def labels(self, node: str) -> dict[str, str]:
        """The labels of a node."""
        return (await self.client.get(NODES, node)).metadata.labels
