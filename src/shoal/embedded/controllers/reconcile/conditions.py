"""Conditions and counters of a status, written as the real controllers write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from shoal.embedded.registry import timestamp
from shoal.embedded.store import Object


def found(conditions: Iterable[Object], kind: str) -> Object | None:
    """The condition of that type."""
    return next((one for one in conditions if one.get("type") == kind), None)


def without(conditions: Iterable[Object], kind: str) -> list[Object]:
    """All but the condition of that type."""
    return [one for one in conditions if one.get("type") != kind]


def made(kind: str, status: str, reason: str, message: str, now: datetime) -> Object:
    """A condition that began now."""
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": timestamp(now),
        "reason": reason,
        "message": message,
    }


def counters(values: Mapping[str, Any], *, shown: Iterable[str] = ()) -> Object:
    """A status without what is zero or empty, but for the fields that are shown always; None is never shown."""
    always = frozenset(shown)
    return {name: value for name, value in values.items() if value or (name in always and value is not None)}


def scaled(value: Any, total: int, *, up: bool) -> int:
    """A number, or a percentage of the total rounded up or down."""
    if isinstance(value, str):
        part = int(value.removesuffix("%")) * total
        return -(-part // 100) if up else part // 100
    return int(value or 0)
