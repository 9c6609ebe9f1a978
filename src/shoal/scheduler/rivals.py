"""Detects another scheduler that books the same cards: two without a common lease over-book cards.

While this process leads, every pod that gets a node with a decision of Shoal's form was bound by it, unless there is
another one. A new leader may still see what the last leader wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import shoal
from shoal.scheduler.metrics import Metrics

log = logging.getLogger(__name__)

REASON: Final = "AnotherScheduler"
#: A Binding of the last leader may arrive this late.
QUIET_SECONDS: Final = 30.0
#: Reported again no sooner than this.
AGAIN_SECONDS: Final = 600.0
#: Bindings of ours that the watch has not shown yet, at most.
_MOST: Final = 10_000


class Rivals:
    """Compares what the watch shows with what was bound here. `leads_since` is None while another leads."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        leads_since: Callable[[], float | None],
        clock: Callable[[], float],
        report: Callable[[Pod, str, str], None],
    ) -> None:
        self._metrics = metrics
        self._leads_since = leads_since
        self._clock = clock
        self._report = report
        self._bound_here: BoundedCache[str, bool] = BoundedCache(_MOST)
        self._told = float("-inf")

    def on_bind(self, uid: str) -> None:
        """The pod is about to be bound here."""
        self._bound_here.put(uid, True)

    def on_pod(self, change: Change[Pod]) -> None:
        """A pod appeared, changed or went away."""
        old, new = change.old, change.new
        if new is None:
            self._bound_here.pop(change.object.metadata.uid)
            return
        if change.kind is not ChangeType.MODIFIED or old is None or old.spec.node_name or not new.spec.node_name:
            return
        uid = new.metadata.uid
        ours = self._bound_here.pop(uid)
        since = self._leads_since()
        decided = shoal.ANNOTATION_ALLOCATION in new.metadata.annotations
        if not ours and decided and since is not None and self._clock() - since >= QUIET_SECONDS:
            self._tell(new)

    def _tell(self, pod: Pod) -> None:
        self._metrics.foreign_bindings.inc()
        if self._clock() - self._told < AGAIN_SECONDS:
            return
        self._told = self._clock()
        self._report(
            pod,
            REASON,
            "another scheduler has bound this pod to cards that are booked here too: run one, or give both the same "
            "lease (election.namespace and election.name), or cards will be over-booked",
        )
