"""Label selectors and node selectors: what they match.

A selector that cannot be read matches nothing, as in Kubernetes; the API server lets few of those through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.kube.objects.meta import Base

Labels = Mapping[str, str]

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_INT64: Final = 2**63
_KEY: Final = r"(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)"
_COMMA: Final = re.compile(r",(?![^(]*\))")
_SET_TERM: Final = re.compile(_KEY + r"\s+(?P<operator>in|notin)\s*\((?P<values>[A-Za-z0-9._, -]*)\)")
_EQUAL_TERM: Final = re.compile(_KEY + r"\s*(?P<operator>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)")
_KEY_TERM: Final = re.compile(r"(?P<not>!?)\s*" + _KEY)


class RawRequirement(Base, frozen=True, kw_only=True):
    """A requirement as a manifest has it."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class RawLabelSelector(Base, frozen=True, kw_only=True):
    """A label selector as a manifest has it."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[RawRequirement, ...] | None = None


class RawNodeSelectorTerm(Base, frozen=True, kw_only=True):
    """A term of a node selector as a manifest has it."""

    match_expressions: tuple[RawRequirement, ...] | None = None
    match_fields: tuple[RawRequirement, ...] | None = None


class RawNodeSelector(Base, frozen=True, kw_only=True):
    """A node selector as a manifest has it: required node affinity."""

    node_selector_terms: tuple[RawNodeSelectorTerm, ...] | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing a label must be."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, value: str | None) -> bool:
        """Whether this value of the key, None for none, will do."""
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        bound, number = integer(next(iter(self.values), None)), integer(value)
        if bound is None or number is None:
            return False
        return number > bound if self.operator == "Gt" else self.operator == "Lt" and number < bound


def integer(text: str | None) -> int | None:
    """A whole number of 64 bits as Kubernetes reads one; None for anything else."""
    if text is None or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64 <= number < _INT64 else None


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; None matches nothing at all."""

    requirements: tuple[Requirement, ...] | None

    @property
    def everything(self) -> bool:
        return self.requirements == ()

    def matches(self, labels: Labels) -> bool:
        if self.requirements is None:
            return False
        return all(requirement.holds(labels.get(requirement.key)) for requirement in self.requirements)

    def narrowed(self, wanted: Labels, unwanted: Labels) -> LabelSelector:
        """The selector, and these values as well, and not those."""
        if self.requirements is None:
            return self
        more = (
            *(Requirement(key, "In", frozenset((value,))) for key, value in wanted.items()),
            *(Requirement(key, "NotIn", frozenset((value,))) for key, value in unwanted.items()),
        )
        return LabelSelector(self.requirements + tuple(new for new in more if new not in self.requirements))


MATCHES_NOTHING: Final = LabelSelector(None)

_LABEL_OPERATORS: Final = frozenset(("In", "NotIn", "Exists", "DoesNotExist"))


def label_selector(raw: RawLabelSelector | None) -> LabelSelector:
    """A label selector; none at all selects nothing, an empty one everything."""
    if raw is None:
        return MATCHES_NOTHING
    requirements = [_equal(key, value) for key, value in sorted((raw.match_labels or {}).items())]
    for expression in raw.match_expressions or ():
        requirement = _read(expression)
        if requirement is None or requirement.operator not in _LABEL_OPERATORS:
            return MATCHES_NOTHING
        requirements.append(requirement)
    return LabelSelector(tuple(requirements))


def read_label_selector(raw: object) -> LabelSelector:
    """The selector as decoded JSON has it; one that cannot be read selects nothing."""
    try:
        return label_selector(msgspec.convert(raw, RawLabelSelector | None))
    except msgspec.ValidationError:
        return MATCHES_NOTHING


def parse_label_selector(text: str) -> LabelSelector | None:
    """A selector as people write it, such as `app=web,tier in (a, b),!debug`; None if it cannot be read."""
    requirements = []
    for term in _terms(text):
        requirement = _parsed(term.strip())
        if requirement is None:
            return None
        requirements.append(requirement)
    return LabelSelector(tuple(requirements))


def _terms(text: str) -> list[str]:
    """The parts between commas that stand in no brackets; no text has none."""
    return _COMMA.split(text) if text.strip() else []


def _parsed(term: str) -> Requirement | None:
    if found := _SET_TERM.fullmatch(term):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], "In" if found["operator"] == "in" else "NotIn", values)
    if found := _EQUAL_TERM.fullmatch(term):
        return Requirement(found["key"], "NotIn" if found["operator"] == "!=" else "In", frozenset((found["value"],)))
    if found := _KEY_TERM.fullmatch(term):
        return Requirement(found["key"], "DoesNotExist" if found["not"] else "Exists")
    return None


def _equal(key: str, value: str) -> Requirement:
    return Requirement(key, "In", frozenset((value,)))


def _read(raw: RawRequirement) -> Requirement | None:
    values = raw.values or ()
    if raw.operator in ("In", "NotIn"):
        sound = bool(values)
    elif raw.operator in ("Exists", "DoesNotExist"):
        sound = not values
    else:
        sound = raw.operator in ("Gt", "Lt") and len(values) == 1 and integer(values[0]) is not None
    return Requirement(raw.key, raw.operator, frozenset(values)) if sound else None


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """What labels and name of a node must be."""

    labels: tuple[Requirement, ...]
    names: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a node with this name and these labels is meant."""
        return all(one.holds(labels.get(one.key)) for one in self.labels) and all(one.holds(name) for one in self.names)


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """One of the terms must match; with no terms, no node does."""

    terms: tuple[NodeSelectorTerm, ...]

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a node with this name and these labels is meant."""
        return any(term.matches(name, labels) for term in self.terms)


def node_term(raw: RawNodeSelectorTerm) -> NodeSelectorTerm | None:
    """The term; None for one that matches nothing, being empty or unreadable."""
    if not raw.match_expressions and not raw.match_fields:
        return None
    labels = [_read(expression) for expression in raw.match_expressions or ()]
    names = [_read_field(field) for field in raw.match_fields or ()]
    if None in labels or None in names:
        return None
    return NodeSelectorTerm(
        tuple(found for found in labels if found is not None), tuple(found for found in names if found is not None)
    )


def _read_field(raw: RawRequirement) -> Requirement | None:
    # The only field there is; Kubernetes wants exactly one value.
    if raw.key != "metadata.name" or raw.operator not in ("In", "NotIn") or len(raw.values or ()) != 1:
        return None
    return _read(raw)


def node_selector(terms: tuple[RawNodeSelectorTerm, ...]) -> NodeSelector:
    """The terms that can match."""
    return NodeSelector(tuple(found for raw in terms if (found := node_term(raw)) is not None))


def read_node_selector(raw: object) -> NodeSelector:
    """The selector as decoded JSON has it; one that cannot be read selects no node."""
    try:
        return node_selector(msgspec.convert(raw, RawNodeSelector).node_selector_terms or ())
    except msgspec.ValidationError:
        return NodeSelector(())


def labels_term(labels: Labels) -> NodeSelectorTerm:
    """A node selector of the plain kind."""
    return NodeSelectorTerm(tuple(_equal(key, value) for key, value in sorted(labels.items())))
