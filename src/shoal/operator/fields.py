"""Fields of a policy: what is said of each once, for the schema of the API server and for the reader here.

A field is an annotated type of a struct. `said` gives its description, its bounds, a rule, and whether it does nothing.
`read_struct` reads a mapping into a struct and goes on past what is wrong: a field that cannot be used has its default,
and a problem tells which one, what it holds and what to write instead.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from shoal.model.errors import shown

#: The problems that are told one by one.
MAX_PROBLEMS: Final = 64
#: Names that are looked at for a likely one, and the longest that is looked at.
_LONGEST_NAME: Final = 128
_EXTRA: Final = "shoal"

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be beyond its type: for the API server in CEL, for the reader as a function."""

    #: Empty where only the reader knows the rule.
    cel: str
    holds: Callable[[Any], bool]
    #: What is wrong and what to write instead.
    words: str
    #: The same in CEL, where it repeats parts of the value.
    expression: str = ""
    #: Take the value in spite of it: whoever uses it knows what to do, and the default would do harm.
    keep: bool = False
    #: Where numbers are taken as well as text: from, to.
    numbers: tuple[int, int] = (0, 2**31)
    #: A pattern of the schema in place of a rule in CEL, whose words then are the server's own. Servers before 1.36 do
    #: not see how long a text is that may be a number, and let only a few rules look at one.
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class FieldNotes:
    """What `said` says beyond msgspec's own."""

    rule: Rule | None = None
    #: Why the field does nothing, and what does; empty for one that does something.
    inert: str = ""
    secret: bool = False


def matching(
    pattern: str, words: str, *, numbers: tuple[int, int] = (0, 2**31), plain: bool = False, keep: bool = False
) -> Rule:
    """The whole text is like the pattern, which Python and RE2 read alike; a number lies within its bounds.

    A plain one is written into the schema as a pattern.
    """
    find = re.compile(pattern).fullmatch

    def holds(value: str | int) -> bool:
        return numbers[0] <= value <= numbers[1] if isinstance(value, int) else bool(find(value))

    whole = f"^(?:{pattern})$"
    return Rule(f"self.matches(r'{whole}')", holds, words, keep=keep, numbers=numbers, pattern=whole if plain else "")


def said(
    description: str,
    *,
    least: float | None = None,
    most: float | None = None,
    longest: int | None = None,
    rule: Rule | None = None,
    inert: str = "",
    secret: bool = False,
) -> msgspec.Meta:
    """A field: what it is for, how small, large and long it may be, and what it must be beyond that."""
    notes = FieldNotes(rule, inert, secret)
    bounds: dict[str, Any] = {"ge": least, "le": most, "max_length": longest}
    return msgspec.Meta(description=description, extra={_EXTRA: notes}, **bounds)


#: `default`: the default is in force instead. `kept`: nothing is done by it, and what is there stays as it is.
#: `ignored`: Shoal has nothing that the field could change.
Effect = Literal["default", "kept", "ignored"]


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """What of a policy cannot be used, or does nothing."""

    field: str
    #: The value as far as it may be told.
    value: str
    why: str
    fix: str
    effect: Effect = "default"

    def __str__(self) -> str:
        """One sentence."""
        value = f" {self.value}" if self.value else ""
        return f"{self.field}{value}: {self.why}: {self.fix}"


class Problems:
    """The problems of one policy; of very many the first are told."""

    def __init__(self) -> None:
        self._told: list[PolicyProblem] = []
        self._more = 0

    def add(self, problem: PolicyProblem) -> None:
        """One more."""
        if len(self._told) < MAX_PROBLEMS:
            self._told.append(problem)
        else:
            self._more += 1

    @property
    def full(self) -> bool:
        """Whether a further one is only counted."""
        return len(self._told) >= MAX_PROBLEMS

    def told(self) -> tuple[PolicyProblem, ...]:
        """Those that are told."""
        if not self._more:
            return tuple(self._told)
        rest = PolicyProblem("spec", "", f"{self._more} more problems are not told", "put the others right first")
        return (*self._told, rest)


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field, taken apart."""

    #: A class, a Literal, a union, or the origin of a generic.
    kind: Any
    #: The struct, for a field that is one.
    struct: type[msgspec.Struct] | None = None
    #: The texts that a Literal allows.
    choices: tuple[str, ...] = ()
    #: The types of a list's entries, or of a mapping's keys and values.
    entries: tuple[FieldType, ...] = ()
    is_int_or_string: bool = False
    #: What `said` said.
    notes: FieldNotes = FieldNotes()
    description: str = ""
    longest: int | None = None
    least: float | None = None
    most: float | None = None

    @property
    def loose(self) -> bool:
        """A section that does nothing: what stands in it only has to be of the right type."""
        return bool(self.notes.inert) and self.struct is not None


def field_type(annotation: Any) -> FieldType:
    """The type that stands in an annotation."""
    metas: list[msgspec.Meta] = []
    if typing.get_origin(annotation) is Annotated:
        annotation, *rest = typing.get_args(annotation)
        metas = [one for one in rest if isinstance(one, msgspec.Meta)]
    kind = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    is_union = kind in (types.UnionType, typing.Union)
    is_generic = isinstance(kind, type) and issubclass(kind, tuple | Mapping) and bool(arguments)

    def bound(name: str) -> Any:
        return next((value for meta in metas if (value := getattr(meta, name)) is not None), None)

    notes = [found for meta in metas if isinstance(found := (meta.extra or {}).get(_EXTRA), FieldNotes)]
    return FieldType(
        kind,
        struct=kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None,
        choices=arguments if kind is Literal else (),
        entries=tuple(field_type(one) for one in arguments if one is not Ellipsis) if is_generic else (),
        is_int_or_string=is_union and set(arguments) == {int, str},
        notes=notes[0] if notes else FieldNotes(),
        description=bound("description") or "",
        longest=bound("max_length"),
        least=bound("ge"),
        most=bound("le"),
    )


@dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct."""

    #: As Python has it, and as a policy has it.
    name: str
    key: str
    type: FieldType
    #: `msgspec.NODEFAULT` for a field that must be given.
    default: Any


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> tuple[StructField, ...]:
    """The fields of a struct. Taking types apart is slow, and there are as many structs as the code has."""
    return tuple(
        StructField(
            field.name,
            field.encode_name,
            field_type(field.type),
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
        )
        for field in msgspec.structs.fields(struct)
    )


def rules_of(struct: type[msgspec.Struct]) -> tuple[Rule, ...]:
    """The rules about a struct as a whole."""
    rules = getattr(struct, "rules", ())
    assert isinstance(rules, tuple)
    return rules


def read_struct(struct: type[S], raw: object, path: str, problems: Problems, *, loose: bool = False) -> S | None:
    """The struct that the mapping means; None where a field that must be given is not, or a rule is broken.

    Rules do not count in what is read loosely.
    """
    if not isinstance(raw, Mapping):
        problems.add(PolicyProblem(path, shown(raw), "is no mapping", "write fields as key: value"))
        raw = {}
    fields = fields_of(struct)
    given: dict[str, Any] = {}
    for field in fields:
        value = raw.get(field.key)
        if value is None and field.default is not msgspec.NODEFAULT:
            continue
        where = f"{path}.{field.key}"
        kind, default = field.type, field.default
        if value is not None:
            read = _read_value(kind, value, where, problems, loose)
            if read is not _UNUSABLE:
                given[field.name] = read
                if not loose:
                    _tell_inert(kind, read, default, where, problems)
        if default is msgspec.NODEFAULT and field.name not in given:
            if value is None:
                problems.add(PolicyProblem(where, "", "is missing", f"write {field.key}"))
            return None
    if not loose:
        _tell_unknown(raw, {field.key for field in fields}, path, problems)
    made = struct(**given)
    for rule in () if loose else rules_of(struct):
        if not rule.holds(made):
            why, _, fix = rule.words.partition(": ")
            problems.add(PolicyProblem(path, "", why, fix, "kept" if rule.keep else "default"))
            if not rule.keep:
                return None
    return made


_UNUSABLE: Final = object()


def _read_value(kind: FieldType, value: object, where: str, problems: Problems, loose: bool) -> Any:
    if kind.struct is not None:
        read = read_struct(kind.struct, value, where, problems, loose=loose or kind.loose)
        return _UNUSABLE if read is None else read
    if kind.kind is tuple and isinstance(value, list | tuple):
        longest = kind.longest
        if longest is not None and len(value) > longest:
            _refuse(where, f"{len(value)} entries", "are too many", f"write at most {longest}", problems)
            value = value[:longest]
        item = kind.entries[0]
        read_items = (_read_value(item, one, f"{where}[{place}]", problems, loose) for place, one in enumerate(value))
        return tuple(one for one in read_items if one is not _UNUSABLE)
    if isinstance(kind.kind, type) and issubclass(kind.kind, Mapping) and isinstance(value, Mapping):
        return _read_mapping(kind, value, where, problems, loose)
    return _read_leaf(kind, value, where, problems, loose)


def _read_mapping(kind: FieldType, value: Mapping[Any, Any], where: str, problems: Problems, loose: bool) -> Any:
    longest = kind.longest
    if longest is not None and len(value) > longest:
        _refuse(where, f"{len(value)} entries", "are too many", f"write at most {longest}", problems)
        return _UNUSABLE
    key_type, item = kind.entries
    found: dict[str, Any] = {}
    for key, one in value.items():
        at = f"{where}[{shown(key)}]"
        if _read_leaf(key_type, key, f"the name {at}", problems, loose) is _UNUSABLE:
            continue
        read = _read_value(item, one, at, problems, loose)
        if read is not _UNUSABLE:
            found[key] = read
    return found


def _read_leaf(kind: FieldType, value: object, where: str, problems: Problems, loose: bool) -> Any:
    notes = kind.notes
    told = "" if notes.secret else _as_written(value)
    if kind.choices:
        if not isinstance(value, str) or value not in kind.choices:
            words = ", ".join(choice or '""' for choice in kind.choices)
            return _refuse(where, told, "is not known", f"write one of {words}", problems)
        return value
    if not _is_of(kind, value):
        return _refuse(
            where, told, "is of another type", f"write {_TYPES.get(kind.kind, 'text or a number')}", problems
        )
    assert isinstance(value, bool | int | float | str)
    if isinstance(value, str):
        longest = kind.longest
        if longest is not None and len(value) > longest:
            why = f"has {len(value)} characters"
            return _refuse(where, told, why, f"write at most {longest}", problems)
        if any("\ud800" <= character <= "\udfff" for character in value):
            return _refuse(where, told, "holds half a character", "write whole ones", problems)
    elif not isinstance(value, bool):
        least, most = kind.least, kind.most
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            return _refuse(where, told, "is out of bounds", f"write {least} to {most}", problems)
    if notes.rule is not None and not loose and not notes.rule.holds(value):
        why, _, fix = notes.rule.words.partition(": ")
        problems.add(PolicyProblem(where, told, why, fix, "kept" if notes.rule.keep else "default"))
        if not notes.rule.keep:
            return _UNUSABLE
    return float(value) if kind.kind is float else value


_TYPES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text, in quotes where it looks like a number",
    tuple: "a list",
}


def _is_of(kind: FieldType, value: object) -> bool:
    if kind.is_int_or_string:
        return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    if kind.kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
    if kind.kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind.kind in (str, bool) and type(value) is kind.kind


def _refuse(where: str, value: str, why: str, fix: str, problems: Problems) -> Any:
    problems.add(PolicyProblem(where, value, why, fix))
    return _UNUSABLE


def _tell_inert(kind: FieldType, value: Any, default: Any, where: str, problems: Problems) -> None:
    inert = kind.notes.inert
    if not inert or value == default:
        return
    if kind.struct is not None and "enabled" in kind.struct.__struct_fields__:
        if not value.enabled:
            return
        where, value = f"{where}.enabled", True
    why, _, fix = inert.partition(": ")
    told = "" if kind.notes.secret or not isinstance(value, str | bool | int | float) else _as_written(value)
    problems.add(PolicyProblem(where, told, why, fix, "ignored"))


def _as_written(value: object) -> str:
    """A value as YAML has it, short and printable."""
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _tell_unknown(raw: Mapping[Any, Any], known: set[str], path: str, problems: Problems) -> None:
    for key in raw:
        if key in known:
            continue
        near = [] if problems.full else difflib.get_close_matches(str(key)[:_LONGEST_NAME], sorted(known), n=1)
        fix = f"write {near[0]}" if near else "leave it out"
        problems.add(PolicyProblem(f"{path}[{shown(key)}]", "", "is no field of a policy", fix, "ignored"))
