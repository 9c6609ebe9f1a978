"""Server-side apply: who manages which field, conflicts, and what goes when a manager no longer names it.

`server_side_apply` is for apply patches; `track_update` keeps the same records for every other write, without which
there is nothing to be in conflict with. Paths of another version of the kind are taken as they are; neither the schema
of a custom resource nor the move away from kubectl's last-applied annotation is looked at. Fields that the kind does
not have are refused before, where the body is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.json_values import copied, same, without_nulls
from shoal.embedded.patch.schema import BUILT_IN_GROUPS, KEY_DEFAULTS, MergedField, member_of, root_of

# Paths to the parts of an object, as `managedFields` writes them.
#
# A path is a tuple of elements: `f:NAME` for a member, `k:{"name":"x"}` for the element of a keyed list with these
# keys, `v:VALUE` for a member of a set. Lists and objects that are merged whole have no paths below them.


Path = tuple[str, ...]
_KEPT: Final = 512
#: What `encoded` made of late, by identity: most of it comes back to `decoded` as it is. Each is kept, so that no other
#: object can have its identity.
_ENCODED: Final[dict[int, tuple[dict[str, Any], frozenset[Path]]]] = {}


class ElementError(Exception):
    """An element of a keyed list does not say which one it is, or says the same as another."""


def element_of(element: Any, field: MergedField) -> str:
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


def inside(field: MergedField) -> MergedField:
    """One element of a keyed list."""
    return MergedField(of=field.of, atomic=field.atomic)


def differences(old: Any, new: Any, root: MergedField) -> tuple[frozenset[Path], frozenset[Path], frozenset[Path]]:
    """The paths that were added, changed and removed. Equal parts cost no more than their comparison."""
    added: set[Path] = set()
    changed: set[Path] = set()
    removed: set[Path] = set()
    todo: list[tuple[Any, Any, MergedField, Path]] = [(old, new, root, ())]
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


def _inner(value: Any, field: MergedField) -> dict[str, tuple[Any, MergedField]] | None:
    """What a value is merged by: its members or elements with their kinds; None for what is merged whole."""
    if isinstance(value, dict) and not field.atomic:
        return {f"f:{name}": (inner, member_of(field, name)) for name, inner in value.items()}
    if isinstance(value, list) and (field.keys or field.members):
        return {element_of(element, field): (element, inside(field)) for element in value}
    return None


def _all_paths(value: Any, field: MergedField, path: Path) -> Iterator[Path]:
    yield path
    for name, (inner, below) in (_inner(value, field) or {}).items():
        yield from _all_paths(inner, below, (*path, name))


def named_by(value: Any, field: MergedField, path: Path = ()) -> Iterator[Path]:
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


# The records in `metadata.managedFields`: who manages which paths, and the refusal when two want the same.


_OF_THE_STORE: Final = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "resourceVersion")

#: Nobody manages these.
UNOWNED: Final[frozenset[Path]] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)} | {("f:metadata", f"f:{name}") for name in _OF_THE_STORE}
)


@dataclass(frozen=True, slots=True)
class Record:
    """One manager's paths; `stored` is the entry they were read from, for as long as it tells the truth."""

    manager: str
    operation: str
    version: str
    subresource: str
    time: str
    paths: frozenset[Path]
    stored: dict[str, Any] | None = None

    def without(self, paths: frozenset[Path]) -> Record:
        """The record after somebody else took these."""
        if self.paths.isdisjoint(paths):
            return self
        return replace(self, paths=self.paths - paths, stored=None)

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Who this is: appliers are the same whatever version they use."""
        return self.manager, self.operation, self.version if self.operation == "Update" else "", self.subresource

    def entry(self) -> dict[str, Any]:
        """The record as it is stored."""
        if self.stored is not None:
            return self.stored
        entry = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encoded(self.paths),
        }
        return entry | ({"subresource": self.subresource} if self.subresource else {})

    def title(self) -> str:
        """The manager as a conflict names it."""
        text = json.dumps(self.manager, ensure_ascii=False)
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.version}" if self.operation == "Update" else text


def bare(value: dict[str, Any]) -> dict[str, Any]:
    """The object without its records; its parts are not copied."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return value
    return {**value, "metadata": {name: inner for name, inner in metadata.items() if name != "managedFields"}}


def records_of(value: dict[str, Any]) -> list[Record]:
    """The records of an object."""
    metadata = value.get("metadata")
    entries = metadata.get("managedFields") if isinstance(metadata, dict) else None
    return [_record(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def joined(value: dict[str, Any], records: Iterable[Record]) -> dict[str, Any]:
    """The object with the records of all who manage anything."""
    kept = [record for record in records if record.paths]
    kept.sort(key=lambda record: (record.operation, record.time, record.manager, record.version, record.subresource))
    metadata = value.get("metadata")
    meta = dict(metadata) if isinstance(metadata, dict) else {}
    if kept:
        meta["managedFields"] = [record.entry() for record in kept]
    return {**value, "metadata": meta}


def conflict(claims: list[tuple[Record, frozenset[Path]]]) -> ApiStatus:
    """409: others manage fields that the configuration would change."""
    ordered = sorted(claims, key=lambda claim: claim[0].identity)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {record.title()}", "field": shown(path)}
        for record, paths in ordered
        for path in in_order(paths)
    ]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines: list[str] = []
        for record, paths in ordered:
            lines += [f"conflicts with {record.title()}:", *(f"- {shown(path)}" for path in in_order(paths))]
        text = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApiStatus(409, "Conflict", text, {"causes": causes})


def _record(entry: dict[str, Any]) -> Record:
    return Record(
        manager=str(entry.get("manager", "")),
        operation=str(entry.get("operation", "Update")),
        version=str(entry.get("apiVersion", "")),
        subresource=str(entry.get("subresource", "")),
        time=str(entry.get("time", "")),
        paths=decoded(entry.get("fieldsV1")),
        stored=entry,
    )


# Lays a configuration over an object, and takes parts out of it again, by the schema's kinds of lists and objects.


def laid_over(live: Any, applied: Any, field: MergedField) -> Any:
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


def _lists(live: list[Any], applied: list[Any], field: MergedField) -> list[Any]:
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


def taken_out(value: Any, path: Path, field: MergedField) -> Any:
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


# Members that the server's own types always have, so that no write adds them.
_ALWAYS_THERE: Final = frozenset(
    {"f:containers", "f:daemonEndpoints", "f:jobTemplate", "f:kubeletEndpoint", "f:metadata"}
    | {"f:nodeInfo", "f:resources", "f:source", "f:spec", "f:status", "f:strategy", "f:template"}
    | {"f:updateStrategy"}
)


def server_side_apply(
    live: dict[str, Any] | None,
    applied: dict[str, Any],
    *,
    manager: str,
    force: bool,
    now: str,
    kind: str,
    group: str,
    subresource: str = "",
) -> dict[str, Any]:
    """The object after `manager` applied this configuration, with its `managedFields`; shares parts with both."""
    _check(applied)
    root, version = root_of(kind, group), str(applied["apiVersion"])
    present, records = bare(live or {}), records_of(live or {})
    if live is not None and not records:
        records = [_unrecorded(present, root, version, now)]
    ignored = _ignored(group, subresource)
    claimed = frozenset(path for path in _claims(applied, root) if path[0] not in ignored)
    mine = Record(manager, "Apply", version, subresource, now, claimed)
    before = next((record for record in records if record.identity == mine.identity), None)
    others = [record for record in records if record.identity != mine.identity]
    result = _merged(present, applied, root)
    if before is not None:
        result = _pruned(result, before, claimed.union(*(record.paths for record in others)), root)
    added, changed, removed = _differences(present, result, root)
    touched = frozenset(path for path in added | changed if path[0] not in ignored)
    taken = [(record, record.paths & touched) for record in others]
    if not force and any(paths for _, paths in taken):
        raise conflict([(record, paths) for record, paths in taken if paths])
    left = [record.without(paths | removed) for record, paths in taken]
    mine = replace(mine, paths=claimed - UNOWNED)
    if before is not None and before.paths == mine.paths and not added | changed | removed:
        mine = replace(mine, time=before.time)
    return joined(result, [*left, mine])


def track_update(
    live: dict[str, Any] | None,
    written: dict[str, Any],
    *,
    manager: str,
    now: str,
    kind: str,
    group: str,
    subresource: str = "",
) -> dict[str, Any]:
    """The object of a create, update or patch, with the `managedFields` that follow from what it changed.

    Call it before the server itself fills in fields: those belong to nobody. The result shares parts with both.
    """
    root, version = root_of(kind, group), str(written.get("apiVersion", ""))
    old, records = bare(live or {}), records_of(live or {})
    new = bare(written)
    if live is not None and not records:
        return new
    added, changed, removed = _differences(old, new, root)
    if not added | changed | removed:
        return joined(new, records)
    ignored = _ignored(group, subresource)
    added = frozenset(path for path in added if path[0] not in ignored and not _is_always_there(path, new))
    changed = frozenset(path for path in changed if path[0] not in ignored)
    mine = Record(manager or "unknown", "Update", version, subresource, now, frozenset())
    before = next((record for record in records if record.identity == mine.identity), None)
    others = [record for record in records if record.identity != mine.identity]
    kept = before.paths - removed if before is not None else frozenset()
    paths = (kept | added | changed) - UNOWNED
    time = before.time if before is not None and not (added | changed) - UNOWNED else now
    left = [record.without(added | changed | removed) for record in others]
    return joined(new, [*left, replace(mine, paths=paths, time=time)])


def _check(applied: dict[str, Any]) -> None:
    if not applied.get("apiVersion") or not applied.get("kind"):
        raise ApiStatus(400, "BadRequest", f"invalid object type: {_version_kind(applied)}")
    metadata = applied.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise ApiStatus(400, "BadRequest", "metadata.managedFields must be nil")


def _ignored(group: str, subresource: str) -> frozenset[str]:
    """What this path of the API does not change: built-in kinds take their status only through its subresource."""
    if group not in BUILT_IN_GROUPS:
        return frozenset()
    return frozenset({"f:spec"} if subresource == "status" else {"f:status"})


def _unrecorded(present: dict[str, Any], root: MergedField, version: str, now: str) -> Record:
    """Fields of an object that nobody recorded, so that applying over them is a conflict."""
    added, _, _ = _differences({}, present, root)
    return Record("before-first-apply", "Update", version, "", now, added - UNOWNED)


def _claims(applied: dict[str, Any], root: MergedField) -> frozenset[Path]:
    try:
        return frozenset(named_by(applied, root))
    except ElementError as error:
        raise ApiStatus(500, "", f"{not_typed(applied)}: {error}") from None


def not_typed(applied: dict[str, Any]) -> str:
    """How a refusal begins of a configuration that does not fit its kind."""
    metadata = applied.get("metadata")
    meta = metadata if isinstance(metadata, dict) else {}
    what = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {_version_kind(applied)}"
    return f"failed to create typed patch object ({what})"


def _version_kind(applied: dict[str, Any]) -> str:
    version = str(applied.get("apiVersion") or "")
    return f"{version if '/' in version else f'/{version}'}, Kind={applied.get('kind') or ''}"


def _merged(present: dict[str, Any], applied: dict[str, Any], root: MergedField) -> dict[str, Any]:
    try:
        result: dict[str, Any] = laid_over(present, applied, root)
    except ElementError as error:
        raise ApiStatus(500, "", f"failed to merge config: {error}") from None
    return result


def _pruned(value: dict[str, Any], before: Record, managed: frozenset[Path], root: MergedField) -> dict[str, Any]:
    """Without what the manager named last time, and nobody, the manager included, names now."""
    gone = with_parents(before.paths) - with_parents(managed) - UNOWNED
    for path in sorted(gone, key=len):
        value = taken_out(value, path, root)
    return value


def _differences(
    old: dict[str, Any], new: dict[str, Any], root: MergedField
) -> tuple[frozenset[Path], frozenset[Path], frozenset[Path]]:
    """The paths that were added, changed and removed."""
    try:
        return differences(old, new, root)
    except ElementError as error:
        raise ApiStatus(500, "", f"failed to compare objects: {error}") from None


def _is_always_there(path: Path, value: dict[str, Any]) -> bool:
    if path[-1] not in _ALWAYS_THERE or not all(element.startswith("f:") for element in path):
        return False
    found: Any = value
    for element in path:
        found = found[element[2:]]
    return isinstance(found, dict | list)
