"""Takes away what discovery wrote: its labels, its annotation and its Lease, and nothing else.

The server knows which labels are Shoal's alone: a label that another manager holds too stays. Labels that NFD lists as
its own stay as well, though Shoal may have written them first. Remove workers and leader before, or they write again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.labels import is_listed
from shoal.discovery.plan import nfd_keys
from shoal.discovery.worker import NODE_METADATA
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, NotFoundError
from shoal.kube.objects.meta import Object
from shoal.kube.resources import LEASES, NODES
from shoal.model.contract.discovery import ANNOTATION_FACTS, MANAGER_KEPT, MANAGER_LABELS

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16


async def clean_up(client: Client, config: DiscoveryConfig) -> int:
    """Clean every node, and tell how many had something of discovery's."""
    nodes = (await client.list(NODE_METADATA)).items
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def clean(node: Object) -> bool:
        async with at_once:
            return await clean_node(client, node)

    cleaned = sum(await asyncio.gather(*map(clean, nodes)))
    with contextlib.suppress(NotFoundError):
        await client.delete(LEASES, config.lease_name, namespace=config.lease_namespace)
    return cleaned


async def clean_node(client: Client, node: Object) -> bool:
    """Clean one node; whether anything was changed."""
    meta = node.metadata
    listed = {key: value for key, value in meta.labels.items() if is_listed(key)}
    version = meta.resource_version
    # A node that was deleted meanwhile needs nothing, and one that was made anew has nothing of ours.
    with contextlib.suppress(NotFoundError, ConflictError):
        if listed:
            nfd = nfd_keys(meta.annotations) or frozenset()
            if kept := {key: value for key, value in listed.items() if key in nfd}:
                await _apply(client, node, kept, MANAGER_KEPT)
            version = (await _apply(client, node, {}, MANAGER_LABELS)).metadata.resource_version
        if ANNOTATION_FACTS in meta.annotations:
            await client.patch(NODES, meta.name, {"metadata": {"annotations": {ANNOTATION_FACTS: None}}})
            return True
    return version != meta.resource_version


async def _apply(client: Client, node: Object, labels: dict[str, str], manager: str) -> Object:
    body: dict[str, Any] = {"metadata": {"name": node.metadata.name, "uid": node.metadata.uid, "labels": labels}}
    return await client.apply(NODE_METADATA, body, field_manager=manager, force=True)
