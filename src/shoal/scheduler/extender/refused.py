"""Pods that filter refused everywhere, for kube-scheduler and Shoal hear of changes by two watches, at two times.

kube-scheduler hears of a freed card, or of one that is well again, by a watch of its own, or never. If it asks before
the ledger knows, it is refused, and asks again only when something else happens in the cluster, or after minutes. So a
refused pod that would fit by now is pointed out to it, once for every refusal (`RefusedPods`).

It asks filter only for nodes that have enough of every resource by its own count. When such a node has too little by
the ledger, one of the two has not heard yet of a pod that came or went. If it then preempts on other nodes, pods may be
evicted for nothing: the room is there. So no preemption is agreed to until the ledger has caught up, nor when it has
caught up since it refused the pod and the pod would fit by now (`WatchLag`). That holds for some seconds at most: a
kube-scheduler that does not count the resources (`ignoredByScheduler`) always seems to know more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.bounded_cache import BoundedCache
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.placement.errors import PolicyError
from shoal.scheduler.state.cluster_state import ClusterState

#: Pods that are remembered; kube-scheduler comes back to the others by itself.
MOST: Final = 1000
#: Pointed out at a time: each is a write, and a question of kube-scheduler.
AT_ONCE: Final = 50

#: Longer than a watch lags unless it is broken.
LAG_SECONDS: Final = 10.0


@dataclass(slots=True)
class _RefusedPod:
    pod: Pod
    #: The rows it was asked for.
    asked: BoolArray
    #: Pointed out since it was refused.
    told: bool = False


class RefusedPods:
    """The pods that filter refused on all nodes of a request, each with those nodes."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._pods: BoundedCache[str, _RefusedPod] = BoundedCache(MOST)
        #: The version of the ledger in which none of the pods fits.
        self._looked_at = -1

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: Pod, among: BoolArray) -> None:
        """Remember a pod that fits on none of these rows."""
        self._pods.put(pod.metadata.uid, _RefusedPod(pod, among))

    def drop(self, uid: str) -> None:
        """Forget the pod: filter is asked for it again."""
        self._pods.pop(uid)

    def asked(self, uid: str) -> BoolArray | None:
        """The rows the pod was asked for and refused on; None when it was not refused."""
        entry = self._pods.get(uid)
        return None if entry is None else entry.asked

    def fits(self, pod: Pod) -> BoolArray:
        """The rows on which the cards have room for the pod by now."""
        return self._fitting(self._state.request(pod))

    def fitting(self) -> list[Pod]:
        """Pods that fit by now, at most `AT_ONCE`. Each is returned once for every refusal."""
        version = self._state.engine.ledger.columns.version
        if not self._pods or version == self._looked_at:
            return []
        found: list[Pod] = []
        #: Pods mostly come in a few kinds: where one fits is found out once for all of its kind.
        where: dict[Request, BoolArray] = {}
        for entry in self._pods.values():
            if entry.told:
                continue
            if len(found) == AT_ONCE:
                return found
            request = self._state.request(entry.pod)
            fits = where.get(request)
            if fits is None:
                fits = where[request] = self._fitting(request)
            if np.logical_and(fits[: len(entry.asked)], entry.asked[: len(fits)]).any():
                entry.told = True
                found.append(entry.pod)
        self._looked_at = version
        return found

    def _fitting(self, request: Request) -> BoolArray:
        try:
            return self._state.engine.fits(request)
        except PolicyError:
            return np.zeros(0, np.bool_)  # reported when filter is asked for the pod


class WatchLag:
    """Whether kube-scheduler seems to know of room that the ledger does not. `short`: where a pod lacks resources."""

    def __init__(
        self,
        refused: RefusedPods,
        *,
        short: Callable[[Pod], BoolArray],
        clock: Callable[[], float],
        seconds: float = LAG_SECONDS,
    ) -> None:
        self._refused = refused
        self._short = short
        self._clock = clock
        self._seconds = seconds
        #: Since when pods have met such nodes.
        self._since: BoundedCache[str, float] = BoundedCache(MOST)

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
            self._since.pop(uid)
            return False
        since = self._since.of(uid, self._clock)
        return self._clock() - since < self._seconds
