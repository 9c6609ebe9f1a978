"""Label and field selectors: what a client writes, turned into a test of one object.

Parsing follows the real server's grammar and its messages. A selector that cannot be read is refused with 400.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal.embedded.errors import ApiStatus, bad_request
from shoal.embedded.kinds import Kind, ResourceKey
from shoal.embedded.names import label_key_errors, label_value_errors
from shoal.kube.selectors import LabelSelector, Requirement, read_label_selector

Test = Callable[[dict[str, Any]], bool]

_OPERATORS: Final = ("in", "notin", "=", "==", "!=", "gt", "lt")
_WORD: Final = re.compile(r"[^\s!()=<>,]+")
_COMPARISONS: Final = {">": "gt", "<": "lt"}
#: What the operators of a text mean, in the words of an object.
_MEANING: Final = {
    "exists": "Exists",
    "!": "DoesNotExist",
    "gt": "Gt",
    "lt": "Lt",
    **dict.fromkeys(("in", "=", "=="), "In"),
    **dict.fromkeys(("notin", "!="), "NotIn"),
}
_REFERENCE: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

#: What events.k8s.io calls the fields of stored events.
_NEW_EVENT_FIELDS: Final = {
    "reason": "reason",
    "type": "type",
    "reportingController": "reportingComponent",
    **{f"regarding.{name}": f"involvedObject.{name}" for name in _REFERENCE},
}
#: Fields that can be selected by, beyond metadata.name and metadata.namespace.
_FIELDS: Final[Mapping[ResourceKey, tuple[str, ...]]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("", "events"): (
        *(f"involvedObject.{name}" for name in _REFERENCE),
        *("reason", "reportingComponent", "source", "type"),
    ),
    ("events.k8s.io", "events"): tuple(_NEW_EVENT_FIELDS),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("resource.k8s.io", "resourceslices"): ("spec.nodeName", "spec.driver"),
}
#: What an absent field counts as where that is not the empty string.
_ABSENT: Final = {
    "spec.unschedulable": "false",
    "spec.hostNetwork": "false",
    "status.replicas": "0",
    "status.successful": "0",
}


def everything(_: dict[str, Any]) -> bool:
    """The selector that is not there."""
    return True


def both(first: Test, second: Test) -> Test:
    """Objects that pass both."""
    if first is everything:
        return second
    if second is everything:
        return first
    return lambda obj: first(obj) and second(obj)


def label_selector(text: str) -> Test:
    """The test that a `labelSelector` asks for."""
    if not text.strip():
        return everything
    try:
        requirements = _Parser(text).requirements()
    except _ParseError as error:
        raise bad_request(str(error)) from error
    if not requirements:
        return everything

    def test(obj: dict[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement(labels) for requirement in requirements)

    return test


def selector_of(selector: Mapping[str, Any] | None) -> LabelSelector:
    """The selector inside an object (matchLabels, matchExpressions); none at all selects everything."""
    return read_label_selector(selector or {})


def matches_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether labels fit the selector inside an object."""
    return selector_of(selector).matches(labels)


def field_selector(text: str, kind: Kind) -> Test:
    """The test that a `fieldSelector` asks for."""
    terms = [_field_term(term) for term in _split_terms(text) if term]
    for field, _, _ in terms:
        if field not in _known_fields(kind):
            raise _unknown_field(field, kind)
    if not terms:
        return everything
    if kind.home is not None:
        terms = [(_NEW_EVENT_FIELDS.get(field, field), equal, value) for field, equal, value in terms]

    def test(obj: dict[str, Any]) -> bool:
        return all((field_value(obj, field) == value) is equal for field, equal, value in terms)

    return test


def demanded_value(text: str, field: str) -> str | None:
    """The value that a `fieldSelector` wants a field to have; None if any will do."""
    terms = [_field_term(term) for term in _split_terms(text) if term]
    return next((value for name, equal, value in terms if name == field and equal), None)


def field_value(obj: Mapping[str, Any], field: str) -> str:
    """A field as selectors see it."""
    if field == "source":
        return str((obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "")
    if field == "status.successful":
        field = "status.succeeded"
    value: Any = obj
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if field == "status.podIPs" and isinstance(value, list):
        return ",".join(entry.get("ip", "") for entry in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _ABSENT.get(field, "") if value is None else str(value)


def _known_fields(kind: Kind) -> tuple[str, ...]:
    return ("metadata.name", "metadata.namespace", *_FIELDS.get((kind.group, kind.plural), ()))


def _unknown_field(field: str, kind: Kind) -> ApiStatus:
    if kind.key == ("batch", "jobs"):
        return bad_request(f'field label "{field}" not supported for batchv1.Job')
    if kind.custom or kind.key in _FIELDS:
        return bad_request(f"field label not supported: {field}")
    return bad_request(f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"')


def _split_terms(text: str) -> list[str]:
    """Cut at commas that no backslash protects."""
    return re.split(r"(?<!\\),", text)


def _field_term(term: str) -> tuple[str, bool, str]:
    found = re.match(r"([^=!]*)(!=|==|=)(.*)", term, re.DOTALL)
    if found is None:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    return found[1], found[2] != "!=", re.sub(r"\\(.)", r"\1", found[3])


class _ParseError(Exception):
    """What the grammar expected."""


class _Parser:
    """Label selectors by recursive descent, as the real server reads them."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def requirements(self) -> list[Callable[[Mapping[str, str]], bool]]:
        """Every requirement of the text."""
        found: list[Callable[[Mapping[str, str]], bool]] = []
        while True:
            token = self._peek()
            if token == "" and not found:
                return found
            if not _is_word(token) and token != "!":
                raise _ParseError(f"found '{token}', expected: !, identifier, or 'end of string'")
            try:
                found.append(self._requirement())
            except _ParseError as error:
                raise _ParseError(f"unable to parse requirement: {error}") from error
            token = self._next()
            if token == "":
                return found
            if token != ",":
                raise _ParseError(f"found '{token}', expected: ',' or 'end of string'")
            if not _is_word(self._peek()) and self._peek() != "!":
                raise _ParseError(f"found '{self._peek()}', expected: identifier after ','")

    def _requirement(self) -> Callable[[Mapping[str, str]], bool]:
        negated = self._peek() == "!"
        if negated:
            self._next()
        key = self._next()
        if not _is_word(key):
            raise _ParseError(f"found '{key}', expected: identifier")
        for error in label_key_errors(key):
            raise _ParseError(f'<nil>: Invalid value: "{key}": {error}')
        if negated:
            return _requirement(key, "!", frozenset())
        if self._peek() in ("", ","):
            return _requirement(key, "exists", frozenset())
        token = self._next()
        operator = _COMPARISONS.get(token, token)
        if operator not in _OPERATORS or token in ("gt", "lt"):
            raise _ParseError(f"found '{token}', expected: {', '.join(_OPERATORS)}")
        values = self._values() if operator in ("in", "notin") else frozenset({self._value()})
        for number, value in enumerate(sorted(values)):
            for error in label_value_errors(value):
                raise _ParseError(f'values[{number}][{key}]: Invalid value: "{value}": {error}')
        if operator in ("gt", "lt") and not all(re.fullmatch(r"[+-]?\d+", value) for value in values):
            value = next(iter(values))
            raise _ParseError(
                f"values[0]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
            )
        return _requirement(key, operator, values)

    def _value(self) -> str:
        if self._peek() in ("", ","):
            return ""
        token = self._next()
        if not _is_word(token):
            raise _ParseError(f"found '{token}', expected: identifier")
        return token

    def _values(self) -> frozenset[str]:
        token = self._next()
        if token != "(":
            raise _ParseError(f"found '{token}' expected: '('")
        if self._peek() != ")" and self._peek() != "," and not _is_word(self._peek()):
            raise _ParseError(f"found '{self._peek()}', expected: ',', ')' or identifier")
        found: set[str] = set()
        while True:
            token = self._next()
            if _is_word(token):
                found.add(token)
                if self._peek() not in (",", ")"):
                    raise _ParseError(f"found '{self._peek()}', expected: ',' or ')'")
                token = self._next()
            else:
                found.add("")
            if token == ")":
                return frozenset(found)
            if token != ",":
                raise _ParseError(f"found '{token}', expected: ',', or ')'")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif text[at : at + 2] in ("!=", "=="):
            found.append(text[at : at + 2])
            at += 2
        elif word := _WORD.match(text, at):
            found.append(word[0])
            at = word.end()
        else:
            found.append(text[at])
            at += 1
    return found


def _is_word(token: str) -> bool:
    return bool(token) and _WORD.fullmatch(token) is not None


def _requirement(key: str, operator: str, values: frozenset[str]) -> Callable[[Mapping[str, str]], bool]:
    requirement = Requirement(key, _MEANING[operator], values)
    return lambda labels: requirement.holds(labels.get(key))
