"""Fields that a kind does not have, and fields that are there twice: found, named as the real server names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from shoal.embedded.fields.table import Field, Struct

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_LAYOUTS: Final = {"time": "2006-01-02T15:04:05Z07:00", "microtime": "2006-01-02T15:04:05.000000Z07:00"}


#: How messages call the type of a number.
NUMERIC: Final = "numeric (int or float)"


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON in which a name may stand twice."""


def load(content: bytes) -> tuple[Any, Any]:
    """JSON as plain data, and again with what plain data cannot hold: names that stand twice. Usually the same."""
    doubled = False

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        found = dict(pairs)
        doubled = doubled or len(found) != len(pairs)
        return found

    value = json.loads(content, object_pairs_hook=made)
    return value, json.loads(content, object_pairs_hook=_Pairs) if doubled else value


def faults(value: Any, struct: Struct | None, path: str = "") -> Iterator[str]:
    """`unknown field "spec.contianers"` and its like, in the order of the document. Without a struct any field goes."""
    yield from _object(value, struct, path)


def go_text(value: Any) -> str:
    """Data as Go prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{name}:{go_text(item)}' for name, item in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "<nil>", True: "true", False: "false"}[value]
    return str(value)


class TimeError(ValueError):
    """A time that is none, in the words of Go."""


def strip(obj: dict[str, Any], struct: Struct) -> None:
    """Take out, in place, what the kind does not have; TimeError if a time is none."""
    members = struct.members
    for name in [name for name in obj if name not in members]:
        del obj[name]
    for name, value in obj.items():
        field = members[name]
        if field.of in _LAYOUTS and isinstance(value, str) and not _TIME.fullmatch(value):
            raise TimeError(f'parsing time "{value}" as "{_LAYOUTS[field.of]}": cannot parse "{value}" as "2006"')
        if field.struct is not None:
            for _, item in _structs(value, field.shape, ""):
                if isinstance(item, dict):
                    strip(item, field.struct)


@dataclass(frozen=True, slots=True)
class WrongType:
    """A value that its field cannot hold: where, the struct and the field that it is in, and what would be right."""

    path: str
    struct: str
    field: Field
    wanted: str
    value: Any


def wrong_types(value: Any, struct: Struct, path: str = "", *, nulls: bool = False) -> Iterator[WrongType]:
    """Values of a type that is not their field's. Nulls stand for nothing, unless they are counted as values; fields
    that the kind does not have are left to `faults`."""
    for name, item in _items(value):
        field = struct.members.get(name)
        if field is not None:
            where = f"{path}.{name}" if path else name
            yield from _wrong(item, field, field.shape, struct.name, where, nulls=nulls)


def _wrong(value: Any, field: Field, shape: str, owner: str, path: str, *, nulls: bool) -> Iterator[WrongType]:
    if value is None and not nulls:
        return
    wanted, rights = _wanted(field, shape)
    if rights and (not isinstance(value, rights) or (isinstance(value, bool) and bool not in rights)):
        yield WrongType(path, owner, field, wanted, value)
    elif shape.startswith("[]"):
        for number, item in enumerate(value):
            yield from _wrong(item, field, shape[2:], owner, f"{path}[{number}]", nulls=nulls)
    elif shape:
        for name, item in value.items():
            yield from _wrong(item, field, shape[2:], owner, f"{path}.{name}", nulls=nulls)
    elif field.struct is not None:
        yield from wrong_types(value, field.struct, path, nulls=nulls)


def _wanted(field: Field, shape: str) -> tuple[str, tuple[type, ...]]:
    """What a value must be, in words and in Python; anything goes without types."""
    if shape.startswith("[]"):
        return "list", (list,)
    if shape or field.struct is not None:
        return "map", (dict,)
    return _SCALARS.get(field.of, ("", ()))


#: What scalars are in messages and in Python. What is not here may be anything.
_SCALARS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "str": ("string", (str,)),
    "int": (NUMERIC, (int,)),
    "num": (NUMERIC, (int, float)),
    "bool": ("boolean", (bool,)),
    **dict.fromkeys(("bytes", "time", "microtime"), ("string", (str,))),
    "quantity": ("any scalar", (str, int, float)),
    "intstr": ("any scalar", (str, int)),
}


def _object(value: Any, struct: Struct | None, path: str) -> Iterator[str]:
    seen: set[str] = set()
    for name, item in _items(value):
        where = f"{path}.{name}" if path else name
        if name in seen:
            yield f'duplicate field "{where}"'
        seen.add(name)
        if struct is None:
            yield from _anything(item, where)
            continue
        field = struct.members.get(name)
        if field is not None:
            yield from _field(item, field, where)
        else:
            yield f'unknown field "{where}"'


def _field(value: Any, field: Field, path: str) -> Iterator[str]:
    if field.struct is None:
        yield from _anything(value, path)
        return
    if field.shape.startswith("{}"):
        yield from _doubles(value, path)
    for where, item in _structs(value, field.shape, path):
        yield from _object(item, field.struct, where)


def _structs(value: Any, shape: str, path: str) -> Iterator[tuple[str, Any]]:
    """The structs in lists and maps, with their paths."""
    if not shape:
        yield path, value
    elif shape.startswith("[]") and isinstance(value, list) and not isinstance(value, _Pairs):
        for number, item in enumerate(value):
            yield from _structs(item, shape[2:], f"{path}[{number}]")
    elif shape.startswith("{}"):
        for name, item in _items(value):
            yield from _structs(item, shape[2:], f"{path}.{name}")


def _anything(value: Any, path: str) -> Iterator[str]:
    """Only doubled names can be wrong where any name goes; without them there is nothing to look for."""
    if isinstance(value, _Pairs):
        yield from _object(value, None, path)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _anything(item, f"{path}[{number}]")


def _doubles(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        names = [name for name, _ in value]
        yield from (f'duplicate field "{path}.{name}"' for name in dict.fromkeys(names) if names.count(name) > 1)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, _Pairs):
        return value
    return value.items() if isinstance(value, dict) else ()
