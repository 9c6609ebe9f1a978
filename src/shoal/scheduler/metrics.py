"""What the scheduler counts, as Prometheus reads it.

Counters and histograms of decisions, and families worked out when somebody asks: the ledger's cards and the state of
the watches. One `Metrics` is shared by the loop and the extender; nothing is global.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Final, Protocol

from shoal.kube.reflector import Counters
from shoal.observe.prometheus import MetricRegistry, escaped, head, sample
from shoal.placement.ledger import CardLedger, Ledger

_MEBIBYTE: Final = 2**20


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


class LoadLines:
    """What is known of the nodes' load, and the cards of which it lowers what is free."""

    def __init__(self, ledger: Ledger, loads: Sized) -> None:
        self._ledger = ledger
        self._loads = loads

    def lines(self) -> Iterator[str]:
        name = "shoal_scheduler_live_load_nodes"
        yield from head(name, "Nodes whose measured load counts; of the others requests alone do.", "gauge")
        yield sample(name, {}, len(self._loads))
        name = "shoal_scheduler_card_memory_beyond_requests_bytes"
        yield from head(
            name, "Memory of a card used by nobody's pod or beyond requests, where it lowers what is free.", "gauge"
        )
        for node in list(self._ledger.nodes()):
            for card in node.slots:
                if card.gpu is not None and card.beyond_mib:
                    yield sample(name, {"node": node.name, "card": str(card.gpu.index)}, card.beyond_mib * _MEBIBYTE)


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
        self.registry = MetricRegistry()
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
        self.offer_holds = registry.counter(
            "shoal_scheduler_offer_holds_total",
            "Cards held for a pod of another cluster, by what became of it.",
            ["outcome"],
        )
        self.offers_held = registry.gauge(
            "shoal_scheduler_offers_held_pods", "Pods of other clusters for which cards are held."
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """An HTTP request was answered."""
        self.requests.inc(route, str(status))
        self.request_seconds.observe(seconds, route)
