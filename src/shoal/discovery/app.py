"""Discovery's processes: a worker on each node, and a leader for all of them. `run_…` ends when it is cancelled.

Neither has global state or signal handlers of its own, so that many can run in one process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from shoal.discovery.cleanup import clean_up
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.leader import Leader
from shoal.discovery.machine import OpenNvml
from shoal.discovery.worker import Worker
from shoal.http.probes import answering_probes
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.lease import Election

log = logging.getLogger(__name__)


async def run_worker(config: DiscoveryConfig, access: Access, open_nvml: OpenNvml) -> None:
    """Tell the facts of one node."""
    async with Client(access) as client:
        worker = Worker(config, client, open_nvml)
        async with _probes(config, worker.waiting_for):
            await worker.run()


async def run_leader(config: DiscoveryConfig, access: Access, *, identity: str) -> None:
    """Label all nodes while this process leads. LeadershipLostError when it does so no more."""
    async with Client(access) as client:
        election = Election(client, namespace=config.lease_namespace, name=config.lease_name, identity=identity)
        leader = Leader(config, client, may_write=lambda: election.leading)
        # One that waits for its turn does what it should.
        async with _probes(config, lambda: leader.waiting_for() if election.leading else ""):
            await election.run(leader.run)


async def run_cleanup(config: DiscoveryConfig, access: Access) -> int:
    """Take away what discovery wrote; on how many nodes there was something."""
    async with Client(access) as client:
        return await clean_up(client, config)


def _probes(config: DiscoveryConfig, waiting_for: Callable[[], str]) -> contextlib.AbstractAsyncContextManager[object]:
    if config.port is None:
        return contextlib.nullcontext()
    return answering_probes(config.host, config.port, waiting_for)
