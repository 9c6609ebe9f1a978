"""Filters of single nodes: cordon, name, taints, node affinity; then host ports, places for pods and resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from shoal.model.contract import kubernetes
from shoal.model.contract.mechanisms import Mechanism, shared
from shoal.placement.columns import BoolArray
from shoal.scheduler.feasibility.filters import Rejection, Rejections
from shoal.scheduler.feasibility.node_table import NodeTable, tolerates_cordon
from shoal.scheduler.feasibility.pod_spec import MOST, HostPort, PodConstraints, RequiredNodeAffinity, ResourceRequests
from shoal.scheduler.feasibility.pod_table import PlacedPod, PodTable
from shoal.scheduler.feasibility.tables import ClusterTables

_FIT = "NodeResourcesFit"
_TOO_MANY = "Too many pods"
#: Under which kube-scheduler tells what claims refuse.
_MECHANISM = "DynamicResources"


def node_rejections(nodes: NodeTable, constraints: PodConstraints) -> tuple[Rejections, ...]:
    """What nodes reject by what they are, whatever pods they have: one entry per filter, in kube-scheduler's order."""
    found = []
    if np.count_nonzero(nodes.cordoned) and not tolerates_cordon(constraints.tolerations):
        found.append(Rejection("NodeUnschedulable", "node(s) were unschedulable", nodes.cordoned.copy(), False))
    if constraints.node_names:
        reason = "node(s) didn't match the requested node name"
        found.append(Rejection("NodeName", reason, ~nodes.named(constraints.node_names), False))
    tolerated = nodes.tolerated(constraints.tolerations)
    if np.count_nonzero(tolerated != nodes.alive):
        found.append(Rejection("TaintToleration", "node(s) had untolerated taint(s)", ~tolerated, False))
    wanted = matching_nodes(nodes, constraints.node_affinity)
    if wanted is not None:
        reason = "node(s) didn't match Pod's node affinity/selector"
        found.append(Rejection("NodeAffinity", reason, ~wanted, False))
    found += mechanism_rejections(nodes, constraints.names, constraints.not_by_claims)
    return tuple((rejection,) for rejection in found)


def mechanism_rejections(nodes: NodeTable, names: tuple[str, ...], not_by_claims: str) -> Iterator[Rejection]:
    """The nodes that serve the pod's names by another mechanism than it can have, or are changing that."""
    rows: dict[str, BoolArray] = {}
    for row, served in nodes.mechanisms.items() if names else ():
        reason = _unserved(served, names, not_by_claims, makes_claims=nodes.makes_claims)
        if reason:
            rows.setdefault(reason, np.zeros(nodes.size, np.bool_))[row] = True
    for reason, refused in rows.items():
        yield Rejection(_MECHANISM, reason, refused, False)


def _unserved(
    served: Mapping[str, Mechanism], names: tuple[str, ...], not_by_claims: str, *, makes_claims: bool
) -> str:
    """Why a node does not serve these names to a pod; empty if it does."""
    for name in names:
        match served.get(name, Mechanism.DEVICES):
            case Mechanism.TO_CLAIMS:
                return f"node(s) are changing {name} to claims, and wait for the last pods with devices of it to end"
            case Mechanism.TO_DEVICES:
                return f"node(s) are changing {name} to devices, and wait for the last pods with claims of it to end"
    one = shared(served, names)
    if one is None:
        return f"node(s) serve some of {', '.join(names)} by claims and some by devices: ask for one in a pod"
    if one is Mechanism.DEVICES:
        return ""
    if not makes_claims:
        return f"node(s) serve {names[0]} by claims, which this scheduler does not make: see its setting claims"
    return f"node(s) serve {names[0]} by claims, and {not_by_claims}" if not_by_claims else ""


def matching_nodes(nodes: NodeTable, wanted: RequiredNodeAffinity) -> BoolArray | None:
    """The nodes that match node selector and required node affinity; None when the pod has neither."""
    if wanted.labels is None:
        return None if wanted.affinity is None else nodes.matching(wanted.affinity)
    mask = nodes.matching_term(wanted.labels)
    return mask if wanted.affinity is None else mask & nodes.matching(wanted.affinity)


def port_rejections(pods: PodTable, wanted: tuple[HostPort, ...], size: int) -> Rejections:
    """The nodes where another pod has a host port that the pod wants."""
    rows = np.zeros(size, np.bool_)
    for port in wanted:
        taken = pods.ports.get((port.protocol, port.number), {})
        rows[[row for row, addresses in taken.items() if any(map(port.clashes, addresses))]] = True
    if not np.count_nonzero(rows):
        return ()
    return (Rejection("NodePorts", "node(s) didn't have free ports for the requested pod ports", rows, True),)


def ports_free(pods: PodTable, wanted: tuple[HostPort, ...], row: int, gone: tuple[PlacedPod, ...]) -> bool:
    """Whether the ports of the row would be free without the pods in `gone`."""
    for port in wanted:
        taken = Counter(pods.ports.get((port.protocol, port.number), {}).get(row, ()))
        taken.subtract(
            other.address
            for placed in gone
            if placed.row == row
            for other in placed.info.ports
            if (other.protocol, other.number) == (port.protocol, port.number)
        )
        if any(count > 0 and port.clashes(address) for address, count in taken.items()):
            return False
    return True


def fit_rejections(tables: ClusterTables, requests: ResourceRequests) -> Rejections:
    """The nodes that have too little left, once for each resource that is short."""
    short = []
    never = np.zeros(tables.nodes.size, np.bool_)
    for name, amount in ((kubernetes.RESOURCE_PODS, 1), *requests):
        rows = (tables.free.of(name) < amount) & tables.nodes.alive
        if not np.count_nonzero(rows):
            continue
        if name == kubernetes.RESOURCE_PODS:
            short.append((_TOO_MANY, rows))
            continue
        short.append((f"Insufficient {name}", rows))
        allocatable = tables.nodes.allocatable.get(name)
        never |= rows if allocatable is None else rows & (allocatable < amount)
    found = []
    for reason, rows in short:
        # Where one resource can never be enough, freeing another does not help.
        found += [Rejection(_FIT, reason, rows & ~never, True), Rejection(_FIT, reason, rows & never, False)]
    return tuple(found)


def fits(tables: ClusterTables, requests: ResourceRequests, row: int, gone: tuple[PlacedPod, ...]) -> bool:
    """Whether the row would have enough of everything without the pods in `gone`."""
    freed = [placed for placed in gone if placed.row == row]
    if tables.free.of(kubernetes.RESOURCE_PODS)[row] + len(freed) < 1:
        return False
    for name, amount in requests:
        more = sum(min(had, MOST) for placed in freed for other, had in placed.info.requests if other == name)
        if tables.free.of(name)[row] + more < amount:
            return False
    return True
