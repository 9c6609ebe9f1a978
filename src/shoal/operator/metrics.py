"""What the operator tells Prometheus of itself, and its probes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from shoal.http.server import Bounds, Routes, in_pieces, serving, text
from shoal.kube.reflector import Reflector
from shoal.model.contract import shoal
from shoal.observe.prometheus import CONTENT_TYPE, MetricRegistry, head, sample

#: Bodies are not read at all.
_BOUNDS: Final = Bounds(connections=64, per_peer=32, body=0, bodies=0)


class OperatorMetrics:
    """The families of the operator."""

    def __init__(self, watches: Callable[[], Mapping[str, Reflector[Any]]]) -> None:
        self.registry = MetricRegistry()
        self._watches = watches
        registry = self.registry
        self.passes = registry.histogram(
            "shoal_operator_reconcile_seconds", "Time to work out what is to be done, without doing it."
        )
        self.writes = registry.counter("shoal_operator_writes_total", "Writes to the API server, by kind.", ["kind"])
        self.failures = registry.counter(
            "shoal_operator_write_failures_total", "Writes that the API server refused, by kind.", ["kind"]
        )
        self.nodes = registry.gauge("shoal_operator_gpu_nodes", "GPU nodes, by whether they serve.", ["ready"])
        self.leads = registry.gauge("shoal_operator_leads", "1 while this replica leads.")
        self.answers = registry.counter(
            "shoal_operator_http_requests_total", "Answers of the ports for probes and metrics.", ["route", "status"]
        )
        registry.add(self)

    def lines(self) -> Iterator[str]:
        """The state of the watches."""
        name = "shoal_operator_watch_up"
        yield from head(name, "1 while the watch of a resource is without error.", "gauge")
        for resource, watch in self._watches().items():
            yield sample(name, {"resource": resource}, int(watch.last_error is None))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.answers.inc(route, str(status))


@contextlib.asynccontextmanager
async def serve_probes(
    host: str, port: int, metrics: OperatorMetrics, *, not_ready: Callable[[], str], clock: Callable[[], float]
) -> AsyncIterator[int]:
    """Answer probes while the block runs; gives the port, which is a free one for 0."""

    async def health(_: web.BaseRequest) -> web.StreamResponse:
        return text("ok")

    async def ready(_: web.BaseRequest) -> web.StreamResponse:
        reason = not_ready()
        return text(reason, HTTPStatus.SERVICE_UNAVAILABLE) if reason else text("ok")

    routes = Routes(
        {shoal.PATH_HEALTH: ("GET", health), shoal.PATH_READY: ("GET", ready)}, clock=clock, counted=metrics.answered
    )
    async with serving(routes, host, port, _BOUNDS) as answering:
        yield answering


@contextlib.asynccontextmanager
async def serve_metrics(
    host: str, port: int, metrics: OperatorMetrics, *, clock: Callable[[], float]
) -> AsyncIterator[int]:
    """Answer Prometheus while the block runs; gives the port, which is a free one for 0."""

    async def scrape(request: web.BaseRequest) -> web.StreamResponse:
        return await in_pieces(request, (piece.encode() for piece in metrics.registry.pieces()), CONTENT_TYPE)

    routes = Routes({shoal.PATH_METRICS: ("GET", scrape)}, clock=clock, counted=metrics.answered)
    async with serving(routes, host, port, _BOUNDS) as answering:
        yield answering
