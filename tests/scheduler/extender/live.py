"""The extender in this process, on books that follow a real API server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NODES, PODS
from shoal.kube.store import Store
from shoal.scheduler.binder import Binder
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender.filtering import OFFER_ALL, Offer
from shoal.scheduler.extender.memory.holds import SECONDS
from shoal.scheduler.extender.server import Address, Extender
from shoal.scheduler.extender.tls import Tls as ServerTls
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.kube_scheduler import InlineTls, Mode, Tls, configuration
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.telling.tell import Teller
from tests.scheduler.extender.scene import books_of, clearing_of
from tests.testbed import binaries
from tests.testbed.control_plane import ControlPlane


@dataclass
class Live:
    """What runs, and where."""

    client: Client
    books: Books
    metrics: Metrics
    port: int

    def configuration(
        self, *, mode: Mode = Mode.DEFAULT, node_cache: bool = True, tls: Tls | InlineTls | None = None
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
    hold_seconds: float = SECONDS,
    tls: ServerTls | None = None,
    all_up_to: int = OFFER_ALL,
    kubeconfig: Path | None = None,
) -> AsyncIterator[Live]:
    """Follow the cluster and serve."""
    access = load_access(environ={}, home=Path("/"), kubeconfig=kubeconfig or control_plane.api.kubeconfig())
    async with Client(access) as client:
        books, metrics = books_of(policy), Metrics()
        teller = Teller(client, Recorder(client, "test"), now=lambda: datetime.now(UTC), may_write=lambda: True)
        binder = Binder(client, books, may_write=lambda: True, now_ns=time.time_ns)
        verbs = Verbs(
            books,
            binder,
            plan=clearing_of(books, client, Store()).plan,
            short=Feasibility(books.cluster).short,
            metrics=metrics,
            clock=time.monotonic,
            hold_seconds=hold_seconds,
            offer=Offer(Feasibility(books.cluster).prefers, all_up_to=all_up_to),
            try_again=teller.try_again,
        )
        extender = Extender(verbs, books, metrics=metrics, not_ready=lambda: "", clock=time.monotonic)
        async with (
            Reflector(client, NODES, consumers=[books.on_node]) as nodes,
            Reflector(client, PODS, consumers=[books.on_pod, verbs.waiting.on_pod]) as pods,
        ):
            await nodes.wait_synced()
            await pods.wait_synced()
            conditions = asyncio.create_task(teller.run())
            try:
                async with extender.serve(Address("127.0.0.1", 0, tls=tls)) as port:
                    yield Live(client, books, metrics, port)
            finally:
                conditions.cancel()
                await asyncio.wait({conditions})
