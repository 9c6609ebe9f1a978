"""A parser of the text that Prometheus reads, which forgives nothing."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"(?P<name>{NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>[^ ]+)")
LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> tuple[dict[str, str], Samples]:
    """The kinds of the families and all samples; AssertionError for anything that is not to the letter."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: Samples = {}
    helped: set[str] = set()
    family = ""
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
            family = match[1]
            assert family not in helped, "a family stands in one piece"
            helped.add(family)
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            assert match[1] == family
            assert match[1] not in kinds
            kinds[match[1]] = match[2]
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            suffixes = ("_bucket", "_sum", "_count") if kinds[family] == "histogram" else ("",)
            assert found["name"] in {family + suffix for suffix in suffixes}, line
            key = (found["name"], labels_of(found["labels"] or ""))
            assert key not in samples, f"twice: {line}"
            samples[key] = float(found["value"])
    assert helped == kinds.keys()
    return kinds, samples


def labels_of(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    place = 0
    while place < len(text):
        match = LABEL.match(text, place)
        assert match is not None, text
        found.append((match["name"], re.sub(r'\\[\\"n]', lambda part: UNESCAPED[part[0]], match["value"])))
        place = match.end()
    assert len({name for name, _ in found}) == len(found)
    return tuple(found)
