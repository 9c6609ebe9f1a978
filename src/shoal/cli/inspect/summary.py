"""gpushare's summary table, to the letter: what is allocated of every card, by node, and in the cluster.

Pure: cards and bookings in, text out. A card that one pod has alone counts as allocated in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import Share

_GAP = 2
_MORE_DASHES = 20
UNKNOWN_ADDRESS = "unknown"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node: its cards, what is held of each by UUID, and the memory of pods whose card is not known."""

    node: NodeGpus
    address: str
    held: dict[str, Share]
    pending_mib: int = 0

    def allocated(self, uuid: str, memory_mib: int) -> int:
        """What is taken of a card."""
        share = self.held.get(uuid, Share())
        return memory_mib if share.exclusive else share.memory_mib


def summary(nodes: Sequence[NodeUse], unit: MemoryUnit) -> str:
    """The table."""
    widest = max((len(use.node.gpus) for use in nodes), default=0)
    pending = any(use.pending_mib for use in nodes)
    head = ["NAME", "IPADDRESS", *(f"GPU{slot}(Allocated/Total)" for slot in range(widest))]
    head += ["PENDING(Allocated)"] if pending else []
    head.append(f"GPU Memory({unit.value})")
    rows = [_row(use, widest, pending=pending, unit=unit) for use in nodes]
    taken, total = (
        (sum(parts) for parts in zip(*(_totals(use, unit) for use in nodes), strict=True)) if nodes else (0, 0)
    )
    dashes = len("\t".join(rows[0]) + "\n") + _MORE_DASHES if rows else _MORE_DASHES
    percent = taken * 100 // total if total else 0
    return (
        _aligned([head, *rows])
        + "-" * dashes
        + f"\nAllocated/Total GPU Memory In Cluster:\n{taken}/{total} ({percent}%)  \n"
    )


def _row(use: NodeUse, widest: int, *, pending: bool, unit: MemoryUnit) -> list[str]:
    cards = [
        f"{unit.ceil(use.allocated(gpu.uuid, gpu.memory_mib))}/{unit.floor(gpu.memory_mib)}"
        for gpu in sorted(use.node.gpus, key=lambda gpu: gpu.index)
    ]
    cards += ["0/0"] * (widest - len(cards))
    taken, total = _totals(use, unit)
    waiting = [str(unit.ceil(use.pending_mib)) if use.pending_mib else ""] if pending else []
    return [use.node.name, use.address, *cards, *waiting, f"{taken}/{total}"]


def _totals(use: NodeUse, unit: MemoryUnit) -> tuple[int, int]:
    taken = sum(unit.ceil(use.allocated(gpu.uuid, gpu.memory_mib)) for gpu in use.node.gpus)
    return taken + unit.ceil(use.pending_mib), sum(unit.floor(gpu.memory_mib) for gpu in use.node.gpus)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell and a gap; the last one is not padded."""
    widths = [max(len(cell) for cell in column) + _GAP for column in zip(*rows, strict=True)]
    lines = (
        "".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)) + row[-1] for row in rows
    )
    return "".join(f"{line}\n" for line in lines)
