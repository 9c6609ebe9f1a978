"""The order of a merged list: the patch's own order first, and what only the server has goes where it was before."""

from __future__ import annotations

from typing import Any

from shoal.embedded.patch.json_values import same


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
