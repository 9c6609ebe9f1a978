"""Does an answer hold what a case expects? A mapping expects its keys and allows others; all else must be equal.

These, in the YAML of `cases/`, say what plain data cannot:

    <absent>          the key is not there
    <any>             the key is there, whatever its value
    !re TEXT          the whole string matches this regular expression
    !not VALUE        anything that VALUE does not match
    !exactly {...}    a mapping with these keys and no others
    !has [...]        a list in which each of these matches some item, in any order
    !repeat [TEXT, N] a long string, for bodies
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Marker:
    """A tagged value of a case."""

    tag: str
    value: Any = None


MISSING = object()


def differences(expected: Any, actual: Any, where: str = "") -> Iterator[str]:
    """What is not as expected, one line each."""
    if isinstance(expected, Marker):
        yield from _MARKERS[expected.tag](expected.value, actual, where)
    elif actual is MISSING:
        yield f"{where}: is absent, expected {expected!r}"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            yield from differences(value, actual.get(key, MISSING), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif expected != actual or type(expected) is not type(actual):
        yield f"{where}: is {actual!r}, expected {expected!r}"


def substituted(told: Any, variables: dict[str, str]) -> Any:
    """The same with `{name}` replaced, wherever `name` is a variable."""
    if isinstance(told, str):
        return re.sub(r"\{(\w+)\}", lambda found: variables.get(found[1], found[0]), told)
    if isinstance(told, dict):
        return {substituted(key, variables): substituted(value, variables) for key, value in told.items()}
    if isinstance(told, list):
        return [substituted(value, variables) for value in told]
    if isinstance(told, Marker):
        return Marker(told.tag, substituted(told.value, variables))
    return told


def load(path: Path) -> Any:
    """A YAML file with the marks above."""
    return yaml.load(path.read_text(), _Loader)


def _absent(_: Any, actual: Any, where: str) -> Iterator[str]:
    if actual is not MISSING:
        yield f"{where}: is {actual!r}, expected to be absent"


def _any(_: Any, actual: Any, where: str) -> Iterator[str]:
    if actual is MISSING:
        yield f"{where}: is absent"


def _re(pattern: str, actual: Any, where: str) -> Iterator[str]:
    if not isinstance(actual, str) or not re.fullmatch(pattern, actual, re.DOTALL):
        yield f"{where}: is {'absent' if actual is MISSING else repr(actual)}, expected to match {pattern!r}"


def _not(value: Any, actual: Any, where: str) -> Iterator[str]:
    if actual is MISSING or not any(differences(value, actual)):
        yield f"{where}: is {'absent' if actual is MISSING else repr(actual)}, expected something else than {value!r}"


def _exactly(value: dict[str, Any], actual: Any, where: str) -> Iterator[str]:
    yield from differences(value, actual, where)
    if isinstance(actual, dict):
        yield from (f"{where}.{key}: is {actual[key]!r}, expected to be absent" for key in actual.keys() - value.keys())


def _has(values: list[Any], actual: Any, where: str) -> Iterator[str]:
    if not isinstance(actual, list):
        yield f"{where}: is {'absent' if actual is MISSING else repr(actual)}, expected a list"
        return
    for value in values:
        if all(any(differences(value, item)) for item in actual):
            yield f"{where}: has no item like {value!r}: {actual!r:.2000}"


_MARKERS: dict[str, Callable[[Any, Any, str], Iterator[str]]] = {
    "<absent>": _absent,
    "<any>": _any,
    "!re": _re,
    "!not": _not,
    "!exactly": _exactly,
    "!has": _has,
}


class _Loader(yaml.CSafeLoader):
    """Plain YAML and the tags. What has no value needs no tag: a tag cannot stand before a comma."""


def _construct(loader: _Loader, tag: str, node: yaml.Node) -> Any:
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.ScalarNode)
        value = loader.construct_scalar(node)
    return value[0] * value[1] if tag == "repeat" else Marker(f"!{tag}", value)


_Loader.add_implicit_resolver("<>", re.compile("<(absent|any)>$"), "<")
_Loader.add_constructor("<>", lambda _, node: Marker(node.value))
_Loader.add_multi_constructor("!", _construct)
