"""What all Kubernetes objects share: metadata, lists, and the server's own Status.

A struct here is a view. Fields that no part of Shoal reads are left out and lost on decoding, so a slim object must
not be written back whole; `shoal.kube.resources` says which kinds are complete.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Root of the structs. Trees of frozen values hold no cycles, so the collector need not look at them."""


class OwnerReference(Base, frozen=True, kw_only=True):
    """The object that this one goes with."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Base, frozen=True, kw_only=True):
    """Identity and bookkeeping of an object, without managedFields."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Object(Base, frozen=True, kw_only=True):
    """Any object with metadata."""

    metadata: ObjectMeta = ObjectMeta()


class ListMeta(Base, frozen=True, kw_only=True):
    """Where a list stands, and how to go on with it."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ListOf(Base, Generic[T], frozen=True, kw_only=True):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = ()


class StatusCause(Base, frozen=True, kw_only=True):
    """One reason of a refusal, and the field that it is about."""

    reason: str = ""
    field: str = ""
    message: str = ""


class StatusDetails(Base, frozen=True, kw_only=True):
    """The part of a Status that says when to come back, and what was wrong where."""

    retry_after_seconds: int | None = None
    causes: tuple[StatusCause, ...] | None = ()


class Status(Base, frozen=True, kw_only=True):
    """What the API server says when it has no object to return."""

    kind: str = ""
    status: str = ""
    code: int = 0
    reason: str | None = None
    message: str | None = None
    details: StatusDetails | None = None


class ObjectReference(Base, frozen=True, kw_only=True):
    """A pointer to an object, as events carry it."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
