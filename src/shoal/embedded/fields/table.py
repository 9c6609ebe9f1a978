"""The table of fields, read from `built_in.txt`.

A section for each API group, a line for each struct: its name, then `name:number:type` for each field. The number is
protobuf's. A type is `str`, `int`, `num`, `bool`, `bytes`, one of the types with a form of their own (`time`,
`microtime`, `quantity`, `intstr`, `raw`) or a struct, in its own section unless it names another. Before it stands `[]`
for a list, `{}` for a map, `*` if the field may be absent though its type has an empty value. The fields of a struct
whose name begins with a plus belong to the struct around it, in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("built_in.txt")
_SECTIONS: Final = {"": "core"} | {
    group: group.partition(".")[0]
    for group in (
        *("admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "authentication.k8s.io"),
        *("authorization.k8s.io", "autoscaling", "batch", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io"),
        *("networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io"),
        *("scheduling.k8s.io", "storage.k8s.io"),
    )
}
#: Kinds that are the same wherever they are sent to.
_EVERYWHERE: Final = {"DeleteOptions": "meta.DeleteOptions", "Scale": "autoscalingv1.Scale"}
_TYPE: Final = re.compile(r"(\*?)((?:\[\]|\{\})*)(.+)")


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `shape` is a word of `[]` and `{}`; `struct` is None for what has no fields."""

    name: str
    number: int
    optional: bool
    shape: str
    of: str
    struct: Struct | None = None
    embedded: bool = False


@dataclass(slots=True)
class Struct:
    """A type with fields: by the names that JSON has for them, and as protobuf numbers them. Named `core.Pod`."""

    name: str
    members: Mapping[str, Field] = field(default_factory=dict)
    numbers: Mapping[int, Field] = field(default_factory=dict)


def struct_of(group: str, kind: str) -> Struct | None:
    """The fields of a built-in kind; None if the table does not have it."""
    return structs().get(_EVERYWHERE.get(kind) or f"{_SECTIONS.get(group)}.{kind}")


@cache
def structs() -> Mapping[str, Struct]:
    """Every struct of the table, by section and name."""
    lines = _lines(FILE.read_text())
    found = {name: Struct(name) for name in lines}
    for name, words in lines.items():
        section = name.partition(".")[0]
        found[name].numbers = {one.number: one for one in (_field(word, section, found) for word in words)}
    for struct in found.values():
        struct.members = {one.name: one for one in _members(struct)}
    return found


def _members(struct: Struct) -> Iterator[Field]:
    for one in struct.numbers.values():
        if one.embedded and one.struct is not None:
            yield from _members(one.struct)
        else:
            yield one


def _lines(text: str) -> dict[str, list[str]]:
    section, lines = "", {}
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        else:
            name, *words = line.split(" ")
            lines[f"{section}.{name}"] = words
    return lines


def _field(word: str, section: str, found: Mapping[str, Struct]) -> Field:
    name, number, type_ = word.split(":")
    match = _TYPE.fullmatch(type_)
    assert match is not None, word
    optional, shape, of = match.groups()
    struct = found.get(of if "." in of else f"{section}.{of}")
    return Field(name.lstrip("+"), int(number), bool(optional), shape, of, struct, name.startswith("+"))
