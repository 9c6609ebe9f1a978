"""The columns that a definition wants in tables: `additionalPrinterColumns`, with the simple JSONPath they use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from shoal.embedded.tables.layout import Column, Layout
from shoal.embedded.tables.reading import moment, since, text

_STEP: Final = re.compile(
    r"\.?(?P<name>(?:\\\.|[^.\[\]])+)|\[(?P<number>-?\d+)\]|(?P<all>\[\*\]|\.\*)|\['(?P<quoted>(?:\\.|[^'])*)'\]"
    r"""|\[\?\(\s*@\.(?P<key>[\w.\-/]+)\s*==\s*["'](?P<value>[^"']*)["']\s*\)\]"""
)


def layout_of(served: Mapping[str, Any]) -> Layout | None:
    """The table of a version with columns of its own; None if it has none."""
    wanted = [column for column in served.get("additionalPrinterColumns") or () if column.get("jsonPath")]
    if not wanted:
        return None
    columns = (
        Column("Name"),
        *(
            Column(
                str(column["name"]),
                str(column["type"]),
                wide=bool(column.get("priority")),
                about=column.get("description")
                or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
            )
            for column in wanted
        ),
    )
    return Layout(columns, lambda obj, now: [text(obj, "metadata", "name"), *(_cell(obj, one, now) for one in wanted)])


def found_at(value: Any, path: str) -> list[Any]:
    """What a JSONPath leads to; nothing if it has forms that are not known."""
    values, at = [value], 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return []
        values = [item for one in values for item in _follow(one, step)]
        at = step.end()
    return values


def _follow(value: Any, step: re.Match[str]) -> list[Any]:
    name = step["name"] if step["name"] is not None else step["quoted"]
    if name is not None:
        name = name.replace("\\", "")
        return [value[name]] if isinstance(value, dict) and name in value else []
    if step["all"]:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not isinstance(value, list):
        return []
    if step["number"]:
        number = int(step["number"])
        return [value[number]] if -len(value) <= number < len(value) else []
    return [item for item in value if step["value"] in map(str, found_at(item, f".{step['key']}"))]


def _cell(obj: dict[str, Any], column: Mapping[str, Any], now: datetime) -> Any:
    found = found_at(obj, column["jsonPath"])
    value = found[0] if found else None
    kind = column["type"]
    if value is None:
        return None
    if kind == "integer":
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "number":
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "date":
        return since(moment({"then": value}, "then"), now)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
