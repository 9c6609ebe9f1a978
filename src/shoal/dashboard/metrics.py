"""What the dashboard says of itself to Prometheus: streams, views, sessions, and how old its picture is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Final

from aiohttp import web

from shoal.dashboard.access import VIEWERS
from shoal.dashboard.api import LIVE, MAPS
from shoal.http.server import Bounds, Routes, in_pieces, serving
from shoal.model.contract import shoal
from shoal.observe.prometheus import CONTENT_TYPE, MetricRegistry

#: Bodies are not read at all.
_BOUNDS: Final = Bounds(connections=64, per_peer=32, body=0, bodies=0)


class DashboardMetrics:
    """Gauges that are set when somebody asks."""

    def __init__(self, app: web.Application) -> None:
        self._app = app
        registry = self.registry = MetricRegistry()
        self._streams = registry.gauge("shoal_dashboard_streams", "Streams that are open.")
        self._views = registry.gauge("shoal_dashboard_views", "Different views that are followed.")
        self._sessions = registry.gauge("shoal_dashboard_sessions", "Sessions that are signed in.")
        self._pictures = registry.gauge("shoal_dashboard_pictures", "Pictures made since the start.")
        self._stale = registry.gauge("shoal_dashboard_picture_old_seconds", "For how long the API server is not heard.")
        self._first = app[LIVE].current.number

    def pieces(self) -> Iterator[str]:
        """The text as it is now."""
        live, maps = self._app[LIVE], self._app[MAPS]
        self._streams.set(maps.readers)
        self._views.set(len(maps))
        self._sessions.set(len(self._app[VIEWERS]))
        self._pictures.set(live.current.number - self._first)
        since = live.current.old_since
        self._stale.set(0 if since is None else max(0.0, time.time() - since))
        return self.registry.pieces()


@contextlib.asynccontextmanager
async def serving_metrics(host: str, port: int, metrics: DashboardMetrics) -> AsyncIterator[int]:
    """Answer Prometheus while the block runs; gives the port, which is a free one for 0."""

    async def scrape(request: web.BaseRequest) -> web.StreamResponse:
        return await in_pieces(request, (piece.encode() for piece in metrics.pieces()), CONTENT_TYPE)

    routes = Routes({shoal.PATH_METRICS: ("GET", scrape)}, clock=time.monotonic)
    async with serving(routes, host, port, _BOUNDS) as taken:
        yield taken
