"""Server-side apply: who manages which field, conflicts, and what goes when a manager no longer names it.

`server_side_apply` is for apply patches; `track_update` keeps the same records for every other write, without which
there is nothing to be in conflict with. Paths of another version of the kind are taken as they are; neither the schema
of a custom resource nor the move away from kubectl's last-applied annotation is looked at. Fields that the kind does
not have are refused before, where the body is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.field_paths import ElementError, Path, differences, named_by, with_parents
from shoal.embedded.patch.managers import UNOWNED, Record, bare, conflict, joined, records_of
from shoal.embedded.patch.schema import BUILT_IN_GROUPS, Field, root_of
from shoal.embedded.patch.typed_merge import laid_over, taken_out

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


def _unrecorded(present: dict[str, Any], root: Field, version: str, now: str) -> Record:
    """Fields of an object that nobody recorded, so that applying over them is a conflict."""
    added, _, _ = _differences({}, present, root)
    return Record("before-first-apply", "Update", version, "", now, added - UNOWNED)


def _claims(applied: dict[str, Any], root: Field) -> frozenset[Path]:
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


def _merged(present: dict[str, Any], applied: dict[str, Any], root: Field) -> dict[str, Any]:
    try:
        result: dict[str, Any] = laid_over(present, applied, root)
    except ElementError as error:
        raise ApiStatus(500, "", f"failed to merge config: {error}") from None
    return result


def _pruned(value: dict[str, Any], before: Record, managed: frozenset[Path], root: Field) -> dict[str, Any]:
    """Without what the manager named last time, and nobody, the manager included, names now."""
    gone = with_parents(before.paths) - with_parents(managed) - UNOWNED
    for path in sorted(gone, key=len):
        value = taken_out(value, path, root)
    return value


def _differences(
    old: dict[str, Any], new: dict[str, Any], root: Field
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
