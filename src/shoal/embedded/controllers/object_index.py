"""What there is, as controllers look for it: by owner, or by having none."""

from __future__ import annotations

from typing import Final

from shoal.embedded.controllers.reconcile.pods import controller_of
from shoal.embedded.controllers.reconcile.resource_claim import named_by
from shoal.embedded.deletion import Deletion
from shoal.embedded.kinds import PODS, REPLICA_SETS, REVISIONS, Kind, ResourceKey
from shoal.embedded.registry import Registry
from shoal.embedded.store import Key, Object, key_of

#: Kinds of which an object without a controller may be adopted.
_ADOPTABLE: Final = frozenset({PODS.key, REPLICA_SETS.key, REVISIONS.key})


class ObjectIndex:
    """The objects of a registry, found without looking at all of them."""

    def __init__(self, registry: Registry, deletion: Deletion) -> None:
        self._store = registry.store
        self._deletion = deletion
        self._orphans: dict[tuple[ResourceKey, str], set[Key]] = {}
        #: By claim or template the pods that name it, and by pod what it names.
        self._users: dict[tuple[ResourceKey, Key], set[Key]] = {}
        self._named: dict[Key, frozenset[tuple[ResourceKey, Key]]] = {}
        for kind in (PODS, REPLICA_SETS, REVISIONS):
            for obj in self._store.objects(kind.key):
                self.note(kind, key_of(obj))
        for pod in self._store.objects(PODS.key):
            self.note_claims(key_of(pod))

    def get(self, kind: Kind, key: Key) -> Object | None:
        """One object."""
        return self._store.get(kind.key, key)

    def all(self, kind: Kind, namespace: str = "") -> list[Object]:
        """All of a kind: for kinds with few objects."""
        return self._store.objects(kind.key, namespace)

    def owned(self, owner: Object, kind: Kind) -> tuple[Object, ...]:
        """The objects of a kind that name this one as an owner."""
        dependents = self._deletion.dependents(owner["metadata"]["uid"])
        return tuple(obj for of, obj in dependents if of.key == kind.key)

    def candidates(self, owner: Object, kind: Kind) -> tuple[Object, ...]:
        """Those, and the ones in the same namespace that nobody controls."""
        here = sorted(self._orphans.get((kind.key, owner["metadata"].get("namespace", "")), ()))
        free = (self._store.get(kind.key, key) for key in here)
        return (*self.owned(owner, kind), *(obj for obj in free if obj is not None))

    def users(self, kind: Kind, key: Key) -> list[Key]:
        """The pods that name a ResourceClaim or a template."""
        return sorted(self._users.get((kind.key, key), ()))

    def note_claims(self, pod: Key) -> None:
        """Learn which claims and templates a pod names now."""
        obj = self._store.get(PODS.key, pod)
        named = frozenset(named_by(obj)) if obj is not None else frozenset()
        before = self._named.pop(pod, frozenset())
        if named:
            self._named[pod] = named
        for gone in before - named:
            self._users[gone].discard(pod)
            if not self._users[gone]:
                del self._users[gone]
        for new in named - before:
            self._users.setdefault(new, set()).add(pod)

    def note(self, kind: Kind, key: Key) -> bool:
        """Learn of a change of an object; whether nobody controls it now is the answer."""
        if kind.key not in _ADOPTABLE:
            return False
        # Changes can be told in another order than they were made, so the store is asked.
        obj = self._store.get(kind.key, key)
        orphans = self._orphans.setdefault((kind.key, key[0]), set())
        if obj is not None and controller_of(obj) is None:
            orphans.add(key)
            return True
        orphans.discard(key)
        if not orphans:
            del self._orphans[kind.key, key[0]]
        return False
