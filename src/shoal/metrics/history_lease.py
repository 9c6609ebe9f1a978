"""A Lease in which a collector tells where it answers, and by which authority it is known.

An admission policy (deploy/metrics) lets a collector write only that of its own node. It goes with the node.
"""

from __future__ import annotations

import logging
import socket
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.resources import LEASES, NODES
from shoal.metrics import history_wire as wire
from shoal.metrics.history_wire import Announcement

log = logging.getLogger(__name__)

_MANAGER: Final = "shoal-history"


async def announce(client: Client, announcement: Announcement, *, namespace: str) -> None:
    """Tell where a collector answers. Raises KubeError."""
    metadata: dict[str, Any] = {
        "name": announcement.node,
        "namespace": namespace,
        "annotations": {wire.ANNOTATION: msgspec.json.encode(announcement).decode()},
    }
    owner = await _owner(client, announcement.node)
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    lease = {"metadata": metadata, "spec": {"holderIdentity": announcement.node}}
    await client.apply(LEASES.raw, lease, field_manager=_MANAGER, force=True)


async def _owner(client: Client, node: str) -> dict[str, str] | None:
    """The node as an owner, so that the Lease goes with it; None if it may not be read."""
    try:
        found = await client.get(NODES, node)
    except (ForbiddenError, NotFoundError) as error:
        log.info("the Lease of this node will not go with it: %s", error)
        return None
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found.metadata.uid}


def own_address(host: str, server: str) -> str:
    """The address under which others reach what listens on `host`: of any, the one by which the API server is reached.

    No packet is sent for that.
    """
    if host not in ("", "0.0.0.0", "::"):
        return host
    url = urlsplit(server)
    try:
        found = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        log.warning("the own address is not known: %s", error)
        return socket.gethostname()
