"""The ways of scheduling that must come out alike, and what runs for each.

embedded     the embedded API server with its controllers, `shoal scheduler` on its own
standalone   a real control plane, `shoal scheduler` on its own
extender     a real control plane, the stock kube-scheduler that asks `shoal scheduler`

On the real ones `shoal scheduler` is its ServiceAccount, with the rights of `deploy/scheduler`. Pods of both names,
`default-scheduler` and `gpu-scheduler`, are served on each, so that the same manifests work on all.
"""

import asyncio
import base64
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from shoal.kube.access.credentials import KeyPair
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.access.tls import tls_context
from shoal.kube.client import Client
from shoal.scheduler.config import SECRET
from tests.suites.embedded import EmbeddedServer
from tests.suites.scheduling.process import SHOAL, SchedulerProcess
from tests.testbed import binaries, fake_kubelet
from tests.testbed.apiserver import ApiServer
from tests.testbed.cluster import Api
from tests.testbed.control_plane import ControlPlane
from tests.testbed.processes import Process, Run

DEPLOYED = Path(__file__).parents[3] / "deploy" / "scheduler"
NAMES = ("default-scheduler", "gpu-scheduler")
EMBEDDED, STANDALONE, EXTENDER = "embedded", "standalone", "extender"
WAYS = (EMBEDDED, STANDALONE, EXTENDER)


@dataclass
class Way:
    """A cluster and who schedules there."""

    name: str
    api: Api
    scheduler: SchedulerProcess
    _base: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._base = self.scheduler.options

    @property
    def words(self) -> str:
        """Whose words a pod that waits is told: Shoal's (standalone) or kube-scheduler's (extender)."""
        return EXTENDER if self.name == EXTENDER else STANDALONE

    def run_with(self, options: Sequence[str], *, fresh: bool = False) -> None:
        """Have the scheduler run with these options beside its own; started anew when it has others, or if `fresh`."""
        wanted = (*self._base, *options)
        if fresh or self.scheduler.options != wanted or not self.scheduler.alive:
            self.scheduler.stop()
            self.scheduler.options = wanted
            self.scheduler.start()

    def restart(self) -> None:
        """Kill the scheduler without a warning, and start it anew."""
        self.scheduler.kill()
        self.scheduler.start()


@contextmanager
def embedded(directory: Path) -> Iterator[Way]:
    """The embedded cluster."""
    server = EmbeddedServer(directory, controllers=True)
    try:
        with Run() as run:
            kubelets(run, server)
            scheduler = SchedulerProcess(run, "scheduler", server.kubeconfig(), standalone_options())
            scheduler.start()
            yield Way(EMBEDDED, server, scheduler)
    finally:
        server.stop()


@contextmanager
def standalone(run: Run, plane: ControlPlane) -> Iterator[Way]:
    """A real control plane and `shoal scheduler`."""
    scheduler = SchedulerProcess(run, "standalone", as_service_account(plane.api), standalone_options())
    scheduler.start()
    try:
        yield Way(STANDALONE, plane.api, scheduler)
    finally:
        scheduler.stop()


@contextmanager
def extender(run: Run, plane: ControlPlane) -> Iterator[Way]:
    """A real control plane and the stock kube-scheduler, configured as `shoal config kube-scheduler` prints it."""
    settings = plane.api.directory / "extender-only.yaml"
    settings.write_text(yaml.safe_dump({"schedulerNames": [], "tls": {"secret": SECRET}}))
    options = ("--config", str(settings), "--no-leader-elect")
    scheduler = SchedulerProcess(run, "extender", as_service_account(plane.api), options)
    scheduler.start()
    try:
        configuration = asking(plane.api, scheduler.port)
        scheduler.tls = as_kube_scheduler(configuration)
        plane.start_scheduler(configuration)
        yield Way(EXTENDER, plane.api, scheduler)
    finally:
        plane.stop_schedulers()
        scheduler.stop()


def standalone_options() -> tuple[str, ...]:
    """Serve both names, and wait for no lease: a scheduler that was killed would hold it for 15 seconds."""
    return (*(word for name in NAMES for word in ("--scheduler-name", name)), "--no-leader-elect")


def asking(api: ApiServer, port: int) -> dict[str, Any]:
    """The printed configuration, for both names, but for what only a control-plane node has."""
    options = [
        "--for",
        binaries.kube_version(),
        "--url",
        f"https://127.0.0.1:{port}",
        "--kubeconfig",
        str(api.kubeconfig()),
    ]
    command = [str(SHOAL), "config", "kube-scheduler", *options]
    document: dict[str, Any] = yaml.safe_load(subprocess.run(command, check=True, capture_output=True).stdout)
    document.pop("clientConnection", None)
    document.pop("leaderElection")
    return {**document, "profiles": [{"schedulerName": name} for name in NAMES]}


def as_kube_scheduler(configuration: dict[str, Any]) -> ssl.SSLContext:
    """What kube-scheduler trusts and shows."""
    given = configuration["extenders"][0]["tlsConfig"]
    ca, certificate, key = (base64.b64decode(given[name]) for name in ("caData", "certData", "keyData"))
    return tls_context(authority=ca, pair=KeyPair(certificate, key), verify=True)


def as_service_account(api: ApiServer) -> Path:
    """`service_account` for code that waits for nothing else meanwhile."""
    return asyncio.run(service_account(api))


async def service_account(api: ApiServer) -> Path:
    """The kubeconfig of Shoal's ServiceAccount, with its rights as deployed."""
    path = api.directory / "shoal-scheduler.kubeconfig"
    if not path.exists():
        for name in ("rbac", "secret"):
            api.kubectl("apply", "-f", str(DEPLOYED / f"{name}.yaml"))
        async with Client(load_access(environ={}, home=Path("/"), kubeconfig=api.kubeconfig())) as client:
            token = (await client.token("shoal-scheduler", namespace="kube-system")).token
        document = yaml.safe_load(api.kubeconfig().read_text())
        document["users"][0]["user"] = {"token": token}
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
    return path


def kubelets(run: Run, api: Api) -> Process:
    """Fake kubelets for all fake nodes of the cluster."""
    process = run.process("fake-kubelet", [sys.executable, "-m", fake_kubelet.__name__, str(api.kubeconfig())])
    process.start()
    return process
