"""Events as client-go's recorder writes them: equal ones are counted, many alike are combined, a flood is cut off."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import EVENTS
from shoal.embedded.registry import Registry, timestamp
from shoal.embedded.store import Object
from shoal.model.bounded_cache import BoundedCache

_ALIKE: Final = 10
_ALIKE_FOR: Final = timedelta(minutes=10)
_BURST: Final = 25
_REFILL: Final = timedelta(minutes=5)
_KEPT: Final = 4096


@dataclass(slots=True)
class _Alike:
    """The different messages of one reason about one object of late."""

    messages: dict[str, None] = field(default_factory=dict)
    last: datetime | None = None


@dataclass(slots=True)
class _Allowance:
    """How many more events about one object may be written."""

    left: float
    at: datetime


class EventWriter:
    """Writes the events of a component, or of several of one program. Nobody manages their fields without a manager."""

    def __init__(self, registry: Registry, component: str, *, manager: str | None = None) -> None:
        self._registry = registry
        self._component = component
        self._manager = manager
        self._alike: BoundedCache[Any, _Alike] = BoundedCache(_KEPT)
        self._allowances: BoundedCache[Any, _Allowance] = BoundedCache(_KEPT)
        #: The names of the events that were written, by what they say.
        self._written: BoundedCache[Any, str] = BoundedCache(_KEPT)

    def tell(
        self,
        about: Object,
        reason: str,
        message: str,
        *,
        warning: bool = False,
        component: str = "",
        host: str = "",
        field_path: str = "",
    ) -> None:
        """Tell of something that happened to an object, or to the part of it at `field_path`."""
        now = self._registry.clock()
        kind = "Warning" if warning else "Normal"
        source = {"component": component or self._component, **({"host": host} if host else {})}
        of = (*source.values(), about["metadata"]["uid"], kind)
        message, key = self._combined((*of, field_path, reason), message, now)
        if not self._allowed(of, now):
            return
        namespace = about["metadata"].get("namespace", "default")
        try:
            if self._count(namespace, key, message, now):
                return
            event = {"reason": reason, "message": message, "type": kind, "source": source}
            self._write(about, field_path, event, key, now)
        except ApiStatus:
            return  # as in the real one, an event that cannot be written is given up: its namespace ends, mostly

    def _combined(self, reason: Any, message: str, now: datetime) -> tuple[str, Any]:
        """The message, and what it is counted under: after ten different ones they go under one."""
        alike = self._alike.of(reason, _Alike)
        if alike.last is not None and now - alike.last > _ALIKE_FOR:
            alike.messages.clear()
        alike.messages[message] = None
        alike.last = now
        if len(alike.messages) < _ALIKE:
            return message, (reason, message)
        alike.messages.pop(next(iter(alike.messages)))
        return f"(combined from similar events): {message}", reason

    def _allowed(self, of: Any, now: datetime) -> bool:
        allowance = self._allowances.of(of, lambda: _Allowance(_BURST, now))
        allowance.left = min(_BURST, allowance.left + (now - allowance.at) / _REFILL)
        allowance.at = now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    def _count(self, namespace: str, key: Any, message: str, now: datetime) -> bool:
        """Count one more of an event that is there; False if it is not."""
        old = self._registry.store.get(EVENTS.key, (namespace, self._written.get(key) or ""))
        if old is None:
            return False
        new = {**old, "count": old.get("count", 1) + 1, "message": message, "lastTimestamp": timestamp(now)}
        self._registry.update(EVENTS, namespace, old["metadata"]["name"], new, manager=None)
        return True

    def _write(self, about: Object, field_path: str, event: Object, key: Any, now: datetime) -> None:
        metadata, when = about["metadata"], timestamp(now)
        # The version tells events of one moment apart.
        number = int(now.timestamp() * 1_000_000) * 1000 + self._registry.store.version % 1000
        event = {
            "metadata": {"name": f"{metadata['name']}.{number:x}"},
            "involvedObject": _reference(about, field_path),
            **event,
            "count": 1,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "reportingComponent": event["source"]["component"],
            "reportingInstance": event["source"].get("host", ""),
        }
        namespace = metadata.get("namespace", "default")
        written = self._registry.create(EVENTS, namespace, event, manager=self._manager)
        self._written.put(key, written["metadata"]["name"])


def _reference(about: Object, field_path: str) -> Object:
    metadata = about["metadata"]
    # Who tells of nodes knows their names alone.
    names = ("namespace", "name", "uid", *(("resourceVersion",) if about["kind"] != "Node" else ()))
    reference = {name: metadata[name] for name in names if name in metadata}
    reference |= {"kind": about["kind"], "apiVersion": about["apiVersion"]}
    return reference | ({"fieldPath": field_path} if field_path else {})
