"""Live load from a server that collectors write to or that scrapes them: Prometheus, or InfluxDB with KETI's fields.

A server is asked from time to time, within bounds: one that is slow, gone or wrong costs its numbers and nothing else,
and is asked less often. Credentials are sent to the configured address and follow no redirect.

Who is scraped, or may write to the database, is believed: unlike the Leases, nothing ties a number to its node. A card
of which several series tell different things is told by none.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import msgspec

from shoal.model.backoff import Backoff
from shoal.model.contract import keti
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.errors import shown
from shoal.placement.ledger import CardLedger, Ledger
from shoal.scheduler.config import LiveLoadConfig, LoadSource
from shoal.scheduler.errors import LoadSourceError
from shoal.scheduler.live_loads import LiveLoads

log = logging.getLogger(__name__)

#: One answer: 10,000 nodes of 8 cards take 20 MB.
MAX_ANSWER: Final = 64 << 20
_LONGEST_PAUSE: Final = 300.0
_MEBIBYTE: Final = 2**20

#: What one measurement says of each card, by UUID.
Readings = Mapping[str, float]


class LoadServer(Protocol):
    """A server that knows what is used of cards."""

    async def read(self, session: ServerSession) -> dict[str, CardDigest]:
        """What it knows of each card, by UUID. Raises LoadSourceError."""


class ServerSession:
    """Requests to one server, with its credentials and within bounds."""

    def __init__(self, config: LiveLoadConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServerSession:
        context: ssl.SSLContext | bool = True
        if self._config.ca_file:
            context = ssl.create_default_context(cafile=self._config.ca_file)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=2),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_seconds),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, form: Mapping[str, str]) -> bytes:
        """The answer to a form sent to a path. Raises LoadSourceError."""
        assert self._session is not None
        url = self._config.url.rstrip("/") + path
        try:
            async with self._session.post(url, data=form, headers=self._headers(), allow_redirects=False) as answer:
                body = await self._body(answer)
                if answer.status != 200:
                    raise LoadSourceError(
                        f"{url} answers {answer.status}: {shown(body[:200].decode(errors='replace'))}"
                    )
                return body
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise LoadSourceError(f"{url} cannot be read: {str(error) or type(error).__name__}") from error

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        length = 0
        async for part in answer.content.iter_chunked(1 << 16):
            length += len(part)
            if length > MAX_ANSWER:
                raise LoadSourceError(
                    f"{answer.url.path} answers more than {MAX_ANSWER >> 20} MiB: ask about fewer cards"
                )
            parts.append(part)
        return b"".join(parts)

    def _headers(self) -> dict[str, str]:
        """Read each time: a token in a file may be renewed."""
        # Packed answers may be small and hold anything.
        headers = {"Accept-Encoding": "identity"}
        if self._config.authorization_file:
            headers["Authorization"] = Path(self._config.authorization_file).read_text(encoding="utf-8").strip()
        return headers


# Prometheus


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Vector(msgspec.Struct):
    result: list[_Series] = []


class _PrometheusAnswer(msgspec.Struct):
    status: str = ""
    error: str = ""
    data: _Vector = msgspec.field(default_factory=_Vector)


_ANSWER: Final = msgspec.json.Decoder(_PrometheusAnswer)
_USED: Final = "DCGM_FI_DEV_FB_USED"
_UTILISATION: Final = "DCGM_FI_DEV_GPU_UTIL"
_CELSIUS: Final = "DCGM_FI_DEV_GPU_TEMP"
_WATTS: Final = "DCGM_FI_DEV_POWER_USAGE"
_UNATTRIBUTED: Final = "shoal_card_memory_unattributed_bytes"
_POD_USED: Final = "shoal_container_memory_used_bytes"
_POD_REQUESTED: Final = "shoal_container_memory_requested_bytes"


class PrometheusServer:
    """Asks Prometheus for Shoal's series and dcgm-exporter's."""

    def __init__(self, config: LiveLoadConfig) -> None:
        self._matchers = config.matchers
        self._ttl = config.ttl_seconds

    async def read(self, session: ServerSession) -> dict[str, CardDigest]:
        """What it knows of each card."""
        of_pod = "sum by (UUID, instance, namespace, pod)"
        beyond = f"{of_pod} ({self._fresh(_POD_USED)}) - {of_pod} ({self._fresh(_POD_REQUESTED)})"
        asked = {
            "used": (self._fresh(_USED), 1.0),
            "unattributed": (self._fresh(_UNATTRIBUTED), 1 / _MEBIBYTE),
            "overuse": (f"sum by (UUID, instance) (clamp_min({beyond}, 0))", 1 / _MEBIBYTE),
            "utilisation": (self._fresh(_UTILISATION), 1.0),
            "celsius": (self._fresh(_CELSIUS), 1.0),
            "watts": (self._fresh(_WATTS), 1.0),
        }
        found: dict[str, Readings] = {}
        for name, (query, scale) in asked.items():
            body = await session.post("/api/v1/query", {"query": query})
            found[name] = await asyncio.to_thread(_of_vector, body, scale)
        return _joined(found)

    def _fresh(self, series: str) -> str:
        """The series, where it was scraped within the time to live, by the server's own clock."""
        chosen = f"{series}{{{self._matchers}}}"
        return f"({chosen} and timestamp({chosen}) > time() - {self._ttl:g})"


def _of_vector(body: bytes, scale: float) -> Readings:
    """The values by UUID. Raises LoadSourceError."""
    try:
        answer = _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LoadSourceError(f"what was answered is no answer of Prometheus: {error}") from error
    if answer.status != "success":
        raise LoadSourceError(f"Prometheus answers {shown(answer.error or answer.status)}")
    return _once((one.metric.get("UUID", ""), _number(one.value[1], scale)) for one in answer.data.result)


# InfluxDB


class _InfluxSeries(msgspec.Struct):
    columns: list[str]
    values: list[list[float | str | None]]
    tags: dict[str, str] = {}


class _InfluxResult(msgspec.Struct):
    series: list[_InfluxSeries] = []
    error: str = ""


class _InfluxAnswer(msgspec.Struct):
    results: list[_InfluxResult] = []
    error: str = ""


_INFLUX: Final = msgspec.json.Decoder(_InfluxAnswer)
#: The field of KETI's, and the scale to ours.
_INFLUX_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "used": ("memory(used)", 1 / _MEBIBYTE),
    "utilisation": ("utilization", 1.0),
    "celsius": ("temperature", 1.0),
    "watts": ("Power", 1 / 1000),
}


class InfluxServer:
    """Asks InfluxDB for KETI's `gpumetric`. It does not tell whose the memory is: `beyond_bookings` does."""

    def __init__(self, config: LiveLoadConfig) -> None:
        self._database = config.database
        self._ttl = config.ttl_seconds

    async def read(self, session: ServerSession) -> dict[str, CardDigest]:
        """What it knows of each card."""
        fields = ", ".join(f'last("{field}") AS "{name}"' for name, (field, _) in _INFLUX_FIELDS.items())
        since = f"time > now() - {math.ceil(self._ttl)}s"
        query = f'SELECT {fields} FROM "{keti.MEASUREMENT_GPU}" WHERE {since} GROUP BY "{keti.TAG_UUID}"'
        body = await session.post("/query", {"db": self._database, "q": query})
        return await asyncio.to_thread(_of_influx, body)


def _of_influx(body: bytes) -> dict[str, CardDigest]:
    """The cards by UUID. Raises LoadSourceError."""
    try:
        answer = _INFLUX.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LoadSourceError(f"what was answered is no answer of InfluxDB: {error}") from error
    problem = answer.error or next((result.error for result in answer.results if result.error), "")
    if problem:
        raise LoadSourceError(f"InfluxDB answers {shown(problem)}")
    rows = [
        (series.tags.get(keti.TAG_UUID, ""), dict(zip(series.columns, values, strict=False)))
        for result in answer.results
        for series in result.series
        for values in series.values
    ]
    return _joined(
        {
            name: _once((uuid, _number(row.get(name), scale)) for uuid, row in rows)
            for name, (_, scale) in _INFLUX_FIELDS.items()
        }
    )


# Both


def _number(value: float | str | None, scale: float) -> float | None:
    """A number of the server's in our unit; None for what is none."""
    try:
        number = math.nan if value is None else float(value) * scale
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 2**31 else None


def _once(values: Iterable[tuple[str, float | None]]) -> Readings:
    """Each card's value; none for a card of which two different ones are told."""
    found: dict[str, float] = {}
    differing: set[str] = set()
    for uuid, value in values:
        if uuid and value is not None and found.setdefault(uuid, value) != value:
            differing.add(uuid)
    return {uuid: value for uuid, value in found.items() if uuid not in differing}


def _joined(readings: Mapping[str, Readings]) -> dict[str, CardDigest]:
    uuids = {uuid for values in readings.values() for uuid in values}

    def whole(name: str, uuid: str) -> int | None:
        value = readings.get(name, {}).get(uuid)
        return None if value is None else math.ceil(value)

    return {
        uuid: CardDigest(
            used_mib=whole("used", uuid),
            unattributed_mib=whole("unattributed", uuid),
            overuse_mib=whole("overuse", uuid),
            utilisation=whole("utilisation", uuid),
            celsius=whole("celsius", uuid),
            watts=whole("watts", uuid),
        )
        for uuid in uuids
    }


def beyond_bookings(card: CardLedger, load: CardDigest) -> CardDigest:
    """The digest of a source that tells what is used and not by whom: what is beyond all bookings is nobody's.

    A card that is taken whole, or by clients without sizes, may be used as far as it goes.
    """
    if load.unattributed_mib is not None or load.used_mib is None:
        return load
    unbounded = card.exclusive or card.unsized
    return replace(load, unattributed_mib=0 if unbounded else max(0, load.used_mib - card.memory_mib))


class LoadPolling:
    """Asks a server from time to time, and hands what it says to the loads, node by node."""

    def __init__(
        self, config: LiveLoadConfig, ledger: Ledger, loads: LiveLoads, *, rng: random.Random | None = None
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._loads = loads
        self._rng = rng or random.Random()
        self._server: LoadServer = (
            PrometheusServer(config) if config.source is LoadSource.PROMETHEUS else InfluxServer(config)
        )

    async def run(self) -> None:
        """Ask until cancelled."""
        backoff = Backoff(
            first=self._config.interval_seconds, longest=max(_LONGEST_PAUSE, self._config.interval_seconds)
        )
        failures = 0
        while True:
            try:
                async with ServerSession(self._config) as session:
                    self.take(await self._server.read(session))
                failures = 0
            except (LoadSourceError, OSError) as error:
                failures += 1
                log.warning("live load: %s", error)
            pause = backoff.after(failures) if failures else self._config.interval_seconds
            await asyncio.sleep(pause * self._rng.uniform(0.9, 1.1))

    def take(self, cards: Mapping[str, CardDigest]) -> None:
        """Hand on what is known of the cards that are there; a node of which nothing is told runs out by itself."""
        for node in list(self._ledger.nodes()):
            known = {
                uuid: beyond_bookings(card, cards[uuid])
                for card in node.slots
                if (uuid := card.inventory.uuid) in cards
            }
            if known:
                self._loads.take(node.name, LoadDigest(known))
