"""The extender in this process, on books that follow a real API server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Store
from shoal.scheduler.extender.filtering import OFFER_ALL
from shoal.scheduler.extender.holds import HOLD_SECONDS
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.kube_scheduler import ClientTls, InlineClientTls, SchedulerMode, configuration
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.tls import ServerTls
from tests.scheduler.extender.scene import clearing_of, context_of, state_of
from tests.testbed import binaries
from tests.testbed.control_plane import ControlPlane


@dataclass
class Live:
    """What runs, and where."""

    client: Client
    state: ClusterState
    metrics: Metrics
    port: int

    def configuration(
        self,
        *,
        mode: SchedulerMode = SchedulerMode.DEFAULT,
        node_cache: bool = True,
        tls: ClientTls | InlineClientTls | None = None,
    ) -> dict[str, Any]:
        """The printed configuration, but for what only a control-plane node has: its kubeconfig and its lease."""
        scheme = "http" if tls is None else "https"
        text = configuration(
            binaries.kube_version(),
            mode=mode,
            url=f"{scheme}://127.0.0.1:{self.port}",
            tls=tls,
            node_cache=node_cache,
        )
        document: dict[str, Any] = yaml.safe_load(text)
        document.pop("clientConnection", None)
        document.pop("leaderElection")
        return document


@contextlib.asynccontextmanager
async def live(
    control_plane: ControlPlane,
    *,
    policy: str = "binpack",
    hold_seconds: float = HOLD_SECONDS,
    tls: ServerTls | None = None,
    all_up_to: int = OFFER_ALL,
    kubeconfig: Path | None = None,
) -> AsyncIterator[Live]:
    """Follow the cluster and serve."""
    access = load_access(environ={}, home=Path("/"), kubeconfig=kubeconfig or control_plane.api.kubeconfig())
    async with Client(access) as client:
        state = state_of(policy)
        context = context_of(state, client)
        metrics, reporter = context.metrics, context.reporter
        verbs = Verbs(
            context,
            plan=clearing_of(context, Store()).plan,
            try_again=reporter.try_again,
            offer_all_up_to=all_up_to,
            hold_seconds=hold_seconds,
        )
        extender = Extender(verbs, state, metrics=metrics, not_ready=lambda: "", clock=time.monotonic)
        async with (
            Reflector(client, NODES, consumers=[state.on_node]) as nodes,
            Reflector(client, PODS, consumers=[state.on_pod, verbs.pods.on_pod]) as pods,
        ):
            await nodes.wait_synced()
            await pods.wait_synced()
            chores = {asyncio.create_task(reporter.run()), asyncio.create_task(sweep(state))}
            try:
                async with extender.serve(Address("127.0.0.1", 0, tls=tls)) as port:
                    yield Live(client, state, metrics, port)
            finally:
                for chore in chores:
                    chore.cancel()
                await asyncio.wait(chores)


async def sweep(state: ClusterState) -> None:
    """As the whole scheduler does: a pod that vanished while the watch was away holds its cards for half a minute."""
    while True:
        await asyncio.sleep(0.5)
        state.sweep()
