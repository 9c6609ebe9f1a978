"""What a filter has against rows."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.placement.columns import BoolArray


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason of one filter, in kube-scheduler's words, and the rows it holds for, nodes or not."""

    filter: str
    reason: str
    rows: BoolArray
    #: Whether the reason could go if pods gave way.
    resolvable: bool


#: Everything one filter has to say; a row may stand under several of its reasons.
Objections = tuple[Objection, ...]
