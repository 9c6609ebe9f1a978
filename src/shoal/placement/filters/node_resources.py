"""The node is there and has the pod's CPU and memory. A pod that asks for none of either fits in any case."""

from __future__ import annotations

from shoal.placement.classes import PodClass
from shoal.placement.columns import BoolArray
from shoal.placement.ledger import NodeBooks
from shoal.placement.trial import Refusal, Trial


class NodeResources:
    def passes(self, trial: Trial) -> BoolArray:
        passes = trial.columns.alive[trial.rows]
        if trial.pod_class.cpu:
            passes &= trial.cpu_free >= trial.pod_class.cpu
        if trial.pod_class.ram:
            passes &= trial.columns.ram_free[trial.rows] >= trial.pod_class.ram
        return passes

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
