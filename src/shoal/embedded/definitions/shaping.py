"""Gives an object the shape its schema has: unknown fields go, defaults come. Pure, but in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shoal.embedded.patch.json_values import copied

Schema = Mapping[str, Any]
_TYPED: Final = ("apiVersion", "kind", "metadata")


def prune(obj: dict[str, Any], schema: Schema) -> None:
    """Take out what the schema does not have, and nulls where there may be none."""
    for holder, name, _ in list(_unknown(obj, schema, "", root=True)):
        del holder[name]
    _drop_nulls(obj, schema)


def unknown_fields(obj: dict[str, Any], schema: Schema) -> list[str]:
    """The paths of what `prune` would take out for being unknown."""
    return sorted(path for _, _, path in _unknown(obj, schema, "", root=True))


def fill_in(value: Any, schema: Schema) -> None:
    """Set the defaults of the schema where nothing is said."""
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name not in value and "default" in inner:
                value[name] = copied(inner["default"])
            if name in value:
                fill_in(value[name], inner)
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            for item in value.values():
                fill_in(item, others)
    elif isinstance(value, list):
        for item in value:
            fill_in(item, schema.get("items") or {})


def _unknown(value: Any, schema: Schema, path: str, *, root: bool = False) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each unknown field: the object it is in, its name and its path."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(item, schema.get("items") or {}, f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    anything = bool(schema.get("x-kubernetes-preserve-unknown-fields")) or others is True
    typed = root or schema.get("x-kubernetes-embedded-resource")
    for name, item in value.items():
        where = f"{path}.{name}" if path else name
        if name in _TYPED and typed:
            continue
        inner = properties.get(name, others if isinstance(others, dict) else None)
        if inner is not None:
            yield from _unknown(item, inner, where)
        elif not anything:
            yield value, name, where


def _drop_nulls(value: Any, schema: Schema) -> None:
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name in value and value[name] is None and not inner.get("nullable"):
                del value[name]
            elif name in value:
                _drop_nulls(value[name], inner)
    elif isinstance(value, list):
        for item in value:
            _drop_nulls(item, schema.get("items") or {})
