"""A strict reader of Prometheus's text format: what it takes, Prometheus takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|\})')
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}
_KINDS = {"gauge", "counter", "histogram", "summary", "untyped"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """A family: its type, its words, and its series with labels in the order they were written in."""

    kind: str = ""
    what: str = ""
    series: dict[Labels, float] = field(default_factory=dict)
    texts: dict[Labels, str] = field(default_factory=dict)
    seen: set[Labels] = field(default_factory=set)

    def by(self, *names: str) -> dict[tuple[str, ...], float]:
        """The values by some of the labels."""
        return {tuple(dict(labels).get(name, "") for name in names): value for labels, value in self.series.items()}


def read(text: str) -> dict[str, Family]:
    """The families of a text. Raises AssertionError for anything that is not strictly right."""
    assert not text or text.endswith("\n"), "the last line has no end"
    text.encode()  # no surrogates
    assert "\0" not in text
    families: dict[str, Family] = {}
    current = ""
    for line in text.split("\n")[:-1]:
        assert line, "an empty line"
        if line.startswith("# HELP "):
            name, _, what = line.removeprefix("# HELP ").partition(" ")
            assert _NAME.fullmatch(name), line
            assert name not in families, f"{name} stands twice"
            families[name] = Family(what=what)
            current = name
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert name == current, line
            assert kind in _KINDS, line
            assert not families[name].kind, line
            families[name].kind = kind
        else:
            _sample(line, current, families[current])
    assert all(family.series for family in families.values()), "a family without a series"
    return families


def _sample(line: str, current: str, family: Family) -> None:
    found = _NAME.match(line)
    assert found, line
    assert found[0] == current, f"{line!r} stands under {current}"
    assert family.kind, line
    at = found.end()
    labels: list[tuple[str, str]] = []
    if line[at] == "{":
        at += 1
        while True:
            label = _LABEL.match(line, at)
            assert label, line[at : at + 200]
            value = re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], label[2])
            labels.append((label[1], value))
            at = label.end()
            if label[3] == "}":
                break
    names = [name for name, _ in labels]
    assert len(names) == len(set(names)), f"a label stands twice: {line}"
    assert line[at] == " ", line
    number = line[at + 1 :]
    assert re.fullmatch(r"[-+]?(\d+(\.\d+)?([eE][-+]?\d+)?|Inf)|NaN", number), line
    key = tuple(labels)
    same = tuple(sorted(labels))
    assert same not in family.seen, f"a series stands twice: {line[:200]}"
    family.seen.add(same)
    family.series[key] = float(number)
    family.texts[key] = number
