"""The extender's port: the routes as kube-scheduler and gpushare's clients know them.

Every answer of filter and bind is 200 with the error in words, since kube-scheduler tells people nothing of another
one. While this process is not ready (not synced, not leading) it decides nothing. Health and metrics are on a port of
their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from shoal.http.server import ANY, Bodies, Bounds, Routes, in_pieces, json, rest, serving, shown, text
from shoal.model.contract import gpushare
from shoal.scheduler.errors import UnknownPodError, WireError
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.inspect import inspect
from shoal.scheduler.extender.verbs import Verb, Verbs
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.state.cluster_state import ClusterState
from shoal.scheduler.tls import ServerTls

log = logging.getLogger(__name__)

_ONE_NODE: Final = gpushare.PATH_INSPECT + ANY
_TEND_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one. Without TLS anybody who reaches the port may ask."""

    host: str
    port: int
    tls: ServerTls | None = None
    bounds: Bounds = field(default_factory=Bounds)
    #: Whether everybody may see every namespace's pods, or only who has shown a certificate.
    open_inspect: bool = False


class Extender:
    """The routes. `not_ready` says why nothing may be decided now, or is empty."""

    def __init__(
        self,
        verbs: Verbs,
        state: ClusterState,
        *,
        metrics: Metrics,
        not_ready: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._verbs = verbs
        self._state = state
        self._metrics = metrics
        self._not_ready = not_ready
        self._clock = clock
        self._bodies = Bodies(Bounds())
        self._open_inspect = False

    @contextlib.asynccontextmanager
    async def serve(self, address: Address) -> AsyncIterator[int]:
        """Serve while the block runs; gives the port."""
        tls = address.tls
        self._bodies = Bodies(address.bounds)
        self._open_inspect = address.open_inspect
        routes = Routes(
            {
                gpushare.PATH_FILTER: ("POST", self._filter),
                gpushare.PATH_PRIORITIZE: ("POST", self._prioritize),
                gpushare.PATH_PREEMPT: ("POST", self._preempt),
                gpushare.PATH_BIND: ("POST", self._bind),
                gpushare.PATH_INSPECT: ("GET", self._inspect),
                _ONE_NODE: ("GET", self._inspect),
                gpushare.PATH_VERSION: ("GET", self._version),
            },
            clock=self._clock,
            counted=self._metrics.answered,
            admission=None if tls is None else tls.admits,
        )
        context = None if tls is None else tls.context
        chores = [asyncio.create_task(self._tend(), name="extender-tend")]
        if tls is not None:
            chores.append(asyncio.create_task(tls.keep(), name="extender-tls"))
        refused = self._metrics.refused_connections.inc
        try:
            async with serving(routes, address.host, address.port, address.bounds, context, refused=refused) as port:
                log.info("extender on %s:%d %s", address.host, port, "with TLS" if tls else "WITHOUT TLS")
                yield port
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def _tend(self) -> None:
        """End holds and point out pods that fit by now, also while nobody asks."""
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            if not self._not_ready():
                self._verbs.tend()

    # The verbs

    async def _filter(self, request: web.BaseRequest) -> web.StreamResponse:
        reason = self._not_ready()
        if not reason:
            try:
                async with self._bodies.of(request) as body:
                    return json(await self._verbs.on_newest(self._verbs.filter, body))
            except UnknownPodError as unknown:
                reason = str(unknown)
        return json(wire.filter_answer(wire.Filtered(error=reason)))

    async def _bind(self, request: web.BaseRequest) -> web.StreamResponse:
        reason = self._not_ready()
        if reason:
            return json(wire.bind_answer(reason))
        async with self._bodies.of(request) as body:
            return json(await self._verbs.bind(body))

    async def _prioritize(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._asked(request, self._verbs.prioritize)

    async def _preempt(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._asked(request, self._verbs.preempt)

    async def _asked(self, request: web.BaseRequest, verb: Verb) -> web.StreamResponse:
        """Answer a verb whose answer cannot carry an error: by the HTTP status."""
        reason = self._not_ready()
        if reason:
            raise web.HTTPServiceUnavailable(text=reason)
        try:
            async with self._bodies.of(request) as body:
                return json(await self._verbs.on_newest(verb, body))
        except WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except UnknownPodError as unknown:
            raise web.HTTPServiceUnavailable(text=str(unknown)) from unknown

    # The rest

    async def _inspect(self, request: web.BaseRequest) -> web.StreamResponse:
        if not (self._open_inspect or shown(request)):
            words = "inspect shows the pods of all namespaces: show a client certificate, or set openInspect: true"
            raise web.HTTPForbidden(text=words)
        node = None if request.path == gpushare.PATH_INSPECT else rest(request, _ONE_NODE)
        return await in_pieces(request, inspect(self._state, node))

    async def _version(self, request: web.BaseRequest) -> web.StreamResponse:
        return text(gpushare.VERSION)
