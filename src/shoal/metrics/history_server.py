"""What a collector measures, now and in the past, for whoever may see it: HTTPS on a port of its own.

Every request shows a token, in `Authorization` or, through the API server's proxy to pods, in a header of its own; both
are checked alike (`history_access`). A caller sees cards and the node with one right, pods of a namespace with another;
pods it may not see are not there, and the totals of cards stay. Answers come from the last snapshot and from the ring
on disk: nobody makes the collector touch a card. Work is bounded for everybody, and again for each caller.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from aiohttp import web

from shoal.http.server import JSON, Bounds, in_pieces, serving, shown_token
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.reviews import Caller, CallerRefusedError
from shoal.metrics import history_wire as wire
from shoal.metrics.history import MINUTES, RAW, Series, read_means, read_series
from shoal.metrics.history_access import HistoryAccess, Sight
from shoal.metrics.history_lease import announce, own_address
from shoal.metrics.history_points import NAMES
from shoal.metrics.history_tls import FileHistoryTls, HistoryTls, HistoryTlsSettings, OwnHistoryTls
from shoal.metrics.history_wire import (
    Announcement,
    CardReading,
    ContainerReading,
    ExporterStatus,
    HistoryReading,
    LoadReading,
    NodeReading,
    SeriesReading,
)
from shoal.metrics.snapshot import CardSnapshot, ContainerSnapshot, LatestSnapshot, NodeLoad, Snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Bodies are not read at all.
BOUNDS: Final = Bounds(connections=128, per_peer=32, body=0, bodies=0)
#: Answers that are being made or sent, of all callers and of one.
_ANSWERS: Final = 16
_ANSWERS_OF_ONE: Final = 4
#: Values of one series, of one answer, and series of one answer.
_MOST_STEPS: Final = 2000
_MOST_VALUES: Final = 100_000
_MOST_SERIES: Final = 500
_DEFAULT_SECONDS: Final = 3600.0
_DEFAULT_STEPS: Final = 240
_MINUTE: Final = 60.0
#: How often the ring is looked through for namespaces, for callers who may not see all.
_LOOK_SECONDS: Final = 60.0
#: How long a caller may take to read an answer.
_SEND_SECONDS: Final = 30.0
_PIECE: Final = 1 << 16
_RETRY_SECONDS: Final = 30.0
#: How often it is looked whether the status of the port for Prometheus has changed.
_STATUS_SECONDS: Final = 30.0


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The ring on disk and the server that shows it."""

    folder: str = "/var/lib/shoal/history"
    #: Whether others may ask for it.
    serve: bool = True
    host: str = "0.0.0.0"
    #: 0 takes a free one.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = wire.PORT
    #: The address that callers are told; empty: the one by which the API server is reached.
    address: str = ""
    #: Where the Lease is that tells it. Commands look there and nowhere else.
    namespace: str = wire.NAMESPACE
    #: Files of the operator's own; without them the collector makes a certificate at each start.
    tls: HistoryTlsSettings | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    """What of the past is asked for."""

    since: float
    step: float
    count: int
    names: frozenset[str]
    card: str
    namespace: str
    pod: str
    of: str
    after: Series | None
    most: int

    def wants(self, series: Series) -> bool:
        return (
            (not self.names or series.name in self.names)
            and (not self.of or self.of == _subject(series))
            and (not self.card or series.card == self.card)
            and (not self.namespace or series.namespace == self.namespace)
            and (not self.pod or series.pod == self.pod)
        )


class HistoryServer:
    """Answers for one node. `run` until it is cancelled."""

    def __init__(
        self,
        settings: HistorySettings,
        client: Client,
        node: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        bounds: Bounds = BOUNDS,
        exporter: Callable[[], ExporterStatus | None] = lambda: None,
        look_seconds: float = _STATUS_SECONDS,
    ) -> None:
        """`exporter` tells how the port for Prometheus stands; it is asked every `look_seconds`."""
        self._settings = settings
        self._client = client
        self._node = node
        self._folder = Path(settings.folder)
        self._clock = clock
        self._monotonic = monotonic
        self._bounds = bounds
        self._exporter = exporter
        self._look_seconds = look_seconds
        self._latest = LatestSnapshot()
        self._access = HistoryAccess(client, clock=monotonic)
        self._answering: Counter[bytes] = Counter()
        self._reading = asyncio.Lock()
        self._namespaces_kept: frozenset[str] = frozenset()
        self._looked_at = float("-inf")
        #: Where it answers, and whether others have been told.
        self.port = 0
        self.announced = False

    async def run(self, latest: LatestSnapshot) -> None:
        """Serve until cancelled. Raises TlsError and OSError."""
        self._latest = latest
        settings = self._settings
        tls = _tls(settings)
        try:
            async with serving(self._answer, settings.host, settings.port, self._bounds, tls.context) as self.port:
                await self._tell(tls, self.port)
        finally:
            self.announced = False
            await self._access.close()

    async def _tell(self, tls: HistoryTls, port: int) -> None:
        """Say where it answers, now and whenever that changes, until cancelled."""
        settings = self._settings
        while True:
            exporter = self._exporter()
            announcement = Announcement(
                node=self._node,
                host=settings.address or own_address(settings.host, self._client.access.server),
                port=port,
                authority=tls.authority,
                server_name=tls.server_name,
                exporter=exporter,
            )
            renewed = asyncio.create_task(tls.renewed())
            try:
                await self._announce(announcement)
                while not renewed.done():
                    await asyncio.wait({renewed}, timeout=self._look_seconds)
                    if (status := self._exporter()) != exporter:
                        exporter = status
                        await self._announce(msgspec.structs.replace(announcement, exporter=status))
                renewed.result()
            finally:
                renewed.cancel()

    async def _announce(self, announcement: Announcement) -> None:
        """Return when the API server has taken it; why it does not is told once."""
        self.announced = False
        told = False
        while not self.announced:
            try:
                await announce(self._client, announcement, namespace=self._settings.namespace)
                self.announced = True
            except KubeError as error:
                if not told:
                    log.warning("nobody is told where the history of this node is: %s", error)
                told = True
                await asyncio.sleep(_RETRY_SECONDS)

    # A request

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            if request.method != "GET" or request.path not in (wire.PATH_SNAPSHOT, wire.PATH_HISTORY):
                raise CallerRefusedError(404, f"ask with GET for {wire.PATH_SNAPSHOT} or {wire.PATH_HISTORY}")
            caller = await self._access.caller(shown_token(request, wire.TOKEN_HEADER), request.remote or "")
            with self._slot(caller.key):
                content = await (self._now if request.path == wire.PATH_SNAPSHOT else self._past)(request, caller)
                async with asyncio.timeout(_SEND_SECONDS):
                    return await in_pieces(request, _pieces(content), JSON)
        except TimeoutError:
            raise ConnectionResetError("the caller takes too long to read") from None
        except CallerRefusedError as refusal:
            close = {"Connection": "close"} if refusal.status in (401, 429) else {}
            again = {"Retry-After": "2"} if refusal.status in (429, 503) else {}
            return web.Response(text=f"{refusal}\n", status=refusal.status, headers=close | again)

    @contextlib.contextmanager
    def _slot(self, name: bytes) -> Iterator[None]:
        """One of the answers at a time. Raises CallerRefusedError when there are too many."""
        if self._answering[name] >= _ANSWERS_OF_ONE or self._answering.total() >= _ANSWERS:
            raise CallerRefusedError(503, "too many questions at once: try again")
        self._answering[name] += 1
        try:
            yield
        finally:
            self._answering[name] -= 1
            if not self._answering[name]:
                del self._answering[name]

    async def _now(self, _: web.BaseRequest, caller: Caller) -> bytes:
        snapshot = self._latest.current

        async def namespaces() -> set[str]:
            cards = () if snapshot is None else snapshot.cards
            return {one.name.namespace for card in cards for one in card.containers}

        sight = await self._access.sight(caller, namespaces)
        if snapshot is None:
            raise CallerRefusedError(503, "nothing is measured yet: try again in some seconds")
        return msgspec.json.encode(reading_of(snapshot, sight, age=self._monotonic() - snapshot.monotonic))

    async def _past(self, request: web.BaseRequest, caller: Caller) -> bytes:
        question = self._question(request)

        async def namespaces() -> Iterable[str]:
            kept = await self._namespaces()
            # Of namespaces that are not here nobody is asked: callers choose what they ask for.
            return kept & {question.namespace} if question.namespace else kept

        sight = await self._access.sight(caller, namespaces)

        def wanted(series: Series) -> bool:
            return question.wants(series) and (sight.pods_of(series.namespace) if series.pod else sight.cards)

        means = await self._read(
            lambda: read_means(
                self._folder,
                MINUTES if question.step >= _MINUTE else RAW,
                since=question.since,
                step=question.step,
                count=question.count,
                wanted=wanted,
                after=question.after,
                most=question.most,
            )
        )
        series = tuple(
            SeriesReading(
                name=one.name,
                card=one.card,
                namespace=one.namespace,
                pod=one.pod,
                container=one.container,
                values=tuple(None if value is None else round(value, 3) for value in values),
            )
            for one, values in means.values.items()
            if any(value is not None for value in values)
        )
        reading = HistoryReading(
            node=self._node,
            since=question.since,
            step=question.step,
            series=series,
            continue_=_cursor(list(means.values)[-1]) if means.more else "",
        )
        return msgspec.json.encode(reading)

    async def _namespaces(self) -> frozenset[str]:
        """The namespaces whose pods are in the ring, looked for once a minute."""
        now = self._monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            series = await self._read(lambda: read_series(self._folder, MINUTES) | read_series(self._folder, RAW))
            self._namespaces_kept, self._looked_at = frozenset(one.namespace for one in series if one.namespace), now
        return self._namespaces_kept

    async def _read(self, read: Callable[[], T]) -> T:
        """Read the ring in a thread, one question after another."""
        async with self._reading:
            return await asyncio.to_thread(read)

    def _question(self, request: web.BaseRequest) -> _Question:
        """Raises CallerRefusedError for what cannot be answered."""
        asked = request.query
        unknown = sorted(asked.keys() - _PARAMETERS)
        if unknown:
            raise _bad(f"{unknown[0][:40]!r} is not known: use {', '.join(sorted(_PARAMETERS))}")
        now = self._clock()
        until = _number(asked.get("until"), "until", now)
        last = _number(asked.get("last"), "last", _DEFAULT_SECONDS)
        since = _number(asked.get("since"), "since", until - last)
        if not since < until:
            raise _bad("since is not before until: both are seconds since 1970")
        step = _number(asked.get("step"), "step", max(5.0, (until - since) / _DEFAULT_STEPS))
        if step < 1:
            raise _bad("step is less than a second")
        count = math.ceil((until - since) / step)
        if count > _MOST_STEPS:
            raise _bad(f"{count} steps are more than {_MOST_STEPS}: make step longer, or ask for less time")
        names = frozenset(asked.getall("series", ()))
        if wrong := sorted(names - set(NAMES)):
            raise _bad(f"series {wrong[0][:40]!r} is not known: use {', '.join(NAMES)}")
        of = asked.get("of", "")
        if of not in ("", *_SUBJECTS):
            raise _bad(f"of={of[:40]!r} is not known: use {', '.join(_SUBJECTS)}")
        limit = int(_number(asked.get("limit"), "limit", _MOST_SERIES))
        most = max(1, min(limit, _MOST_SERIES, _MOST_VALUES // count))
        after = _after(asked["continue"]) if "continue" in asked else None
        text = {name: asked.get(name, "") for name in ("card", "namespace", "pod")}
        return _Question(since, step, count, names, text["card"], text["namespace"], text["pod"], of, after, most)


_PARAMETERS: Final = frozenset(
    ("since", "until", "last", "step", "series", "of", "card", "namespace", "pod", "limit", "continue")
)
#: What series are about.
_SUBJECTS: Final = ("cards", "pods", "node")


def _subject(series: Series) -> str:
    return "pods" if series.pod else "cards" if series.card else "node"


def _bad(words: str) -> CallerRefusedError:
    return CallerRefusedError(400, words)


def _number(text: str | None, name: str, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not -1e12 < value < 1e12:
        raise _bad(f"{name} {text[:40]!r} is no number that can be used here")
    return value


def _cursor(series: Series) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(series)).decode()


def _after(cursor: str) -> Series:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=Series)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise _bad("continue is not what an earlier answer said") from error


def _pieces(content: bytes) -> Iterator[bytes]:
    return (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))


def _tls(settings: HistorySettings) -> HistoryTls:
    return OwnHistoryTls(lambda: datetime.now(UTC)) if settings.tls is None else FileHistoryTls(settings.tls)


# From a snapshot to what a caller sees of it


def reading_of(snapshot: Snapshot, sight: Sight, *, age: float) -> NodeReading:
    """A snapshot as a caller may see it."""
    driver = snapshot.driver
    return NodeReading(
        node=snapshot.node,
        time=snapshot.time,
        age_seconds=round(max(0.0, age), 3),
        interval_seconds=snapshot.interval,
        sees_cards=sight.cards,
        sees_all_pods=sight.namespaces is None,
        driver=driver.version if driver is not None and sight.cards else None,
        cards=tuple(_card(card, sight) for card in snapshot.cards),
        load=_load(snapshot.load) if sight.cards and snapshot.load is not None else None,
    )


def _card(card: CardSnapshot, sight: Sight) -> CardReading:
    containers = tuple(_container(one) for one in card.containers if sight.pods_of(one.name.namespace))
    if not sight.cards:
        return CardReading(uuid=card.card.uuid, index=card.card.index, containers=containers)
    sample = card.sample
    return CardReading(
        uuid=card.card.uuid,
        index=card.card.index,
        model=card.card.model,
        total_bytes=card.card.memory_bytes or None,
        reserved_bytes=None if sample is None else sample.memory_reserved_bytes,
        used_bytes=card.used_bytes,
        unattributed_bytes=card.unattributed_bytes,
        utilisation=None if sample is None else sample.utilisation,
        temperature_celsius=None if sample is None else sample.temperature_c,
        power_watts=None if sample is None or sample.power_mw is None else sample.power_mw / 1000,
        containers=containers,
    )


def _container(one: ContainerSnapshot) -> ContainerReading:
    return ContainerReading(
        namespace=one.name.namespace,
        pod=one.name.pod,
        container=one.name.container,
        requested_bytes=one.requested_bytes,
        limit_bytes=one.limit_bytes,
        used_bytes=one.used_bytes,
        utilisation=one.utilisation,
        source=one.source,
        overuse_seconds=round(one.overuse_seconds, 3),
    )


def _load(load: NodeLoad) -> LoadReading:
    return LoadReading(
        cpu_total_milli=load.cpu_total_milli,
        cpu_used_milli=load.cpu_used_milli,
        memory_total_bytes=load.memory_total_bytes,
        memory_used_bytes=load.memory_used_bytes,
    )
