"""Writes as the API server makes them: prepared, checked against the rules and the stored version, then stored.

Deletion is in `shoal.embedded.deletion`; subresources with a meaning of their own in `shoal.embedded.subresources`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from shoal.embedded import names
from shoal.embedded.errors import (
    ApiStatus,
    FieldError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    forbidden_value,
    invalid,
    invalid_value,
    not_found,
    required,
)
from shoal.embedded.kinds import NAMESPACES, PODS, SERVICE_ACCOUNTS, Catalogue, Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.patch.server_side_apply import track_update
from shoal.embedded.rules import kinds as rules
from shoal.embedded.rules.shapes import check_decoded
from shoal.embedded.store import Object, ObjectStore, key_of
from shoal.embedded.writes import Write

MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_NAME_TRIES: Final = 8
_OF_STATUS: Final = ("kind", "apiVersion", "metadata", "status")
#: Stands for the state before a write, where only the place of the write is asked about.
_EXISTING: Final[Object] = {}
#: Set by the server alone; what a client sends in them is not looked at.
_SERVER_SET: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")


def timestamp(moment: datetime) -> str:
    """A moment as objects carry it."""
    there = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f"{there.isoformat()[:19]}Z"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a write is when it is mutated: `settle` takes up a patched object as if it had been sent so, `admit` asks
    again what is asked of every write."""

    settle: Callable[[Object], Object]
    admit: Callable[[Object], None]


class Mutator(Protocol):
    """Who changes writes before the rules of their kind are asked."""

    def mutates(self, write: Write) -> bool:
        """Whether a write at this place may be changed at all."""

    def mutated(self, write: Write, stage: Stage) -> Object:
        """What becomes of it; refused by raising."""

    def refuse_mutation(self, write: Write) -> None:
        """Refuse a write that would be changed, and is of a kind that cannot be."""


class Registry:
    """The objects of the cluster, written by the rules."""

    def __init__(
        self,
        store: ObjectStore,
        catalogue: Catalogue,
        *,
        clock: Callable[[], datetime],
        rng: random.Random | None = None,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.store = store
        self.catalogue = catalogue
        self.clock = clock
        #: Called after each stored write with the kind, the state before and the state after (None: not there).
        self.observers: list[Callable[[Kind, Object | None, Object | None], None]] = []
        #: Called with a write that broke no rule, before it is stored. They refuse by raising.
        self.validators: list[Callable[[Write], None]] = []
        #: Called with a change of an object's status; the errors they return stand before those of its rules.
        self.status_rights: list[Callable[[Write], list[FieldError]]] = []
        #: Asked about every write before its rules are.
        self.mutator: Mutator | None = None
        self._rng = rng or random.Random()
        self._new_uid = new_uid

    def now(self) -> str:
        """This moment as objects carry it."""
        return timestamp(self.clock())

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """One object, or 404."""
        obj = self.store.get(kind.key, (namespace if kind.namespaced else "", name))
        if obj is None:
            raise not_found(kind.plural, kind.group, name)
        return obj

    def create(
        self, kind: Kind, namespace: str, given: Object, *, manager: str | None = "", dry_run: bool = False
    ) -> Object:
        """Store a new object. `manager` is who gets its fields; None if the object says so itself."""
        obj = _cleaned(given, kind)
        metadata = obj["metadata"]
        self._set_namespace(kind, namespace, metadata)
        if metadata.get("resourceVersion", "") not in ("", "0"):
            raise ApiStatus(500, "", "resourceVersion should not be set on objects to be created")
        self._admit(kind, namespace, obj)
        if self._is_mutated(Write(kind, None, obj)):
            obj, manager = self._mutated(Write(kind, None, obj, dry_run=dry_run), namespace, manager), None
            metadata = obj["metadata"]
        generated = not metadata.get("name") and bool(metadata.get("generateName"))
        if generated:
            metadata["name"] = self._generated(kind, namespace, metadata["generateName"])
        self._check_name(kind, metadata, generated=generated)
        for name in (*_SERVER_SET, "selfLink", "resourceVersion"):
            metadata.pop(name, None)
        metadata["uid"] = self._new_uid()
        metadata["creationTimestamp"] = self.now()
        if kind.counted or kind.custom:
            metadata["generation"] = 1
        if "status" in kind.subresources and kind.kind != "Node":
            obj.pop("status", None)
        rules.default(obj, kind, None)
        self._check(kind, obj, rules.creation_errors(obj, kind))
        self.validate(Write(kind, None, obj, dry_run=dry_run))
        if self.store.get(kind.key, key_of(obj)) is not None:
            raise already_exists(kind.plural, kind.group, metadata["name"])
        if manager is not None:
            obj = self._tracked(kind, None, obj, manager, "")
        if dry_run:
            return obj
        stored = self.store.put(kind.key, obj)
        self._tell(kind, None, stored)
        return stored

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        given: Object,
        *,
        subresource: str = "",
        manager: str | None = "",
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Store a new state of an object; whether it was made by this is the second answer."""
        if self._is_mutated(Write(kind, _EXISTING, given, subresource)):
            given, manager = self._updated(kind, namespace, name, given, subresource, manager, dry_run=dry_run)
        # Of the rest a write to the status changes nothing.
        if subresource == "status":
            given = {part: value for part, value in given.items() if part in _OF_STATUS}
        obj = _cleaned(given, kind)
        metadata = obj["metadata"]
        if metadata.get("name", name) != name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
            )
        metadata["name"] = name
        self._set_namespace(kind, namespace, metadata)
        old = self.store.get(kind.key, (namespace, name))
        if old is None:
            if kind.create_on_update and not subresource:
                return self.create(kind, namespace, given, manager=manager, dry_run=dry_run), True
            raise not_found(kind.plural, kind.group, name)
        self._check_version(kind, metadata, old)
        new = self._merged(kind, obj, old, subresource)
        if subresource == "":
            rules.note_change(new, old, kind)
            self._check(kind, new, [*_finalizer_errors(new, old), *rules.change_errors(new, old, kind)], old)
        else:
            write = Write(kind, old, new, subresource, dry_run=dry_run)
            missing = [error for rights in self.status_rights for error in rights(write)]
            self._check(kind, new, [], old, subresource, missing)
        self.validate(Write(kind, old, new, subresource, dry_run=dry_run))
        if kind.counted or kind.custom:
            self._count(new, old)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if manager is not None:
            new = self._tracked(kind, old, new, manager, subresource)
        if new == old or dry_run:
            return (old if new == old else new), False
        return self.write(kind, new, old), False

    def write(self, kind: Kind, new: Object, old: Object) -> Object:
        """Store a state that has been checked; an object that only waited for its finalizers ends here."""
        if _is_over(new):
            self.remove(kind, new, old)
            return new
        stored = self.store.put(kind.key, new)
        self._tell(kind, old, stored)
        return stored

    def remove(self, kind: Kind, last: Object, old: Object) -> Object:
        """Take an object away; it is gone for all before anything that follows from it happens."""
        ended = self.store.remove(kind.key, last)
        self._tell(kind, old, None)
        return ended

    def _tell(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        for observer in tuple(self.observers):
            observer(kind.stored, before, after)

    def validate(self, write: Write) -> None:
        """Ask who may refuse a write."""
        for validator in self.validators:
            validator(write)

    def refuse_mutation(self, write: Write) -> None:
        """Refuse a write that a policy would change, where no write is changed here."""
        if self.mutator is not None:
            self.mutator.refuse_mutation(write)

    def _is_mutated(self, write: Write) -> bool:
        return self.mutator is not None and self.mutator.mutates(write)

    def _updated(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        given: Object,
        subresource: str,
        manager: str | None,
        *,
        dry_run: bool,
    ) -> tuple[Object, str | None]:
        """The state that is sent as policies leave it, and who gets its fields: None once they are recorded."""
        old = self.store.get(kind.key, (namespace if kind.namespaced else "", name))
        if old is None:
            return given, manager  # there is nothing to change, or it will be made
        obj = _cleaned(given, kind)
        where = {"name": name, "namespace": namespace} if kind.namespaced else {"name": name}
        obj["metadata"] = where | obj["metadata"]
        return self._mutated(Write(kind, old, obj, subresource, dry_run=dry_run), namespace, manager), None

    def _mutated(self, write: Write, namespace: str, manager: str | None) -> Object:
        """What policies make of an object that was sent.

        Who manages which field is recorded before: what a policy adds belongs to nobody.
        """
        assert self.mutator is not None
        kind, old = write.kind, write.before
        obj = _settled(write.after, kind, old)
        if manager is not None:
            merged = obj if old is None else self._merged(kind, copied(obj), old, write.subresource)
            tracked = self._tracked(kind, old, merged, manager, write.subresource)
            obj["metadata"]["managedFields"] = tracked["metadata"].get("managedFields", [])
        records = obj["metadata"].get("managedFields")

        def settle(patched: Object) -> Object:
            check_decoded(patched, write.after, kind.stored)
            settled = _settled(patched, kind, old)
            if settled["metadata"].get("managedFields") != (records or None):
                raise bad_request("the embedded API server lets no policy change metadata.managedFields")
            if records:
                settled["metadata"]["managedFields"] = records
            return settled

        def admit(changed: Object) -> None:
            self._set_namespace(kind, namespace, changed["metadata"])
            if old is None:
                self._admit(kind, namespace, changed)

        after = self.mutator.mutated(
            Write(kind, old, obj, write.subresource, dry_run=write.dry_run), Stage(settle, admit)
        )
        self._set_namespace(kind, namespace, after["metadata"])
        return after

    def _tracked(self, kind: Kind, old: Object | None, new: Object, manager: str, subresource: str) -> Object:
        """The new state with the record of who manages which field."""
        return track_update(
            old, new, manager=manager, now=self.now(), kind=kind.kind, group=kind.key[0], subresource=subresource
        )

    def _set_namespace(self, kind: Kind, namespace: str, metadata: Object) -> None:
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace

    def _generated(self, kind: Kind, namespace: str, base: str) -> str:
        """A name that begins so; a few tries to find one that is free."""
        name = ""
        for _ in range(_NAME_TRIES):
            name = base[:_LONGEST_BASE] + "".join(self._rng.choices(_LETTERS, k=5))
            if self.store.get(kind.key, (namespace if kind.namespaced else "", name)) is None:
                break
        return name

    def _admit(self, kind: Kind, namespace: str, obj: Object) -> None:
        """What the real server's admission plugins refuse before validation."""
        if not kind.namespaced:
            return
        # Admission comes before a name is generated, so its refusals know only how the name would begin.
        name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
        home = self.store.get(NAMESPACES.key, ("", namespace))
        if home is None:
            raise not_found("namespaces", "", namespace)
        if "deletionTimestamp" in home["metadata"]:
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind.plural, kind.group, name, why, [cause])
        if kind.key == ("", "pods"):
            self._admit_priority(obj)
            account = (obj.get("spec") or {}).get("serviceAccountName") or "default"
            if self.store.get(SERVICE_ACCOUNTS.key, (namespace, account)) is None:
                why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
                raise forbidden(kind.plural, kind.group, name, why)

    def _admit_priority(self, pod: Object) -> None:
        """A pod's class of priority becomes its number."""
        spec = pod.get("spec") or {}
        name = spec.get("priorityClassName")
        if not name:
            return
        found = self.store.get(("scheduling.k8s.io", "priorityclasses"), ("", name))
        if found is None:
            why = f"no PriorityClass with name {name} was found"
            name_or_base = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
            raise forbidden("pods", "", name_or_base, why)
        value = found.get("value", 0)
        if spec.get("priority", value) != value:
            why = (
                f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
                f"priority admission controller computed {value} from the given PriorityClass name"
            )
            raise forbidden("pods", "", pod["metadata"].get("name") or pod["metadata"].get("generateName", ""), why)
        spec["priority"] = value
        spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")

    def _check_name(self, kind: Kind, metadata: Object, *, generated: bool) -> None:
        name = metadata.get("name", "")
        if not name:
            raise invalid(kind.kind, kind.group, "", [required("metadata.name", "name or generateName is required")])
        errors = []
        if generated:
            base = metadata["generateName"]
            found = names.name_errors(base[:-1] + "a" if base.endswith("-") else base, kind)
            errors += [invalid_value("metadata.generateName", base, error) for error in found]
        errors += [invalid_value("metadata.name", name, error) for error in names.name_errors(name, kind)]
        if errors:
            raise invalid(kind.kind, kind.group, name, errors)

    def _check(
        self,
        kind: Kind,
        obj: Object,
        change_errors: list[Any],
        old: Object | None = None,
        subresource: str = "",
        missing_rights: Sequence[FieldError] = (),
    ) -> None:
        errors = [
            *names.metadata_errors(obj["metadata"]),
            *missing_rights,
            *rules.errors(obj, kind, old, subresource),
            *change_errors,
        ]
        if errors:
            raise invalid(kind.kind, kind.stored.group, obj["metadata"]["name"], errors)

    def _check_version(self, kind: Kind, metadata: Object, old: Object) -> None:
        name, present = old["metadata"]["name"], old["metadata"]
        version = metadata.get("resourceVersion", "")
        if version in ("", "0"):
            if not kind.unconditional:
                why = "must be specified for an update"
                raise invalid(kind.plural, kind.group, name, [invalid_value("metadata.resourceVersion", 0, why)])
        elif not version.isdigit():
            raise ApiStatus(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
        uid = metadata.get("uid", "")
        if uid and uid != present["uid"]:
            raise uid_conflict(kind, old, uid)
        if version not in ("", "0") and version != present["resourceVersion"]:
            raise conflict(kind.plural, kind.group, name, MODIFIED)

    def _merged(self, kind: Kind, obj: Object, old: Object, subresource: str) -> Object:
        """The new state: what this kind of write may change from the client, the rest as it is stored."""
        present = old["metadata"]
        metadata = obj["metadata"]
        for name in (*_SERVER_SET, "selfLink"):
            metadata.pop(name, None)
            if name in present:
                metadata[name] = present[name]
        if "managedFields" in present:
            metadata.setdefault("managedFields", present["managedFields"])
        if subresource == "status":
            obj = {**{name: value for name, value in old.items() if name != "status"}, "metadata": metadata} | (
                {"status": obj["status"]} if "status" in obj else {}
            )
            obj["metadata"] = _status_metadata(kind, metadata, present)
            if kind.key != PODS.key:
                obj = copied(obj)
        elif "status" in kind.subresources:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = copied(old["status"])
        if kind.key == NAMESPACES.key and subresource != "finalize":
            obj["spec"] = copied(old.get("spec", {}))
        if kind.key == PODS.key and obj.get("spec") == old["spec"]:
            obj["spec"] = old["spec"]  # the same: nothing of it is filled in or checked again
        rules.default(obj, kind, old)
        return obj

    def _count(self, new: Object, old: Object) -> None:
        def counted(obj: Object) -> Object:
            return {name: value for name, value in obj.items() if name not in ("metadata", "status")}

        if counted(new) != counted(old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _settled(given: Object, kind: Kind, old: Object | None) -> Object:
    """An object as policies see it: in the form that the server keeps, and filled in, but for what it does itself when
    the object is stored."""
    obj = _cleaned(given, kind)
    status = obj.get("status")
    rules.default(obj, kind, old)
    if old is None and "status" in kind.subresources and kind.kind != "Node":
        obj["status"] = status or {}
    return obj


def undecodable(status: ApiStatus) -> str:
    """Why an object cannot be decoded, without the words that are there for whoever sent it."""
    return status.message.partition(" cannot be handled as a ")[2].partition(": ")[2] or status.message


def uid_conflict(kind: Kind, present: Object, uid: str) -> ApiStatus:
    """409 for an object that is another than the one meant."""
    namespace, name = key_of(present)
    path = "/".join(part for part in ("/registry", kind.plural, namespace, name) if part)
    why = (
        f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {uid}, UID in object meta: {present['metadata']['uid']}"
    )
    return conflict(kind.plural, kind.group, name, why)


def _finalizer_errors(new: Object, old: Object) -> list[FieldError]:
    """An object on its way out takes no new finalizers."""
    if "deletionTimestamp" not in old["metadata"]:
        return []
    before = old["metadata"].get("finalizers") or []
    more = [name for name in new["metadata"].get("finalizers") or [] if name not in before]
    if not more:
        return []
    listed = ", ".join(f'"{name}"' for name in more)
    why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
    return [forbidden_value("metadata.finalizers", why)]


def _status_metadata(kind: Kind, metadata: Object, present: Object) -> Object:
    """Which metadata a write to the status subresource may change: it differs by kind."""
    if kind.custom or kind.group == "resource.k8s.io":
        kept = dict(present)
    elif kind.group in ("apps", "batch"):
        kept = {name: value for name, value in metadata.items() if name != "labels"}
        if "labels" in present:
            kept["labels"] = present["labels"]
    else:
        kept = metadata
    if "managedFields" in metadata:
        kept["managedFields"] = metadata["managedFields"]
    return kept


def _is_over(obj: Object) -> bool:
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not (obj["kind"] == "Namespace" and obj.get("spec", {}).get("finalizers"))
    )


def _cleaned(given: Object, kind: Kind) -> Object:
    """A copy in the form the server keeps: with its kind, without nulls and without empty metadata.

    Only the records of who manages what are shared with the given object: nobody changes them in place.
    """
    given_metadata = dict(given.get("metadata") or {})
    records = given_metadata.pop("managedFields", None)
    obj: Object = {name: value for name, value in given.items() if name != "metadata"}
    obj = copied(obj) if kind.custom else _without_nulls(obj)
    metadata = _without_nulls(given_metadata) | {"managedFields": records}
    for name in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields", "generateName", "name"):
        if name in metadata and not metadata[name]:
            del metadata[name]
    if not metadata.get("namespace", "-"):
        del metadata["namespace"]
    rest = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion", "metadata")}
    return {"kind": kind.kind, "apiVersion": kind.stored.api_version, "metadata": metadata, **rest}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None and item != []}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
