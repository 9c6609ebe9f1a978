"""Every check of a cluster, in the order in which findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from shoal.analysis.doctor import cluster, metrics, nodes, pods, setup, workloads
from shoal.analysis.doctor.findings import Finding
from shoal.analysis.doctor.installation import Installation

_CHECKS: Final[tuple[Callable[[Installation], Iterable[Finding]], ...]] = (
    cluster.version,
    cluster.clocks,
    setup.set_up,
    nodes.inventories,
    nodes.health,
    nodes.served,
    nodes.by_claims,
    nodes.units,
    nodes.runtimes,
    nodes.isolation,
    workloads.agents,
    workloads.scheduler,
    workloads.rights,
    workloads.versions,
    cluster.policies,
    metrics.scrapes,
    pods.unheard,
    pods.allocations,
)


def examine(installation: Installation) -> Iterator[Finding]:
    """What the checks find."""
    for check in _CHECKS:
        yield from check(installation)
