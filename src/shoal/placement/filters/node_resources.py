"""The node is there and has the pod's CPU and memory. A pod that asks for none of either fits in any case.

A node that is there for some pods only (`columns.alive`) is passed over here; why, `card_fit` tells.
"""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import BoolArray
from shoal.placement.books.ledger import NodeBooks
from shoal.placement.classes import PodClass
from shoal.placement.trial import Refusal, Trial


class NodeResources:
    def passes(self, trial: Trial) -> BoolArray:
        enough: BoolArray = np.logical_and.reduce(trial.facts[:3] >= trial.tables.node_needs, axis=0)
        return enough

    def refusal(self, node: NodeBooks, pod_class: PodClass) -> Refusal | None:
        if node.inventory is None:
            return Refusal("the node is gone")
        short = [
            f"{free}{unit} {name} free, {wanted}{unit} wanted"
            for name, unit, free, wanted in (
                ("CPU", "m", node.inventory.cpu_milli - node.cpu_used, pod_class.cpu),
                ("memory", " MiB", node.inventory.memory_mib - node.memory_used, pod_class.ram),
            )
            if wanted and wanted > free
        ]
        return Refusal("; ".join(short)) if short else None
