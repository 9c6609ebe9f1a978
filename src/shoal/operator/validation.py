"""What a node's validator says, as far as it counts: of this boot, and readable."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from shoal.kube.objects.node import Node
from shoal.model.contract.operator import ANNOTATION_VALIDATION, Step, ValidationReport, decode_validation
from shoal.model.errors import CodecError

#: In the order in which a node takes them.
STEPS: Final[tuple[Step, ...]] = ("driver", "toolkit", "cuda", "plugin")
#: Texts whose meaning is remembered: those of the nodes of a large cluster.
_REMEMBERED: Final = 8192


@lru_cache(maxsize=_REMEMBERED)
def _decoded(text: str) -> ValidationReport | str:
    try:
        return decode_validation(text)
    except CodecError as error:
        return str(error)


def validation_of(node: Node) -> ValidationReport | None:
    """The report of a node's validator; None if there is none, or none that counts."""
    report = _decoded(node.metadata.annotations.get(ANNOTATION_VALIDATION, ""))
    if isinstance(report, str):
        return None
    boot = node.status.node_info.boot_id
    return report if not (report.boot and boot) or report.boot == boot else None


def unreadable(node: Node) -> str:
    """Why the report of a node cannot be read; empty if it can, or if there is none."""
    text = node.metadata.annotations.get(ANNOTATION_VALIDATION, "")
    report = _decoded(text) if text else ""
    return report if isinstance(report, str) else ""


def first_unready(report: ValidationReport | None, steps: tuple[Step, ...] = STEPS) -> Step | None:
    """The first step that is not ready; None when all are."""
    for step in steps:
        if report is None or (found := report.steps.get(step)) is None or not found.ready:
            return step
    return None


def is_validated(node: Node, steps: tuple[Step, ...] = STEPS) -> bool:
    """Whether a node has taken all of these steps since it booted."""
    return first_unready(validation_of(node), steps) is None
