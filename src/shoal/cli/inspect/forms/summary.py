"""gpushare's summary table, to the letter: what is allocated of every card, by node, and in the cluster.

Cordoned nodes stand in it like the others. When there are some, two more lines at the end tell their part.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.inspect.forms.tabs import aligned
from shoal.cli.inspect.use import NodeUse, percent, totals
from shoal.model.contract.gpushare import MemoryUnit

_MORE_DASHES = 20


def summary(nodes: Sequence[NodeUse], unit: MemoryUnit | None) -> str:
    """The table. The unit is None when no node tells it."""
    slots = max((max(use.slots(), default=-1) + 1 for use in nodes), default=0)
    pending = any(use.pending_mib for use in nodes)
    counted = unit or MemoryUnit.GIB
    head = ["NAME", "IPADDRESS", *(f"GPU{slot}(Allocated/Total)" for slot in range(slots))]
    head += ["PENDING(Allocated)"] if pending else []
    head.append(f"GPU Memory({unit.value if unit else ''})")
    rows = ["\t".join(_row(use, slots, pending=pending, unit=counted)) + "\n" for use in nodes]
    dashes = "-" * (len(rows[0]) + _MORE_DASHES if rows else 0)
    taken, total = totals(nodes, counted)
    end = f"Allocated/Total GPU Memory In Cluster:\n{taken}/{total} ({percent(taken, total)}%)\t\n"
    return aligned("\t".join(head) + "\n" + "".join(rows) + f"{dashes}\n" + end + cordoned(nodes, counted))


def cordoned(nodes: Sequence[NodeUse], unit: MemoryUnit) -> str:
    """The part of the nodes that take no pods; empty when all do."""
    closed = [use for use in nodes if use.cordoned]
    if not closed:
        return ""
    taken, total = totals(closed, unit)
    names = ", ".join(use.node.name for use in closed)
    return f"Of It On Cordoned Nodes ({names}):\n{taken}/{total} ({percent(taken, total)}%)\t\n"


def _row(use: NodeUse, slots: int, *, pending: bool, unit: MemoryUnit) -> list[str]:
    cards = use.slots()
    cells = [
        f"{unit.ceil(use.allocated(cards[slot]))}/{unit.floor(cards[slot].memory_mib)}" if slot in cards else "0/0"
        for slot in range(slots)
    ]
    waiting = [str(unit.ceil(use.pending_mib)) if use.pending_mib else ""] if pending else []
    taken, total = use.totals(unit)
    return [use.node.name, use.address, *cells, *waiting, f"{taken}/{total}"]
