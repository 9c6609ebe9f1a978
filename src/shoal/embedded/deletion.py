"""The end of objects: grace, finalizers, preconditions, namespaces with their content, owners with their dependents.

The real server leaves the last two to controllers, which take a moment; here they follow at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from shoal.embedded.errors import FieldError, bad_request, conflict, forbidden, invalid
from shoal.embedded.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS, Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.registry import Registry, timestamp
from shoal.embedded.store import Key, Object, key_of
from shoal.model.contract import kubernetes

_PROPAGATIONS: Final = ("Foreground", "Background", "Orphan")
SYSTEM_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_UNDELETABLE: Final = ("default", "kube-system", "kube-public")
_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a client wants of a delete."""

    grace_seconds: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


class Deletion:
    """Deletes objects of a registry, and what must go with them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._places: dict[str, tuple[Kind, Key]] = {}
        self._owned: dict[str, set[str]] = {}
        registry.observers.append(self._observe)

    def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions) -> tuple[Object, bool]:
        """Begin or finish an object's end; whether it is gone is the second answer."""
        old = self._registry.get(kind, namespace, name)
        _check_preconditions(kind, old, options)
        if kind.key == NAMESPACES.key:
            return self._delete_namespace(old, options)
        grace = _grace(kind, old, options)
        finalizers = self._finalizers(old, options)
        metadata = old["metadata"]
        if (
            "deletionTimestamp" in metadata
            and grace >= metadata.get("deletionGracePeriodSeconds", 0)
            and finalizers == (metadata.get("finalizers") or [])
            and (grace or finalizers)
        ):
            # It is on its way, and this delete does not make it faster.
            return old, False
        new = self._marked(kind, old, grace, finalizers)
        if options.dry_run:
            return new, not grace and not finalizers
        if grace or finalizers:
            stored = self._registry.write(kind, new, old)
            self._continue(kind, stored)
            return self._store.get(kind.key, key_of(stored)) or stored, False
        return self._registry.remove(kind, new, old), True

    def _marked(self, kind: Kind, old: Object, grace: int, finalizers: list[str]) -> Object:
        new: Object = copied(old)
        metadata = new["metadata"]
        if "deletionTimestamp" not in metadata and "generation" in metadata:
            metadata["generation"] += 1
        metadata["deletionTimestamp"] = timestamp(self._registry.clock() + timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        return new

    def _finalizers(self, old: Object, options: DeleteOptions) -> list[str]:
        kept = [name for name in old["metadata"].get("finalizers") or () if name not in (_FOREGROUND, _ORPHAN)]
        if options.propagation == "Foreground" or (
            not options.propagation and _FOREGROUND in (old["metadata"].get("finalizers") or ())
        ):
            kept.append(_FOREGROUND)
        elif options.propagation == "Orphan":
            kept.append(_ORPHAN)
        return kept

    def _continue(self, kind: Kind, obj: Object) -> None:
        """Do what the finalizers of the garbage collector stand for."""
        finalizers = obj["metadata"].get("finalizers") or ()
        uid = obj["metadata"]["uid"]
        if _ORPHAN in finalizers:
            for owned_kind, owned in self.dependents(uid):
                self._disown(owned_kind, owned, uid)
            self._drop_finalizer(kind, key_of(obj), _ORPHAN)
        elif _FOREGROUND in finalizers:
            for owned_kind, owned in self.dependents(uid):
                if "deletionTimestamp" not in owned["metadata"]:
                    self.delete(owned_kind, *key_of(owned), DeleteOptions(propagation="Foreground"))
            if not self.dependents(uid):
                self._drop_finalizer(kind, key_of(obj), _FOREGROUND)

    def _observe(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        self._index(kind, before, after)
        if before is None and after is not None:
            if kind.key == NAMESPACES.key:
                self._furnish(after["metadata"]["name"])
            return
        if before is None or after is not None:
            return
        uid = before["metadata"]["uid"]
        for owned_kind, owned in self.dependents(uid):
            if self._has_other_owner(owned, uid):
                self._disown(owned_kind, owned, uid)
            elif "deletionTimestamp" not in owned["metadata"]:
                self.delete(owned_kind, *key_of(owned), DeleteOptions(propagation="Background"))
        self._finish_owners(before)
        self._finish_namespace(before["metadata"].get("namespace", ""))

    def _finish_owners(self, gone: Object) -> None:
        """Owners that waited in the foreground for this one to go."""
        for reference in gone["metadata"].get("ownerReferences") or ():
            owner = self._found(reference.get("uid", ""))
            if owner is None or _FOREGROUND not in (owner[1]["metadata"].get("finalizers") or ()):
                continue
            if not self.dependents(reference["uid"]):
                self._drop_finalizer(owner[0], key_of(owner[1]), _FOREGROUND)

    def dependents(self, uid: str) -> list[tuple[Kind, Object]]:
        """The objects that name this one as an owner."""
        return [found for owned in sorted(self._owned.get(uid, ())) if (found := self._found(owned)) is not None]

    def _found(self, uid: str) -> tuple[Kind, Object] | None:
        place = self._places.get(uid)
        if place is None:
            return None
        obj = self._store.get(place[0].key, place[1])
        return None if obj is None else (place[0], obj)

    def _index(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        """Keep the two tables equal to the store: where a uid is, and who names it as an owner."""
        for obj in (before, after):
            if obj is None:
                continue
            uid = obj["metadata"]["uid"]
            for owner in obj["metadata"].get("ownerReferences") or ():
                owned = self._owned.setdefault(owner.get("uid", ""), set())
                (owned.discard if obj is before else owned.add)(uid)
                if not owned:
                    del self._owned[owner.get("uid", "")]
            if obj is before:
                self._places.pop(uid, None)
            else:
                self._places[uid] = (kind, key_of(obj))

    def _has_other_owner(self, obj: Object, uid: str) -> bool:
        others = {owner.get("uid") for owner in obj["metadata"]["ownerReferences"]} - {uid}
        return any(self._found(other or "") is not None for other in others)

    def _disown(self, kind: Kind, obj: Object, uid: str) -> None:
        new = copied(obj)
        owners = [owner for owner in new["metadata"]["ownerReferences"] if owner.get("uid") != uid]
        new["metadata"]["ownerReferences"] = owners
        if not owners:
            del new["metadata"]["ownerReferences"]
        self._registry.write(kind, new, obj)

    def _drop_finalizer(self, kind: Kind, key: tuple[str, str], finalizer: str) -> None:
        old = self._store.get(kind.key, key)
        if old is None:
            return
        new: Object = copied(old)
        new["metadata"]["finalizers"] = [name for name in new["metadata"].get("finalizers", ()) if name != finalizer]
        if not new["metadata"]["finalizers"]:
            del new["metadata"]["finalizers"]
        self._registry.write(kind, new, old)

    def _furnish(self, namespace: str) -> None:
        """What a controller puts into each new namespace: without it no pod can be made."""
        if self._store.get(SERVICE_ACCOUNTS.key, (namespace, "default")) is None:
            self._registry.create(SERVICE_ACCOUNTS, namespace, {"metadata": {"name": "default"}})

    def _delete_namespace(self, old: Object, options: DeleteOptions) -> tuple[Object, bool]:
        name = old["metadata"]["name"]
        if name in _UNDELETABLE:
            raise forbidden("namespaces", "", name, "this namespace may not be deleted")
        if "deletionTimestamp" in old["metadata"]:
            return old, False
        new: Object = copied(old)
        new["metadata"]["deletionTimestamp"] = self._registry.now()
        new["status"]["phase"] = "Terminating"
        if options.dry_run:
            return new, False
        stored = self._registry.write(NAMESPACES, new, old)
        for kind in self._registry.catalogue.all():
            if kind.namespaced:
                for obj in self._store.objects(kind.key, name):
                    if self._store.get(kind.key, key_of(obj)) is not None:
                        self.delete(kind, *key_of(obj), DeleteOptions(propagation="Background"))
        self._finish_namespace(name)
        return stored, False

    def _finish_namespace(self, name: str) -> None:
        """Let a namespace go once it is empty."""
        old = self._store.get(NAMESPACES.key, ("", name)) if name else None
        if old is None or "deletionTimestamp" not in old["metadata"]:
            return
        if not self._store.is_empty(name):
            return
        new: Object = copied(old)
        new["spec"]["finalizers"] = []
        self._registry.write(NAMESPACES, new, old)


def read_options(body: dict[str, Any], query: dict[str, str]) -> DeleteOptions:
    """DeleteOptions from a body and from the query, which says the same in other words."""
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    if grace is not None and not re.fullmatch(r"-?\d+", str(grace)):
        raise bad_request(f'strconv.ParseInt: parsing "{grace}": invalid syntax')
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
    if not propagation and body.get("orphanDependents") is not None:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    if propagation not in ("", *_PROPAGATIONS):
        words = ", ".join(f'"{word}"' for word in (*_PROPAGATIONS, "nil"))
        message = f'Unsupported value: "{propagation}": supported values: {words}'
        fault = FieldError("FieldValueNotSupported", "propagationPolicy", message)
        raise invalid("DeleteOptions", "meta.k8s.io", "", [fault])
    return DeleteOptions(
        grace_seconds=None if grace is None else int(grace),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=propagation,
        dry_run=bool(body.get("dryRun") or query.get("dryRun")),
    )


def _check_preconditions(kind: Kind, old: Object, options: DeleteOptions) -> None:
    name, metadata = old["metadata"]["name"], old["metadata"]
    if options.uid and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(kind.kind, kind.group, name, why)
    if options.resource_version and options.resource_version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise conflict(kind.kind, kind.group, name, why)


def _grace(kind: Kind, old: Object, options: DeleteOptions) -> int:
    """Seconds that an object may stay: only pods that are on a node and not finished get any."""
    if kind.key != PODS.key:
        return 0
    spec, phase = old.get("spec", {}), old.get("status", {}).get("phase")
    if not spec.get("nodeName") or phase in kubernetes.FINISHED_PHASES:
        return 0
    grace = spec.get("terminationGracePeriodSeconds", 30) if options.grace_seconds is None else options.grace_seconds
    return 1 if grace < 0 else int(grace)
