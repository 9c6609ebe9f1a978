"""The kinds that a CustomResourceDefinition describes: does an object fit its schema? Pure; the real server's words.

Not run: CEL rules, and formats other than int32, int64 and date-time.

"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from shoal.embedded.errors import FieldError, invalid_value, required, unsupported_value
from shoal.embedded.patch.json_values import copied
from shoal.embedded.tables.layout import Column, Layout, moment, since, text

Schema = Mapping[str, Any]
_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_ROOT: Final = ("apiVersion", "kind", "metadata")
_GO_NUMBERS: Final = {"integer": "int64", "number": "float64"}
_INT_RANGES: Final = {"int32": 31, "int64": 63}


def schema_errors(obj: Mapping[str, Any], schema: Schema) -> list[FieldError]:
    """What of a whole object does not fit."""
    rest = {name: value for name, value in obj.items() if name not in _ROOT}
    return list(_errors(rest, schema, "", ""))


def status_errors(obj: Mapping[str, Any], schema: Schema) -> list[FieldError]:
    """What of its status does not fit."""
    part = (schema.get("properties") or {}).get("status")
    return list(_errors(obj["status"], part, "status", "")) if part and "status" in obj else []


def structural_errors(schema: Schema, path: str, empty: str = "must not be empty at the root") -> Iterator[FieldError]:
    """What a schema itself must say: the type of every field."""
    for name, inner in (schema.get("properties") or {}).items():
        why = "must not be empty for specified object fields"
        yield from structural_errors(inner, f"{path}.properties[{name}]", why)
    if isinstance(schema.get("items"), dict):
        why = "must not be empty for specified array items"
        yield from structural_errors(schema["items"], f"{path}.items", why)
    if isinstance(schema.get("additionalProperties"), dict):
        why = "must not be empty for specified object fields"
        yield from structural_errors(schema["additionalProperties"], f"{path}.additionalProperties", why)
    type_ = schema.get("type")
    if not type_:
        free = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
        if not free or "root" in empty:
            yield required(f"{path}.type", empty)
    elif type_ not in _TYPES:
        yield unsupported_value(f"{path}.type", type_, _TYPES)
    elif type_ == "array" and "items" not in schema:
        yield required(f"{path}.items", "must be specified")


def _errors(value: Any, schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    """`field` is where the error is reported, `name` how the text calls it: they differ in writes of the status."""
    wanted = _types(schema)
    actual = _type_of(value)
    if wanted and actual not in wanted and not (actual == "integer" and "number" in wanted):
        whole = actual == "number" and "integer" in wanted and float(value).is_integer()
        if not whole:
            yield _wrong_type(schema, wanted, actual, field, name)
            return
    if "enum" in schema and value not in schema["enum"]:
        words = ", ".join(_shown(one) for one in schema["enum"])
        yield FieldError(
            "FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {words}"
        )
    if isinstance(value, dict):
        yield from _object_errors(value, schema, field, name)
    elif isinstance(value, list):
        yield from _list_errors(value, schema, field, name)
    elif isinstance(value, str):
        yield from _text_errors(value, schema, field, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(value, schema, field, name)
    yield from _combined_errors(value, schema, field, name)


def _object_errors(value: dict[str, Any], schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    properties = schema.get("properties") or {}
    for wanted in schema.get("required") or ():
        if wanted not in value:
            yield required(_joined(field, wanted))
    others = schema.get("additionalProperties")
    for key, item in value.items():
        inner = properties.get(key, others if isinstance(others, dict) else None)
        if inner is not None and not (item is None and inner.get("nullable")):
            yield from _errors(item, inner, _joined(field, key), _joined(name, key))
    if len(value) > schema.get("maxProperties", len(value)):
        yield _too_many(field, len(value), schema["maxProperties"])
    if len(value) < schema.get("minProperties", 0):
        why = f"{name} in body should have at least {schema['minProperties']} properties"
        yield invalid_value(field, len(value), why)


def _list_errors(value: list[Any], schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    items = schema.get("items") or {}
    for number, item in enumerate(value):
        yield from _errors(item, items, f"{field}[{number}]", f"{name}[{number}]")
    if len(value) > schema.get("maxItems", len(value)):
        yield _too_many(field, len(value), schema["maxItems"])
    if len(value) < schema.get("minItems", 0):
        yield invalid_value(field, len(value), f"{name} in body should have at least {schema['minItems']} items")
    kind = schema.get("x-kubernetes-list-type")
    if kind in ("set", "map"):
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        seen: list[Any] = []
        for number, item in enumerate(value):
            if kind == "map" and not isinstance(item, dict):
                continue
            identity = {key: item[key] for key in keys if key in item} if kind == "map" else item
            if identity in seen:
                shown = json.dumps(identity, separators=(",", ":"))
                yield FieldError("FieldValueDuplicate", f"{field}[{number}]", f"Duplicate value: {shown}")
            seen.append(identity)


def _text_errors(value: str, schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    if len(value) > schema.get("maxLength", len(value)):
        yield FieldError("FieldValueTooLong", field, f"Too long: may not be more than {schema['maxLength']} bytes")
    if len(value) < schema.get("minLength", 0):
        yield invalid_value(field, value, f"{name} in body should be at least {schema['minLength']} chars long")
    if "pattern" in schema and not _matches(schema["pattern"], value):
        yield invalid_value(field, value, f"{name} in body should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        why = f'Invalid value: "{value}": {name} in body must be of type date-time: "{value}"'
        yield FieldError("FieldValueTypeInvalid", field, why)


def _number_errors(value: float, schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    bits = _INT_RANGES.get(schema.get("format", ""))
    if bits and schema.get("type") == "integer" and not -(1 << bits) <= value < 1 << bits:
        why = f"Checked value must be of type integer with format {schema['format']} in {name}"
        yield FieldError("FieldValueInvalid", "<nil>", f'Invalid value: "": {why}')
    for limit, exclusive, over, words in (
        ("maximum", "exclusiveMaximum", value.__gt__, "less than"),
        ("minimum", "exclusiveMinimum", value.__lt__, "greater than"),
    ):
        if limit in schema:
            strict = bool(schema.get(exclusive))
            if over(schema[limit]) or (strict and value == schema[limit]):
                equal = "" if strict else " or equal to"
                yield invalid_value(field, value, f"{name} in body should be {words}{equal} {schema[limit]}")
    step = schema.get("multipleOf")
    if step and not math.isclose(value / step, round(value / step), abs_tol=1e-9):
        yield invalid_value(field, value, f"{name} in body should be a multiple of {step}")


def _combined_errors(value: Any, schema: Schema, field: str, name: str) -> Iterator[FieldError]:
    if schema.get("x-kubernetes-int-or-string"):
        return  # what may stand beside this only says the same again
    for inner in schema.get("allOf") or ():
        yield from _errors(value, inner, field, name)
    for word, fits, words in _ALTERNATIVES:
        if word in schema:
            results = [list(_errors(value, inner, field, name)) for inner in schema[word]]
            valid = sum(not result for result in results)
            if not fits(valid):
                found = "" if word == "anyOf" else f" Found {valid or 'none'} valid{' alternatives' if valid else ''}"
                yield FieldError("FieldValueInvalid", "<nil>", f'Invalid value: "": "{name}" {words}{found}')
                yield from results[0] if not valid else ()
    if "not" in schema and not list(_errors(value, schema["not"], field, name)):
        yield FieldError(
            "FieldValueInvalid", "<nil>", f'Invalid value: "": "{name}" must not validate the schema (not)'
        )


_ALTERNATIVES: Final[tuple[tuple[str, Callable[[int], bool], str], ...]] = (
    ("anyOf", lambda valid: valid > 0, "must validate at least one schema (anyOf)"),
    ("oneOf", lambda valid: valid == 1, "must validate one and only one schema (oneOf)."),
)


def _types(schema: Schema) -> tuple[str, ...]:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer", "string"
    return (schema["type"],) if schema.get("type") else ()


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return names[type(value)]


def _wrong_type(schema: Schema, wanted: tuple[str, ...], actual: str, field: str, name: str) -> FieldError:
    expected = ",".join(wanted)
    if actual in _GO_NUMBERS and schema.get("format"):
        expected, actual = schema["format"], _GO_NUMBERS[actual]
    why = f'Invalid value: "{actual}": {name} in body must be of type {expected}: "{actual}"'
    return FieldError("FieldValueTypeInvalid", field, why)


def _too_many(field: str, count: int, most: int) -> FieldError:
    items = "item" if most == 1 else "items"
    return FieldError("FieldValueTooMany", field, f"Too many: {count}: must have at most {most} {items}")


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True  # a pattern that only Go's expressions know is not checked


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else json.dumps(value)


# The columns that a definition wants in tables: `additionalPrinterColumns`, with the simple JSONPath they use.


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


# Gives an object the shape its schema has: unknown fields go, defaults come. Pure, but in place.


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
