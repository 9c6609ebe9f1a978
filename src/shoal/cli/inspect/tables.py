"""The tables of `inspect`: gpushare's summary and details to the letter, a line for every card, and who waits and why.

gpushare's tables are text whose cells end in tabs. Cells of neighbouring lines that end in a tab make a column, as wide
as its widest cell and two spaces more. What follows the last tab of a line is not part of a column, and a line
without that tab ends the column. Cordoned nodes stand in them like the others; when there are some, two more lines at
the end tell their part.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.analysis.inspect.claims import CLAIM
from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse, percent, taken, totals
from shoal.cli.output import aligned
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import shown
from shoal.model.gpu import Gpu
from shoal.model.request import Share

_GAP = 2


def tabbed(text: str) -> str:
    """The text with spaces for tabs."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[] for _ in lines]
    _measure(lines, widths, 0, len(lines), 0)
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(cells, of_line, strict=False)) + cells[-1]
        for cells, of_line in zip(lines, widths, strict=True)
    )


def _measure(lines: Sequence[list[str]], widths: list[list[int]], first: int, end: int, column: int) -> None:
    """Give each run of lines that have a cell in this column its width, then the columns to its right."""
    row = first
    while row < end:
        if len(lines[row]) - 1 <= column:
            row += 1
            continue
        start = row
        while row < end and len(lines[row]) - 1 > column:
            row += 1
        width = max(len(lines[one][column]) for one in range(start, row)) + _GAP
        for one in range(start, row):
            widths[one].append(width)
        _measure(lines, widths, start, row, column + 1)


_SUMMARY_DASHES = 20


def summary(nodes: Sequence[NodeUse], unit: MemoryUnit | None) -> str:
    """The table. The unit is None when no node tells it."""
    slots = max((max(use.slots(), default=-1) + 1 for use in nodes), default=0)
    pending = any(use.pending_mib for use in nodes)
    counted = unit or MemoryUnit.GIB
    head = ["NAME", "IPADDRESS", *(f"GPU{slot}(Allocated/Total)" for slot in range(slots))]
    head += ["PENDING(Allocated)"] if pending else []
    head.append(f"GPU Memory({unit.value if unit else ''})")
    rows = ["\t".join(_summary_row(use, slots, pending=pending, unit=counted)) + "\n" for use in nodes]
    dashes = "-" * (len(rows[0]) + _SUMMARY_DASHES if rows else 0)
    taken, total = totals(nodes, counted)
    end = f"Allocated/Total GPU Memory In Cluster:\n{taken}/{total} ({percent(taken, total)}%)\t\n"
    return tabbed("\t".join(head) + "\n" + "".join(rows) + f"{dashes}\n" + end + cordoned(nodes, counted))


def cordoned(nodes: Sequence[NodeUse], unit: MemoryUnit) -> str:
    """The part of the nodes that take no pods; empty when all do."""
    closed = [use for use in nodes if use.cordoned]
    if not closed:
        return ""
    taken, total = totals(closed, unit)
    names = ", ".join(use.node.name for use in closed)
    return f"Of It On Cordoned Nodes ({names}):\n{taken}/{total} ({percent(taken, total)}%)\t\n"


def _summary_row(use: NodeUse, slots: int, *, pending: bool, unit: MemoryUnit) -> list[str]:
    cards = use.slots()
    cells = [
        f"{unit.ceil(use.allocated(cards[slot]))}/{unit.floor(cards[slot].memory_mib)}" if slot in cards else "0/0"
        for slot in range(slots)
    ]
    waiting = [str(unit.ceil(use.pending_mib)) if use.pending_mib else ""] if pending else []
    taken, total = use.totals(unit)
    return [use.node.name, use.address, *cells, *waiting, f"{taken}/{total}"]


_DETAILS_DASHES = 10


def details(nodes: Sequence[NodeUse], unit: MemoryUnit | None) -> str:
    """One block a node, then the cluster."""
    counted = unit or MemoryUnit.GIB
    rows = ["".join(_details_rows(use, counted)) for use in nodes]
    dashes = "-" * (len(rows[0]) + _DETAILS_DASHES) if rows else ""
    blocks = [_block(use, some, dashes, counted) for use, some in zip(nodes, rows, strict=True)]
    allocated, total = totals(nodes, counted)
    end = f"\n\nAllocated/Total GPU Memory In Cluster:\t{allocated}/{total} ({percent(allocated, total)}%)\t\n"
    return tabbed("".join(blocks) + end + cordoned(nodes, counted))


def _block(use: NodeUse, rows: str, dashes: str, unit: MemoryUnit) -> str:
    columns = [f"GPU{slot}(Allocated)" for slot in range(_slots(use))]
    columns += ["Pending(Allocated)"] if use.pending_mib else []
    allocated, total = use.totals(unit)
    return (
        f"\nNAME:\t{use.node.name}\nIPADDRESS:\t{use.address}\n\n"
        + _tab_line("NAME", "NAMESPACE", *columns)
        + rows
        + _tab_line("Allocated :", f"{allocated} ({percent(allocated, total)}%)")
        + _tab_line("Total :", f"{total} ")
        + f"{dashes}\n"
    )


def _details_rows(use: NodeUse, unit: MemoryUnit) -> list[str]:
    """Pods by their first card, those without a known one last."""
    cards = use.slots()
    slots = range(_slots(use))
    nothing = ["0"] if use.pending_mib else []

    def amounts(pod: PodUse) -> list[str]:
        held = pod.held
        return [
            str(unit.ceil(taken(held[cards[slot].uuid], cards[slot])))
            if slot in cards and cards[slot].uuid in held
            else "0"
            for slot in slots
        ]

    def first(pod: PodUse) -> int:
        return min((slot for slot, gpu in cards.items() if gpu.uuid in pod.held), default=0)

    placed = [
        _tab_line(_with_claims(pod), pod.namespace, *amounts(pod), *nothing) for pod in sorted(use.pods, key=first)
    ]
    waiting = [pod for pod in use.pending if pod.asked_mib]
    return placed + [
        _tab_line(pod.name, pod.namespace, *("0" for _ in slots), str(unit.ceil(pod.asked_mib))) for pod in waiting
    ]


def _slots(use: NodeUse) -> int:
    return max(use.slots(), default=-1) + 1


def _tab_line(*cells: str) -> str:
    """A line whose every cell ends in a tab, as the last one does in the original."""
    return "\t".join(cells) + "\t\n"


_NONE = "<none>"
_UNKNOWN = "<unknown>"


def wide(cluster: ClusterUse) -> str:
    """The table, of all nodes with cards."""
    unit = cluster.unit or MemoryUnit.GIB
    head = ["NODE", "STATUS", "GPU", "UUID", "MODEL", f"MEMORY({unit.value})", "HEALTH", "ISOLATION", "PODS"]
    rows = [row for use in cluster.nodes for row in _wide_rows(use, unit)]
    return aligned([head, *rows])


def status(use: NodeUse) -> str:
    """As kubectl says it."""
    return ("Ready" if use.ready else "NotReady") + (",SchedulingDisabled" if use.cordoned else "")


def health(gpu: Gpu) -> str:
    """Healthy, or why not. Nobody tells of a card that is not in an inventory."""
    if shoal.is_made_up(gpu.uuid):
        return _UNKNOWN
    return "Healthy" if gpu.healthy else f"Unhealthy ({gpu.fault})" if gpu.fault else "Unhealthy"


def amount(share: Share, gpu: Gpu, unit: MemoryUnit) -> str:
    """A share of a card in words: `3`, `3+20%`, `2+1 client`, `all`."""
    if share.exclusive:
        return "all"
    parts = [str(unit.ceil(taken(share, gpu)))] if share.memory_mib else []
    parts += [f"{share.compute}%"] if share.compute else []
    parts += [f"{share.clients} client{'s' if share.clients > 1 else ''}"] if share.clients else []
    return "+".join(parts) or "0"


def _wide_rows(use: NodeUse, unit: MemoryUnit) -> list[list[str]]:
    rows = [
        [
            use.node.name,
            status(use),
            str(gpu.index),
            _NONE if shoal.is_made_up(gpu.uuid) else gpu.uuid,
            gpu.model or _NONE,
            f"{unit.ceil(use.allocated(gpu))}/{unit.floor(gpu.memory_mib)}",
            health(gpu),
            _UNKNOWN if shoal.is_made_up(gpu.uuid) else str(gpu.limited_by),
            ", ".join(f"{_name(pod)}={amount(pod.held[gpu.uuid], gpu, unit)}" for pod in _holders(use, gpu)) or _NONE,
        ]
        for gpu in sorted(use.node.gpus, key=lambda gpu: gpu.index)
    ]
    if use.pending or use.pending_mib:
        pods = ", ".join(f"{_name(pod)}={unit.ceil(pod.asked_mib)}" for pod in use.pending) or _NONE
        rows.append(
            [use.node.name, status(use), "?", *[_NONE] * 2, str(unit.ceil(use.pending_mib)), *[_NONE] * 2, pods]
        )
    return rows


def _holders(use: NodeUse, gpu: Gpu) -> list[PodUse]:
    return [pod for pod in use.pods if gpu.uuid in pod.held]


def _name(pod: PodUse) -> str:
    return f"{pod.namespace}/{_with_claims(pod)}"


def _with_claims(pod: PodUse) -> str:
    """A pod's name, and the claims by which it holds what it holds."""
    return f"{pod.name} ({', '.join(pod.claims)})" if pod.claims and not pod.name.startswith(CLAIM) else pod.name


#: More are counted, not listed.
_MOST = 20


def waiting(cluster: ClusterUse) -> str:
    """The pods without a card, those on nodes first, and what could not be read; empty when there is none."""
    unit = cluster.unit or MemoryUnit.GIB
    pods = [pod for use in cluster.nodes for pod in use.pending] + list(cluster.waiting)
    lines = [_waiting_line(pod, unit) for pod in pods[:_MOST]]
    if len(pods) > _MOST:
        lines.append(f"and {len(pods) - _MOST} more: see -o json")
    found = ["", "Without a card:", *(f"  {line}" for line in lines)] if lines else []
    if cluster.problems:
        found += ["", "Not read:", *(f"  {problem}" for problem in cluster.problems[:_MOST])]
    return "".join(f"{line}\n" for line in found)


def nobody(cluster: ClusterUse) -> str:
    """A note that the namespace asked for has no pods, which may be a slip of the pen; empty when it has some."""
    if not cluster.namespace or cluster.pods:
        return ""
    return f"Note: no pod of namespace {shown(cluster.namespace)} asks for a GPU here.\n"


def _waiting_line(pod: PodUse, unit: MemoryUnit) -> str:
    asked = f" ({unit.ceil(pod.asked_mib)} {unit.value})" if pod.asked_mib else ""
    return f"{pod.namespace}/{pod.name}{asked}: {pod.why}"
