"""The screen of `shoal top` as lines of text: a head, one line for each node, card or pod, and who waits. Pure.

A filter keeps the lines in which its letters stand, whatever their case; totals stay those of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse, natural, percent, taken, totals
from shoal.cli.inspect.tables import amount, health, status
from shoal.cli.top.used_columns import UsedColumns
from shoal.cli.top.view import Order, Subject, View
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu

BAR: Final = 20
_KEYS: Final = "q quit  1 nodes  2 cards  3 pods  s sort  / filter  arrows scroll"
_TINTS: Final = {"green": "\x1b[32m", "yellow": "\x1b[33m", "red": "\x1b[31m", "head": "\x1b[7m"}
_PLAIN: Final = "\x1b[0m"
#: From these shares on, a bar is yellow or red.
_HIGH: Final = ((90, "red"), (60, "yellow"))


@dataclass(frozen=True, slots=True)
class FrameLine:
    """A line of the screen, and what it is sorted by."""

    cells: tuple[str, ...]
    key: tuple[object, ...]
    used: int = 0
    free: int = 0
    pods: int = 0
    #: How full the bar of the line is, in percent; None for lines without one.
    full: int | None = None


@dataclass(frozen=True, slots=True)
class ScreenSize:
    """The room there is. No height shows every line."""

    width: int
    height: int | None = None


def body_height(size: ScreenSize) -> int:
    """How many lines of the body are in sight: without the three of the head and the one below."""
    return max(1, (size.height or 0) - 4)


def frame(
    cluster: ClusterUse,
    view: View,
    size: ScreenSize,
    *,
    colour: bool,
    trouble: str = "",
    used: UsedColumns | None = None,
) -> list[str]:
    """All lines, none wider than the room. With `used`, columns of what is really used."""
    unit = cluster.unit or MemoryUnit.GIB
    head, lines = _lines(cluster, view.subject, unit, used)
    shown = [line for line in _sorted(lines, view.order) if _matches(line, view.filter)]
    body = _laid_out([head, *(line.cells for line in shown)])
    waiting = [
        f"waits: {pod.namespace}/{pod.name}: {pod.why}"
        for pod in _without_card(cluster)
        if view.filter.lower() in f"{pod.namespace}/{pod.name}".lower()
    ]
    texts = body[1:] + waiting
    fulls = [line.full for line in shown] + [None] * len(waiting)
    room = len(texts) if size.height is None else body_height(size)
    first = min(view.first, max(0, len(texts) - room))
    screen = [_title(cluster, unit)[: size.width], _state(view, cluster.namespace, trouble, used)[: size.width]]
    screen.append(_tinted(body[0][: size.width].ljust(size.width), "head", colour=colour))
    for text, full in zip(texts[first : first + room], fulls[first : first + room], strict=True):
        screen.append(_with_bar(text[: size.width], full, colour=colour))
    if size.height is not None:
        screen.append(_below(first, room, len(texts))[: size.width])
    return [line.rstrip() if not colour else line for line in screen]


def _title(cluster: ClusterUse, unit: MemoryUnit) -> str:
    allocated, total = totals(cluster.nodes, unit)
    cards = sum(len(use.node.gpus) for use in cluster.nodes)
    pods = sum(len(use.pods) for use in cluster.nodes)
    without = len(_without_card(cluster))
    return (
        f"shoal top: nodes {len(cluster.nodes)}, cards {cards}, pods {pods}, without a card {without}; "
        f"allocated {allocated}/{total} {unit.value} ({percent(allocated, total)}%)"
    )


def _state(view: View, namespace: str, trouble: str, used: UsedColumns | None) -> str:
    if trouble:
        return f"What you see may be old: {trouble}"
    if view.typing:
        return f"filter: {view.filter}_"
    kept = f"  filter: {view.filter}" if view.filter else ""
    within = f"  namespace: {namespace}" if namespace else ""
    missing = f"  used: {used.why}" if used is not None and used.why else ""
    return f"{view.subject.value} by {view.order.value}{within}{kept}{missing}"


def _below(first: int, room: int, count: int) -> str:
    where = f"{first + 1}-{min(first + room, count)} of {count}" if count else "nothing to show"
    return f"{_KEYS}   {where}"


def _without_card(cluster: ClusterUse) -> list[PodUse]:
    return [pod for use in cluster.nodes for pod in use.pending] + list(cluster.waiting)


def _lines(
    cluster: ClusterUse, subject: Subject, unit: MemoryUnit, used: UsedColumns | None
) -> tuple[tuple[str, ...], list[FrameLine]]:
    """The head and the lines of a subject. What is used stands behind what is allocated."""
    columns = UsedColumns(None) if used is None else used
    allocated = (f"ALLOCATED({unit.value})", *columns.head(subject))
    match subject:
        case Subject.NODES:
            nodes = [_node(use, unit, columns) for use in cluster.nodes]
            return ("NODE", "STATUS", "CARDS", "MEMORY", *allocated, "PODS"), nodes
        case Subject.CARDS:
            cards = [_card(use, gpu, unit, columns) for use in cluster.nodes for gpu in use.node.gpus]
            return ("NODE", "GPU", "MODEL", "MEMORY", *allocated, "COMPUTE", "HEALTH", "PODS"), cards
        case Subject.PODS:
            pods = [_pod(use, pod, unit, columns) for use in cluster.nodes for pod in use.pods]
            return ("NAMESPACE", "POD", "NODE", "PHASE", *allocated, "CARDS"), pods


def _node(use: NodeUse, unit: MemoryUnit, columns: UsedColumns) -> FrameLine:
    used, total = use.totals(unit)
    full, pods = percent(used, total), len(use.pods) + len(use.pending)
    allocated = (f"{used}/{total}", *columns.of_node(use, unit))
    cells = (use.node.name, status(use), str(len(use.node.gpus)), bar(full), *allocated, str(pods))
    return FrameLine(cells, natural(use.node.name), used, total - used, pods, full)


def _card(use: NodeUse, gpu: Gpu, unit: MemoryUnit, columns: UsedColumns) -> FrameLine:
    holders = [pod for pod in use.pods if gpu.uuid in pod.held]
    used, total = unit.ceil(use.allocated(gpu)), unit.floor(gpu.memory_mib)
    share = use.share(gpu)
    full = 100 if share.exclusive else percent(used, total)
    cells = (
        use.node.name,
        str(gpu.index),
        gpu.model or "-",
        bar(full),
        f"{used}/{total}",
        *columns.of_card(use, gpu, unit),
        "all" if share.exclusive else f"{share.compute}%",
        health(gpu),
        " ".join(f"{pod.name}={amount(pod.held[gpu.uuid], gpu, unit)}" for pod in holders) or "-",
    )
    return FrameLine(cells, (*natural(use.node.name), gpu.index), used, total - used, len(holders), full)


def _pod(use: NodeUse, pod: PodUse, unit: MemoryUnit, columns: UsedColumns) -> FrameLine:
    cards = [gpu for gpu in sorted(use.node.gpus, key=lambda gpu: gpu.index) if gpu.uuid in pod.held]
    memory = sum(unit.ceil(taken(pod.held[gpu.uuid], gpu)) for gpu in cards)
    where = " ".join(f"GPU{gpu.index}={amount(pod.held[gpu.uuid], gpu, unit)}" for gpu in cards)
    phase = "Terminating" if pod.ending else pod.phase
    allocated = (str(memory), *columns.of_pod(use, pod, unit))
    cells = (pod.namespace, pod.name, use.node.name, phase, *allocated, where)
    return FrameLine(cells, (pod.namespace, natural(pod.name)), memory)


def _sorted(lines: Sequence[FrameLine], order: Order) -> list[FrameLine]:
    by_name = sorted(lines, key=lambda line: line.key)
    if order is Order.NAME:
        return by_name
    return sorted(by_name, key=lambda line: -int(getattr(line, order.value)))


def _matches(line: FrameLine, wanted: str) -> bool:
    return not wanted or wanted.lower() in " ".join(line.cells).lower()


def _laid_out(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def bar(full: int) -> str:
    """How full something is, as a bar. What is over-booked is shown full."""
    marks = min(BAR, -(-BAR * full // 100))
    return f"[{'|' * marks}{' ' * (BAR - marks)}]"


def _with_bar(text: str, full: int | None, *, colour: bool) -> str:
    """The line with its bar in colour."""
    start = text.find("[|")
    if full is None or not colour or start < 0:
        return text
    end = text.find("]", start)
    end = len(text) if end < 0 else end
    tint = next((name for least, name in _HIGH if full >= least), "green")
    return text[: start + 1] + _tinted(text[start + 1 : end], tint, colour=True) + text[end:]


def _tinted(text: str, tint: str, *, colour: bool) -> str:
    return f"{_TINTS[tint]}{text}{_PLAIN}" if colour else text
