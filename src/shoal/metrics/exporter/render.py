"""The text of one snapshot. Pure: snapshot, list of fields and settings in, lines out.

Labels stand in dcgm-exporter's order: card, MIG instance, node, label fields, then those of the pod. Series of a card
stand once per card. They carry the pod's labels when exactly one container has booked or uses it, and none when several
do; `sharedSeries: dcgm` gives each of these a copy. Without `names_pods` no line names a pod, and containers have no
series.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shoal.gpu.protocol import Card, MigSample
from shoal.metrics.exporter.counters_csv import CounterField, CounterList
from shoal.metrics.exporter.fields import Number, Reading
from shoal.metrics.exporter.settings import ExporterSettings, HostnameLabel, SharedSeries
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, Snapshot
from shoal.observe.prometheus import escaped, head, number

_MEBIBYTE: Final = 2**20
#: Longer than any name in Kubernetes. What is longer still is cut, and told apart by its hash.
_LONGEST_LABEL: Final = 256
_HASH_LENGTH: Final = 12
_PCI: Final = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])").fullmatch
_BLANKS: Final = re.compile(r"\s+")

Pairs = Sequence[tuple[str, str]]


def label_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand between braces. Values are bounded and escaped, whatever they hold."""
    return ",".join(f'{name}="{escaped(_bounded(value))}"' for name, value in pairs)


def _bounded(value: str) -> str:
    if len(value) > _LONGEST_LABEL:
        digest = hashlib.sha256(value.encode(errors="replace")).hexdigest()[:_HASH_LENGTH]
        value = f"{value[: _LONGEST_LABEL - _HASH_LENGTH - 1]}…{digest}"
    return value


def pci_bus_id(pci: str) -> str:
    """A bus address as DCGM writes it: `00000000:3B:00.0`."""
    found = _PCI(pci)
    return f"{found[1].zfill(8)}:{found[2]}".upper() if found else pci


@dataclass(frozen=True, slots=True)
class _Labels:
    """The labels of one card or MIG instance: those before and among the label fields, and those of its pod."""

    before: str
    fields: Pairs
    pod: Pairs
    #: For `sharedSeries: dcgm`: those who share it, with the labels of each.
    sharing: tuple[tuple[ContainerSnapshot, Pairs], ...] = ()


class SnapshotText:
    """Writes snapshots with one set of settings."""

    def __init__(self, settings: ExporterSettings) -> None:
        self._settings = settings
        old = settings.old_labels
        self._uuid = "uuid" if old else "UUID"
        self._pod_names = ("container_name", "pod_namespace", "pod_name") if old else ("container", "namespace", "pod")

    def lines(self, snapshot: Snapshot, counters: CounterList, *, names_pods: bool) -> Iterator[str]:
        """All series of a snapshot; without `names_pods` those that name no pod."""
        if not names_pods:
            snapshot = replace(snapshot, cards=tuple(replace(card, containers=()) for card in snapshot.cards))
        cards = [(card, self._labels_of(snapshot, card, counters)) for card in snapshot.cards]
        for counter in counters.counters:
            written = [
                line
                for card, labels in cards
                for reading in counter.field.read(card)
                for line in self._line(counter, reading, labels)
            ]
            if written:
                yield from head(counter.field.name, counter.what, counter.kind)
                yield from written
        yield from own_lines(snapshot)

    # One line

    def _line(self, counter: CounterField, reading: Reading, labels: dict[str, _Labels]) -> Iterator[str]:
        where = labels[reading.instance.uuid if reading.instance else ""]
        name, value = counter.field.name, _value(counter, reading.value)
        if not where.sharing:
            yield self._text(name, where, reading, where.pod, value)
            return
        # dcgm-exporter's copies: the card's own number stays where containers have theirs.
        if counter.field.per_container:
            yield self._text(name, where, reading, (), value)
        for container, pod in where.sharing:
            own = _own_use(counter.field.per_container, container) if counter.field.per_container else reading.value
            if own is not None:
                yield self._text(name, where, reading, pod, _value(counter, own))

    @staticmethod
    def _text(name: str, where: _Labels, reading: Reading, pod: Pairs, value: str) -> str:
        fields = sorted((*where.fields, *reading.labels)) if reading.labels else where.fields
        rest = sorted((*pod, *reading.attributes)) if reading.attributes else pod
        after = label_text((*fields, *rest))
        return f"{name}{{{where.before}{',' if after else ''}{after}}} {value}"

    # Labels

    def _labels_of(self, snapshot: Snapshot, card: CardSnapshot, counters: CounterList) -> dict[str, _Labels]:
        """By the UUID of the MIG instance; those of the card itself under no name."""
        fields = sorted(
            (label.name, text) for label in counters.labels if (text := label.read(card.card, snapshot.driver))
        )
        instances = card.sample.mig if card.sample is not None else ()
        whole = [] if instances else list(card.containers)
        labels = {"": self._of(snapshot, card.card, None, fields, whole)}
        for instance in instances:
            holders = [container for container in card.containers if container.mig_uuid == instance.uuid]
            labels[instance.uuid] = self._of(snapshot, card.card, instance, fields, holders)
        return labels

    def _of(
        self,
        snapshot: Snapshot,
        card: Card,
        instance: MigSample | None,
        fields: Pairs,
        containers: Sequence[ContainerSnapshot],
    ) -> _Labels:
        settings = self._settings
        model = _BLANKS.sub("-", card.model.strip()) if settings.replace_blanks_in_model_name else card.model
        before = [
            ("gpu", str(card.index)),
            (self._uuid, card.uuid),
            ("pci_bus_id", pci_bus_id(card.pci)),
            ("device", f"nvidia{card.index}"),
            ("modelName", model),
        ]
        if instance is not None:
            before += [("GPU_I_PROFILE", instance.profile), ("GPU_I_ID", str(instance.gpu_instance))]
        if settings.hostname_label is not HostnameLabel.NONE:
            before.append((settings.hostname_label.value, snapshot.node))
        text = label_text(before)
        if not containers:
            return _Labels(text, fields, ())
        if settings.shared_series is SharedSeries.DCGM:
            return _Labels(text, fields, (), tuple(self._copies(containers)))
        return _Labels(text, fields, self._pod(containers[0].name) if len(containers) == 1 else ())

    def _copies(self, containers: Sequence[ContainerSnapshot]) -> Iterator[tuple[ContainerSnapshot, Pairs]]:
        for position, container in enumerate(sorted(containers, key=lambda each: each.name)):
            pod = self._pod(container.name)
            yield container, (*pod, ("vgpu", str(position))) if len(containers) > 1 else pod

    def _pod(self, name: ContainerName) -> Pairs:
        container, namespace, pod = self._pod_names
        pairs = [(container, name.container), (namespace, name.namespace), (pod, name.pod)]
        if self._settings.pod_uid:
            pairs.append(("pod_uid", name.pod_uid))
        return sorted(pairs)


def _value(counter: CounterField, value: Number) -> str:
    return f"{value:.6f}" if counter.field.decimals else number(value)


def _own_use(what: str, container: ContainerSnapshot) -> int | None:
    if what == "utilisation":
        return container.utilisation
    return None if container.used_bytes is None else container.used_bytes // _MEBIBYTE


# Shoal's own series


@dataclass(frozen=True, slots=True)
class _ContainerFigure:
    name: str
    what: str
    of: Callable[[ContainerSnapshot], Number | None]
    kind: str = "gauge"


@dataclass(frozen=True, slots=True)
class _CardFigure:
    name: str
    what: str
    of: Callable[[CardSnapshot], Number | None]


_CONTAINER_FIGURES: Final = (
    _ContainerFigure(
        "shoal_container_memory_requested_bytes",
        "Memory of a card that is booked for a container; 0 when it uses a card that nobody gave it.",
        lambda container: container.requested_bytes,
    ),
    _ContainerFigure(
        "shoal_container_memory_limit_bytes",
        "Memory of a card that a container cannot go beyond.",
        lambda container: container.limit_bytes,
    ),
    _ContainerFigure(
        "shoal_container_memory_used_bytes",
        "Memory of a card that a container uses.",
        lambda container: container.used_bytes,
    ),
    _ContainerFigure(
        "shoal_container_utilisation_percent",
        "Part of the time in which a container computed on a card.",
        lambda container: container.utilisation,
    ),
    _ContainerFigure(
        "shoal_container_overuse_seconds_total",
        "Time in which a container used more memory than was booked for it.",
        lambda container: container.overuse_seconds,
        "counter",
    ),
)
_ATTRIBUTION: Final = "shoal_container_attribution_info"
_CARD_FIGURES: Final = (
    _CardFigure(
        "shoal_card_up",
        "1 while a card answers, 0 while it does not.",
        lambda card: int(card.sample is not None and not card.card.lost),
    ),
    _CardFigure(
        "shoal_card_memory_bytes",
        "Memory of a card.",
        lambda card: (
            (None if card.sample is None else card.sample.memory_total_bytes) or card.card.memory_bytes or None
        ),
    ),
    _CardFigure(
        "shoal_card_memory_used_bytes",
        "Memory of a card that is used: by containers, and by nobody that is known.",
        lambda card: card.used_bytes,
    ),
    _CardFigure(
        "shoal_card_memory_unattributed_bytes",
        "Memory of a card that is used, and by no container.",
        lambda card: card.unattributed_bytes,
    ),
)
_XIDS: Final = "shoal_card_xid_total"
_FAILURES: Final = "shoal_sample_failures_total"


def own_lines(snapshot: Snapshot) -> Iterator[str]:
    """Shoal's own series: what was requested, may be used and is used, side by side."""
    cards = [(card, label_text((("gpu", str(card.card.index)), ("UUID", card.card.uuid)))) for card in snapshot.cards]
    containers = {
        _container_labels(card, container, labels): container for card, labels in cards for container in card.containers
    }
    for figure in _CONTAINER_FIGURES:
        yield from _family(
            figure.name, figure.what, figure.kind, ((labels, figure.of(each)) for labels, each in containers.items())
        )
    sources = (
        (f'{labels},source="{container.source}"', 1)
        for labels, container in containers.items()
        if container.source is not None
    )
    yield from _family(_ATTRIBUTION, "Who tells what a container uses of a card, always 1.", "gauge", sources)
    for of_card in _CARD_FIGURES:
        yield from _family(of_card.name, of_card.what, "gauge", ((labels, of_card.of(card)) for card, labels in cards))
    xids = ((f'{labels},xid="{xid}"', count) for card, labels in cards for xid, count in sorted(card.xids.items()))
    yield from _family(_XIDS, "XID errors of a card since the collector's start, by number.", "counter", xids)
    failures = ((label_text((("call", call),)), count) for call, count in sorted(snapshot.failures.items()))
    yield from _family(_FAILURES, "Readings that failed since the collector's start, by call.", "counter", failures)


def _container_labels(card: CardSnapshot, container: ContainerSnapshot, of_card: str) -> str:
    name = container.name
    own = label_text((("namespace", name.namespace), ("pod", name.pod), ("container", name.container)))
    instances = card.sample.mig if container.mig_uuid and card.sample is not None else ()
    instance = next((each for each in instances if each.uuid == container.mig_uuid), None)
    return f"{own},{of_card}" + (f',GPU_I_ID="{instance.gpu_instance}"' if instance is not None else "")


def _family(name: str, what: str, kind: str, series: Iterable[tuple[str, Number | None]]) -> Iterator[str]:
    """A family without those that are not known; nothing at all when none is."""
    written = [f"{name}{{{labels}}} {number(value)}" for labels, value in series if value is not None]
    if written:
        yield from head(name, what, kind)
        yield from written
