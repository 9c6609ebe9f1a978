"""Whether kube-scheduler knows of room that the books do not know of yet.

It asks filter only for nodes that have enough of every resource by its own count. When such a node has too little by
the books, one of the two has not heard yet of a pod that came or went. If it then preempts on other nodes, pods may be
evicted for nothing: the room is there. So no preemption is agreed to until the books have caught up, nor when they have
caught up since they refused the pod and it would fit by now, for some seconds at most: a kube-scheduler that does not
count the resources (`ignoredByScheduler`) always seems to know more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.placement.columns import BoolArray
from shoal.scheduler.extender.memory.refused import MOST, Refused

#: Longer than a watch lags unless it is broken.
SECONDS: Final = 10.0


class Lag:
    """Compares the nodes a pod was refused on with what they have left. `short` says where a pod lacks resources."""

    def __init__(
        self,
        refused: Refused,
        *,
        short: Callable[[Pod], BoolArray],
        clock: Callable[[], float],
        seconds: float = SECONDS,
    ) -> None:
        self._refused = refused
        self._short = short
        self._clock = clock
        self._seconds = seconds
        #: Since when pods have met such nodes, the oldest first.
        self._since: dict[str, float] = {}

    def is_likely(self, pod: Pod, offered: Collection[int]) -> bool:
        """Whether the pod may have room elsewhere than on the offered rows, where others would be evicted for it."""
        uid = pod.metadata.uid
        asked = self._refused.asked(uid)
        if asked is None:
            return False
        ahead = asked & self._short(pod)[: len(asked)]
        fits = self._refused.fits(pod)[: len(asked)]
        ahead[: len(fits)] |= asked[: len(fits)] & fits
        if not set(np.flatnonzero(ahead).tolist()).difference(offered):
            self._since.pop(uid, None)
            return False
        since = self._since.setdefault(uid, self._clock())
        if len(self._since) > MOST:
            del self._since[next(iter(self._since))]
        return self._clock() - since < self._seconds
