"""Plain JSON values: copying, comparing, and naming them as the API server's messages do."""

from __future__ import annotations

from typing import Any


def copied(value: Any) -> Any:
    """A value that shares nothing with the given one."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value


def without_nulls(value: Any) -> Any:
    """A copy in which no object has a null member; nulls that are elements of a list stay."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: unlike in Python, `true` is not 1 and 1 is not 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def type_name(value: Any) -> str:
    """What the API server calls the type of a value that it could not decode."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"


def shown(value: Any) -> str:
    """A value as Go prints it, which is how it stands in messages."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(shown(inner) for inner in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)
