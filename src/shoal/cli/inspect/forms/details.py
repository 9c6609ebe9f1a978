"""gpushare's details, to the letter: for every node what each pod has of each card."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cli.inspect.forms.summary import cordoned
from shoal.cli.inspect.forms.tabs import aligned
from shoal.cli.inspect.use import NodeUse, PodUse, percent, taken, totals
from shoal.model.contract.gpushare import MemoryUnit

_MORE_DASHES = 10


def details(nodes: Sequence[NodeUse], unit: MemoryUnit | None) -> str:
    """One block a node, then the cluster."""
    counted = unit or MemoryUnit.GIB
    rows = ["".join(_rows(use, counted)) for use in nodes]
    dashes = "-" * (len(rows[0]) + _MORE_DASHES) if rows else ""
    blocks = [_block(use, some, dashes, counted) for use, some in zip(nodes, rows, strict=True)]
    allocated, total = totals(nodes, counted)
    end = f"\n\nAllocated/Total GPU Memory In Cluster:\t{allocated}/{total} ({percent(allocated, total)}%)\t\n"
    return aligned("".join(blocks) + end + cordoned(nodes, counted))


def _block(use: NodeUse, rows: str, dashes: str, unit: MemoryUnit) -> str:
    columns = [f"GPU{slot}(Allocated)" for slot in range(_slots(use))]
    columns += ["Pending(Allocated)"] if use.pending_mib else []
    allocated, total = use.totals(unit)
    return (
        f"\nNAME:\t{use.node.name}\nIPADDRESS:\t{use.address}\n\n"
        + _line("NAME", "NAMESPACE", *columns)
        + rows
        + _line("Allocated :", f"{allocated} ({percent(allocated, total)}%)")
        + _line("Total :", f"{total} ")
        + f"{dashes}\n"
    )


def _rows(use: NodeUse, unit: MemoryUnit) -> list[str]:
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

    placed = [_line(pod.name, pod.namespace, *amounts(pod), *nothing) for pod in sorted(use.pods, key=first)]
    waiting = [pod for pod in use.pending if pod.asked_mib]
    return placed + [
        _line(pod.name, pod.namespace, *("0" for _ in slots), str(unit.ceil(pod.asked_mib))) for pod in waiting
    ]


def _slots(use: NodeUse) -> int:
    return max(use.slots(), default=-1) + 1


def _line(*cells: str) -> str:
    """A line whose every cell ends in a tab, as the last one does in the original."""
    return "\t".join(cells) + "\t\n"
