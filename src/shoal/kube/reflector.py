"""Keeps a store equal to what the API server has, through cut streams, restarts and expired versions.

List in pages, then watch from the list's version, with bookmarks. A stream that ends or breaks is taken up again at the
last version seen. When the server no longer has that version (410 in any form), or three watches in a row were refused,
the list is read again and compared with the store, so that what happened in the gap is reported, deletes included.

Consumers are plain functions, called in the order of the changes with the store already changed. They must not block.
One that raises is reported in the log with its traceback and counted, and the loop goes on: a single odd object must
not stop a cluster's scheduler. Only events of the API server's own watch are known here; there is no resync by time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, TypeVar

from shoal.kube.client import PAGE_SIZE, Client
from shoal.kube.codec import WatchEvent
from shoal.kube.errors import ApiError, GoneError, KubeError, SilentError
from shoal.kube.resources import Resource, key_of, meta_of
from shoal.kube.store import Change, Store
from shoal.model.backoff import Backoff

log = logging.getLogger(__name__)
T = TypeVar("T")

_REFUSALS_TO_RELIST: Final = 3


_BACKOFF: Final = Backoff(first=0.2, longest=10.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast to come back, in seconds."""

    #: The server ends a watch after this to twice this.
    watch: float = 300.0
    #: A stream without any line for this long is cut; servers send a bookmark about each minute.
    silence: float = 120.0
    #: Between the starts of two watches at least.
    reconnect: float = 1.0
    backoff: Backoff = _BACKOFF


@dataclass(slots=True)
class Counters:
    """What a reflector has done so far."""

    lists: int = 0
    #: Lists after the first complete one.
    relists: int = 0
    watches: int = 0
    #: Watches that took up an earlier stream where it ended, and brought something.
    resumes: int = 0
    events: int = 0
    bookmarks: int = 0
    changes: int = 0
    errors: int = 0
    consumer_errors: int = 0


class Reflector(Generic[T]):
    """The live state of one kind of object, in one namespace or all.

    Use it in `async with`, which runs it in a task of its own and ends it on leaving, or run `run()` yourself.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        consumers: Sequence[Callable[[Change[T]], None]] = (),
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        page_size: int = PAGE_SIZE,
        pace: Pace | None = None,
        rng: random.Random | None = None,
        slim: Callable[[T], T] | None = None,
        store: Store[T] | None = None,
    ) -> None:
        """`slim` leaves out of an object what need not be kept; consumers see it so too. `store` may keep fewer."""
        self.store: Store[T] = Store() if store is None else store
        self.counters = Counters()
        #: Set once the store holds the first complete list.
        self.synced = asyncio.Event()
        #: The last failure, None while all is well: since then a list was answered, or a watch taken.
        self.last_error: KubeError | None = None
        #: The last version of the collection that is known.
        self.resource_version = ""
        self._client = client
        self._resource = resource
        self._consumers = tuple(consumers)
        self._scope = {"namespace": namespace, "labels": labels, "fields": fields}
        self._page_size = page_size
        self._pace = pace or Pace()
        self._rng = rng or random.Random()
        self._slim = slim
        self._failures = 0
        self._refusals = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reflector[T]:
        self._task = asyncio.create_task(self.run(), name=f"reflector of {self._resource.plural}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the task that `async with` began; an error that ended it before is raised here."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def wait_synced(self) -> None:
        """Return when the first list is in; raise if the reflector's task has ended with an error before that."""
        waiter = asyncio.create_task(self.synced.wait())
        try:
            await asyncio.wait({waiter, *([self._task] if self._task else ())}, return_when=asyncio.FIRST_COMPLETED)
            if not self.synced.is_set() and self._task is not None:
                self._task.result()
        finally:
            waiter.cancel()

    async def refresh(self) -> None:
        """List anew, however fresh the watch seems: on return the store has all that was written before the call.

        For a reflector that `async with` runs. `synced` is not set meanwhile.
        """
        await self.stop()
        self.resource_version = ""
        self.synced.clear()
        await self.__aenter__()
        await self.wait_synced()

    async def run(self) -> None:
        """List and watch until cancelled. Failures of the server are logged and outlasted."""
        resuming = False
        while True:
            started = time.monotonic()
            try:
                if not self.resource_version:
                    await self._list()
                    resuming = False
                await self._watch(resuming=resuming)
                self._well()
                pause = self._pace.reconnect - (time.monotonic() - started)
            except KubeError as error:
                if time.monotonic() - started > 2 * self._pace.backoff.longest:
                    self._failures = 0  # it went well for long enough
                pause = self._failed(error)
            resuming = True
            # Jitter keeps the reflectors of many nodes from coming back all at once.
            await asyncio.sleep(max(0.0, pause) * self._rng.uniform(0.75, 1.25))

    async def _list(self) -> None:
        self.counters.lists += 1
        listing = await self._client.list(self._resource, limit=self._page_size, slim=self._slim, **self._scope)
        if self.synced.is_set():
            self.counters.relists += 1
        self._tell(self.store.replace(listing.items, listing.resource_version))
        self.resource_version = listing.resource_version
        self.synced.set()
        self.last_error = None

    async def _watch(self, *, resuming: bool) -> None:
        self.counters.watches += 1
        stream = self._client.watch_batches(
            self._resource,
            resource_version=self.resource_version,
            seconds=round(self._pace.watch * self._rng.uniform(1.0, 2.0)) or 1,
            silence=self._pace.silence,
            accepted=self._accepted,
            **self._scope,
        )
        async with contextlib.aclosing(stream):
            async for batch in stream:
                for event in batch:
                    if event.type == "BOOKMARK":
                        self.counters.bookmarks += 1
                    else:
                        self.counters.events += 1
                        kept = event if self._slim is None else self._slimmed(event, self._slim)
                        self._tell(self.store.apply(kept))
                    self.resource_version = meta_of(event.object).resource_version or self.resource_version
                self.counters.resumes += resuming
                resuming = False
                self._well()

    @staticmethod
    def _slimmed(event: WatchEvent[T], slim: Callable[[T], T]) -> WatchEvent[T]:
        return WatchEvent(type=event.type, object=slim(event.object))

    def _tell(self, changes: Iterable[Change[T]]) -> None:
        for change in changes:
            self.counters.changes += 1
            for consumer in self._consumers:
                try:
                    consumer(change)
                except Exception:
                    self.counters.consumer_errors += 1
                    log.exception(
                        "%s of %s %s: %r failed and is out of step",
                        change.kind.value,
                        self._resource.kind,
                        "/".join(key_of(change.object)),
                        consumer,
                    )

    def _accepted(self) -> None:
        """The server answers, and may have nothing to tell for long. Whether the stream lasts is not known yet."""
        self.last_error = None

    def _well(self) -> None:
        self._failures = self._refusals = 0
        self.last_error = None

    def _failed(self, error: KubeError) -> float:
        """Take note of a failure; how long to wait before the next try."""
        if isinstance(error, GoneError):
            # An ordinary part of a long life, no fault: the version was too old.
            log.info("%s: version %s is gone, listing anew", self._resource.plural, self.resource_version)
            self.resource_version = ""
        else:
            self.counters.errors += 1
            self.last_error = error
            # The API server tells nothing, not even bookmarks, of what nobody has written since it started.
            level = logging.INFO if isinstance(error, SilentError) else logging.WARNING
            log.log(level, "%s: %s", self._resource.plural, error)
            # A server restored from a backup refuses versions of its own future for ever.
            self._refusals += isinstance(error, ApiError) and error.status not in (401, 403, 429, 503)
            if self._refusals >= _REFUSALS_TO_RELIST:
                self._refusals = 0
                self.resource_version = ""
        self._failures += 1
        return self._pace.backoff.after(self._failures)
