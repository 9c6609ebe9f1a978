"""Kubernetes Events about objects, for people who run `kubectl describe`.

core/v1 with `count`, not events.k8s.io/v1 with a series: `kubectl describe` sorts by `lastTimestamp`, which the newer
API leaves empty, so its events stand above all others whatever their age. The API server serves both from one store.

Best effort: recording never waits and never fails. Equal events are folded into one with a count, the first is written
at once and repetitions at most every few seconds. With a pace set, a second's worth goes out at once and the rest waits
in the queue, so that events leave the server to what matters more. When the queue is full, or the server refuses,
events are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import heapq
import itertools
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFoundError
from shoal.kube.objects.meta import ObjectMeta, ObjectReference
from shoal.kube.objects.others import Event, EventSource
from shoal.kube.resources import EVENTS, Resource, meta_of
from shoal.model.bounded_cache import BoundedCache

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
MAX_MESSAGE: Final = 1024
#: Events whose names are remembered, to count on instead of writing new ones.
_REMEMBERED: Final = 4096
_NAME_LENGTH: Final = 230
#: So much of the pace may be used up at once.
_BURST_SECONDS: Final = 1.0


class _Key(NamedTuple):
    about: ObjectReference
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Pending:
    """Repetitions that wait to be written."""

    count: int
    first: datetime.datetime
    last: datetime.datetime


@dataclass(slots=True)
class _Written:
    """An event that is on the server."""

    name: str
    count: int
    due: float


@dataclass(slots=True)
class RecorderCounters:
    """What a recorder has done so far."""

    recorded: int = 0
    writes: int = 0
    dropped: int = 0
    errors: int = 0


def reference_to(resource: Resource[Any], obj: object) -> ObjectReference:
    """The object as an event names it. Without its version: events about all its versions belong together."""
    meta = meta_of(obj)
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
    )


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Recorder:
    """Writes events in the name of one component. Use it in `async with`, which writes out the rest on leaving."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        host: str = "",
        queue: int = 1000,
        per_second: float | None = None,
        repeat_seconds: float = 5.0,
        flush_seconds: float = 5.0,
        now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        self.counters = RecorderCounters()
        self._client = client
        self._source = EventSource(component=component, host=host)
        self._queue = queue
        self._interval = 1 / per_second if per_second else 0.0
        #: Until when the pace is used up.
        self._paid = 0.0
        self._repeat = repeat_seconds
        self._flush = flush_seconds
        self._now = now
        self._pending: dict[_Key, _Pending] = {}
        self._order: list[tuple[float, int, _Key]] = []
        self._numbers = itertools.count()
        self._written: BoundedCache[_Key, _Written] = BoundedCache(_REMEMBERED)
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Recorder:
        self._task = asyncio.create_task(self._write_all(), name="event recorder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def record(self, about: ObjectReference, type_: EventType, reason: str, message: str) -> None:
        """Tell about an object. `reason` is one CamelCase word, `message` is for people."""
        self.counters.recorded += 1
        text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        key = _Key(about, type_, reason, text)
        now = self._now()
        pending = self._pending.get(key)
        if pending is not None:
            pending.count += 1
            pending.last = now
        elif self._closing or len(self._pending) >= self._queue:
            self.counters.dropped += 1
        else:
            self._pending[key] = _Pending(1, now, now)
            written = self._written.get(key)
            heapq.heappush(self._order, (written.due if written else 0.0, next(self._numbers), key))
            if self._order[0][2] is key:
                self._wake.set()

    async def close(self) -> None:
        """Write what waits, for a few seconds at most, and end."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush):
                await task
        if self._pending:
            self.counters.dropped += len(self._pending)
            log.warning("%d events were not written before the end", len(self._pending))
            self._pending.clear()

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._order or not self._closing:
            self._wake.clear()
            now = loop.time()
            wait = max(self._order[0][0], self._paid - _BURST_SECONDS) - now if self._order else None
            if not self._closing and (wait is None or wait > 0):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                continue
            key = heapq.heappop(self._order)[2]
            self._paid = max(self._paid, now) + self._interval
            await self._write(key, self._pending.pop(key), now + self._repeat)

    async def _write(self, key: _Key, pending: _Pending, due: float) -> None:
        self.counters.writes += 1
        written = self._written.pop(key)
        try:
            if written is not None:
                with contextlib.suppress(NotFoundError):  # it has expired: write a new one
                    await self._count_on(key, written, pending)
                    self._written.put(key, _Written(written.name, written.count + pending.count, due))
                    return
            name = await self._create(key, pending)
            self._written.put(key, _Written(name, pending.count, due))
        except asyncio.CancelledError:
            self.counters.dropped += 1
            raise
        except KubeError as error:
            self.counters.errors += 1
            self.counters.dropped += 1
            log.warning("event %s about %s %s: %s", key.reason, key.about.kind, key.about.name, error)

    async def _create(self, key: _Key, pending: _Pending) -> str:
        name = f"{key.about.name[:_NAME_LENGTH]}.{uuid.uuid4().hex[:16]}"
        event = Event(
            metadata=ObjectMeta(name=name, namespace=_namespace(key)),
            involved_object=key.about,
            type=key.type,
            reason=key.reason,
            message=key.message,
            count=pending.count,
            source=self._source,
            first_timestamp=_rfc3339(pending.first),
            last_timestamp=_rfc3339(pending.last),
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )
        await self._client.create(EVENTS, event)
        return name

    async def _count_on(self, key: _Key, written: _Written, pending: _Pending) -> None:
        patch = {"count": written.count + pending.count, "lastTimestamp": _rfc3339(pending.last)}
        await self._client.patch(EVENTS, written.name, patch, namespace=_namespace(key))


def _namespace(key: _Key) -> str:
    """Events about things without a namespace live in `default`, where kubectl looks for them."""
    return key.about.namespace or "default"


def _rfc3339(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
