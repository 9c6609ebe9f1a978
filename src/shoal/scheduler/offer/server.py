"""The port of offers: TLS, a caller's token, its right, and only then what it asks.

The token is in `Authorization`, or in a header of our own, since the API server's proxy to Services drops the other.
Who may `create` offers.shoal.dev in the scheduler's namespace may ask. An offer is worked out in one go, on the event
loop on which this cluster's own pods are decided, so what one caller may use of that time is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from shoal.http.server import Bodies, Bounds, Routes, json, serving, shown_token
from shoal.kube.client import Client
from shoal.kube.reviews import Bucket, Caller, CallerRefusedError, Rate, Reviews, Right
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters
from shoal.scheduler.errors import WireError
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.offer import wire
from shoal.scheduler.offer.offers import Offers
from shoal.scheduler.tls import ServerTls

log = logging.getLogger(__name__)

BOUNDS: Final = Bounds(connections=256, per_peer=128, body=wire.MAX_BODY, bodies=16 << 20)
#: Seconds of the scheduler's time that one caller may use: at once, and of each second after that.
TIME_OF_ONE: Final = Rate(1.0, 0.5)
_CALLERS: Final = 1024
_TEND_SECONDS: Final = 1.0
_HOW: Final = "a ServiceAccount's token of this cluster, in Authorization or in " + clusters.HEADER_TOKEN


@dataclass(frozen=True, slots=True)
class OfferAddress:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int
    tls: ServerTls
    bounds: Bounds = field(default_factory=lambda: BOUNDS)


class OfferServer:
    """The one route. `not_ready` says why nothing may be decided now, or is empty."""

    def __init__(
        self,
        offers: Offers,
        client: Client,
        *,
        namespace: str,
        audience: str,
        metrics: Metrics,
        not_ready: Callable[[], str],
        clock: Callable[[], float],
        time_of_one: Rate = TIME_OF_ONE,
    ) -> None:
        self._offers = offers
        self._right = Right("create", clusters.OFFER_GROUP, clusters.OFFER_RESOURCE, namespace)
        self._reviews = Reviews(client, clock=clock, audience=audience, how=_HOW)
        self._metrics = metrics
        self._not_ready = not_ready
        self._clock = clock
        self._rate = time_of_one
        self._used: BoundedCache[str, Bucket] = BoundedCache(_CALLERS)
        self._bodies = Bodies(BOUNDS)

    @contextlib.asynccontextmanager
    async def serve(self, address: OfferAddress) -> AsyncIterator[int]:
        """Serve while the block runs; gives the port."""
        self._bodies = Bodies(address.bounds)
        routes = Routes(
            {clusters.PATH_OFFER: ("POST", self._answer)}, clock=self._clock, counted=self._metrics.answered
        )
        chores = [
            asyncio.create_task(self._tend(), name="offer-tend"),
            asyncio.create_task(address.tls.keep(), name="offer-tls"),
        ]
        refused = self._metrics.refused_connections.inc
        listening = serving(routes, address.host, address.port, address.bounds, address.tls.context, refused=refused)
        try:
            async with listening as port:
                log.info("offers on %s:%d", address.host, port)
                yield port
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await self._reviews.close()

    async def _tend(self) -> None:
        """End holds also while nobody asks."""
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            self._offers.holds.expire()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            caller = await self._caller(request)
            async with self._bodies.of(request) as body:
                return json(self._offer(caller, body))
        except CallerRefusedError as refusal:
            close = {"Connection": "close"} if refusal.status in (401, 429) else {}
            again = {"Retry-After": "1"} if refusal.status in (429, 503) else {}
            return web.Response(text=f"{refusal}\n", status=refusal.status, headers=close | again)

    async def _caller(self, request: web.BaseRequest) -> Caller:
        """Who asks, if it may. Raises CallerRefusedError."""
        caller = await self._reviews.caller(shown_token(request, clusters.HEADER_TOKEN), request.remote or "")
        if not await self._reviews.may(caller, self._right):
            right = self._right
            raise CallerRefusedError(
                403, f"you may not {right.verb} {right.resource}.{right.group} in namespace {right.namespace}"
            )
        reason = self._not_ready()
        if reason:
            raise CallerRefusedError(503, reason)
        return caller

    def _offer(self, caller: Caller, body: bytes) -> bytes:
        """The answer. Raises CallerRefusedError."""
        started = self._clock()
        used = self._used.of(caller.name, lambda: Bucket(self._rate, started))
        if not used.has(0.0, started):
            raise CallerRefusedError(429, "your offers take more of the scheduler's time than you may use: ask later")
        try:
            return self._offers.answer(caller.name, body)
        except WireError as error:
            raise CallerRefusedError(400, str(error)) from error
        finally:
            used.spend(self._clock() - started)
