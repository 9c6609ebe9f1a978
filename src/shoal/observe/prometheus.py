"""Counters, gauges and histograms, and their text as Prometheus reads it (format 0.0.4).

The text is made in pieces, so that a scrape of 40,000 cards neither takes long nor holds up whoever shares the event
loop. A `MetricSource` writes families that are worked out when somebody asks. Nothing is global.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Protocol

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds in seconds, from a tenth of a millisecond to kube-scheduler's patience.
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: Lines of a piece.
_PIECE: Final = 200

Labels = tuple[str, ...]


class MetricSource(Protocol):
    """Writes the lines of one or more families."""

    def lines(self) -> Iterator[str]:
        """Complete lines without their ends, HELP and TYPE first."""
        ...


class MetricRegistry:
    """The families of one process."""

    def __init__(self) -> None:
        self._sources: list[MetricSource] = []

    def add(self, source: MetricSource) -> None:
        """A source of further families; their names must be new."""
        self._sources.append(source)

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows, by labels."""
        counter = Counter(name, what, labels)
        self.add(counter)
        return counter

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
        """A number as it is now, by labels."""
        gauge = Gauge(name, what, labels)
        self.add(gauge)
        return gauge

    def histogram(
        self, name: str, what: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """How a quantity is distributed, by labels."""
        histogram = Histogram(name, what, labels, buckets)
        self.add(histogram)
        return histogram

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece; whoever sends it can let others run in between."""
        held: list[str] = []
        for source in self._sources:
            for line in source.lines():
                held.append(line)
                if len(held) >= _PIECE:
                    yield "\n".join(held) + "\n"
                    held.clear()
        if held:
            yield "\n".join(held) + "\n"

    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces())


class Counter:
    """See `MetricRegistry.counter`."""

    kind = "counter"

    def __init__(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._head = head(name, what, self.kind)
        self._name = name
        self._labels = tuple(labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        """One more, or so many more."""
        self._values[labels] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        """What it stands at."""
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterator[str]:
        yield from self._head
        for labels, value in list(self._values.items()):
            yield sample(self._name, dict(zip(self._labels, labels, strict=True)), value)


class Gauge(Counter):
    """See `MetricRegistry.gauge`."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """It stands at this now."""
        self._values[labels] = value


class Histogram:
    """See `MetricRegistry.histogram`."""

    def __init__(self, name: str, what: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._head = head(name, what, "histogram")
        self._name = name
        self._labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._bound_texts = (*(number(bound) for bound in self._bounds), "+Inf")
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}
        if not labels:
            self._of(())

    def observe(self, value: float, *labels: str) -> None:
        """One more of this size."""
        counts, total = self._of(labels)
        counts[bisect_left(self._bounds, value)] += 1
        total[0] += value

    def count(self, *labels: str) -> int:
        """How many there were."""
        return sum(self._of(labels)[0])

    def _of(self, labels: Labels) -> tuple[list[int], list[float]]:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
        return series

    def lines(self) -> Iterator[str]:
        yield from self._head
        for labels, (counts, total) in list(self._series.items()):
            named = dict(zip(self._labels, labels, strict=True))
            at_most = list(accumulate(counts))
            for bound, count in zip(self._bound_texts, at_most, strict=True):
                yield sample(f"{self._name}_bucket", {**named, "le": bound}, count)
            yield sample(f"{self._name}_sum", named, total[0])
            yield sample(f"{self._name}_count", named, at_most[-1])


def head(name: str, what: str, kind: str) -> tuple[str, str]:
    """The two lines before a family."""
    return (
        f"# HELP {name} {what.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + 'n')}",
        f"# TYPE {name} {kind}",
    )


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line of a family."""
    if not labels:
        return f"{name} {number(value)}"
    inner = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {number(value)}"


def escaped(text: str) -> str:
    """The value of a label between its quotes. Characters that are not printable are replaced, ends of lines escaped.

    Values come from nodes and drivers: a terminal would obey control characters, and some readers take a Unicode line
    separator for the end of a line.
    """
    if not text.isprintable():
        text = "".join(each if each == "\n" or each.isprintable() else "\ufffd" for each in text)
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
