"""What all who decide on pods share: the loop, preemption and the extender's verbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.kube.client import Client
from shoal.scheduler.binder import Binder
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.state.cluster_state import ClusterState


@dataclass(frozen=True, slots=True)
class SchedulingContext:
    """The parts of one process, each once."""

    client: Client
    state: ClusterState
    feasibility: Feasibility
    binder: Binder
    reporter: Reporter
    metrics: Metrics
    #: Cards held for pods of other clusters.
    offer_holds: OfferHolds
    #: Whether this process may write to the cluster: it leads.
    may_write: Callable[[], bool]
    #: Monotonic time in seconds.
    clock: Callable[[], float]
