"""Takes away what discovery wrote: its labels, its annotation and its Lease, and nothing else.

The server knows which labels are Shoal's alone: a label that another manager holds too stays. Labels that NFD lists as
its own stay as well, though Shoal may have written them first. Remove workers and leader before, or they write again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from shoal.discovery.config import DiscoveryConfig
from shoal.discovery.labels import is_listed
from shoal.discovery.plan import nfd_keys
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, NotFoundError
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.resources import LEASES, NODES, RawObject, meta_of
from shoal.model.contract.discovery import ANNOTATION_FACTS, MANAGER_KEPT, MANAGER_LABELS

_AT_ONCE: Final = 16
_PAGE: Final = 100


async def clean_up(client: Client, config: DiscoveryConfig) -> int:
    """Clean every node, and tell how many had something of discovery's."""
    nodes = await _nodes_with_ours(client)
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def clean(node: ObjectMeta) -> None:
        async with at_once:
            await clean_node(client, node)

    await asyncio.gather(*map(clean, nodes))
    with contextlib.suppress(NotFoundError):
        await client.delete(LEASES, config.lease_name, namespace=config.lease_namespace)
    return len(nodes)


async def _nodes_with_ours(client: Client) -> list[ObjectMeta]:
    """Page by page: with all their fields nodes are large, and only those of the page are needed."""
    found: list[ObjectMeta] = []
    more = ""
    while True:
        page = await client.page(NODES.raw, limit=_PAGE, continue_=more)
        found += [meta_of(node) for node in page.items or () if _has_ours(node)]
        more = page.metadata.continue_
        if not more:
            return found


def _has_ours(node: RawObject) -> bool:
    managers = {entry.get("manager") for entry in node["metadata"].get("managedFields") or ()}
    return MANAGER_LABELS in managers or ANNOTATION_FACTS in (node["metadata"].get("annotations") or {})


async def clean_node(client: Client, node: ObjectMeta) -> None:
    """Clean one node."""
    nfd = nfd_keys(node.annotations) or frozenset()
    # A node that was deleted meanwhile needs nothing, and one that was made anew has nothing of ours.
    with contextlib.suppress(NotFoundError, ConflictError):
        if kept := {key: value for key, value in node.labels.items() if key in nfd and is_listed(key)}:
            await _apply(client, node, kept, MANAGER_KEPT)
        await _apply(client, node, {}, MANAGER_LABELS)
        if ANNOTATION_FACTS in node.annotations:
            await client.patch(NODES, node.name, {"metadata": {"annotations": {ANNOTATION_FACTS: None}}})


async def _apply(client: Client, node: ObjectMeta, labels: Mapping[str, str], manager: str) -> None:
    body: dict[str, Any] = {"metadata": {"name": node.name, "uid": node.uid, **({"labels": labels} if labels else {})}}
    await client.apply(NODES.raw, body, field_manager=manager, force=True)
