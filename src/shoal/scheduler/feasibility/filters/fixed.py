"""What nodes refuse for what they are: cordon, name, taints, node affinity. Pods on them play no part."""

from __future__ import annotations

import numpy as np

from shoal.placement.columns import BoolArray
from shoal.scheduler.feasibility.filters.objection import Objection, Objections
from shoal.scheduler.feasibility.state.nodes import NodeTable, tolerates_cordon
from shoal.scheduler.feasibility.wish.wish import NodeWish, Wish


def fixed_objections(nodes: NodeTable, wish: Wish) -> tuple[Objections, ...]:
    """One entry per filter, in kube-scheduler's order."""
    found = []
    if np.count_nonzero(nodes.cordoned) and not tolerates_cordon(wish.tolerations):
        found.append(Objection("NodeUnschedulable", "node(s) were unschedulable", nodes.cordoned.copy(), False))
    if wish.pins:
        reason = "node(s) didn't match the requested node name"
        found.append(Objection("NodeName", reason, ~nodes.named(wish.pins), False))
    tolerated = nodes.tolerated(wish.tolerations)
    if np.count_nonzero(tolerated != nodes.alive):
        found.append(Objection("TaintToleration", "node(s) had untolerated taint(s)", ~tolerated, False))
    wanted = wanted_nodes(nodes, wish.node)
    if wanted is not None:
        reason = "node(s) didn't match Pod's node affinity/selector"
        found.append(Objection("NodeAffinity", reason, ~wanted, False))
    return tuple((objection,) for objection in found)


def wanted_nodes(nodes: NodeTable, wish: NodeWish) -> BoolArray | None:
    """The nodes that match selector and required affinity; None when neither is there."""
    if wish.labels is None:
        return None if wish.affinity is None else nodes.matching(wish.affinity)
    mask = nodes.matching_term(wish.labels)
    return mask if wish.affinity is None else mask & nodes.matching(wish.affinity)
