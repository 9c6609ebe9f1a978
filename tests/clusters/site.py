"""Three real control planes for the cluster manager: home with its controllers, and two members that schedule.

Pods are played by fake kubelets. Managers run in the test's own process, and can be killed after any call.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from shoal.clusters.choice import ClusterChoice, Ranked
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.copies import DISPATCHED_PODS, DispatchedPod, read_copy
from shoal.clusters.manager import ClusterManager
from shoal.clusters.member import Member
from shoal.clusters.members import cluster_uid
from shoal.kube.access.credentials import Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError
from shoal.kube.events import Recorder
from shoal.kube.reflector import Reflector
from shoal.kube.resources import EVENTS, PODS, RawObject, Resource
from shoal.kube.store import Change
from shoal.kube.transport import Call
from shoal.model.contract import clusters
from shoal.model.contract.clusters import ClusterSelector
from tests.testbed import fake_kubelet
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import FakeNodes
from tests.testbed.processes import Run

HOME, EAST, WEST = "home", "east", "west"
MEMBERS = (EAST, WEST)
PATIENCE = 300.0
RAW_PODS = PODS.raw
JOBS: Resource[RawObject] = Resource("batch", "v1", "jobs", "Job", dict, whole=True)
DEPLOYMENTS: Resource[RawObject] = Resource("apps", "v1", "deployments", "Deployment", dict, whole=True)
STATEFUL_SETS: Resource[RawObject] = Resource("apps", "v1", "statefulsets", "StatefulSet", dict, whole=True)


class Planes:
    """The control planes and their nodes, for all tests of a run."""

    def __init__(self, run: Run, *, gpus: int = 0) -> None:
        name = uuid.uuid4().hex[:6]
        self._gpus = gpus
        self.planes = {
            place: ControlPlane(run, f"{place}-{name}", controllers=place == HOME) for place in (HOME, *MEMBERS)
        }
        self.nodes = {place: FakeNodes(run, plane.api) for place, plane in self.planes.items()}
        self._made = False

    async def start(self) -> None:
        """Nodes and schedulers, once."""
        if not self._made:
            self._made = True
            for place, plane in self.planes.items():
                names = await self.nodes[place](2, gpus=self._gpus)
                for name in names if place != HOME else ():
                    # New nodes have a taint that a controller takes away.
                    plane.api.kubectl("taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")
                plane.start_scheduler(until_healthy=False)

    def stop(self) -> None:
        """End all of it."""
        for place, plane in self.planes.items():
            self.nodes[place].stop()
            plane.stop()


class StaticMembers:
    """A table of clusters that a test writes."""

    def __init__(self, *members: Member) -> None:
        self.members: dict[str, Member] = {one.name: one for one in members}
        self.problems: dict[str, str] = {}
        self._calls: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Remember who wants to know."""
        self._calls.append(call)

    def join(self, member: Member) -> None:
        """Add a cluster."""
        self.members = {**self.members, member.name: member}
        for call in self._calls:
            call()


async def choose_first(
    pod: RawObject, selector: ClusterSelector, members: Mapping[str, Member], siblings: Collection[str] = ()
) -> ClusterChoice:
    """The first member, by name, that the pod allows."""
    allowed = [
        name
        for name in sorted(members)
        if name not in selector.avoid
        and (not selector.pinned or name == selector.pinned)
        and (not selector.only or name in selector.only)
    ]
    return ClusterChoice(allowed[0] if allowed else "", tuple(Ranked(name, 1.0, "it is allowed") for name in allowed))


@dataclass
class Fuse:
    """Lets so many calls about single pods through; after the last one nothing is answered any more."""

    calls: int
    blown: asyncio.Event = field(default_factory=asyncio.Event)
    made: list[str] = field(default_factory=list)

    def put_into(self, client: Client) -> None:
        """Have this client killed too."""
        transport = client._transport
        send = transport.request

        async def request(call: Call) -> bytes:
            if self.blown.is_set():
                await asyncio.Event().wait()
            if "/pods" not in call.path or (call.path.endswith("/pods") and call.verb == "GET"):
                return await send(call)
            answer = await send(call)
            self.made.append(f"{call.verb} {call.path}")
            self.calls -= 1
            if self.calls <= 0:
                self.blown.set()
                await asyncio.Event().wait()
            return answer

        transport.request = request  # type: ignore[method-assign]


class Ledger:
    """What has happened in the members: which copies were opened, and which got a node, by the UID of home's pod."""

    def __init__(self) -> None:
        self.opened: dict[str, set[str]] = {}
        self.placed: dict[str, set[str]] = {}
        self.home_cluster = ""

    def took(self, change: Change[DispatchedPod]) -> None:
        """Follow a member."""
        copy = read_copy(change.object, self.home_cluster)
        if not copy.gated:
            self.opened.setdefault(copy.origin, set()).add(copy.uid)
        if copy.placed:
            self.placed.setdefault(copy.origin, set()).add(copy.uid)

    def doubled(self) -> dict[str, set[str]]:
        """Pods of which more than one copy got a node."""
        return {origin: copies for origin, copies in self.placed.items() if len(copies) > 1}


class Site:
    """One test's view of the planes: clients, a namespace everywhere, and what happens in the members."""

    def __init__(self, planes: Planes, stack: contextlib.AsyncExitStack) -> None:
        self.planes = planes
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.clients: dict[str, Client] = {}
        self.uids: dict[str, str] = {}
        self.ledger = Ledger()
        self._stack = stack

    @property
    def home(self) -> Client:
        """The client of home."""
        return self.clients[HOME]

    async def connect(self) -> None:
        """Clients, and whose they are."""
        for place in (HOME, *MEMBERS):
            self.clients[place] = await self.client(place)
            self.uids[place] = await cluster_uid(self.clients[place])

    async def set_up(self, *, accepting: tuple[str, ...] = MEMBERS) -> None:
        """Clients, namespaces, and the ledger."""
        await self.connect()
        for place in (HOME, *accepting):
            self.planes.planes[place].api.create_namespace(self.namespace)
        self.ledger.home_cluster = self.uids[HOME]
        for place in MEMBERS:
            reflector = Reflector(
                self.clients[place],
                DISPATCHED_PODS,
                namespace=self.namespace,
                labels=clusters.LABEL_ORIGIN,
                consumers=[self.ledger.took],
            )
            await self._stack.enter_async_context(reflector)
            await reflector.wait_synced()

    async def client(self, place: str, *, port: int | None = None, token: str = "") -> Client:
        """A client of a cluster, through a relay if its port is given, as whoever a token stands for."""
        api = self.planes.planes[place].api
        access = load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())
        if token:
            access = replace(access, credentials=StoredCredential(token=Inline(token.encode())))
        if port is not None:
            access = replace(access, server=f"https://127.0.0.1:{port}")
        return await self._stack.enter_async_context(Client(access))

    def member(self, place: str, client: Client | None = None) -> Member:
        """A cluster as a member."""
        return Member(place, self.uids[place], client or self.clients[place], own=place == HOME)

    @contextlib.asynccontextmanager
    async def managing(
        self,
        members: StaticMembers | None = None,
        *,
        home: Client | None = None,
        choosing: Any = choose_first,
        **settings: Any,
    ) -> AsyncIterator[ClusterManager]:
        """A manager at work; leaving the block ends it at once, with nothing written."""
        config = msgspec.structs.replace(_CONFIG, **settings)
        table = members or StaticMembers(*map(self.member, MEMBERS))
        async with Recorder(self.clients[HOME], clusters.NAME_MANAGER) as recorder:
            manager = ClusterManager(config, home or self.home, table, choosing, recorder, home_cluster=self.uids[HOME])
            async with manager:
                work = asyncio.create_task(manager.run())
                try:
                    yield manager
                finally:
                    work.cancel()
                    await asyncio.wait({work})
                    if not work.cancelled():
                        work.result()

    @contextlib.asynccontextmanager
    async def killed_after(self, calls: int) -> AsyncIterator[Fuse]:
        """A manager that is killed after so many calls."""
        fuse = Fuse(calls)
        made = {place: await self.client(place) for place in (HOME, *MEMBERS)}
        for client in made.values():
            fuse.put_into(client)
        table = StaticMembers(*(self.member(place, made[place]) for place in MEMBERS))
        async with self.managing(table, home=made[HOME]):
            yield fuse

    # What is there

    async def pod(self, place: str, name: str) -> RawObject | None:
        """A pod, None if there is none."""
        try:
            return await self.clients[place].get(RAW_PODS, name, namespace=self.namespace)
        except NotFoundError:
            return None

    async def pods(self, place: str) -> list[RawObject]:
        """The pods of the test's namespace."""
        return (await self.clients[place].list(RAW_PODS, namespace=self.namespace)).items

    async def create(self, resource: Resource[Any], manifest: RawObject) -> RawObject:
        """Make an object at home."""
        made: RawObject = await self.home.create(resource, manifest, namespace=self.namespace)
        return made

    async def phase(self, name: str, place: str = HOME) -> str:
        """The phase of a pod; empty if there is none."""
        pod = await self.pod(place, name)
        return "" if pod is None else str(pod["status"].get("phase", ""))

    async def until_phase(self, name: str, phase: str, place: str = HOME) -> None:
        """Wait for a pod's phase; empty: until it is gone."""

        async def reached() -> bool:
            return await self.phase(name, place) == phase

        await eventually(reached, f"{name} is {phase or 'gone'} in {place}")

    async def events(self, reason: str) -> list[str]:
        """The messages of Events at home."""
        found = (await self.home.list(EVENTS, namespace=self.namespace)).items
        return [one.message or "" for one in found if one.reason == reason]


_CONFIG = ClusterManagerConfig(
    namespace="default", workers=8, mirror_seconds=0.05, sweep_seconds=2.0, probe_port=None, metrics_port=None
)


async def eventually(ready: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition, with a patience that only a broken run exhausts."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await ready():  # noqa: ASYNC110 - it is another program's state
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE:g} s: {what}") from None


def pod_spec(**more: Any) -> dict[str, Any]:
    """The spec of a held pod."""
    return {
        "schedulingGates": [{"name": clusters.GATE_HOME}],
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "none:1"}],
        **more,
    }


def pod_meta(
    runs_for: float | None = None, annotations: Mapping[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """The metadata of a held pod; it ends after so many seconds."""
    played = {} if runs_for is None else {fake_kubelet.RUNS_FOR: str(runs_for)}
    return {"finalizers": [clusters.FINALIZER_HOME], "annotations": {**played, **(annotations or {})}, **more}


def pod(
    name: str, *, runs_for: float | None = None, annotations: Mapping[str, str] | None = None, **spec: Any
) -> RawObject:
    """A held pod."""
    return {"metadata": pod_meta(runs_for, annotations, name=name), "spec": pod_spec(**spec)}


def condition(of: RawObject | None, kind: str) -> dict[str, Any]:
    """A condition of a pod; empty if it has none."""
    found = (of or {}).get("status", {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind), {})


@contextlib.contextmanager
def planes_of(run: Run, *, gpus: int = 0) -> Iterator[Planes]:
    """The planes while the block runs; their nodes have so many cards each."""
    planes = Planes(run, gpus=gpus)
    try:
        yield planes
    finally:
        planes.stop()
