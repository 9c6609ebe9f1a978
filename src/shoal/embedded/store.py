"""The objects of the cluster in memory, one version counter over all of them, and what changed of late.

Pure and synchronous: it keeps what it is given. Stored objects are never changed in place; whoever wants another state
writes a new object. Rules about what may be written are in `shoal.embedded.registry`.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from shoal.embedded.errors import ApiStatus, expired
from shoal.embedded.kinds import ResourceKey
from shoal.embedded.selectors import Test

Object = dict[str, Any]
#: Namespace and name; the namespace is empty for kinds that have none.
Key = tuple[str, str]
_SNAPSHOT_GONE: Final = "The resourceVersion for the provided list is too old."


@dataclass(slots=True)
class Change:
    """One write: the object before and after it. A removed object has no after, but `removed` as it was at the end."""

    version: int
    key: Key
    before: Object | None
    after: Object | None
    removed: Object | None = None
    _encoded: bytes = b""

    def seen_by(self, test: Test) -> tuple[str, Object] | None:
        """The watch event for somebody who only sees what passes the test; None if it is no business of theirs."""
        was = self.before is not None and test(self.before)
        if self.after is not None and test(self.after):
            return "MODIFIED" if was else "ADDED", self.after
        if not was or self.before is None:
            return None
        return "DELETED", with_version(self.removed or self.before, self.version)

    def encoded(self, obj: Object) -> bytes:
        """The object as JSON; the state after the write is encoded once for all watchers."""
        if obj is not self.after:
            return msgspec.json.encode(obj)
        if not self._encoded:
            self._encoded = msgspec.json.encode(obj)
        return self._encoded


@dataclass(slots=True)
class _Collection:
    objects: dict[Key, Object] = field(default_factory=dict)
    #: In the order of versions, the newest last.
    changes: list[Change] = field(default_factory=list)
    #: Changes up to and including this version are forgotten.
    forgotten: int = 0


class Store:
    """All objects by kind, namespace and name."""

    def __init__(self, *, history: int = 10_000) -> None:
        self.version = 1
        self._history = history
        self._collections: dict[ResourceKey, _Collection] = {}
        self._listeners: dict[ResourceKey, set[Callable[[], None]]] = {}
        self._population: Counter[str] = Counter()

    def get(self, resource: ResourceKey, key: Key) -> Object | None:
        """One object."""
        collection = self._collections.get(resource)
        return collection.objects.get(key) if collection else None

    def objects(self, resource: ResourceKey, namespace: str = "") -> list[Object]:
        """All of a kind, in one namespace or in all, in the order of their keys."""
        collection = self._collections.get(resource)
        if collection is None:
            return []
        return [collection.objects[key] for key in sorted(collection.objects) if not namespace or key[0] == namespace]

    def is_empty(self, namespace: str) -> bool:
        """Whether no object of any kind is in a namespace."""
        return not self._population[namespace]

    def objects_at(self, resource: ResourceKey, namespace: str, version: int) -> list[Object]:
        """As `objects`, at an earlier version; 410 if that is forgotten."""
        collection = self._collections.get(resource, _Collection())
        if version < collection.forgotten:
            raise ApiStatus(410, "Expired", _SNAPSHOT_GONE)
        then = dict(collection.objects)
        for change in reversed(collection.changes):
            if change.version <= version:
                break
            if change.before is None:
                then.pop(change.key, None)
            else:
                then[change.key] = change.before
        return [then[key] for key in sorted(then) if not namespace or key[0] == namespace]

    def put(self, resource: ResourceKey, obj: Object) -> Object:
        """Write a new state of an object, or a new object; what is stored carries the new version."""
        key = key_of(obj)
        collection = self._collection(resource)
        self.version += 1
        stored = with_version(obj, self.version)
        before = collection.objects.get(key)
        if before is None:
            self._population[key[0]] += 1
        self._note(resource, Change(self.version, key, before, stored))
        collection.objects[key] = stored
        self._wake(resource)
        return stored

    def remove(self, resource: ResourceKey, last: Object) -> Object:
        """Take an object away; `last` is the state that watchers see it end in, and is returned with its version."""
        key = key_of(last)
        collection = self._collection(resource)
        self.version += 1
        ended = with_version(last, self.version)
        self._note(resource, Change(self.version, key, collection.objects.pop(key), None, removed=ended))
        self._population[key[0]] -= 1
        self._wake(resource)
        return ended

    def changes_after(self, resource: ResourceKey, version: int) -> list[Change]:
        """What was written after a version; 410 if some of it is forgotten."""
        collection = self._collection(resource)
        if version < collection.forgotten:
            raise expired(collection.forgotten, version)
        start = bisect.bisect_right(collection.changes, version, key=lambda change: change.version)
        return collection.changes[start:]

    def forget(self, resource: ResourceKey) -> None:
        """Drop the history of a kind, as compaction would."""
        collection = self._collection(resource)
        collection.changes.clear()
        collection.forgotten = self.version

    def listen(self, resource: ResourceKey, listener: Callable[[], None]) -> None:
        """Call `listener` after each write of this kind; it must not write itself."""
        self._listeners.setdefault(resource, set()).add(listener)

    def unlisten(self, resource: ResourceKey, listener: Callable[[], None]) -> None:
        """End what `listen` began."""
        self._listeners.get(resource, set()).discard(listener)

    def _collection(self, resource: ResourceKey) -> _Collection:
        return self._collections.setdefault(resource, _Collection())

    def _note(self, resource: ResourceKey, change: Change) -> None:
        collection = self._collection(resource)
        collection.changes.append(change)
        # In blocks, since taking from the front of a list costs its whole length.
        if len(collection.changes) > 2 * self._history:
            collection.forgotten = collection.changes[-self._history - 1].version
            del collection.changes[: -self._history]

    def _wake(self, resource: ResourceKey) -> None:
        for listener in tuple(self._listeners.get(resource, ())):
            listener()


def key_of(obj: Object) -> Key:
    """Namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def with_version(obj: Object, version: int) -> Object:
    """The object with another resourceVersion; the given one stays as it is."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
