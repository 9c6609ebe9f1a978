"""The filters and preferences, each over all rows at once, and what a filter answers."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.placement.columns import BoolArray


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rows that one filter rejects for one reason, in kube-scheduler's words; some may have no node.

    A node that is short of several resources is rejected once for each.
    """

    filter: str
    reason: str
    rows: BoolArray
    #: Whether preemption could help: the reason could go if pods gave way.
    resolvable: bool


#: All that one filter rejects; a row may stand under several of its reasons.
Rejections = tuple[Rejection, ...]
