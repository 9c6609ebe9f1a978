"""How often pods leave cards here, as far as it was seen: the base of a rough guess how long a pod would wait.

The guess is honest only in its size: pods ahead, one leaving after another, at the pace of the last ones. It knows
neither who frees how much nor who is more important. Without enough departures in the last hour there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change
from shoal.model.contract import kubernetes
from shoal.model.errors import RequestError
from shoal.scheduler.state.cluster_state import ClusterState

#: Departures that are remembered, the fewest that tell a pace, and how long each counts.
_KEPT: Final = 64
_FEWEST: Final = 4
_SECONDS: Final = 3600.0


class Departures:
    """When the last pods with cards ended."""

    def __init__(self, state: ClusterState, *, clock: Callable[[], float]) -> None:
        self._state = state
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_KEPT)

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        old, new = change.old, change.new
        if old is None or not old.spec.node_name or old.status.phase in kubernetes.FINISHED_PHASES:
            return
        if new is not None and new.status.phase not in kubernetes.FINISHED_PHASES:
            return
        try:
            had_cards = bool(self._state.request(old).containers)
        except RequestError:
            return  # nobody can tell what it had
        if had_cards:
            self._times.append(self._clock())

    def wait(self, ahead: int) -> float | None:
        """Seconds until a pod with so many ahead of it may have room; None when nobody can tell."""
        now = self._clock()
        while self._times and self._times[0] < now - _SECONDS:
            self._times.popleft()
        if len(self._times) < _FEWEST:
            return None
        return (now - self._times[0]) / len(self._times) * (ahead + 1)
