"""The port for Prometheus: `/metrics`, `/health` as dcgm-exporter has it, `/healthz` and `/readyz`.

A scrape shows the last snapshot and asks nobody. Its text is made once per snapshot, however many ask. When there is no
new snapshot for three intervals the series of cards and containers end, rather than show what was: only the age stays.
Probes are answered without a password; `/metrics` is not. While nothing protects the port, series name no pods unless
the settings say so (`podLabels`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from shoal.http.server import Bounds, Routes, serving
from shoal.kube.client import Client
from shoal.metrics.exporter.counters_csv import LOOK_SECONDS, CounterList, CounterSource, counter_source
from shoal.metrics.exporter.render import SnapshotText
from shoal.metrics.exporter.settings import ExporterSettings, PodLabels, address
from shoal.metrics.exporter.web_config import WebAccess
from shoal.metrics.history_wire import ExporterStatus
from shoal.metrics.influx import InfluxBuffer
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.contract import shoal
from shoal.observe.prometheus import CONTENT_TYPE, MetricSource, head, sample

log = logging.getLogger(__name__)

#: dcgm-exporter's path.
PATH_HEALTH: Final = "/health"
#: A snapshot this many intervals old is shown no more.
STALE_INTERVALS: Final = 3
#: Bodies are not read at all.
_BOUNDS: Final = Bounds(connections=128, per_peer=32, body=0, bodies=0)
#: A port that was not scraped for so long counts as not scraped.
SCRAPED_SECONDS: Final = 600.0
_GZIP_LEVEL: Final = 3
_GZIP: Final = 16 + zlib.MAX_WBITS
_WITHHELD: Final = (
    "series on port %d name no pods, since nothing protects the port: set exporter.webConfigFile with "
    "basic_auth_users or client certificates, set exporter.networkPolicy to true where a NetworkPolicy admits only "
    "your monitoring, or set exporter.podLabels to always to show pods to everyone who reaches the port"
)
_REALM: Final = {"WWW-Authenticate": "Basic"}


@dataclass(frozen=True, slots=True)
class InfluxSource:
    """What waits for InfluxDB, and what became of the rest."""

    buffer: InfluxBuffer

    def lines(self) -> Iterator[str]:
        """The families."""
        for name, what, kind, value in (
            ("shoal_influx_buffered_points", "Points that wait for InfluxDB.", "gauge", len(self.buffer)),
            ("shoal_influx_dropped_points", "Points dropped for want of room.", "counter", self.buffer.dropped),
            ("shoal_influx_refused_points", "Points that InfluxDB did not take.", "counter", self.buffer.refused),
            ("shoal_influx_written_points", "Points that InfluxDB took.", "counter", self.buffer.written),
        ):
            yield from head(name, what, kind)
            yield sample(name, {}, value)


class _Page:
    """The text of one snapshot, and the beginning of its compression."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._begun: zlib._Compress | None = None
        self._first = b""

    def compressed(self, rest: bytes) -> bytes:
        """All of it, with what differs from scrape to scrape at the end."""
        if self._begun is None:
            self._begun = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
            self._first = self._begun.compress(self.text) + self._begun.flush(zlib.Z_SYNC_FLUSH)
        end = self._begun.copy()
        return self._first + end.compress(rest) + end.flush()


class Exporter:
    """Shows snapshots to Prometheus. `run` until it is cancelled."""

    def __init__(
        self,
        settings: ExporterSettings,
        client: Client | None = None,
        *,
        sources: Sequence[MetricSource] = (),
        clock: Callable[[], float] = time.monotonic,
        serving_at: Callable[[int], None] = lambda port: None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`client` watches the ConfigMap; `sources` write further families; `serving_at` is told the port.

        Files are read again every `look_seconds`.
        """
        self._settings = settings
        self._client = client
        self._sources = tuple(sources)
        self._clock = clock
        self._serving_at = serving_at
        self._look_seconds = look_seconds
        self._writer = SnapshotText(settings)
        self._page: tuple[Snapshot, CounterList, bool, _Page] | None = None
        #: While it serves: the port, and who may ask.
        self._serving: tuple[int, WebAccess] | None = None
        self._began = clock()
        self._scraped: float | None = None
        #: How often a text was made, for tests.
        self.rendered = 0

    async def run(self, latest: LatestSnapshot) -> None:
        """Serve the last snapshot until cancelled. Raises ExporterConfigError, TlsError and OSError."""
        settings = self._settings
        if not settings.listen:
            await asyncio.Event().wait()
        look = self._look_seconds
        counters = counter_source(settings.counters_file, settings.counters_config_map, self._client, look_seconds=look)
        access = WebAccess(Path(settings.web_config_file) if settings.web_config_file else None, look_seconds=look)
        host, port = address(settings.listen)
        asked = _Answers(self, latest, counters, access)
        routes = Routes(
            {
                shoal.PATH_METRICS: ("GET", asked.metrics),
                PATH_HEALTH: ("GET", asked.health),
                shoal.PATH_HEALTH: ("GET", asked.health),
                shoal.PATH_READY: ("GET", asked.ready),
            },
            clock=self._clock,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(counters.run(), name="list of fields")
            group.create_task(access.run(), name="web configuration")
            async with serving(routes, host or _all_addresses(), port, _BOUNDS, access.context) as serving_port:
                log.info("Prometheus is served on port %d%s", serving_port, " with TLS" if access.context else "")
                if settings.pod_labels is PodLabels.AUTO and not settings.names_pods(
                    authenticated=access.authenticates
                ):
                    log.warning(_WITHHELD, serving_port)
                self._serving = serving_port, access
                self._serving_at(serving_port)
                try:
                    await asyncio.Event().wait()
                finally:
                    self._serving = None

    def status(self) -> ExporterStatus | None:
        """The port as `shoal doctor` reports it; None while it is closed."""
        if self._serving is None:
            return None
        port, access = self._serving
        now = self._clock()
        recent = self._scraped is not None and now - self._scraped <= SCRAPED_SECONDS
        return ExporterStatus(
            port=port,
            pod_labels=self._settings.pod_labels.value,
            names_pods=self.names_pods(access),
            network_policy=self._settings.network_policy,
            authenticates=access.authenticates,
            # At the start nobody can tell yet.
            scraped=recent if recent or now - self._began > SCRAPED_SECONDS else None,
        )

    def names_pods(self, access: WebAccess) -> bool:
        """Whether series name pods now."""
        return self._settings.names_pods(authenticated=access.authenticates)

    def scraped(self) -> None:
        """Note that a client has read the series."""
        self._scraped = self._clock()

    def age(self, snapshot: Snapshot) -> float:
        """Seconds since a snapshot was made."""
        return max(0.0, self._clock() - snapshot.monotonic)

    def stale(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is too old to be shown."""
        return self.age(snapshot) > STALE_INTERVALS * snapshot.interval

    def page(self, snapshot: Snapshot | None, counters: CounterSource, access: WebAccess) -> tuple[_Page, bytes]:
        """The text of a snapshot, and what is worked out for each scrape."""
        shown = None if snapshot is None or self.stale(snapshot) else snapshot
        page = self._text_of(shown, counters.current, names_pods=self.names_pods(access))
        return page, "\n".join([*self._rest(snapshot, counters, access), ""]).encode()

    def _text_of(self, snapshot: Snapshot | None, counters: CounterList, *, names_pods: bool) -> _Page:
        if snapshot is None:
            return _Page(b"")
        if self._page is not None:
            of, listed, named, page = self._page
            if of is snapshot and listed is counters and named is names_pods:
                return page
        self.rendered += 1
        lines = self._writer.lines(snapshot, counters, names_pods=names_pods)
        page = _Page("\n".join([*lines, ""]).encode(errors="replace"))
        self._page = (snapshot, counters, names_pods, page)
        return page

    def _rest(self, snapshot: Snapshot | None, counters: CounterSource, access: WebAccess) -> Iterator[str]:
        name = "shoal_sample_age_seconds"
        if snapshot is not None:
            yield from head(name, "Time since the cards were read.", "gauge")
            yield sample(name, {}, round(self.age(snapshot), 3))
        name = "shoal_exporter_config_ok"
        yield from head(name, "0 while a file of the exporter's cannot be used, and an older one counts.", "gauge")
        yield sample(name, {"file": "counters"}, int(not counters.refused))
        yield sample(name, {"file": "web"}, int(not access.refused))
        name = "shoal_exporter_names_pods"
        yield from head(name, "1 while series name pods, 0 while the names are withheld.", "gauge")
        yield sample(name, {}, int(self.names_pods(access)))
        for source in self._sources:
            yield from source.lines()


@dataclass(frozen=True, slots=True)
class _Answers:
    """The routes."""

    exporter: Exporter
    latest: LatestSnapshot
    counters: CounterSource
    access: WebAccess

    async def metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if len(self.access.users) and not await self.access.users.admits(request.headers.get("Authorization", "")):
            raise web.HTTPUnauthorized(text="give user and password", headers={**_REALM, **self.access.headers})
        page, rest = self.exporter.page(self.latest.current, self.counters, self.access)
        self.exporter.scraped()
        headers = {"Content-Type": CONTENT_TYPE, "X-Content-Type-Options": "nosniff", **self.access.headers}
        if not _wants_gzip(request.headers.get("Accept-Encoding", "")):
            return web.Response(body=page.text + rest, headers=headers)
        return web.Response(body=page.compressed(rest), headers={**headers, "Content-Encoding": "gzip"})

    async def health(self, _: web.BaseRequest) -> web.StreamResponse:
        snapshot = self.latest.current
        if snapshot is not None and self.exporter.stale(snapshot):
            return self._text(self._words(snapshot), HTTPStatus.SERVICE_UNAVAILABLE)
        return self._text("OK" if snapshot is not None else "OK, and the cards were not read yet")

    async def ready(self, _: web.BaseRequest) -> web.StreamResponse:
        snapshot = self.latest.current
        if snapshot is None:
            return self._text("the cards were not read yet", HTTPStatus.SERVICE_UNAVAILABLE)
        if self.exporter.stale(snapshot):
            return self._text(self._words(snapshot), HTTPStatus.SERVICE_UNAVAILABLE)
        return self._text("OK")

    def _words(self, snapshot: Snapshot) -> str:
        age = self.exporter.age(snapshot)
        return f"the cards were last read {age:.0f} s ago, and every {snapshot.interval:g} s was meant: see the log"

    def _text(self, words: str, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        return web.Response(text=words, status=status, headers=self.access.headers)


def _wants_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and does not forbid it."""
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _all_addresses() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
