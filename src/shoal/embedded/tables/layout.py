"""The shape of a table for one kind: its columns, and the cells of one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
