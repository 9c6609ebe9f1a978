"""JSON patch (RFC 6902) and JSON merge patch (RFC 7396) as the API server applies them.

JSON patch is laxer than the RFC: `replace` of a member that is not there adds it, `copy` of one gives null, `test` of
one passes for null, and a negative index counts from the end. Whatever fails is one and the same 422; the client does
not learn which operation it was.

"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_values import copied, same, type_name, without_nulls

MOST_OPERATIONS: Final = 10_000
#: Bytes that all copies of a patch may add together.
MOST_COPIED: Final = 3 * 1024 * 1024
_MISSING: Final = "missing value"
_ABSENT: Final = f"missing {{}} field: {_MISSING}"
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,18}")
Container = dict[str, Any] | list[Any]


class PatchError(Exception):
    """A patch does not apply; why, in the words of the library that the API server uses."""


class TestFailedError(PatchError):
    """An operation `test` found another value."""

    __test__ = False  # no test of ours


def apply_json_patch(target: dict[str, Any], operations: object) -> dict[str, Any]:
    """The object after all operations; the arguments stay as they are."""
    try:
        return applied(target, _decoded(operations))
    except PatchError:
        message = "the server rejected our request due to an error in our request"
        raise ApiStatus(422, "Invalid", message, {}) from None


def applied(target: dict[str, Any], operations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The object after all operations; the arguments stay as they are. PatchError tells what does not apply."""
    document: Any = copied(target)
    grown = 0
    for operation in operations:
        kind = operation.get("op")
        if not isinstance(kind, str) or kind not in _OPERATIONS:
            raise PatchError(f"Unexpected kind: {kind if isinstance(kind, str) else 'unknown'}")
        if kind == "copy":
            grown += _size(document, operation)
            if grown > MOST_COPIED:
                raise PatchError(
                    "Unable to complete the copy, the accumulated size increase of copy is "
                    f"{grown}, exceeding the limit {MOST_COPIED}"
                )
        document = _OPERATIONS[kind](document, operation)
    if not isinstance(document, dict):
        raise PatchError("the document is no object any more")
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
        comma = "," if key == "from" else ""
        raise PatchError(f"{operation['op']} operation failed to decode {key}: operation{comma} {_ABSENT.format(key)}")
    return value


def _add(document: Any, operation: dict[str, Any]) -> Any:
    path = _text(operation, "path")
    place = _place(document, path, f'add operation does not apply: doc is missing path: "{path}"')
    _insert(*place, copied(operation.get("value")), f"error in add for path: '{path}'")
    return document


def _remove(document: Any, operation: dict[str, Any]) -> Any:
    path = _text(operation, "path")
    place = _place(document, path, f'remove operation does not apply: doc is missing path: "{path}"')
    _take(*place, f"error in remove for path: '{path}'")
    return document


def _replace(document: Any, operation: dict[str, Any]) -> Any:
    path, value = _text(operation, "path"), copied(operation.get("value"))
    if path == "":
        if not isinstance(value, dict | list):
            raise PatchError("replace operation value must be object or array")
        return value
    container, key = _place(document, path, f"replace operation does not apply: doc is missing path: {path}")
    if isinstance(container, dict):
        container[key] = value
        return document
    try:
        container[_index(key, len(container))] = value
    except PatchError:
        raise PatchError(f"replace operation does not apply: doc is missing key: {path}: {_MISSING}") from None
    return document


def _move(document: Any, operation: dict[str, Any]) -> Any:
    source = _text(operation, "from")
    container, key = _place(document, source, f"move operation does not apply: doc is missing from path: {source}")
    value = _take(container, key, f"error in move for path: '{key}'")
    path = _text(operation, "path")
    place = _place(document, path, f"move operation does not apply: doc is missing destination path: {path}")
    _insert(*place, value, f"error in move for path: '{path}'")
    return document


def _copy(document: Any, operation: dict[str, Any]) -> Any:
    value = copied(_source(document, operation))
    path = _text(operation, "path")
    place = _place(document, path, f"copy operation does not apply: doc is missing destination path: {path}")
    _insert(*place, value, "error while adding value during copy")
    return document


def _source(document: Any, operation: dict[str, Any]) -> Any:
    """What a copy would copy."""
    source = _text(operation, "from")
    place = _place(document, source, f"copy operation does not apply: doc is missing from path: {source}")
    return _get(*place, f"error in copy for from: '{source}'")


def _size(document: Any, operation: dict[str, Any]) -> int:
    return len(json.dumps(_source(document, operation), separators=(",", ":")))


def _test(document: Any, operation: dict[str, Any]) -> Any:
    path = _text(operation, "path")
    if path == "":
        present = document
    else:
        place = _place(document, path, f"test operation does not apply: is missing path: {path}")
        present = _get(*place, f"error in test for path: '{path}'")
    if not same(present, operation.get("value")):
        raise TestFailedError(f"testing value {path} failed: test failed")
    return document


_OPERATIONS: Final[dict[str, Callable[[Any, dict[str, Any]], Any]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _place(document: Any, path: str, why: str) -> tuple[Container, str]:
    """The object or list that holds what the path names, and its key there."""
    words = [word.replace("~1", "/").replace("~0", "~") for word in path.split("/")[1:]]
    try:
        for word in words[:-1]:
            document = _get(document, word)
    except PatchError:
        document = None
    if not words or not isinstance(document, dict | list):
        raise PatchError(f"{why}: {_MISSING}")
    return document, words[-1]


def _get(container: Any, key: str, why: str = "") -> Any:
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, list):
        return container[_index(key, len(container), why)]
    raise PatchError(f"{why}: {_MISSING}")


def _take(container: Container, key: str, why: str) -> Any:
    if isinstance(container, list):
        return container.pop(_index(key, len(container), why))
    if key not in container:
        raise PatchError(f"{why}: Unable to remove nonexistent key: {key}: {_MISSING}")
    return container.pop(key)


def _insert(container: Container, key: str, value: Any, why: str) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif key == "-":
        container.append(value)
    else:
        improper = "" if _INDEX.fullmatch(key) else f": value was not a proper array index: '{key}'"
        container.insert(_index(key, len(container) + 1, why + improper), value)


def _index(key: str, length: int, why: str = "") -> int:
    if not _INDEX.fullmatch(key):
        raise PatchError(f'{why}: strconv.Atoi: parsing "{key}": invalid syntax')
    index = int(key)
    if not -length <= index < length:
        raise PatchError(f"{why}: Unable to access invalid index: {index}: invalid index referenced")
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
