"""Paths to the parts of an object, as `managedFields` writes them.

A path is a tuple of elements: `f:NAME` for a member, `k:{"name":"x"}` for the element of a keyed list with these keys,
`v:VALUE` for a member of a set. Lists and objects that are merged whole have no paths below them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from shoal.embedded.patch.json_values import same
from shoal.embedded.patch.schema import KEY_DEFAULTS, Field, member_of

Path = tuple[str, ...]
_KEPT: Final = 512
#: What `encoded` made of late, by identity: most of it comes back to `decoded` as it is. Each is kept, so that no other
#: object can have its identity.
_ENCODED: Final[dict[int, tuple[dict[str, Any], frozenset[Path]]]] = {}


class ElementError(Exception):
    """An element of a keyed list does not say which one it is, or says the same as another."""


def element_of(element: Any, field: Field) -> str:
    """The path element of one element of a keyed list or of a set."""
    if not field.keys:
        return f"v:{_compact(element)}"
    if not isinstance(element, dict):
        raise ElementError("associative list with keys may not have non-map elements")
    for key in field.keys:
        if key not in element and key not in KEY_DEFAULTS:
            raise ElementError(
                f'associative list with keys has an element that omits key field "{key}"'
                " (and doesn't have default value)"
            )
    values = [element.get(key, KEY_DEFAULTS.get(key)) for key in field.keys]
    if any(isinstance(value, dict | list) for value in values):
        raise ElementError("associative list with keys has an element whose key is not a scalar")
    return _keyed(field.keys, *values)


# By type too, since 1 and true are equal and written differently.
@lru_cache(maxsize=4096, typed=True)
def _keyed(names: tuple[str, ...], *values: Any) -> str:
    return f"k:{_compact(dict(sorted(zip(names, values, strict=True))))}"


def inside(field: Field) -> Field:
    """One element of a keyed list."""
    return Field(of=field.of, atomic=field.atomic)


def differences(old: Any, new: Any, root: Field) -> tuple[frozenset[Path], frozenset[Path], frozenset[Path]]:
    """The paths that were added, changed and removed. Equal parts cost no more than their comparison."""
    added: set[Path] = set()
    changed: set[Path] = set()
    removed: set[Path] = set()
    todo: list[tuple[Any, Any, Field, Path]] = [(old, new, root, ())]
    while todo:
        left, right, field, path = todo.pop()
        before, after = _inner(left, field), _inner(right, field)
        if before is None or after is None:
            if not same(left, right):
                changed.add(path)
            before, after = before or {}, after or {}
        for name in before.keys() - after.keys():
            removed.update(_all_paths(*before[name], (*path, name)))
        for name, (value, below) in after.items():
            if name not in before:
                added.update(_all_paths(value, below, (*path, name)))
            elif before[name][0] != value or isinstance(value, bool | int | float):
                todo.append((before[name][0], value, below, (*path, name)))
    return frozenset(added), frozenset(changed), frozenset(removed)


def _inner(value: Any, field: Field) -> dict[str, tuple[Any, Field]] | None:
    """What a value is merged by: its members or elements with their kinds; None for what is merged whole."""
    if isinstance(value, dict) and not field.atomic:
        return {f"f:{name}": (inner, member_of(field, name)) for name, inner in value.items()}
    if isinstance(value, list) and (field.keys or field.members):
        return {element_of(element, field): (element, inside(field)) for element in value}
    return None


def _all_paths(value: Any, field: Field, path: Path) -> Iterator[Path]:
    yield path
    for name, (inner, below) in (_inner(value, field) or {}).items():
        yield from _all_paths(inner, below, (*path, name))


def named_by(value: Any, field: Field, path: Path = ()) -> Iterator[Path]:
    """The paths that a configuration claims: its leaves, and the elements of its keyed lists."""
    if isinstance(value, dict) and value and not field.atomic:
        if path and path[-1].startswith("k:"):
            yield path
        for name, inner in value.items():
            yield from named_by(inner, member_of(field, name), (*path, f"f:{name}"))
    elif isinstance(value, list) and (field.keys or field.members):
        seen: set[str] = set()
        for index, element in enumerate(value):
            where = shown(path)
            try:
                name = element_of(element, field)
            except ElementError as error:
                raise ElementError(f"{where}: element {index}: {error}") from None
            if name in seen:
                raise ElementError(f"{where}: duplicate entries for key {_shown(name)}")
            seen.add(name)
            yield from named_by(element, inside(field), (*path, name))
    elif path:
        yield path


def with_parents(paths: Iterable[Path]) -> set[Path]:
    """The paths, and every member on the way to them."""
    result = set(paths)
    for path in list(result):
        result.update(path[:length] for length in range(1, len(path)) if path[length - 1].startswith("f:"))
    return result


@lru_cache(maxsize=_KEPT)
def encoded(paths: frozenset[Path]) -> dict[str, Any]:
    """The paths as `fieldsV1`. Objects of one shape have the same: it is shared, and not to be changed."""
    fields = _fields(_tree(paths))
    if len(_ENCODED) >= _KEPT:
        _ENCODED.clear()
    _ENCODED[id(fields)] = fields, paths
    return fields


def decoded(fields: Any) -> frozenset[Path]:
    """The paths of a `fieldsV1`."""
    known = _ENCODED.get(id(fields))
    return known[1] if known is not None else frozenset(_decoded(fields))


def _decoded(fields: Any) -> list[Path]:
    paths: list[Path] = []
    todo: list[tuple[Path, Any]] = [((), fields)]
    while todo:
        path, inner = todo.pop()
        if not isinstance(inner, dict):
            continue
        if path and (not inner or "." in inner):
            paths.append(path)
        todo += [((*path, name), below) for name, below in inner.items() if name != "."]
    return paths


def in_order(paths: Iterable[Path]) -> list[Path]:
    """As messages list them: at every level first what is named itself, then what lies below."""
    return list(_walk(_tree(paths), ()))


def shown(path: Path) -> str:
    """A path as messages write it."""
    return "".join(map(_shown, path))


def _tree(paths: Iterable[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return tree


def _fields(tree: dict[str, Any]) -> dict[str, Any]:
    if tree.keys() == {"."}:
        return {}
    return {name: _fields(tree[name]) if name != "." else {} for name in sorted(tree)}


def _walk(tree: dict[str, Any], path: Path) -> Iterator[Path]:
    names = sorted(name for name in tree if name != ".")
    yield from ((*path, name) for name in names if "." in tree[name])
    for name in names:
        yield from _walk(tree[name], (*path, name))


def _shown(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys = json.loads(rest)
    return f"[{','.join(f'{key}={_compact(keys[key])}' for key in sorted(keys))}]"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
