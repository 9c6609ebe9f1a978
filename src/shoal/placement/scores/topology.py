"""Cards that are linked to each other."""

from __future__ import annotations

import numpy as np

from shoal.placement.books.columns import FloatArray
from shoal.placement.cards.topology import closeness
from shoal.placement.stacking import untouched
from shoal.placement.trial import Trial


class Topology:
    """How well the pod's whole cards would hang together on the node, 0..1 (`cards.topology.closeness`)."""

    def score(self, trial: Trial) -> FloatArray:
        score = np.zeros(len(trial.rows))
        sizes, selector = trial.pod_class.whole_sizes, trial.pod_class.selector
        if len(sizes) < 2:
            return score
        for i, row in enumerate(trial.rows):
            node = trial.ledger.node_at(int(row))
            score[i] = closeness([node.slots[slot].inventory for slot in untouched(node, selector)], sizes)
        return score
