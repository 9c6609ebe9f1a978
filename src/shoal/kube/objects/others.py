"""The smaller kinds: Lease, ConfigMap, Secret, Event. Complete but for managedFields, so they may be written back."""

from __future__ import annotations

import msgspec

from shoal.kube.objects.meta import Base, Object, ObjectReference


class LeaseSpec(Base, frozen=True, kw_only=True):
    """Who holds a lease and since when, by the holder's own clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(Object, frozen=True, kw_only=True):
    """A lease of coordination.k8s.io/v1."""

    spec: LeaseSpec = LeaseSpec()


class ConfigMap(Object, frozen=True, kw_only=True):
    """Plain configuration. `binary_data` stays in base64, as it came."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    binary_data: dict[str, str] = msgspec.field(default_factory=dict)
    immutable: bool | None = None


class Secret(Object, frozen=True, kw_only=True):
    """A secret; its values stay in base64, as they came, and never show in its repr."""

    type: str = ""
    data: dict[str, str] = msgspec.field(default_factory=dict)
    string_data: dict[str, str] = msgspec.field(default_factory=dict)
    immutable: bool | None = None

    def __repr__(self) -> str:
        where = f"{self.metadata.namespace}/{self.metadata.name}"
        keys = ", ".join(sorted({*self.data, *self.string_data}))
        return f"Secret({where}, type={self.type!r}, keys=[{keys}])"

    # msgspec gives rich users __rich_repr__ with every field.
    def __rich_repr__(self) -> tuple[str]:  # type: ignore[override]
        return (repr(self),)


class EventSource(Base, frozen=True, kw_only=True):
    """Who reports an event."""

    component: str = ""
    host: str = ""


class EventSeries(Base, frozen=True, kw_only=True):
    """How the newer event API counts repetitions."""

    count: int = 0
    last_observed_time: str | None = None


class Event(Object, frozen=True, kw_only=True):
    """An event of core/v1."""

    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    action: str = ""
    count: int = 0
    source: EventSource = EventSource()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
