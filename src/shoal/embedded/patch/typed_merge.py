"""Lays a configuration over an object, and takes parts out of it again, by the schema's kinds of lists and objects."""

from __future__ import annotations

from typing import Any

from shoal.embedded.patch.field_paths import Path, element_of, inside
from shoal.embedded.patch.json_values import copied, without_nulls
from shoal.embedded.patch.schema import Field, member_of


def laid_over(live: Any, applied: Any, field: Field) -> Any:
    """The object with the configuration's parts in it. A null takes the member away."""
    if isinstance(live, dict) and isinstance(applied, dict) and not field.atomic:
        result = dict(live)
        for name, value in applied.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = laid_over(live.get(name), value, member_of(field, name))
        return result
    if isinstance(live, list) and isinstance(applied, list) and (field.keys or field.members):
        return _lists(live, applied, field)
    return without_nulls(copied(applied))


def _lists(live: list[Any], applied: list[Any], field: Field) -> list[Any]:
    """The elements of both, in the configuration's order; what only the object has goes as early as it can."""
    old = {element_of(element, field): element for element in live}
    new = {element_of(element, field): element for element in applied}
    shared = [name for name in new if name in old]
    ours, theirs = list(old), list(new)
    result: list[Any] = []
    while ours or theirs:
        if ours and theirs and ours[0] != theirs[0] and ours[0] in new and shared and shared[0] != ours[0]:
            ours.pop(0)  # it comes later, where the configuration has it
        elif ours and ours[0] not in new:
            result.append(old[ours.pop(0)])
        elif theirs:
            name = theirs.pop(0)
            result.append(laid_over(old.get(name), new[name], inside(field)))
            shared = [other for other in shared if other != name]
            ours = [other for other in ours if other != name]
        else:
            break
    return result


def taken_out(value: Any, path: Path, field: Field) -> Any:
    """The object without what stands at the path."""
    head, tail = path[0], path[1:]
    if isinstance(value, dict) and head.startswith("f:") and head[2:] in value:
        name = head[2:]
        if tail:
            return {**value, name: taken_out(value[name], tail, member_of(field, name))}
        return {key: inner for key, inner in value.items() if key != name}
    if isinstance(value, list) and (field.keys or field.members):
        result = []
        for element in value:
            if element_of(element, field) != head:
                result.append(element)
            elif tail:
                result.append(taken_out(element, tail, inside(field)))
        return result
    return value
