"""The objects of one kind as last seen, by namespace and name, and what changes when news arrive.

Pure: it takes lists and events and says what they mean. An object deleted and made anew under one name is told apart by
its uid, and counts as a delete and an add.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from shoal.kube.codec import WatchEvent
from shoal.kube.resources import Key, meta_of

T = TypeVar("T")


class ChangeType(Enum):
    """What happened to an object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change. `old` is the object as it was, None when added; `new` is None when deleted.

    A deleted object is as it was at its end if the watch told of that, else as the store had it. `version` is one of
    the collection's in which the change had been made. `unseen`: the watch did not tell of the end, so when that was is
    not known.
    """

    kind: ChangeType
    old: T | None
    new: T | None
    version: str = ""
    unseen: bool = False

    @property
    def object(self) -> T:
        """The newest known state of the object."""
        obj = self.old if self.new is None else self.new
        assert obj is not None
        return obj


class Store(Generic[T]):
    """Objects by key. Only a reflector writes to it."""

    def __init__(self) -> None:
        # The version and uid stand beside the object, since raw objects are slow to ask.
        self._entries: dict[Key, tuple[str, str, T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[T]:
        return (obj for _, _, obj in self._entries.values())

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object, None if there is none."""
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry[2]

    def keys(self) -> Iterable[Key]:
        """Namespace and name of all objects."""
        return self._entries.keys()

    def replace(self, items: Iterable[T], version: str = "") -> Iterator[Change[T]]:
        """Become a fresh list of a version. Each change is made when it is taken from the iterator; deletes first."""
        fresh: dict[Key, tuple[str, str, T]] = {}
        for item in items:
            meta = meta_of(item)
            fresh[meta.namespace, meta.name] = (meta.uid, meta.resource_version, item)
        for key, (uid, _, old) in list(self._entries.items()):
            if key not in fresh or fresh[key][0] != uid:
                del self._entries[key]
                yield Change(ChangeType.DELETED, old, None, version, unseen=True)
        for key, entry in fresh.items():
            yield from self._set(key, *entry)

    def apply(self, event: WatchEvent[T]) -> Iterator[Change[T]]:
        """Take in one event of a watch: no change, one, or a delete and an add."""
        meta = meta_of(event.object)
        key = (meta.namespace, meta.name)
        if event.type == "DELETED":
            entry = self._entries.get(key)
            if entry is not None and entry[0] == meta.uid:
                del self._entries[key]
                yield Change(ChangeType.DELETED, event.object, None, meta.resource_version)
        elif event.type in ("ADDED", "MODIFIED"):
            yield from self._set(key, meta.uid, meta.resource_version, event.object)

    def _set(self, key: Key, uid: str, version: str, new: T) -> Iterator[Change[T]]:
        entry = self._entries.get(key)
        if entry is not None and entry[0] != uid:
            del self._entries[key]
            yield Change(ChangeType.DELETED, entry[2], None, version, unseen=True)
            entry = None
        if entry is not None and entry[1] == version:
            return
        self._entries[key] = (uid, version, new)
        if entry is None:
            yield Change(ChangeType.ADDED, None, new, version)
        else:
            yield Change(ChangeType.MODIFIED, entry[2], new, version)
