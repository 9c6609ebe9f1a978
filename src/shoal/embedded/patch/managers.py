"""The records in `metadata.managedFields`: who manages which paths, and the refusal when two want the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.patch.field_paths import Path, decoded, encoded, in_order, shown

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
