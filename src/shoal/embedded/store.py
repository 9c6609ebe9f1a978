"""The objects of the cluster in memory, one version counter over all of them, and what changed of late.

Pure and synchronous: it keeps what it is given. Stored objects are never changed in place; whoever wants another state
writes a new object. Rules about what may be written are in `shoal.embedded.registry`.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
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
#: Each node watches its own: of these kinds changes are also kept by the value of one field, so that a change is looked
#: at by those alone whom it concerns.
SLICED: Final[dict[ResourceKey, tuple[str, str]]] = {
    ("", "pods"): ("spec", "nodeName"),
    ("", "nodes"): ("metadata", "name"),
}


@dataclass(slots=True)
class StoredChange:
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
class _History:
    #: In the order of versions, the newest last.
    changes: list[StoredChange] = field(default_factory=list)
    #: Changes up to and including this version are forgotten.
    forgotten: int = 0

    def first_after(self, version: int) -> int:
        """Where the changes after a version begin."""
        return bisect.bisect_right(self.changes, version, key=lambda change: change.version)

    def after(self, version: int) -> list[StoredChange]:
        """What was written after a version; 410 if some of it is forgotten."""
        self.require(version)
        return self.changes[self.first_after(version) :]

    def require(self, version: int) -> None:
        """410 if something that was written after a version is forgotten."""
        if version < self.forgotten:
            raise expired(self.forgotten, version)

    def forget(self, version: int) -> None:
        """Drop the changes up to a version."""
        end = self.first_after(version)
        if end:
            self.forgotten = self.changes[end - 1].version
            del self.changes[:end]


@dataclass(slots=True)
class _Collection:
    objects: dict[Key, Object] = field(default_factory=dict)
    history: _History = field(default_factory=_History)
    #: The same changes by the value of a field; one that changed it is in two of them.
    slices: defaultdict[str, _History] = field(default_factory=lambda: defaultdict(_History))

    def forget(self, version: int) -> None:
        """Drop the changes up to a version."""
        self.history.forget(version)
        for part in self.slices.values():
            part.forget(version)


class ObjectStore:
    """All objects by kind, namespace and name."""

    def __init__(self, *, history: int = 10_000) -> None:
        self.version = 1
        self._history = history
        self._collections: dict[ResourceKey, _Collection] = {}
        #: By kind, and by slice; those without a slice hear of everything.
        self._listeners: dict[tuple[ResourceKey, str | None], set[Callable[[], None]]] = {}
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
        if version < collection.history.forgotten:
            raise ApiStatus(410, "Expired", _SNAPSHOT_GONE)
        then = dict(collection.objects)
        for change in reversed(collection.history.changes):
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
        collection.objects[key] = stored
        self._note(resource, StoredChange(self.version, key, before, stored))
        return stored

    def remove(self, resource: ResourceKey, last: Object) -> Object:
        """Take an object away; `last` is the state that watchers see it end in, and is returned with its version."""
        key = key_of(last)
        collection = self._collection(resource)
        self.version += 1
        ended = with_version(last, self.version)
        before = collection.objects.pop(key)
        self._population[key[0]] -= 1
        self._note(resource, StoredChange(self.version, key, before, None, removed=ended))
        return ended

    def require(self, resource: ResourceKey, version: int) -> None:
        """410 if something of a kind that was written after a version is forgotten."""
        self._collection(resource).history.require(version)

    def changes_after(self, resource: ResourceKey, version: int, of: str | None = None) -> list[StoredChange]:
        """What was written after a version, in one slice or at all; 410 if some of it is forgotten."""
        collection = self._collection(resource)
        return (collection.history if of is None else collection.slices[of]).after(version)

    def forget(self, resource: ResourceKey) -> None:
        """Drop the history of a kind, as compaction would."""
        collection = self._collection(resource)
        collection.forget(self.version)
        collection.history.forgotten = self.version

    def listen(self, resource: ResourceKey, listener: Callable[[], None], of: str | None = None) -> None:
        """Call `listener` after each write of this kind, or of one slice of it; it must not write itself."""
        self._listeners.setdefault((resource, of), set()).add(listener)

    def unlisten(self, resource: ResourceKey, listener: Callable[[], None], of: str | None = None) -> None:
        """End what `listen` began."""
        listeners = self._listeners.get((resource, of), set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop((resource, of), None)

    def _collection(self, resource: ResourceKey) -> _Collection:
        return self._collections.setdefault(resource, _Collection())

    def _note(self, resource: ResourceKey, change: StoredChange) -> None:
        """Keep a change, and tell those who listen."""
        collection = self._collection(resource)
        concerned = _slices(resource, change)
        for part in (collection.history, *(collection.slices[value] for value in concerned)):
            part.changes.append(change)
        changes = collection.history.changes
        # In blocks, since taking from the front of a list costs its whole length.
        if len(changes) > 2 * self._history:
            collection.forget(changes[-self._history - 1].version)
        for of in (None, *concerned):
            for listener in tuple(self._listeners.get((resource, of), ())):
                listener()


def _slices(resource: ResourceKey, change: StoredChange) -> set[str]:
    """The slices that a change is in."""
    path = SLICED.get(resource)
    if path is None:
        return set()
    states = (change.before, change.after)
    return {str((state.get(path[0]) or {}).get(path[1]) or "") for state in states if state is not None}


def key_of(obj: Object) -> Key:
    """Namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def with_version(obj: Object, version: int) -> Object:
    """The object with another resourceVersion; the given one stays as it is."""
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
