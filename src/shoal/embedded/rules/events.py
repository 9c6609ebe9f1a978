"""Events, which two APIs serve: core, and events.k8s.io with other names for the same fields and stricter rules."""

from __future__ import annotations

from typing import Any, Final

from shoal.embedded.errors import FieldError, invalid_value, required
from shoal.embedded.names import label_key_errors

Object = dict[str, Any]
#: events.k8s.io's names where the core API, in whose form events are stored, has others.
_CORE_NAMES: Final = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_NEW_NAMES: Final = {core: new for new, core in _CORE_NAMES.items()}
#: Left out by events.k8s.io when they are empty; the core API shows them.
_SHOWN_WHEN_SET: Final = ("reportingController", "reportingInstance")
#: Of a new event's fields, those that only the old API's clients fill.
_OLD: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_UNCHANGED: Final = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)
_LONGEST: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def to_core(event: Object) -> Object:
    """An event of events.k8s.io in the core API's names."""
    named = {_CORE_NAMES.get(name, name): value for name, value in event.items()}
    return {**named, "apiVersion": "v1"} if "apiVersion" in named else named


def from_core(event: Object) -> Object:
    """A stored event in the names of events.k8s.io."""
    named = {_NEW_NAMES.get(name, name): value for name, value in event.items()}
    for name in _SHOWN_WHEN_SET:
        if not named.get(name):
            named.pop(name, None)
    return {**named, "apiVersion": "events.k8s.io/v1"}


def default_event(event: Object) -> None:
    """Fill in what the server adds."""
    for name in ("involvedObject", "source"):
        event.setdefault(name, {})
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        event.setdefault(name, None)
    for name in ("reportingComponent", "reportingInstance"):
        event.setdefault(name, "")


def event_errors(event: Object, *, new: bool) -> list[FieldError]:
    """What both APIs refuse; `new` says in whose names."""
    namespace, own = event["involvedObject"].get("namespace", ""), event["metadata"]["namespace"]
    elsewhere = invalid_value("involvedObject.namespace", namespace, "does not match event.namespace")
    if not event["eventTime"]:
        # An event is where its object is; that of an object without a namespace is in `default`.
        return [elsewhere] if own != (namespace or "default") else []
    faults = [elsewhere] if not namespace and own not in ("default", "kube-system") else []
    reporter, path = event["reportingComponent"], "reportingController" if new else "reportingComponent"
    if not reporter:
        faults.append(required(path))
    faults += [invalid_value(path, reporter, why) for why in label_key_errors(reporter)]
    for name, longest in _LONGEST.items():
        text = event.get(name) or ""
        if not text and name != "message":
            faults.append(required(name))
        if len(text.encode()) > longest:
            faults.append(invalid_value(name, "", f"can have at most {longest} characters"))
    return faults


def creation_errors(event: Object) -> list[FieldError]:
    """What events.k8s.io refuses of a new event beyond that."""
    faults = _series_errors(event)
    if not event["eventTime"]:
        faults.append(required("eventTime"))
    kind = event.get("type", "")
    if kind not in ("Normal", "Warning"):
        faults.append(invalid_value("type", "", f"has invalid value: {kind}"))
    return [*faults, *(invalid_value(name, "", "needs to be unset") for name in _OLD if event.get(name))]


def change_errors(new: Object, old: Object) -> list[FieldError]:
    """What events.k8s.io refuses of a change: of an event that is told, only its series goes on."""
    faults = _series_errors(new) if new.get("series") != old.get("series") else []
    for name in _UNCHANGED:
        if new.get(name) != old.get(name):
            value = _reference(new[name]) if name == "involvedObject" else new.get(name, "")
            faults.append(invalid_value(name, value, "field is immutable"))
    return faults


def _series_errors(event: Object) -> list[FieldError]:
    series = event.get("series")
    if series is None:
        return []
    faults = []
    if series.get("count", 0) < 2:
        faults.append(invalid_value("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        faults.append(required("series.lastObservedTime"))
    return faults


def _reference(of: Object) -> Object:
    """A reference to an object as Go prints it."""
    names = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    words = {"uid": "UID", "apiVersion": "APIVersion"}
    return {words.get(name, name[0].upper() + name[1:]): of.get(name, "") for name in names}
