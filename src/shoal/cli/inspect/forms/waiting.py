"""Why pods have no card, or why none are shown, in words for people."""

from __future__ import annotations

from shoal.cli.inspect.use import ClusterUse, PodUse
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import shown

#: More are counted, not listed.
_MOST = 20


def waiting(cluster: ClusterUse) -> str:
    """The pods without a card, those on nodes first, and what could not be read; empty when there is none."""
    unit = cluster.unit or MemoryUnit.GIB
    pods = [pod for use in cluster.nodes for pod in use.pending] + list(cluster.waiting)
    lines = [_line(pod, unit) for pod in pods[:_MOST]]
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


def _line(pod: PodUse, unit: MemoryUnit) -> str:
    asked = f" ({unit.ceil(pod.asked_mib)} {unit.value})" if pod.asked_mib else ""
    return f"{pod.namespace}/{pod.name}{asked}: {pod.why}"
