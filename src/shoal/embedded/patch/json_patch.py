"""JSON patch (RFC 6902) and JSON merge patch (RFC 7396) as the API server applies them.

JSON patch is laxer than the RFC: `replace` of a member that is not there adds it, `copy` of one gives null, `test` of
one passes for null, and a negative index counts from the end. Whatever fails is one and the same 422; the client does
not learn which operation it was.

"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_values import copied, same, type_name, without_nulls

MOST_OPERATIONS: Final = 10_000
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,18}")
Container = dict[str, Any] | list[Any]


class _DoesNotApplyError(Exception):
    pass


def apply_json_patch(target: dict[str, Any], operations: object) -> dict[str, Any]:
    """The object after all operations; the arguments stay as they are."""
    document: Any = copied(target)
    try:
        for operation in _decoded(operations):
            kind = _text(operation, "op")
            if kind not in _OPERATIONS:
                raise _DoesNotApplyError
            document = _OPERATIONS[kind](document, operation)
        if not isinstance(document, dict):
            raise _DoesNotApplyError
    except _DoesNotApplyError:
        message = "the server rejected our request due to an error in our request"
        raise ApiStatus(422, "Invalid", message, {}) from None
    return document


def _decoded(operations: object) -> list[dict[str, Any]]:
    if operations is None:
        return []
    if not isinstance(operations, list):
        raise _undecodable(operations, "value of type []handlers.jsonPatchOp")
    for operation in operations:
        if operation is None:
            continue
        if not isinstance(operation, dict):
            raise _undecodable(operation, "value of type handlers.jsonPatchOp")
        for key in ("op", "path", "from"):
            if not isinstance(operation.get(key), str | None):
                raise _undecodable(operation[key], f"struct field jsonPatchOp.{key} of type string")
    if len(operations) > MOST_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(operations)}"
        raise ApiStatus(413, "RequestEntityTooLarge", f"Request entity too large: {why}")
    return [operation or {} for operation in operations]


def _undecodable(value: object, into: str) -> ApiStatus:
    why = f"json: cannot unmarshal {type_name(value)} into Go {into}"
    return ApiStatus(400, "BadRequest", f"error decoding patch: {why}")


def _text(operation: dict[str, Any], key: str) -> str:
    value = operation.get(key)
    if not isinstance(value, str):
        raise _DoesNotApplyError
    return value


def _add(document: Any, operation: dict[str, Any]) -> Any:
    _insert(*_place(document, _text(operation, "path")), copied(operation.get("value")))
    return document


def _remove(document: Any, operation: dict[str, Any]) -> Any:
    _take(*_place(document, _text(operation, "path")))
    return document


def _replace(document: Any, operation: dict[str, Any]) -> Any:
    path, value = _text(operation, "path"), copied(operation.get("value"))
    if path == "":
        if not isinstance(value, dict | list):
            raise _DoesNotApplyError
        return value
    container, key = _place(document, path)
    if isinstance(container, dict):
        container[key] = value
    else:
        container[_index(key, len(container))] = value
    return document


def _move(document: Any, operation: dict[str, Any]) -> Any:
    value = _take(*_place(document, _text(operation, "from")))
    _insert(*_place(document, _text(operation, "path")), value)
    return document


def _copy(document: Any, operation: dict[str, Any]) -> Any:
    value = copied(_get(*_place(document, _text(operation, "from"))))
    _insert(*_place(document, _text(operation, "path")), value)
    return document


def _test(document: Any, operation: dict[str, Any]) -> Any:
    path = _text(operation, "path")
    present = document if path == "" else _get(*_place(document, path))
    if not same(present, operation.get("value")):
        raise _DoesNotApplyError
    return document


_OPERATIONS: Final[dict[str, Callable[[Any, dict[str, Any]], Any]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _place(document: Any, path: str) -> tuple[Container, str]:
    """The object or list that holds what the path names, and its key there."""
    words = [word.replace("~1", "/").replace("~0", "~") for word in path.split("/")[1:]]
    if not words:
        raise _DoesNotApplyError
    for word in words[:-1]:
        document = _get(document, word)
    if not isinstance(document, dict | list):
        raise _DoesNotApplyError
    return document, words[-1]


def _get(container: Any, key: str) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, list):
        return container[_index(key, len(container))]
    raise _DoesNotApplyError


def _take(container: Container, key: str) -> Any:
    if isinstance(container, list):
        return container.pop(_index(key, len(container)))
    if key not in container:
        raise _DoesNotApplyError
    return container.pop(key)


def _insert(container: Container, key: str, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    else:
        container.insert(len(container) if key == "-" else _index(key, len(container) + 1), value)


def _index(key: str, length: int) -> int:
    if not _INDEX.fullmatch(key):
        raise _DoesNotApplyError
    index = int(key)
    if not -length <= index < length:
        raise _DoesNotApplyError
    return index + length if index < 0 else index


# JSON merge patch (RFC 7396), with the API server's deviation: objects inside of lists lose their nulls too.


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
