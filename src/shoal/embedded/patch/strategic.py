"""Strategic merge patch: a merge patch that knows which lists merge by key, and that carries directives.

Directives: `$patch` (delete, replace) in an object or in an element of a keyed list, `$retainKeys`,
`$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD`. Custom resources do not take such patches. Unlike the API
server, which drops them when it decodes the result, directives in parts that are wholly new are dropped here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_values import copied, same, shown, type_name
from shoal.embedded.patch.schema import BUILT_IN_GROUPS, MergedField, member_of, root_of

# The order of a merged list: the patch's own order first, and what only the server has goes where it was before.


def ordered(merged: list[Any], wanted: list[Any], before: list[Any], key: str) -> list[Any]:
    """The elements of `merged`, those of `wanted` in that order, the rest placed among them as they stood `before`.

    `key` names the member that identifies an element; empty for lists of plain values.
    """
    wanted_keys = [_identity(element, key) for element in wanted]
    before_keys = [_identity(element, key) for element in before]
    named: list[tuple[int, Any]] = []
    rest: list[tuple[int, Any]] = []
    for element in merged:
        identity = _identity(element, key)
        place = _place(wanted_keys, identity)
        if place >= 0:
            named.append((place, element))
        else:
            rest.append((_place(before_keys, identity), element))
    named.sort(key=lambda pair: pair[0])
    rest.sort(key=lambda pair: pair[0])
    result: list[Any] = []
    while named and rest:
        left, right = rest[0][0], _place(before_keys, _identity(named[0][1], key))
        result.append(rest.pop(0)[1] if 0 <= left < right else named.pop(0)[1])
    return result + [element for _, element in named + rest]


def _identity(element: Any, key: str) -> Any:
    return element.get(key) if key and isinstance(element, dict) else element


def _place(keys: list[Any], identity: Any) -> int:
    for index, key in enumerate(keys):
        if same(key, identity):
            return index
    return -1


_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_DELETE: Final = "$deleteFromPrimitiveList"
_ORDER: Final = "$setElementOrder"


def strategic_merge(target: dict[str, Any], patch: object, *, kind: str, group: str) -> dict[str, Any]:
    """The object with the patch merged in; the arguments stay as they are."""
    if group not in BUILT_IN_GROUPS:
        raise unsupported_for_custom_resources()
    if patch is None:
        return dict(copied(target))
    if not isinstance(patch, dict):
        why = f"json: cannot unmarshal {type_name(patch)} into Go value of type map[string]interface {{}}"
        raise ApiStatus(400, "BadRequest", why)
    return _merge_object(copied(target), copied(patch), root_of(kind, group))


def unsupported_for_custom_resources() -> ApiStatus:
    """415, as for any other format that the resource does not take."""
    accepted = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiStatus(415, "UnsupportedMediaType", message)


def _merge_object(target: dict[str, Any], patch: dict[str, Any], field: MergedField) -> dict[str, Any]:
    if _PATCH in patch:
        return _replaced_or_deleted(patch)
    _retain_keys(target, patch)
    _merge_ordered_lists(target, patch, field)
    for key, value in patch.items():
        if key.startswith(_DELETE):
            name = _directed(key, _DELETE)
            if isinstance(target.get(name), list) and isinstance(value, list):
                target[name] = _without(target[name], value)
        elif value is None:
            target.pop(key, None)
        else:
            _merge_member(target, key, value, member_of(field, key))
    return target


def _merge_member(target: dict[str, Any], key: str, value: Any, field: MergedField) -> None:
    present = target.get(key)
    if isinstance(value, dict) and isinstance(present, dict):
        target[key] = _merge_object(present, value, field)
    elif isinstance(value, list) and isinstance(present, list):
        target[key] = _merge_list(present, value, field)
    elif isinstance(value, dict) and _PATCH in value:
        target.pop(key, None)
    else:
        target[key] = _undirected(value)


def _replaced_or_deleted(patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch[_PATCH]
    if directive == "replace":
        return {key: _undirected(value) for key, value in patch.items() if key != _PATCH and value is not None}
    if directive == "delete":
        return {}
    raise _unknown_directive(patch)


def _retain_keys(target: dict[str, Any], patch: dict[str, Any]) -> None:
    if _RETAIN not in patch:
        return
    retained = patch.pop(_RETAIN)
    named = {key for key, value in patch.items() if value is not None and not key.startswith((_DELETE, _ORDER))}
    if not isinstance(retained, list) or not all(key in retained for key in named):
        raise _malformed("retainKeys")
    for key in [key for key in target if key not in retained]:
        del target[key]


def _merge_ordered_lists(target: dict[str, Any], patch: dict[str, Any], field: MergedField) -> None:
    """Merge the lists whose order is given, and take them out of the patch."""
    for directive in [key for key in patch if key.startswith(_ORDER)]:
        order = patch.pop(directive)
        name = _directed(directive, _ORDER)
        for value in (order, target.get(name, []), patch.get(name, [])):
            if not isinstance(value, list):
                raise _failed(f"expected a []interface {{}}, but received a {_go_type(value)}")
        member = member_of(field, name)
        changes = patch.pop(name, None)
        _check_order(changes or [], order, member)
        present = target.get(name)
        if present is None and changes is None:
            continue
        before = list(present or [])
        merged = _merge_list(present, changes, member) if present and changes else _undirected(changes or present or [])
        target[name] = ordered(merged, order, _server_order(before, changes or [], member), member.merge or "")


def _server_order(present: list[Any], changes: list[Any], field: MergedField) -> list[Any]:
    """The order that the rest of a list keeps: new elements count as standing where deleted ones made room."""
    if not field.merge or any(isinstance(change, dict) and change.get(_PATCH) == "replace" for change in changes):
        return present
    remaining, additions = _without_special_elements(present, changes, field.merge)
    new = [change for change in additions if _find(remaining, field.merge, change[field.merge]) is None]
    return [*remaining, *new][: len(present)]


def _check_order(changes: list[Any], order: list[Any], field: MergedField) -> None:
    """The elements of the patch must stand in the order that the patch itself asks for."""
    if not changes or not order:
        return
    wanted = iter(_keys_of(order, field))
    named = [element for element in changes if not (isinstance(element, dict) and _PATCH in element)]
    if not all(any(same(key, other) for other in wanted) for key in _keys_of(named, field)):
        raise _failed(f"The order in patch list:\n{shown(changes)}\n doesn't match {_ORDER} list:\n{shown(order)}\n")


def _keys_of(elements: list[Any], field: MergedField) -> list[Any]:
    return [_key_of(element, field.merge) if field.merge else element for element in elements]


def _merge_list(present: list[Any], changes: list[Any], field: MergedField) -> list[Any]:
    if field.merge is None:
        return list(_undirected(changes))
    if not present and not changes:
        return present
    if _common_type(present, changes) is not dict:
        both = [*present, *changes]
        merged = [value for index, value in enumerate(both) if not any(same(value, other) for other in both[:index])]
        return ordered(merged, changes, present, "")
    if not field.merge:
        raise _failed("cannot merge lists without merge key for ")
    remaining, additions = _without_special_elements(present, changes, field.merge)
    merged = _merge_keyed(list(remaining), additions, field)
    for element in merged:
        _key_of(element, field.merge)
    return ordered(merged, additions, remaining, field.merge)


def _merge_keyed(elements: list[Any], changes: list[Any], field: MergedField) -> list[Any]:
    for change in changes:
        key = _key_of(change, field.merge)
        index = _find(elements, field.merge, key)
        if index is None:
            elements.append(_undirected(change))
        else:
            elements[index] = _merge_object(elements[index], change, field)
    return elements


def _without_special_elements(present: list[Any], changes: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Carry out `$patch` in elements: what is left of the list, and the elements still to merge."""
    plain = [change for change in changes if _PATCH not in change]
    replace = False
    for change in changes:
        directive = change.get(_PATCH, "")
        if directive == "delete":
            value = _key_of(change, key)
            present = [element for element in present if not same(element.get(key), value)]
        elif directive == "replace":
            replace = True
        elif directive == "merge":
            raise _failed("merging lists cannot yet be specified in the patch")
        elif _PATCH in change:
            raise _unknown_directive(change)
    return ([_undirected(change) for change in plain], []) if replace else (present, plain)


def _undirected(value: Any) -> Any:
    """A new part of an object: without directives, without nulls."""
    if isinstance(value, dict):
        return {
            key: _undirected(inner)
            for key, inner in value.items()
            if inner is not None and not _is_directive(key) and not (isinstance(inner, dict) and _PATCH in inner)
        }
    if isinstance(value, list):
        return [_undirected(inner) for inner in value if not (isinstance(inner, dict) and _PATCH in inner)]
    return value


def _is_directive(key: str) -> bool:
    return key == _RETAIN or key.startswith((_DELETE, _ORDER))


def _find(elements: Iterable[Any], key: str | None, value: Any) -> int | None:
    for index, element in enumerate(elements):
        if key in element and same(element[key], value):
            return index
    return None


def _without(elements: list[Any], gone: list[Any]) -> list[Any]:
    return [element for element in elements if not any(same(element, other) for other in gone)]


def _key_of(element: Any, key: str | None) -> Any:
    if not isinstance(element, dict):
        raise _failed(f"expected a map[string]interface {{}}, but received a {_go_type(element)}")
    if key not in element:
        raise _failed(f"map: {shown(element)} does not contain declared merge key: {key}")
    return element[key]


def _common_type(present: list[Any], changes: list[Any]) -> type:
    both = [*present, *changes]
    if isinstance(both[0], list):
        raise _failed("lists of lists are not supported")
    if any(type(element) is not type(both[0]) for element in both):
        raise _failed(f"list element types are not identical: {shown([present, changes])}")
    return type(both[0])


def _directed(key: str, directive: str) -> str:
    word, _, name = key.partition("/")
    if word != directive or not name:
        raise _malformed("primitive list" if directive == _DELETE else "setElementOrder list")
    return name


def _go_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    names = {dict: "map[string]interface {}", list: "[]interface {}", str: "string", int: "int64", float: "float64"}
    return names.get(type(value), "%!s(<nil>)")


def _malformed(what: str) -> ApiStatus:
    return ApiStatus(400, "BadRequest", f"invalid patch format of {what}")


def _unknown_directive(patch: dict[str, Any]) -> ApiStatus:
    value = patch[_PATCH]
    word = value if isinstance(value, str) else f"%!s({_go_type(value)}={shown(value)})"
    return _failed(f"unknown patch type: {word} in map: {shown(patch)}")


def _failed(message: str) -> ApiStatus:
    """The API server has no better status for these: 500 without a reason."""
    return ApiStatus(500, "", message)
