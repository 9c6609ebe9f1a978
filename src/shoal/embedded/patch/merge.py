"""JSON merge patch (RFC 7396), with the API server's deviation: objects inside of lists lose their nulls too."""

from __future__ import annotations

from typing import Any

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_values import copied, type_name, without_nulls


def merge_patch(target: dict[str, Any], patch: object) -> dict[str, Any]:
    """The object with the patch merged in; the arguments stay as they are."""
    if patch is None:
        raise ApiStatus(400, "BadRequest", "Invalid JSON Patch")
    if not isinstance(patch, dict):
        why = f"json: cannot unmarshal {type_name(patch)} into Go value of type map[string]interface {{}}"
        raise ApiStatus(400, "BadRequest", f"error decoding patch: {why}")
    return _merged(copied(target), patch)


def _merged(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    for key, value in patch.items():
        present = target.get(key)
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(present, dict):
            _merged(present, value)
        else:
            target[key] = without_nulls(value)
    return target
