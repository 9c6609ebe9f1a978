"""A line for every card: what it is, how it is, and who holds it."""

from __future__ import annotations

from shoal.cli.ask.output import aligned
from shoal.cli.inspect.use import ClusterUse, NodeUse, PodUse, taken
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.model.request import Share

_NONE = "<none>"
_UNKNOWN = "<unknown>"


def wide(cluster: ClusterUse) -> str:
    """The table, of all nodes with cards."""
    unit = cluster.unit or MemoryUnit.GIB
    head = ["NODE", "STATUS", "GPU", "UUID", "MODEL", f"MEMORY({unit.value})", "HEALTH", "ISOLATION", "PODS"]
    rows = [row for use in cluster.nodes for row in _rows(use, unit)]
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


def _rows(use: NodeUse, unit: MemoryUnit) -> list[list[str]]:
    rows = [
        [
            use.node.name,
            status(use),
            str(gpu.index),
            _NONE if shoal.is_made_up(gpu.uuid) else gpu.uuid,
            gpu.model or _NONE,
            f"{unit.ceil(use.allocated(gpu))}/{unit.floor(gpu.memory_mib)}",
            health(gpu),
            _UNKNOWN if shoal.is_made_up(gpu.uuid) else gpu.isolation.value,
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
    return f"{pod.namespace}/{pod.name}"
