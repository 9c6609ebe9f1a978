"""A collector's server of history on an API server, and callers with tokens that the API server made."""

import asyncio
import contextlib
import itertools
import re
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from shoal.http.server import Bounds
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError
from shoal.kube.resources import LEASES, NAMESPACES
from shoal.metrics import history_wire as wire
from shoal.metrics.history_server import BOUNDS, HistoryServer, HistorySettings
from shoal.metrics.history_wire import Announcement
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from tests.kube.waiting import until

DEPLOY = Path(__file__).parents[2] / "deploy"


class ManualTime:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class HistorySite:
    """The server, and how to ask it."""

    server: HistoryServer
    latest: LatestSnapshot
    clock: ManualTime
    announcement: Announcement
    session: aiohttp.ClientSession
    tls: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self.tls = ssl.create_default_context(cadata=self.announcement.authority)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://{self.announcement.host}:{self.announcement.port}"

    async def ask(self, path: str, token: str = "", *, header: str = "Authorization", **query: str) -> tuple[int, Any]:
        """Status and answer, decoded if it is JSON."""
        shown = f"Bearer {token}" if header == "Authorization" else token
        async with self.session.get(
            self.url + path,
            params=query,
            headers={header: shown} if token else {},
            ssl=self.tls,
            server_hostname=self.announcement.server_name,
        ) as response:
            content = await response.read()
            if response.content_type == "application/json":
                return response.status, msgspec.json.decode(content)
            return response.status, content.decode()


@contextlib.asynccontextmanager
async def served(
    client: Client,
    folder: Path,
    snapshot: Snapshot | None,
    *,
    node: str = "n1",
    bounds: Bounds = BOUNDS,
    reader: Client | None = None,
) -> AsyncIterator[HistorySite]:
    """Serve a snapshot and a ring, on loopback, while the block runs. `reader` may read its Lease."""
    clock, latest = ManualTime(), LatestSnapshot()
    sockets: list[socket.socket] = []
    settings = HistorySettings(folder=str(folder), host="127.0.0.1", port=0)
    server = HistoryServer(settings, client, node, clock=lambda: 1e6, monotonic=clock, bounds=bounds)
    if snapshot is not None:
        latest.put(snapshot)
    task = asyncio.create_task(server.run(latest))
    try:
        await until(lambda: server.announced or task.done(), "announced")
        lease = await (reader or client).get(LEASES, node, namespace=wire.NAMESPACE)
        told = msgspec.json.decode(lease.metadata.annotations[wire.ANNOTATION], type=Announcement)

        def made(address: aiohttp.AddrInfoType) -> socket.socket:
            sockets.append(socket.socket(*address[:3]))
            return sockets[-1]

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(socket_factory=made)) as session:
            yield HistorySite(server, latest, clock, told, session)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: all(one.fileno() < 0 for one in sockets), "closed")


async def apply(client: Client, manifest: str) -> None:
    """Make the objects of a manifest of `deploy`, and the namespaces they are in."""
    for obj in yaml.safe_load_all((DEPLOY / manifest).read_text()):
        group, _, version = obj["apiVersion"].rpartition("/")
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        namespace = obj["metadata"].get("namespace", "")
        if namespace:
            with contextlib.suppress(AlreadyExistsError):
                await client.create(NAMESPACES.raw, {"metadata": {"name": namespace}})
        where = f"/namespaces/{namespace}" if namespace else ""
        plural = re.sub("y$", "ie", obj["kind"].lower()) + "s"
        with contextlib.suppress(AlreadyExistsError):
            await client.request("POST", f"{root}{where}/{plural}", body=obj)


_LIVES = itertools.count(600)


async def token_of(client: Client, namespace: str, audience: str = wire.AUDIENCE) -> str:
    """A token of the viewers' account of a namespace, each another one."""
    audiences = [audience] if audience else []
    made = await client.token(wire.VIEWER_ACCOUNT, namespace=namespace, audiences=audiences, seconds=next(_LIVES))
    return made.token
