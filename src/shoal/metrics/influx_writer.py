"""Writes snapshots to InfluxDB over HTTP: version 1's API or version 2's, in compressed batches.

While the server is away, or does not let the writer in, points wait in a buffer that is bounded in bytes. A batch that
was not acknowledged is sent again: the same point twice is one point to the server. Passwords and tokens are read from
files at each attempt, go into a header alone, and stand in no log and no error.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import random
import re
import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from shoal.metrics.errors import InfluxError
from shoal.metrics.influx import BUFFER_BYTES, InfluxBuffer, InfluxVerdict, verdict
from shoal.metrics.keti_points import points
from shoal.metrics.snapshot import LatestSnapshot, Snapshot
from shoal.model.backoff import Backoff
from shoal.model.contract import keti
from shoal.model.errors import shown

log = logging.getLogger(__name__)

#: Pauses between attempts while the server does not take points.
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
#: The most that is read of an answer and of a file with a secret.
_LONGEST_ANSWER: Final = 16 << 10
_LONGEST_SECRET: Final = 16 << 10
_LONGEST_REASON: Final = 200
#: Fast rather than small: lines of one card differ in little.
_GZIP_LEVEL: Final = 1
_DURATION: Final = re.compile(r"(?:[1-9][0-9]{0,8}[smhdw])+|INF").fullmatch
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f\"\\/]{1,128}").fullmatch


class InfluxApi(StrEnum):
    """Which of the server's HTTP interfaces is spoken."""

    #: `/write` with a database, a user and a password.
    V1 = "v1"
    #: `/api/v2/write` with an organisation, a bucket and a token.
    V2 = "v2"


class InfluxSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where points are written to."""

    url: str
    api: InfluxApi = InfluxApi.V1
    #: v1. A database that is not there is made once; one that is there stays as it is.
    database: str = keti.DATABASE
    #: v1. How long a database that the writer makes keeps its points, such as 30d; one that is there keeps its own.
    retention: str = ""
    username: str = ""
    password_file: str = ""
    #: v2.
    org: str = ""
    bucket: str = ""
    token_file: str = ""
    #: Certificates that the server's own is checked against, instead of the system's.
    ca_file: str = ""
    #: Bytes of points that wait while the server is away; then the oldest go.
    buffer_bytes: Annotated[int, msgspec.Meta(ge=64 << 10, le=1 << 30)] = BUFFER_BYTES
    timeout_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=300)] = 10.0

    def __post_init__(self) -> None:
        """Refuse what no type can tell."""
        _check_url(self.url)
        if self.api is InfluxApi.V1:
            self._check_v1()
        else:
            self._check_v2()

    def _check_v1(self) -> None:
        if not _NAME(self.database):
            raise ValueError(f"influx database {shown(self.database)} cannot be used: write a name such as multimetric")
        if self.retention and not _DURATION(self.retention):
            raise ValueError(f"influx retention {shown(self.retention)} cannot be read: write a duration such as 30d")
        if bool(self.username) != bool(self.password_file):
            raise ValueError("influx has one of username and passwordFile: set both or none")
        if ":" in self.username or not self.username.isprintable():
            raise ValueError(f"influx username {shown(self.username)} cannot be sent: use a name without a colon")
        if self.org or self.bucket or self.token_file:
            raise ValueError("influx has org, bucket or tokenFile, which api v2 takes: set api to v2 or leave them out")

    def _check_v2(self) -> None:
        # A bucket of a version 1 server is written database/retention.
        if not self.bucket or not self.bucket.isprintable() or len(self.bucket) > 256:
            raise ValueError(f"influx bucket {shown(self.bucket)} cannot be used: write the bucket's name")
        if not self.token_file:
            raise ValueError("influx has no tokenFile, which api v2 needs: name the file that holds the token")
        if self.username or self.password_file or self.retention:
            raise ValueError(
                "influx has username, passwordFile or retention, which api v1 takes: set api to v1 or leave them out"
            )


def _check_url(url: str) -> None:
    """The message never repeats the URL: it may hold a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
        parts = urlsplit("")
    if not good:
        raise ValueError("influx url cannot be read: write scheme, host and port, such as http://influxdb:8086")
    if parts.username is not None or parts.password is not None:
        raise ValueError("influx url holds a user or a password: name them by username and passwordFile")
    if parts.query or parts.fragment:
        raise ValueError("influx url has a query or a fragment: leave out what stands behind ? and #")


@dataclass(frozen=True, slots=True)
class InfluxCounts:
    """What became of all points since the start, and how many wait."""

    buffered: int
    dropped: int
    refused: int
    written: int


class InfluxWriter:
    """One server, one database or bucket."""

    def __init__(
        self,
        settings: InfluxSettings,
        *,
        backoff: Backoff = _BACKOFF,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._backoff = backoff
        self._rng = rng or random.Random()
        self.buffer = InfluxBuffer(most_bytes=settings.buffer_bytes)
        self._filled = asyncio.Event()
        #: Points that were taken out of the buffer and are not acknowledged yet.
        self._in_flight = 0
        #: Why the server takes nothing now, as it was told; empty while it does.
        self.trouble = ""

    def counts(self) -> InfluxCounts:
        """For whoever shows them."""
        buffer = self.buffer
        return InfluxCounts(len(buffer) + self._in_flight, buffer.dropped, buffer.refused, buffer.written)

    def add(self, snapshot: Snapshot) -> None:
        """Let a snapshot's points wait to be written."""
        for point in points(snapshot):
            self.buffer.add(point)
        self._filled.set()

    async def run(self, latest: LatestSnapshot) -> None:
        """Write every snapshot until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._collect(latest), name="points for InfluxDB")
            group.create_task(self.send(), name="InfluxDB")

    async def _collect(self, latest: LatestSnapshot) -> None:
        number = 0
        while True:
            snapshot = await latest.after(number)
            number = snapshot.number
            self.add(snapshot)

    async def send(self) -> None:
        """Send what waits until cancelled."""
        failures = 0
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                if not len(self.buffer):
                    self._filled.clear()
                    await self._filled.wait()
                reason = await self._send_batch(session)
                failures = failures + 1 if reason else 0
                self._tell(reason)
                if reason:
                    await asyncio.sleep(self._backoff.jittered(failures, self._rng))

    async def _send_batch(self, session: aiohttp.ClientSession) -> str:
        """Send the oldest points. Why the server takes nothing now, in words; empty when it took or refused them."""
        rest = [self.buffer.batch()]
        self._in_flight = len(rest[0])
        made = False
        try:
            while rest:
                lines = rest[-1]
                try:
                    status, answer = await self._post(session, lines)
                except InfluxError as error:
                    return str(error)
                said = verdict(status, answer, points=len(lines))
                if said is InfluxVerdict.NO_DATABASE and self._settings.api is InfluxApi.V1 and not made:
                    made = True
                    if reason := await self._make_database(session):
                        return reason
                elif said is InfluxVerdict.SPLIT:
                    half = len(lines) // 2
                    rest[-1:] = [lines[half:], lines[:half]]
                elif said in (InfluxVerdict.DONE, InfluxVerdict.REFUSED):
                    self.buffer.count(said, rest.pop(), answer)
                    self._in_flight -= len(lines)
                else:
                    return f"it answers {status} {_short(answer)}".rstrip()
            return ""
        finally:
            # What was not acknowledged waits again, the oldest first.
            self._in_flight = 0
            self.buffer.give_back([line for lines in reversed(rest) for line in lines])

    async def _post(self, session: aiohttp.ClientSession, lines: list[bytes]) -> tuple[int, str]:
        settings = self._settings
        if settings.api is InfluxApi.V1:
            path, query = "/write", {"db": settings.database, "precision": "ns"}
        else:
            path, query = "/api/v2/write", {"org": settings.org, "bucket": settings.bucket, "precision": "ns"}
        body = await asyncio.to_thread(gzip.compress, b"".join(lines), _GZIP_LEVEL)
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"}
        return await self._ask(session, path, query, headers, body)

    async def _make_database(self, session: aiohttp.ClientSession) -> str:
        """Make the database. Its retention is set only here: a database that is there is never changed."""
        settings = self._settings
        statement = f'CREATE DATABASE "{settings.database}"'
        if settings.retention:
            statement += f" WITH DURATION {settings.retention}"
        try:
            status, answer = await self._ask(session, "/query", {"q": statement}, {}, None)
        except InfluxError as error:
            return str(error)
        # A statement that failed is told with status 200 too.
        if status != 200 or '"error"' in answer:
            return f"database {shown(settings.database)} is not there and cannot be made: {status} {_short(answer)}"
        log.info("InfluxDB at %s had no database %s: made", settings.url, shown(settings.database))
        return ""

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        path: str,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes | None,
    ) -> tuple[int, str]:
        """One request: its status, and the beginning of its answer."""
        settings = self._settings
        try:
            # No redirects: they would carry the secret to somewhere else.
            async with session.post(
                settings.url.rstrip("/") + path,
                params=query,
                headers={**headers, **_authorization(settings)},
                data=body,
                ssl=_trusted(settings),
                allow_redirects=False,
            ) as response:
                answer = await response.content.read(_LONGEST_ANSWER)
                return response.status, answer.decode(errors="replace")
        except TimeoutError:
            raise InfluxError(f"no answer within {settings.timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise InfluxError(_short(str(error)) or type(error).__name__) from None

    def _tell(self, reason: str) -> None:
        """Once when the server stops taking points, again when the cause changes, and when it takes them again."""
        if reason == self.trouble:
            return
        if reason:
            log.warning(
                "InfluxDB at %s takes no points now: %s; %d wait, and are tried again",
                self._settings.url,
                reason,
                len(self.buffer),
            )
        else:
            log.info("InfluxDB at %s takes points again", self._settings.url)
        self.trouble = reason


def _authorization(settings: InfluxSettings) -> dict[str, str]:
    if settings.api is InfluxApi.V2:
        return {"Authorization": f"Token {_secret(settings.token_file, 'tokenFile')}"}
    if not settings.username:
        return {}
    pair = f"{settings.username}:{_secret(settings.password_file, 'passwordFile')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _secret(path: str, setting: str) -> str:
    """What the file holds now; it may be replaced at any time. No error repeats any of it."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST_SECRET + 1)
    except OSError as error:
        raise InfluxError(f"{setting} {shown(path)} cannot be read: {error.strerror}") from None
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(content) > _LONGEST_SECRET or not text.isprintable():
        raise InfluxError(f"{setting} {shown(path)} does not hold one line of text")
    return text


def _trusted(settings: InfluxSettings) -> ssl.SSLContext | bool:
    if not settings.ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InfluxError(f"caFile {shown(settings.ca_file)} cannot be used: {_short(str(error))}") from None


def _short(text: str) -> str:
    """A server's words as a log line takes them."""
    return "".join(char if char.isprintable() else " " for char in text.strip()[:_LONGEST_REASON])
