"""Every check of a cluster, in the order in which findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from shoal.analysis.doctor import cluster, nodes, pods, workloads
from shoal.analysis.doctor.facts import Facts
from shoal.analysis.doctor.findings import Finding

_CHECKS: Final[tuple[Callable[[Facts], Iterable[Finding]], ...]] = (
    cluster.version,
    cluster.clocks,
    nodes.inventories,
    nodes.health,
    nodes.served,
    nodes.units,
    nodes.runtimes,
    nodes.walls,
    workloads.agents,
    workloads.scheduler,
    workloads.rights,
    workloads.versions,
    cluster.policies,
    pods.unheard,
    pods.books,
)


def examine(facts: Facts) -> Iterator[Finding]:
    """What the checks find."""
    for check in _CHECKS:
        yield from check(facts)
