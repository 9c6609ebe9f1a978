"""The embedded cluster as an arena: scheduler, agents with walls, simulated nodes and cards, all in this process.

What the scheduler counts as used is read where everybody can read it, in its metrics.
"""

import asyncio
import contextlib
import http.client
import json
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path

from click.testing import CliRunner

from shoal.agent import app as agent
from shoal.agent.config import AgentConfig
from shoal.agent.limits import cgroup
from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
from shoal.cli.main import main
from shoal.embedded.nodes.app import Nodes
from shoal.embedded.nodes.cluster import few
from shoal.embedded.nodes.errors import HookError
from shoal.embedded.nodes.gpus import visible_cards
from shoal.embedded.nodes.host import HookCall, Host
from shoal.embedded.nodes.pods.states import Running, Timing
from shoal.kube.access.credentials import Access
from shoal.kubelet.host_paths import HostPaths
from shoal.model.backoff import Backoff
from shoal.model.contract import keti, mechanisms
from shoal.model.contract.mechanisms import Mechanism
from shoal.scheduler import app as scheduler
from shoal.scheduler.app import Ports
from shoal.scheduler.config import SchedulerConfig
from tests.agent import hook
from tests.attacks.arena import MEBIBYTE, Given, Object, booked_of
from tests.kubelet.device_plugin import PluginLoop
from tests.suites.connection import Answer, Connection, parsed
from tests.testbed.waiting import wait_for

ROOT = "/sys/fs/cgroup"
#: kubelet's back-off is the real one's; only tests wait for it.
TIMING = Timing(retry=0.5, back_off=Backoff(0.5, 1.0), reconcile=2.0)


class Walled(EmbeddedCluster):
    """The cluster of `shoal up` with what its agents need to build walls, and services that can be started again."""

    def __init__(self, plan: EmbeddedPlan, directory: Path) -> None:
        super().__init__(plan, directory)
        self.nodes = Nodes(self.api, plan.nodes, directory / "n", timing=TIMING)
        self._program = directory / cgroup.PROGRAM
        self._program.write_bytes(b"\x7fELF")
        #: By the ID of a container, its cgroup.
        self.cgroups: dict[str, str] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Where the agents say whether they are ready; each end of one takes its own away.
        self.ports: dict[str, int] = {}
        #: Where the scheduler tells its metrics, while it runs.
        self.scheduler: Ports | None = None
        self._scheduling: asyncio.Task[None] | None = None
        for kubelet in self.nodes:
            kubelet.host.run_hook = self._hook

    async def _hook(self, call: HookCall) -> None:
        """What the hook's program does: it asks the agent, and fails unless that says ok."""
        _, door, *limits = call.hook.args
        try:
            answer = await hook.ask(Path(door), call.cgroup.removeprefix(ROOT), limits)
        except OSError as error:
            raise HookError(f"shoal-limit: {door}: {error.strerror}") from error
        if answer != cgroup.OK:
            raise HookError(f"shoal-limit: the agent: {answer}")
        self.cgroups[call.state["id"]] = call.cgroup

    def _agent(self, host: Host, access: Access) -> Coroutine[None, None, None]:
        return self._again_and_again(host, access)

    async def _again_and_again(self, host: Host, access: Access) -> None:
        root = host.folders.root
        root.mkdir(parents=True, exist_ok=True)
        (root / "cgroup.controllers").touch()
        paths = HostPaths(
            host.folders.device_plugins,
            host.folders.pod_resources,
            host.folders.cdi,
            run=host.folders.run,
            programs=root / "programs",
            pod_cgroups=host.folders.cgroups,
            cgroup2=root / "cgroup.controllers",
            plugins_registry=host.folders.plugins_registry,
            plugins=host.folders.plugins,
            host_plugins=host.folders.plugins,
        )
        config = AgentConfig(
            node_name=host.spec.name,
            memory_unit=self.plan.unit,
            claims=self.plan.claims,
            host="127.0.0.1",
            port=0,
            limit_hook=str(self._program),
        )
        served = partial(self.ports.__setitem__, host.spec.name)
        await _for_ever(
            lambda: agent.run(config, access, lambda: host.nvml, paths, serving=served),
            partial(self._running.__setitem__, host.spec.name),
        )

    def _scheduler(self, config: SchedulerConfig, access: Access) -> Coroutine[None, None, None]:
        return _for_ever(
            lambda: scheduler.run(config, access, identity="embedded", serving=partial(setattr, self, "scheduler")),
            partial(setattr, self, "_scheduling"),
        )

    async def end_scheduler(self) -> None:
        """End the scheduler; it is started again."""
        assert self._scheduling is not None
        self.scheduler = None
        self._scheduling.cancel()
        await asyncio.wait({self._scheduling})

    async def end_agents(self) -> None:
        """End all agents; each is started again."""
        self.ports.clear()
        ended = list(self._running.values())
        for task in ended:
            task.cancel()
        await asyncio.wait(ended)

    async def given(self) -> list[Given]:
        """What every container that runs was given."""
        found = []
        for kubelet in self.nodes:
            host = kubelet.host
            for uid, run in host.runs.items():
                for name, container in run.containers.items():
                    if isinstance(container.state, Running) and (uid, name) in host.creations:
                        limits = self._limits(host, uid, name, container.state.id)
                        pod, namespace = run.name.partition("(")[0].split("_")
                        found.append(Given(host.spec.name, namespace, pod, uid, name, limits))
        return [one for one in found if one.limits]

    def _limits(self, host: Host, uid: str, name: str, container_id: str) -> dict[str, int | None]:
        creation = host.creations[uid, name]
        path = self.cgroups.get(container_id.removeprefix("containerd://"), "/none")
        limits: dict[str, int | None] = {}
        for card in visible_cards(host.nvml.survey(), creation.env, creation.edits):
            hard = host.nvml.cgroup_memory(card.uuid, path).limit.hard_bytes
            limits[card.uuid] = None if hard is None else hard // MEBIBYTE
        return limits


async def _for_ever(
    start: Callable[[], Coroutine[None, None, None]], note: Callable[[asyncio.Task[None]], None]
) -> None:
    """Run a service, and again whenever it is cancelled; `note` is told its task."""
    while True:
        task = asyncio.create_task(start())
        note(task)
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class KeptConnection(Connection):
    """One connection for all requests of the administrator, and one for those of the tenants."""

    def __init__(self, kubeconfig: Path) -> None:
        super().__init__(kubeconfig)
        self._kept: dict[bool, http.client.HTTPSConnection] = {}

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> Answer:
        admin = token is None
        kept = self._kept.get(admin)
        if kept is None:
            tls = self._tls if admin else self._anonymous
            kept = self._kept[admin] = http.client.HTTPSConnection(self._address, context=tls, timeout=self.deadline)
        bearer = {"Authorization": f"Bearer {token or self._token}"} if token or self._token else {}
        kept.request(method, path, body, {**(headers or {}), **bearer})
        with kept.getresponse() as response:
            return Answer(response.status, dict(response.getheaders()), parsed(response.read()))

    def close(self) -> None:
        """End them."""
        for kept in self._kept.values():
            kept.close()


class EmbeddedArena:
    """Two nodes with two cards of 24 GiB each."""

    watches = True

    def __init__(self, loop: PluginLoop, *, names_by_claims: bool = False) -> None:
        """`names_by_claims`: the second node serves `keti.com/mpsgpu` through claims."""
        self._loop = loop
        self._folder = tempfile.TemporaryDirectory(prefix="sa-")
        self.cluster = Walled(EmbeddedPlan(few(2, "2xA30-24G"), claims=True), Path(self._folder.name))
        # As servers before Kubernetes 1.36: only the policies, and what is believed, stand against forged allocations.
        self.cluster.api.registry.status_rights.clear()
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._life = loop.run(self._begin())
        self._kept = KeptConnection(self.cluster.kubeconfig)
        self.api: Connection = self._kept
        self.nodes: Sequence[str] = [spec.name for spec in self.cluster.plan.nodes]
        self.here = self.nodes[0]
        self._validators = list(self.cluster.api.registry.validators)
        if names_by_claims:
            self._serve_by_claims(self.nodes[1], keti.RESOURCE_MPS)

    def _serve_by_claims(self, node: str, name: str) -> None:
        path, body = f"/api/v1/nodes/{node}", {"metadata": {"labels": {mechanisms.label_of(name): "true"}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        assert self.api.request("PATCH", path, json.dumps(body).encode(), headers).status == 200

        def served() -> bool:
            annotations = self.api.request("GET", path).body["metadata"]["annotations"]
            return mechanisms.decode(annotations).get(name) is Mechanism.CLAIMS

        wait_for(served, f"served through claims: {name}")

    async def _begin(self) -> asyncio.Task[None]:
        life, ready = asyncio.create_task(self._live()), asyncio.create_task(self._ready.wait())
        await asyncio.wait({life, ready}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        return life

    async def _live(self) -> None:
        async with self.cluster:
            await self.cluster.ready()
            self._ready.set()
            await self._over.wait()

    async def _end(self) -> None:
        self._over.set()
        await self._life

    def stop(self) -> None:
        """End it."""
        self._kept.close()
        self._loop.run(self._end())
        self._folder.cleanup()

    def container(self, name: str, *, stubborn: bool = False) -> Object:
        return {"name": name, "image": "none"}  # the pod's annotation says whether it is stubborn

    def policies(self, *, on: bool) -> None:
        async def put() -> None:
            self.cluster.api.registry.validators[:] = self._validators if on else []

        self._loop.run(put())

    def given(self) -> list[Given]:
        return self._loop.run(self.cluster.given())

    def crash(self, namespace: str, pod: str) -> None:
        async def end() -> None:
            for kubelet in self.cluster.nodes:
                for uid, run in kubelet.host.runs.items():
                    if run.name.startswith(f"{pod}_{namespace}("):
                        kubelet.end_container(uid, "main", 1)
                        return
            raise AssertionError(f"{namespace}/{pod} does not run anywhere: nothing can be ended")

        self._loop.run(end())

    def restart_agents(self) -> None:
        self._loop.run(self.cluster.end_agents())
        wait_for(
            lambda: len(self.cluster.ports) == len(self.nodes) and all(map(_ready, self.cluster.ports.values())), "up"
        )

    def restart_scheduler(self) -> None:
        """End the scheduler and start it again."""
        self._loop.run(self.cluster.end_scheduler())
        wait_for(lambda: (ports := self.cluster.scheduler) is not None and _ready(ports.health), "up")

    def booked(self) -> dict[tuple[str, int], int]:
        assert self.cluster.scheduler is not None
        status, text = _asked(self.cluster.scheduler.health, "/metrics")
        assert status == 200, text
        return booked_of(text)

    def inspect(self) -> Object:
        asked = ["inspect", "-o", "json", "--kubeconfig", str(self.cluster.kubeconfig)]
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))


def _ready(port: int) -> bool:
    """Whether a service is ready: of an agent, kubelet has asked it for everything."""
    with contextlib.suppress(OSError):
        return _asked(port, "/readyz")[0] == 200
    return False


def _asked(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
