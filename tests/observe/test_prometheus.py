"""Counters, gauges and histograms in the text that Prometheus reads."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.observe.prometheus import MetricRegistry
from tests.observe.text import parse


def test_counters_and_gauges() -> None:
    registry = MetricRegistry()
    counter = registry.counter("c_total", "Counted.", ["by"])
    gauge = registry.gauge("g", "Measured.")
    counter.inc("a")
    counter.inc("a", by=2)
    counter.inc("b")
    gauge.set(-1.5)
    _, samples = parse(registry.text())
    assert samples == {("c_total", (("by", "a"),)): 3, ("c_total", (("by", "b"),)): 1, ("g", ()): -1.5}


@given(st.lists(st.floats(0, 10)))
def test_histograms_count_what_is_at_most_each_bound(values: list[float]) -> None:
    registry = MetricRegistry()
    histogram = registry.histogram("h_seconds", "Times.", ["verb"], buckets=(0.1, 1, 5))
    for value in values:
        histogram.observe(value, "x")
    _, samples = parse(registry.text())
    if not values:
        assert samples == {}
        return
    for bound in (0.1, 1.0, 5.0, math.inf):
        text = "+Inf" if bound == math.inf else f"{bound:g}"
        at_most = sum(value <= bound for value in values)
        assert samples["h_seconds_bucket", (("verb", "x"), ("le", text))] == at_most
    assert samples["h_seconds_count", (("verb", "x"),)] == len(values)
    assert samples["h_seconds_sum", (("verb", "x"),)] == pytest.approx(sum(values))


def printable(text: str) -> str:
    return "".join(each if each == "\n" or each.isprintable() else "�" for each in text)


@pytest.mark.parametrize(
    "hostile", ["\0", "\x1b[2J", "\x9b2J", "\x85", "\u2028a 1", "\u2029", "\u202e", "\r", "\ud800", "\x7f"]
)
def test_label_values_hold_nothing_that_a_terminal_or_a_reader_of_lines_obeys(hostile: str) -> None:
    registry = MetricRegistry()
    registry.gauge("g", "x", ["model"]).set(1, f"A{hostile}B")
    text = registry.text()
    assert text.splitlines() == text[:-1].split("\n")
    assert hostile[0] not in text
    assert text.encode().endswith(b'B"} 1\n')
    # Printable text of any language stays as it is.
    registry.gauge("h", "x", ["model"]).set(1, 'ü "日本" \\ # = ,')
    assert '"ü \\"日本\\" \\\\ # = ,"' in registry.text()


@given(st.text(), st.floats(), st.text(min_size=1).filter(str.strip))
def test_any_label_value_and_help_comes_through(value: str, number: float, what: str) -> None:
    registry = MetricRegistry()
    registry.gauge("g", what, ["x"]).set(number, value)
    _, samples = parse(registry.text())
    ((key, read),) = samples.items()
    assert key == ("g", (("x", printable(value)),))
    assert read == number or (math.isnan(read) and math.isnan(number))


@pytest.mark.parametrize("broken", ["a 1", "# TYPE a counter\na 1\n", "# HELP a x\n# TYPE a gauge\na 1\na 1\n"])
def test_the_parser_refuses_what_is_broken(broken: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        parse(broken)
