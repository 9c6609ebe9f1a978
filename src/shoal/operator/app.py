"""The operator's process: what it watches, who leads, and how the parts are joined.

Every replica follows the cluster and answers probes and Prometheus; only the leader writes. A leader that loses its
lease ends, and is started anew. It has no global state and no signal handlers, so that many can run in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.lease import Election
from shoal.model.contract.operator import NAME_OPERATOR
from shoal.operator.config import OperatorConfig
from shoal.operator.controller import PolicyController
from shoal.operator.metrics import serve_metrics, serve_probes
from shoal.operator.writes import Writes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorPorts:
    """The ports on which a process answers; None: it does not."""

    probes: int | None
    metrics: int | None


Serving = Callable[[OperatorPorts], None]


class Operator:
    """All parts of one process on one client."""

    def __init__(self, client: Client, recorder: Recorder, config: OperatorConfig, *, identity: str) -> None:
        self.config = config
        self.election = Election(client, namespace=config.namespace, name=config.lease_name, identity=identity)
        self.controller = PolicyController(
            config, client, Writes(client, recorder), may_write=lambda: self.election.leading
        )

    async def run(self, *, serving: Serving = lambda ports: None) -> None:
        """Watch, answer and, when leading, write; until cancelled. LeadershipLostError when it leads no more."""
        config, metrics = self.config, self.controller.metrics
        async with contextlib.AsyncExitStack() as stack:
            ports: list[int | None] = [None, None]
            if config.probe_port is not None:
                probes = serve_probes(
                    config.host,
                    config.probe_port,
                    metrics,
                    not_ready=self.controller.not_ready,
                    clock=time.monotonic,
                )
                ports[0] = await stack.enter_async_context(probes)
            if config.metrics_port is not None:
                scraped = serve_metrics(config.host, config.metrics_port, metrics, clock=time.monotonic)
                ports[1] = await stack.enter_async_context(scraped)
            serving(OperatorPorts(*ports))
            await stack.enter_async_context(self.controller.watches)
            following = asyncio.create_task(self.controller.follow(), name="manifests and NVIDIA's kind")
            stack.callback(following.cancel)
            await self.controller.watches.wait_synced()
            # What the first lists hold stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            log.info("knows %d nodes", len(self.controller.watches.nodes))
            await self.election.run(self._lead)

    async def _lead(self) -> None:
        await self.controller.watches.refresh()
        self.controller.metrics.leads.set(1)
        try:
            await self.controller.run()
        finally:
            self.controller.metrics.leads.set(0)


async def run(config: OperatorConfig, access: Access, *, identity: str, serving: Serving = lambda ports: None) -> None:
    """Run the operator until cancelled, or until it loses its lease."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(access))
        recorder = Recorder(client, NAME_OPERATOR, host=identity, per_second=config.events_per_second)
        await stack.enter_async_context(recorder)
        await Operator(client, recorder, config, identity=identity).run(serving=serving)
