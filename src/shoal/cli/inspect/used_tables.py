"""The tables of `inspect --used`: nodes, cards and pods, what was requested beside what is used. `-` is not known."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.analysis.inspect.used import PodOnCard, UsedCard, UsedNode
from shoal.cli.output import aligned
from shoal.metrics.history_wire import CardReading
from shoal.model.contract.gpushare import MemoryUnit

UNKNOWN = "-"
#: More are counted, not listed.
_MOST = 20
_GIB = 1 << 30
_MIB = 1 << 20


def used_tables(nodes: Sequence[UsedNode], unit: MemoryUnit, *, pods: bool) -> str:
    """Nodes and their cards, with `pods` also what each pod uses of each card."""
    tables = [_nodes(nodes, unit), _cards([card for node in nodes for card in node.cards], unit)]
    tables += [_pods([card for node in nodes for card in node.cards], unit)] if pods else []
    return "\n".join(tables)


def silent(nodes: Sequence[UsedNode]) -> str:
    """A line for each node of which nothing is known, and why; empty when all tell."""
    lines = [f"Not measured: {node.node.node.name}: {node.why}" for node in nodes if node.why]
    more = [f"and {len(lines) - _MOST} nodes more: see -o json"] if len(lines) > _MOST else []
    return "".join(f"{line}\n" for line in lines[:_MOST] + more)


def memory(used: int | None, unit: MemoryUnit) -> str:
    """Bytes in the unit of the tables; GiB with a decimal."""
    if used is None:
        return UNKNOWN
    return f"{used / _GIB:.1f}" if unit is MemoryUnit.GIB else str(round(used / _MIB))


def measure(value: float | None, unit: str) -> str:
    """A number with its unit."""
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


def _nodes(nodes: Sequence[UsedNode], unit: MemoryUnit) -> str:
    head = ["NODE", f"REQUESTED({unit.value})", "USED", "TOTAL", "CPU", "MEMORY(GiB)"]
    rows = []
    for node in nodes:
        requested, total = node.node.totals(unit)
        load = node.reading.load if node.reading else None
        rows.append(
            [
                node.node.node.name,
                str(requested),
                memory(node.used_bytes, unit),
                str(total),
                measure(load.cpu_used_milli, "m") if load else UNKNOWN,
                memory(load.memory_used_bytes, MemoryUnit.GIB) if load else UNKNOWN,
            ]
        )
    return aligned([head, *rows])


def _cards(cards: Sequence[UsedCard], unit: MemoryUnit) -> str:
    head = ["NODE", "GPU", f"REQUESTED({unit.value})", "USED", "TOTAL", "NOBODY'S", "UTIL", "TEMP", "POWER", "PODS"]
    return aligned([head, *(_card(card, unit) for card in cards)])


def _card(card: UsedCard, unit: MemoryUnit) -> list[str]:
    return [
        card.node.node.name,
        str(card.gpu.index),
        str(unit.ceil(card.requested_mib)),
        *card_measures(card.reading, unit, total=str(unit.floor(card.gpu.memory_mib))),
        str(len(card.pods)),
    ]


def card_measures(reading: CardReading | None, unit: MemoryUnit, *, total: str) -> list[str]:
    """Used, total, nobody's, utilisation, temperature and power of a card."""
    one = reading or CardReading(uuid="", index=0)
    return [
        memory(one.used_bytes, unit),
        total,
        memory(one.unattributed_bytes, unit),
        measure(one.utilisation, "%"),
        measure(one.temperature_celsius, "C"),
        measure(one.power_watts, "W"),
    ]


def _pods(cards: Sequence[UsedCard], unit: MemoryUnit) -> str:
    head = ["NAMESPACE", "POD", "NODE", "GPU", f"REQUESTED({unit.value})", "USED", "UTIL"]
    return aligned([head, *(_pod(card, pod, unit) for card in cards for pod in card.pods)])


def _pod(card: UsedCard, pod: PodOnCard, unit: MemoryUnit) -> list[str]:
    return [
        pod.namespace,
        pod.name,
        card.node.node.name,
        str(card.gpu.index),
        str(unit.ceil(pod.requested_mib)),
        memory(pod.used_bytes, unit),
        measure(pod.utilisation, "%"),
    ]
