"""Watches: a stream of changes after a version, with bookmarks, until the client leaves or its time is over.

Each watch reads the store's own history from where it stands, so a slow client costs no memory; one that falls behind
what is kept gets 410 as its last line, like one that begins too early.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from shoal.embedded.errors import ApiStatus
from shoal.embedded.http.answers import Form, shown
from shoal.embedded.http.lists import ListOptions, truth
from shoal.embedded.http.paths import Target
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, StoredChange

_BOOKMARK_SECONDS: Final = 60.0
_BEFORE_END_SECONDS: Final = 2.0
_LONGEST_SECONDS: Final = (1800.0, 3600.0)
_INITIAL_END: Final = {"k8s.io/initial-events-end": "true"}


class Watches:
    """The open watches of a server, so that they can be ended with it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._open: set[_Watch] = set()

    async def serve(self, request: web.Request, target: Target, options: ListOptions, form: Form) -> web.StreamResponse:
        """Stream until the end."""
        watch = _Watch(self._registry, target, options, form, request.query)
        version = watch.first_version()
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        await response.prepare(request)
        self._open.add(watch)
        try:
            await watch.run(response, version)
        except ConnectionResetError:
            pass  # the client has left: the usual end of a watch
        finally:
            self._open.discard(watch)
        return response

    def end(self) -> None:
        """End all streams."""
        for watch in self._open:
            watch.over = True
            watch.wake.set()


class _Watch:
    def __init__(
        self, registry: Registry, target: Target, options: ListOptions, form: Form, query: Mapping[str, str]
    ) -> None:
        self.wake = asyncio.Event()
        self.over = False
        self._registry = registry
        self._store = registry.store
        self._target = target
        self._options = options
        self._form = form
        self._bookmarks = truth(query, "allowWatchBookmarks")
        self._initial_asked = truth(query, "sendInitialEvents")
        self._columns_sent = False
        seconds = query.get("timeoutSeconds", "")
        longest = float(seconds) if seconds.isdigit() and seconds != "0" else random.uniform(*_LONGEST_SECONDS)
        self._ends = time.monotonic() + longest

    def first_version(self) -> int:
        """Where to begin; 0 means with all that is there."""
        text = self._options.version
        if text in ("", "0") or self._initial_asked:
            return 0
        if not text.isdigit():
            why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
            raise ApiStatus(500, "", f'resourceVersion: Invalid value: "{text}": {why}')
        return int(text)

    async def run(self, response: web.StreamResponse, version: int) -> None:
        """Send what there is, then what happens."""
        self._store.listen(self._target.kind.key, self.wake.set, self._options.slice)
        try:
            if version == 0:
                version = self._store.version
                lines = [self._line("ADDED", obj) for obj in self._present()]
                if self._bookmarks and (self._initial_asked or not self._options.version):
                    lines.append(self._bookmark(version, _INITIAL_END))
                await _send(response, lines)
            await self._follow(response, version)
        except ApiStatus as error:
            await _send(response, [_event("ERROR", msgspec.json.encode(error.body()))])
        finally:
            self._store.unlisten(self._target.kind.key, self.wake.set, self._options.slice)

    async def _follow(self, response: web.StreamResponse, version: int) -> None:
        next_bookmark = self._next_bookmark()
        # Later a watch of a slice only asks for that: what it slept through was not for it.
        self._store.require(self._target.kind.key, version)
        while not self.over and time.monotonic() < self._ends:
            self.wake.clear()
            changes = self._store.changes_after(self._target.kind.key, version, self._options.slice)
            # Taken before sending: what is written meanwhile is for the next round.
            version = max(version, self._store.version)
            await _send(response, [line for change in changes if (line := self._change_line(change))])
            if self._bookmarks and time.monotonic() >= next_bookmark:
                await _send(response, [self._bookmark(version)])
                next_bookmark = self._next_bookmark()
            until = min(next_bookmark, self._ends) if self._bookmarks else self._ends
            await self._wait(until - time.monotonic())

    def _next_bookmark(self) -> float:
        """About each minute, and once shortly before the end, so that the client can go on from there."""
        now = time.monotonic()
        before_end = self._ends - _BEFORE_END_SECONDS
        return min(now + _BOOKMARK_SECONDS, before_end) if before_end > now else self._ends + 1

    async def _wait(self, seconds: float) -> None:
        """Until something is written; a write during the last send has set `wake` already."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.wake.wait()
        except TimeoutError:
            return

    def _present(self) -> list[Object]:
        objects = self._store.objects(self._target.kind.key, self._target.namespace)
        return [obj for obj in objects if self._options.test(obj)]

    def _sees(self, obj: Object) -> bool:
        namespace = self._target.namespace
        return (not namespace or obj["metadata"].get("namespace") == namespace) and self._options.test(obj)

    def _change_line(self, change: StoredChange) -> bytes:
        seen = change.seen_by(self._sees)
        if seen is None:
            return b""
        if self._form.as_ or self._target.kind.home is not None:
            return self._line(*seen)
        return _event(seen[0], change.encoded(seen[1]))

    def _line(self, kind_of_event: str, obj: Object) -> bytes:
        return _event(kind_of_event, msgspec.json.encode(self._in_form(obj)))

    def _in_form(self, obj: Object) -> Any:
        value = shown(obj, self._target.kind, self._form, self._now())
        if self._form.as_ == "Table":
            if self._columns_sent:
                value = {**value, "columnDefinitions": None}
            self._columns_sent = True
        return value

    def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if annotations:
            metadata["annotations"] = annotations
        kind = self._target.kind
        obj: Object = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        if self._form.as_ == "Table":
            obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "rows": []}
            obj["columnDefinitions"] = None
        return _event("BOOKMARK", msgspec.json.encode(obj))

    def _now(self) -> datetime:
        return self._registry.clock()


def _event(kind_of_event: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind_of_event.encode(), encoded)


async def _send(response: web.StreamResponse, lines: list[bytes]) -> None:
    if lines:
        await response.write(b"".join(lines))
