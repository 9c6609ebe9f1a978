"""The past of cards, nodes and pods: from the collectors' rings, or from a Prometheus that scrapes them.

What was not measured is None. Memory is in MiB, whatever the source counts in.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from shoal.analysis.collectors import Collectors
from shoal.analysis.errors import NotMeasuredError
from shoal.metrics import history_points as points
from shoal.metrics.history_wire import SeriesReading
from shoal.model.errors import shown
from shoal.scheduler.config import LiveLoadConfig, LoadSource
from shoal.scheduler.errors import LoadSourceError
from shoal.scheduler.load_servers import ServerSession

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SeriesKind:
    """A series: its name in the ring and what it is divided by, its unit, and Prometheus' names, for cards and pods."""

    ring: str
    unit: str
    scale: float = 1.0
    prometheus: str = ""
    prometheus_scale: float = 1.0
    of_pods: str = ""


SERIES: Final[Mapping[str, SeriesKind]] = {
    "used": SeriesKind(points.USED, "MiB", _MIB, "DCGM_FI_DEV_FB_USED", of_pods="shoal_container_memory_used_bytes"),
    "unattributed": SeriesKind(
        points.UNATTRIBUTED, "MiB", _MIB, "shoal_card_memory_unattributed_bytes", prometheus_scale=_MIB
    ),
    "utilisation": SeriesKind(points.UTILISATION, "percent", 1.0, "DCGM_FI_DEV_GPU_UTIL"),
    "temperature": SeriesKind(points.TEMPERATURE, "celsius", 1.0, "DCGM_FI_DEV_GPU_TEMP"),
    "power": SeriesKind(points.POWER, "watts", 1.0, "DCGM_FI_DEV_POWER_USAGE"),
}


@dataclass(frozen=True, slots=True)
class PastQuestion:
    """What of the past is asked for: one series of some cards of a node, or of a pod on them."""

    node: str
    cards: Collection[str]
    series: str
    #: Seconds since 1970 at which it ends, how many seconds it is long, and the seconds of a step.
    until: float
    last: float
    step: float
    #: Namespace and name of the pod; empty for the cards themselves.
    namespace: str = ""
    pod: str = ""

    @property
    def count(self) -> int:
        """Steps of the answer."""
        return max(1, math.ceil(self.last / self.step))

    @property
    def since(self) -> float:
        """When it begins."""
        return self.until - self.last


@dataclass(frozen=True, slots=True)
class Past:
    """The values of each card, from `since` in steps; None for what was not measured."""

    since: float
    step: float
    source: str
    lines: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return any(value is not None for line in self.lines.values() for value in line)


async def from_collectors(collectors: Collectors, question: PastQuestion) -> Past:
    """Asked of the node's collector. Raises NotMeasuredError and KubeError."""
    kind = SERIES[question.series]
    query = {
        "series": kind.ring,
        "of": "pods" if question.pod else "cards",
        "until": f"{question.until:.3f}",
        "last": f"{question.last:g}",
        "step": f"{question.step:g}",
    }
    if question.pod:
        query |= {"namespace": question.namespace, "pod": question.pod}
    answers = await collectors.history([question.node], query)
    if question.node not in answers:
        raise NotMeasuredError(f"the collector of {question.node} does not answer")
    answer = answers[question.node]
    lines: dict[str, list[float | None]] = {}
    for series in answer.series:
        if series.card in question.cards:
            _add(lines, series, kind.scale)
    return Past(answer.since, answer.step, "collectors", lines)


def _add(lines: dict[str, list[float | None]], series: SeriesReading, scale: float) -> None:
    """A pod's containers on a card are one line; one that did not run in a step adds nothing to it."""
    values = [None if value is None else round(value / scale, 2) for value in series.values]
    known = lines.get(series.card)
    if known is None:
        lines[series.card] = values
    else:
        lines[series.card] = [
            b if a is None else a if b is None else round(a + b, 2) for a, b in zip(known, values, strict=False)
        ]


class _RangeSeries(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct):
    result: list[_RangeSeries] = []


class _RangeAnswer(msgspec.Struct):
    status: str = ""
    error: str = ""
    data: _Matrix = msgspec.field(default_factory=_Matrix)


_RANGE: Final = msgspec.json.Decoder(_RangeAnswer)


class PrometheusPast:
    """Asks a Prometheus. `url` is the configured one; it is shown nothing but queries."""

    def __init__(self, url: str, *, ca_file: str = "", authorization_file: str = "", matchers: str = "") -> None:
        """`matchers` choose series as in a query, so that targets which a tenant has scraped do not count."""
        self._config = LiveLoadConfig(
            source=LoadSource.PROMETHEUS,
            url=url,
            ca_file=ca_file,
            authorization_file=authorization_file,
            matchers=matchers or LiveLoadConfig().matchers,
        )

    async def ask(self, question: PastQuestion) -> Past:
        """The past of cards, or of a pod on them. Raises LoadSourceError."""
        kind = SERIES[question.series]
        query, scale = self._query(kind, question)
        since = question.until - question.count * question.step
        form = {
            "query": query,
            "start": f"{since + question.step:.3f}",
            "end": f"{question.until:.3f}",
            "step": f"{question.step:g}",
        }
        async with ServerSession(self._config) as session:
            body = await session.post("/api/v1/query_range", form)
        try:
            answer = _RANGE.decode(body)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise LoadSourceError(f"what was answered is no answer of Prometheus: {error}") from error
        if answer.status != "success":
            raise LoadSourceError(f"Prometheus answers {shown(answer.error or answer.status)}")
        lines = {
            one.metric["UUID"]: _steps(one.values, since, question, scale)
            for one in answer.data.result
            if one.metric.get("UUID") in question.cards
        }
        return Past(since, question.step, "prometheus", lines)

    def _query(self, kind: SeriesKind, question: PastQuestion) -> tuple[str, float]:
        cards = "|".join(_escaped(_literal(card)) for card in question.cards)
        chosen = f'{self._config.matchers},UUID=~"{cards}"'
        if not question.pod:
            return f"max by (UUID) ({kind.prometheus}{{{chosen}}})", kind.prometheus_scale
        if not kind.of_pods:
            raise LoadSourceError("Prometheus has no such series of pods")
        named = f'{chosen},namespace="{_escaped(question.namespace)}",pod="{_escaped(question.pod)}"'
        return f"sum by (UUID) ({kind.of_pods}{{{named}}})", float(_MIB)


def _steps(
    values: Sequence[tuple[float, str]], since: float, question: PastQuestion, scale: float
) -> list[float | None]:
    line: list[float | None] = [None] * question.count
    for at, text in values:
        place = round((at - since) / question.step) - 1
        try:
            value = float(text) / scale
        except ValueError:
            continue
        if 0 <= place < len(line) and math.isfinite(value):
            line[place] = round(value, 2)
    return line


def _literal(text: str) -> str:
    """A text as a regular expression that matches it alone."""
    return "".join(one if one.isalnum() or one in "-_" else f"\\{one}" for one in text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
