"""Cards held for a pod between scoring and binding, so that the next pod is not scored onto the same ones.

kube-scheduler binds in the background and scores the next pod meanwhile; the node it took shows only when the bind
arrives. So the cards of the best node are booked when they are scored, under the pod's UID, and the bind uses exactly
these. A hold ends with the bind, with the pod's next filter, with the pod, or after half a minute; until then
the cards are not free for others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.placement.columns import BoolArray
from shoal.scheduler.holds import Hold, HoldTable
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.state.cluster_state import ClusterState

#: Longer than kube-scheduler takes from score to bind, even when volumes must be bound first. A pod whose bind comes
#: later still binds, if its node has cards left.
HOLD_SECONDS: Final = 30.0


class Holds:
    """The holds of pods that kube-scheduler is placing, by their UIDs."""

    def __init__(
        self, state: ClusterState, *, clock: Callable[[], float], metrics: Metrics, seconds: float = HOLD_SECONDS
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._seconds = seconds
        self._holds = HoldTable(clock)

    def __len__(self) -> int:
        return len(self._holds)

    def of(self, uid: str) -> Hold | None:
        """The pod's hold."""
        return self._holds.get(uid)

    def uids(self) -> frozenset[str]:
        """The pods that hold cards."""
        return frozenset(self._holds)

    def place(self, pod: Pod, *, among: BoolArray | None = None, node: str | None = None) -> Allocation | None:
        """Decide and hold, in place of what the pod held before; None when it fits nowhere."""
        self.release(pod.metadata.uid)
        allocation = self._state.place(pod, among=among, node=node)
        if allocation is not None:
            self.keep(pod, allocation)
        return allocation

    def keep(self, pod: Pod, allocation: Allocation) -> None:
        """Hold what is booked for the pod."""
        self._holds.put(pod.metadata.uid, allocation, self._seconds)
        self._count("made")

    def take(self, uid: str, node: str) -> Allocation | None:
        """The decision to bind, which stays booked; None when nothing is held for the pod on this node."""
        hold = self._holds.get(uid)
        if hold is None:
            return None
        if hold.allocation.node != node:
            self._end(uid, "elsewhere")
            return None
        if not self._state.engine.ledger.is_assumed(uid):
            # The watch has shown the pod bound or gone since.
            self._end(uid, "overtaken")
            return None
        self._holds.pop(uid)
        self._count("bound")
        return hold.allocation

    def release(self, uid: str) -> None:
        """End the pod's hold: the pod is tried anew."""
        if uid in self._holds:
            self._end(uid, "replaced")

    def expire(self) -> None:
        """End the holds whose time is over; called before every verb and from time to time."""
        for uid in self._holds.over():
            self._end(uid, "expired")

    def _end(self, uid: str, outcome: str) -> None:
        self._holds.pop(uid)
        self._state.cancel(uid)
        self._count(outcome)

    def _count(self, outcome: str) -> None:
        self._metrics.holds.inc(outcome)
        self._metrics.held.set(len(self._holds))
