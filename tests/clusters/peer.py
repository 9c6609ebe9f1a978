"""A member as the manager meets it over the wire: TLS, the path of `services/proxy`, and a scheduler that counts.

It stands in for other people's clusters, also for such as lie, stall or answer rubbish.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from shoal.clusters.member import Member
from shoal.embedded.certificates import Pki, make_pki
from shoal.kube.access.credentials import Access, FileContent, Inline, StoredCredential
from shoal.kube.client import Client
from shoal.kube.transport import TransportLimits
from shoal.model.contract import clusters as contract
from shoal.model.contract.clusters import Offer, OfferRequest

PROXY = "/api/v1/namespaces/kube-system/services/https:shoal-offer:8788/proxy/shoal/v1/offer"
TOKEN = "a-token-of-this-cluster"
_NO_SERVICE = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}


class Peer:
    """One cluster: so many pods fit, of which some are held; what it says can be replaced by anything."""

    def __init__(self, room: int = 0, *, score: float = 0.5, most_holds: int = 1000) -> None:
        self.room = room
        self.score = score
        self.most_holds = most_holds
        self.held: set[str] = set()
        #: Pods that were bound there, holds used up.
        self.bound: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.seen: list[OfferRequest] = []
        self.headers: list[dict[str, str]] = []
        #: Said instead: a status with bytes, or nothing for ever.
        self.says: tuple[int, bytes] | None = None
        self.silent = False
        #: So many fit, it says, as long as nothing is to be held.
        self.claims: int | None = None

    @property
    def free(self) -> int:
        """How many more fit."""
        return self.room - len(self.held | self.bound)

    def bind(self, uid: str) -> bool:
        """The pod has come; whether there is a place for it."""
        if uid not in self.held and self.free < 1:
            return False
        self.held.discard(uid)
        self.bound.add(uid)
        return True

    def answer(self, request: OfferRequest) -> Offer:
        """What its scheduler says."""
        if not request.hold and self.claims is not None:
            return Offer(min(self.claims, request.count), self.score)
        if not request.hold:
            return Offer(min(self.free, request.count), self.score, why="" if self.free else "full")
        if request.origin in self.held:
            return Offer(1, self.score, held=True)
        if self.free < 1:
            return Offer(0, why="full")
        if len(self.held) >= self.most_holds:
            return Offer(1, self.score)
        self.held.add(request.origin)
        return Offer(1, self.score, held=True)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One request at its API server."""
        if self.silent:
            await asyncio.Event().wait()
        body = await request.read()
        self.headers.append(dict(request.headers))
        if self.says is not None:
            return web.Response(status=self.says[0], body=self.says[1])
        if request.path not in (PROXY, contract.PATH_OFFER):
            return web.json_response(_NO_SERVICE, status=404)
        asked = msgspec.json.decode(body, type=OfferRequest)
        self.asked["hold" if asked.hold else "ask"] += 1
        self.seen.append(asked)
        return web.Response(body=msgspec.json.encode(self.answer(asked)))

    @asynccontextmanager
    async def serving(self, folder: Path, name: str, host: str = "127.0.0.1") -> AsyncIterator[tuple[int, Pki]]:
        """It serves; the port, and its certificates."""
        pki = make_pki(folder / name, now=datetime.now(UTC))
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pki.certificate, pki.key)
        app = web.Application(client_max_size=1 << 22)
        app.router.add_route("*", "/{rest:.*}", self.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, 0, ssl_context=tls).start()
            yield runner.addresses[0][1], pki
        finally:
            await runner.cleanup()

    @asynccontextmanager
    async def member(self, folder: Path, name: str, *, direct: bool = False, **fields: Any) -> AsyncIterator[Member]:
        """It serves, and is joined."""
        async with self.serving(folder, name) as (port, pki):
            url = f"https://127.0.0.1:{port}"
            authority = FileContent(pki.authority, what="authority")
            credentials = StoredCredential(token=Inline(TOKEN.encode()))
            limits = TransportLimits(attempts=1)
            async with Client(Access(url, credentials, authority=authority), limits=limits) as client:
                ways: dict[str, Any] = {}
                if direct:
                    ways = {"offer_url": url, "offer_authority": pki.authority.read_bytes()}
                yield Member(name, f"uid-{name}", client, **ways, **fields)
