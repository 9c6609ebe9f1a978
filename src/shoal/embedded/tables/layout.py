"""The shape of a table for one kind: its columns, and the cells of one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

# Reads parts of plain objects whatever they hold, and puts times and selectors the way kubectl shows them.


NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"


def part(value: Any, *path: str) -> Any:
    """What stands at the path; None for nothing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text(value: Any, *path: str) -> str:
    """The string at the path, or an empty one."""
    found = part(value, *path)
    return found if isinstance(found, str) else ""


def number(value: Any, *path: str) -> int:
    """The whole number at the path, or 0."""
    found = part(value, *path)
    return found if isinstance(found, int) else 0


def mapping(value: Any, *path: str) -> dict[str, Any]:
    """The object at the path, or an empty one."""
    found = part(value, *path)
    return found if isinstance(found, dict) else {}


def objects(value: Any, *path: str) -> list[dict[str, Any]]:
    """The objects in the list at the path."""
    found = part(value, *path)
    return [element for element in found if isinstance(element, dict)] if isinstance(found, list) else []


def condition(value: Any, type_: str) -> dict[str, Any]:
    """The first condition of that type, or an empty one."""
    return next((entry for entry in objects(value, "status", "conditions") if text(entry, "type") == type_), {})


def is_true(value: Any, type_: str) -> bool:
    """Whether the condition of that type holds."""
    return text(condition(value, type_), "status") == "True"


def moment(value: Any, *path: str) -> datetime | None:
    """The time at the path."""
    try:
        found = datetime.fromisoformat(text(value, *path))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def since(when: datetime | None, now: datetime) -> str:
    """How long ago that was."""
    return UNKNOWN if when is None else human_duration(now - when)


def age(value: Any, now: datetime) -> str:
    """How long the object has been there."""
    return since(moment(value, "metadata", "creationTimestamp"), now)


def human_duration(span: timedelta) -> str:
    """A duration in at most two units, the finer one only while it tells something."""
    seconds = int(span.total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    days = hours // 24
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    return _pair(days // 365, "y", days % 365 if days < 365 * 8 else 0, "d")


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def labels_text(labels: dict[str, Any]) -> str:
    """Labels in one line."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels)) or NONE


def selector_text(selector: Any) -> str:
    """A label selector in one line; empty when it selects everything."""
    pieces = [(key, f"{key}={value}") for key, value in mapping(selector, "matchLabels").items()]
    for expression in objects(selector, "matchExpressions"):
        key, operator = text(expression, "key"), text(expression, "operator")
        values = part(expression, "values")
        joined = ",".join(sorted(map(str, values if isinstance(values, list) else [])))
        shapes = {"In": f"{key} in ({joined})", "NotIn": f"{key} notin ({joined})", "DoesNotExist": f"!{key}"}
        pieces.append((key, shapes.get(operator, key)))
    return ",".join(piece for _, piece in sorted(pieces, key=lambda pair: pair[0]))


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `wide` ones are for `-o wide`."""

    name: str
    type: str = "string"
    wide: bool = False
    about: str = ""

    def definition(self) -> dict[str, Any]:
        """The column in the table's head."""
        return {
            "name": self.name,
            "type": self.type,
            "format": "name" if self.name == "Name" else "",
            "description": self.about,
            "priority": int(self.wide),
        }


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns, and what stands in them; `conditions` marks the row of an object that is over."""

    columns: tuple[Column, ...]
    cells: Callable[[dict[str, Any], datetime], list[Any]]
    conditions: Callable[[dict[str, Any]], list[dict[str, str]]] = lambda _: []


def columns(
    *names: str, wide: tuple[str, ...] = (), integers: tuple[str, ...] = (), booleans: tuple[str, ...] = ()
) -> tuple[Column, ...]:
    """Columns of strings unless said otherwise, the wide ones last."""
    types = dict.fromkeys(integers, "integer") | dict.fromkeys(booleans, "boolean")
    narrow = (Column(name, types.get(name, "string")) for name in names)
    return (*narrow, *(Column(name, wide=True) for name in wide))
