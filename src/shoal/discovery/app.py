"""Discovery's processes: a worker on each node, and a leader for all of them. `run_…` ends when it is cancelled.

Neither has global state or signal handlers of its own, so that many can run in one process.
"""

from __future__ import annotations

import logging

from shoal.discovery.cleanup import clean_up
from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.leader import Leader
from shoal.discovery.machine import OpenNvml
from shoal.discovery.worker import Worker
from shoal.kube.access.credentials import Access
from shoal.kube.client import Client
from shoal.kube.lease import Election

log = logging.getLogger(__name__)


async def run_worker(config: DiscoveryConfig, access: Access, open_nvml: OpenNvml) -> None:
    """Tell the facts of one node."""
    async with Client(access) as client:
        await Worker(config, client, open_nvml).run()


async def run_leader(config: DiscoveryConfig, access: Access, *, identity: str) -> None:
    """Label all nodes while this process leads. LeadershipLostError when it does so no more."""
    async with Client(access) as client:
        election = Election(client, namespace=config.lease_namespace, name=config.lease_name, identity=identity)
        await election.run(Leader(config, client, may_write=lambda: election.leading).run)


async def run_cleanup(config: DiscoveryConfig, access: Access) -> int:
    """Take away what discovery wrote; on how many nodes there was something."""
    async with Client(access) as client:
        return await clean_up(client, config)
