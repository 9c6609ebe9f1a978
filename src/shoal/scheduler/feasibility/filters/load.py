"""What nodes refuse for what is taken: ports of the host, places for pods, resources."""

from __future__ import annotations

from collections import Counter

import numpy as np

from shoal.model.contract import kubernetes
from shoal.scheduler.feasibility.cluster import Cluster
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.state.pods import Held, PodTable
from shoal.scheduler.feasibility.wish.requests import MOST, HostPort, Needs

_FIT = "NodeResourcesFit"
_TOO_MANY = "Too many pods"


def port_objections(pods: PodTable, wanted: tuple[HostPort, ...], size: int) -> Objections:
    """Somebody has a port the pod wants."""
    rows = np.zeros(size, np.bool_)
    for port in wanted:
        taken = pods.ports.get((port.protocol, port.number), {})
        rows[[row for row, addresses in taken.items() if any(map(port.clashes, addresses))]] = True
    if not np.count_nonzero(rows):
        return ()
    return (Objection("NodePorts", "node(s) didn't have free ports for the requested pod ports", rows, True),)


def ports_free(pods: PodTable, wanted: tuple[HostPort, ...], row: int, gone: tuple[Held, ...]) -> bool:
    """Whether the ports were free on one row, were these pods not there."""
    for port in wanted:
        taken = Counter(pods.ports.get((port.protocol, port.number), {}).get(row, ()))
        taken.subtract(
            other.address
            for held in gone
            if held.row == row
            for other in held.traits.ports
            if (other.protocol, other.number) == (port.protocol, port.number)
        )
        if any(count > 0 and port.clashes(address) for address, count in taken.items()):
            return False
    return True


def fit_objections(cluster: Cluster, needs: Needs) -> Objections:
    """The node has too little left. Every resource that is short is told."""
    short = []
    never = np.zeros(cluster.nodes.size, np.bool_)
    for name, amount in ((kubernetes.RESOURCE_PODS, 1), *needs):
        rows = (cluster.load.of(name) < amount) & cluster.nodes.alive
        if not np.count_nonzero(rows):
            continue
        if name == kubernetes.RESOURCE_PODS:
            short.append((_TOO_MANY, rows))
            continue
        short.append((f"Insufficient {name}", rows))
        allocatable = cluster.nodes.allocatable.get(name)
        never |= rows if allocatable is None else rows & (allocatable < amount)
    found = []
    for reason, rows in short:
        # Which resource could be freed does not matter where another never can.
        found += [Objection(_FIT, reason, rows & ~never, True), Objection(_FIT, reason, rows & never, False)]
    return tuple(found)


def fits(cluster: Cluster, needs: Needs, row: int, gone: tuple[Held, ...]) -> bool:
    """Whether there were enough on one row, were these pods not there."""
    freed = [held for held in gone if held.row == row]
    if cluster.load.of(kubernetes.RESOURCE_PODS)[row] + len(freed) < 1:
        return False
    for name, amount in needs:
        more = sum(min(had, MOST) for held in freed for other, had in held.traits.needs if other == name)
        if cluster.load.of(name)[row] + more < amount:
            return False
    return True
