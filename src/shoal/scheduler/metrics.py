"""What the scheduler counts, as Prometheus reads it.

A small registry of counters, gauges and histograms, and families worked out when somebody asks: the ledger's cards and
the state of the watches. The text is written here by hand, in pieces, so that a scrape of 40,000 cards neither takes
long nor holds up a decision. One `Metrics` is shared by the loop and the extender; nothing is global.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from shoal.kube.reflector import Counters
from shoal.placement.ledger import CardLedger, Ledger

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds in seconds, from a tenth of a millisecond to kube-scheduler's patience.
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_PIECE: Final = 200
_MEBIBYTE: Final = 2**20

Labels = tuple[str, ...]


class Source(Protocol):
    """Writes the lines of one or more families."""

    def lines(self) -> Iterator[str]:
        """Complete lines without their ends, HELP and TYPE first."""
        ...


class Registry:
    """The families of one process."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
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
    """See `Registry.counter`."""

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
    """See `Registry.gauge`."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """It stands at this now."""
        self._values[labels] = value


class Histogram:
    """See `Registry.histogram`."""

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
    """The value of a label between its quotes."""
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


@dataclass(frozen=True, slots=True)
class _CardFigure:
    name: str
    what: str
    of: Callable[[CardLedger], int]


_CARD_INFO: Final = "shoal_scheduler_card_info"
_CARD_FIGURES: Final = (
    _CardFigure(
        "shoal_scheduler_card_memory_bytes", "Memory of a card.", lambda card: card.inventory.memory_mib * _MEBIBYTE
    ),
    _CardFigure(
        "shoal_scheduler_card_memory_requested_bytes",
        "Memory of a card that pods have requested; all of it when one pod has the card alone.",
        lambda card: (card.inventory.memory_mib if card.exclusive else card.memory_mib) * _MEBIBYTE,
    ),
    _CardFigure(
        "shoal_scheduler_card_compute_requested_percent",
        "Compute of a card that pods have requested, in percent.",
        lambda card: 100 if card.exclusive else card.compute,
    ),
    _CardFigure("shoal_scheduler_card_pods", "Pods that hold a share of a card.", lambda card: card.pods),
    _CardFigure(
        "shoal_scheduler_card_usable",
        "1 while a card takes new pods, 0 while it is unhealthy, over-booked or cut into MIG partitions.",
        lambda card: int(card.fault() is None),
    ),
)


class LedgerSource:
    """The cards of all nodes, as the ledger has them at the moment of the scrape."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def lines(self) -> Iterator[str]:
        # The ledger may change between two pieces: nodes are taken down once, each card is read when its turn comes.
        nodes = [(f'{{node="{escaped(node.name)}",card="', node.slots) for node in self._ledger.nodes()]
        yield from head(_CARD_INFO, "UUID and model of a card, always 1.", "gauge")
        for labels, cards in nodes:
            for card in cards:
                if (gpu := card.gpu) is not None:
                    uuid, model = escaped(gpu.uuid), escaped(gpu.model)
                    yield f'{_CARD_INFO}{labels}{gpu.index}",uuid="{uuid}",model="{model}"}} 1'
        for figure in _CARD_FIGURES:
            yield from head(figure.name, figure.what, "gauge")
            for labels, cards in nodes:
                for card in cards:
                    if (gpu := card.gpu) is not None:
                        yield f'{figure.name}{labels}{gpu.index}"}} {figure.of(card)}'


class Watched(Protocol):
    """What is asked of a reflector."""

    @property
    def counters(self) -> Counters: ...

    @property
    def last_error(self) -> Exception | None: ...


class WatchSource:
    """The state of the watches, by resource."""

    def __init__(self, watches: Mapping[str, Watched]) -> None:
        self._watches = watches

    def lines(self) -> Iterator[str]:
        name = "shoal_scheduler_watch_up"
        yield from head(name, "1 while the watch of a resource is without error.", "gauge")
        for resource, watch in self._watches.items():
            yield sample(name, {"resource": resource}, int(watch.last_error is None))
        name = "shoal_scheduler_watch_total"
        yield from head(name, "What the watch of a resource has done so far, by kind of step.", "counter")
        for resource, watch in self._watches.items():
            counters = watch.counters
            for step in ("lists", "relists", "watches", "events", "bookmarks", "errors", "consumer_errors"):
                yield sample(name, {"resource": resource, "step": step}, getattr(counters, step))


class Metrics:
    """The families of the scheduler."""

    def __init__(self) -> None:
        self.registry = Registry()
        registry = self.registry
        self.queue = registry.gauge(
            "shoal_scheduler_queue_pods",
            "Pods waiting to be scheduled, by the part of the queue they are in.",
            ["part"],
        )
        self.decisions = registry.counter(
            "shoal_scheduler_decisions_total", "Decisions, by who asked and what came of it.", ["by", "outcome"]
        )
        self.decision_seconds = registry.histogram(
            "shoal_scheduler_decision_seconds", "Time of a decision, by who asked.", ["by"]
        )
        self.refusals = registry.counter(
            "shoal_scheduler_refusals_total", "Nodes refused to pods, by reason.", ["reason"]
        )
        self.binds = registry.counter(
            "shoal_scheduler_binds_total", "Bindings, by who asked and outcome.", ["by", "outcome"]
        )
        self.bind_seconds = registry.histogram(
            "shoal_scheduler_bind_seconds", "Time of a Binding, by who asked.", ["by"]
        )
        self.requests = registry.counter(
            "shoal_scheduler_http_requests_total", "HTTP requests, by route and status.", ["route", "status"]
        )
        self.request_seconds = registry.histogram(
            "shoal_scheduler_http_request_seconds", "Time of an HTTP request, by route.", ["route"]
        )
        self.refused_connections = registry.counter(
            "shoal_scheduler_refused_connections_total", "Connections that got no place: there were too many."
        )
        self.foreign_bindings = registry.counter(
            "shoal_scheduler_foreign_bindings_total", "Pods that another scheduler bound to cards while this one led."
        )
        self.holds = registry.counter(
            "shoal_scheduler_holds_total",
            "Cards held between scoring and binding of an extender's pod, by what became of it.",
            ["outcome"],
        )
        self.held = registry.gauge("shoal_scheduler_held_pods", "Pods whose cards are held and not yet being bound.")
