"""The verb prioritize: how good each node is for the pod, from 0 to 10, and the hold on the best one.

The order of the engine's worths is kept as well as eleven numbers can. The node that the engine would take gets 10, all
others at most 8, so that small differences in kube-scheduler's own scores do not turn the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.errors import RequestError
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.errors import PolicyError
from shoal.scheduler.extender.filtering import rows_of
from shoal.scheduler.extender.holds import Holds
from shoal.scheduler.extender.wire import MAX_SCORE, MIN_SCORE, ExtenderArgs
from shoal.scheduler.state.cluster_state import ClusterState

#: The best score of a node that is not the best, and the worst of one that fits.
SECOND: Final = MAX_SCORE - 2
LAST: Final = MIN_SCORE + 1


class PrioritizeVerb:
    """Scores nodes by what the placement policy makes of them."""

    def __init__(self, state: ClusterState, holds: Holds) -> None:
        self._state = state
        self._holds = holds

    def __call__(self, pod: Pod, args: ExtenderArgs) -> Sequence[int]:
        """A score for each of the nodes, in their order. A pod without a request that can be met gets none."""
        none = [MIN_SCORE] * len(args.names)
        ledger = self._state.engine.ledger
        try:
            request = self._state.request(pod)
            if not request.containers:
                return none
            self._holds.release(pod.metadata.uid)
            if ledger.booking(pod.metadata.uid) is not None:
                return none
            # One row too many stands for nodes nobody knows.
            worths = np.append(self._state.engine.worths(request), 0.0)
            fits = np.append(self._state.engine.fits(request), False)
            rows = rows_of(self._state, args.names)
            among = np.zeros(len(worths), np.bool_)
            among[rows] = True
            best = self._holds.place(pod, among=among[:-1])
        except (RequestError, PolicyError):
            return none
        return scores(worths[rows], fits[rows], None if best is None else args.names.index(best.node))


def scores(worths: FloatArray, fits: BoolArray, best: int | None) -> list[int]:
    """Worths as scores: the best node stands out, the others keep their order, those that do not fit get nothing.

    Of the others, the worst that fits gets 1 and the best 8 unless all are equal: then all get 8.
    """
    result = np.full(len(worths), MIN_SCORE, np.int64)
    others = fits.copy()
    if best is not None:
        others[best] = False
        result[best] = MAX_SCORE
    if others.any():
        _, ranks = np.unique(worths[others], return_inverse=True)
        top = int(ranks.max())
        result[others] = SECOND if top == 0 else LAST + ranks * (SECOND - LAST) // top
    scored: list[int] = result.tolist()
    return scored
