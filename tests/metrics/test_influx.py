"""The line protocol, read back by its own rules, and the buffer's bounds."""

import logging
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.metrics.influx import BATCH_POINTS, InfluxBuffer, InfluxPoint, InfluxVerdict, cause_of, line, verdict
from tests.logs import own_records


@pytest.mark.parametrize(
    ("tags", "fields", "written"),
    [
        ({"UUID": "GPU-1"}, {"Index": 0}, "gpumetric,UUID=GPU-1 Index=0i 1500000000\n"),
        ({"b": "2", "a": "1"}, {"x": 1.5}, "gpumetric,a=1,b=2 x=1.5 1500000000\n"),
        ({}, {"memory(total)": 2**40, "on": True}, "gpumetric memory(total)=1099511627776i,on=true 1500000000\n"),
        ({"pod": "a b,c=d"}, {"x": 1}, "gpumetric,pod=a\\ b\\,c\\=d x=1i 1500000000\n"),
        ({"pod": "end\\"}, {"x": 1}, "gpumetric,pod=end x=1i 1500000000\n"),
        ({"pod": "two\nlines"}, {"x": 1}, "gpumetric,pod=two\\ lines x=1i 1500000000\n"),
        ({"pod": ""}, {"x": 1}, "gpumetric x=1i 1500000000\n"),
        ({}, {"name": 'say "hi" \\ there'}, 'gpumetric name="say \\"hi\\" \\\\ there" 1500000000\n'),
        ({}, {"bad": float("nan"), "worse": float("inf"), "x": 1}, "gpumetric x=1i 1500000000\n"),
        ({}, {"large": 2**63, "x": -(2**63)}, "gpumetric x=-9223372036854775808i 1500000000\n"),
        ({"pod": "\\\\"}, {"x": 1}, "gpumetric x=1i 1500000000\n"),
        ({"pod": "a\\ b\\\\,c"}, {"x": 1}, "gpumetric,pod=a\\ b\\,c x=1i 1500000000\n"),
        ({"pod": "a\\\nb\\c"}, {"x": 1}, "gpumetric,pod=a\\ b\\c x=1i 1500000000\n"),
    ],
)
def test_lines(tags: dict[str, str], fields: dict[str, object], written: str) -> None:
    assert line(InfluxPoint("gpumetric", tags, fields, 1.5)).decode() == written  # type: ignore[arg-type]


def test_a_point_without_values_is_none() -> None:
    assert line(InfluxPoint("gpumetric", {"a": "b"}, {}, 1.0)) == b""
    assert line(InfluxPoint("gpumetric", {"a": "b"}, {"x": float("nan")}, 1.0)) == b""


def parsed(text: str) -> tuple[str, dict[str, str], dict[str, str], int]:
    """A reader by the rules of the protocol: a backslash takes the sign behind it along."""

    def split(content: str, sign: str) -> list[str]:
        parts, part, quoted, at = [], "", False, 0
        while at < len(content):
            char = content[at]
            if char == "\\" and at + 1 < len(content):
                part += content[at : at + 2]
                at += 2
                continue
            quoted ^= char == '"' and sign != ";"
            if char == sign and not quoted:
                parts.append(part)
                part = ""
            else:
                part += char
            at += 1
        return [*parts, part]

    assert text.endswith("\n")
    head, values, time = split(text[:-1], " ") if '"' not in text else _with_text(text[:-1], split)
    name, *tags = split(head, ",")
    return name, dict(split(tag, "=") for tag in tags), dict(split(one, "=") for one in split(values, ",")), int(time)


def _with_text(text: str, split: object) -> list[str]:
    found = re.fullmatch(r"((?:[^ \\]|\\.)*) (.*) (-?\d+)", text, re.DOTALL)
    assert found
    return list(found.groups())


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).filter(lambda text: '"' not in text)


@given(words, st.dictionaries(words, words, max_size=4), st.integers(-(2**62), 2**62), st.floats(0, 4e9))
def test_any_tags_stay_apart(name: str, tags: dict[str, str], value: int, time: float) -> None:
    written = line(InfluxPoint("m" + name, tags, {"x": value}, time)).decode()
    assert written.count("\n") == 1
    _, read, fields, at = parsed(written)
    assert fields == {"x": f"{value}i"}
    assert at == round(time * 1e9)
    plain = lambda text: re.sub(r"\\+($|(?=[,= ]))", "", re.sub(r"[\r\n]+", " ", text).replace("\0", ""))  # noqa: E731
    assert len(read) <= len(tags)
    assert {re.sub(r"\\([,= ])", r"\1", one) for one in read.values()} <= {plain(one) for one in tags.values()}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_ends_where_it_ends(text: str) -> None:
    written = line(InfluxPoint("m", {}, {"x": text, "y": 1}, 0.0)).decode()
    inside = re.fullmatch(r'm x="((?:[^"\\]|\\.)*)",y=1i 0\n', written, re.DOTALL)
    assert inside
    assert re.sub(r"\\(.)", r"\1", inside[1], flags=re.DOTALL) == text.replace("\0", "")


def test_long_values_are_cut() -> None:
    written = line(InfluxPoint("m", {"pod": "x" * 65536}, {"y": "z" * 65536}, 0.0))
    assert len(written) < 20_000


@pytest.mark.parametrize(
    ("status", "answer", "points", "expected"),
    [
        (204, "", 10, InfluxVerdict.DONE),
        (400, '{"error":"partial write: field type conflict"}', 10, InfluxVerdict.REFUSED),
        (400, '{"error":"unable to parse"}', 10, InfluxVerdict.SPLIT),
        (400, '{"error":"unable to parse"}', 1, InfluxVerdict.REFUSED),
        (404, '{"error":"database not found: \\"multimetric\\""}', 10, InfluxVerdict.NO_DATABASE),
        (404, "page not found", 10, InfluxVerdict.LATER),
        (401, "authorization failed", 10, InfluxVerdict.LATER),
        (413, "too large", 10, InfluxVerdict.SPLIT),
        (413, "too large", 1, InfluxVerdict.REFUSED),
        (429, "", 10, InfluxVerdict.LATER),
        (503, "timeout", 10, InfluxVerdict.LATER),
    ],
)
def test_verdicts(status: int, answer: str, points: int, expected: InfluxVerdict) -> None:
    assert verdict(status, answer, points=points) is expected


def point(number: int) -> InfluxPoint:
    return InfluxPoint("m", {}, {"x": number}, float(number))


def test_the_oldest_go_and_are_counted() -> None:
    buffer = InfluxBuffer(most_bytes=300)
    for number in range(100):
        buffer.add(point(number))
        assert buffer.waiting_bytes <= 300
    lines = buffer.batch()
    assert lines[-1] == line(point(99))
    assert buffer.dropped == 100 - len(lines)
    assert buffer.waiting_bytes == 0


def test_nothing_is_lost_between_batches() -> None:
    rng = Random(1)
    buffer = InfluxBuffer()
    sent: list[bytes] = []
    came = 0
    for _ in range(300):
        for _ in range(rng.randrange(200)):
            buffer.add(point(came))
            came += 1
        lines = buffer.batch()
        if rng.random() < 0.5:
            buffer.give_back(lines)
        else:
            sent += lines
    while lines := buffer.batch():
        assert len(lines) <= BATCH_POINTS
        sent += lines
    assert sent == [line(point(number)) for number in range(came)]
    assert (buffer.waiting_bytes, buffer.dropped) == (0, 0)


def test_what_is_given_back_is_bounded_too() -> None:
    buffer = InfluxBuffer(most_bytes=200)
    for number in range(5):
        buffer.add(point(number))
    lines = buffer.batch()
    for number in range(5, 15):
        buffer.add(point(number))
    buffer.give_back(lines)
    assert buffer.waiting_bytes <= 200
    assert buffer.batch()[-1] == line(point(14))


def test_a_cause_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    buffer = InfluxBuffer()
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            buffer.count(InfluxVerdict.REFUSED, [b"x"], f'unable to parse "m x={number}": bad timestamp {number}')
        buffer.count(InfluxVerdict.REFUSED, [b"x"], "field type conflict")
        buffer.count(InfluxVerdict.DONE, [b"x"] * 3)
    assert len(own_records(caplog)) == 2
    assert (buffer.refused, buffer.written) == (51, 3)
    assert cause_of("a 'b' 12") == cause_of("a 'cc' 7")


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ('{"error":"partial write: field type conflict: input field \\"a\\" is type string dropped=3"}', 3),
        ('{"error":"partial write: unable to parse \'garbage\': missing fields dropped=0"}', 1),
        ('{"error":"partial write: points beyond retention policy dropped=999"}', 10),
        ("unable to parse", 10),
    ],
)
def test_the_rest_of_a_partial_write_is_written(answer: str, refused: int) -> None:
    buffer = InfluxBuffer()
    buffer.count(InfluxVerdict.REFUSED, [b"x"] * 10, answer)
    assert (buffer.refused, buffer.written) == (refused, 10 - refused)


def test_what_a_server_says_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        InfluxBuffer().count(InfluxVerdict.REFUSED, [b"x"], "bad\nERROR everything is lost\x1b[2J")
    assert "\n" not in caplog.messages[0]
    assert "\x1b" not in caplog.messages[0]
