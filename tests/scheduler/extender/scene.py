"""The extender's parts on books that the test writes itself, as the watch would."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec

from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.store import Change, ChangeType, Store
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES
from shoal.scheduler.binder import Binder
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.extender.filtering import OFFER_ALL
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.offer.holds import OfferHolds
from shoal.scheduler.preemption import Clearing, DisruptionBudgets
from shoal.scheduler.reporter import Reporter
from shoal.scheduler.state.cluster_state import ClusterState
from tests.testbed.fake_nodes import node as node_object


def state_of(policy: str = "binpack") -> ClusterState:
    """Empty books."""
    return ClusterState(
        Engine(Ledger(), POLICIES[policy]),
        ClusterTables(),
        unit=MemoryUnit.GIB,
        news=lambda _: None,
        report=lambda *_: None,
    )


def nobody() -> Client:
    """A client of no server."""
    return Client(Access(server="http://127.0.0.1:1", credentials=StoredCredential()))


def context_of(state: ClusterState, client: Client, clock: Callable[[], float] = time.monotonic) -> SchedulingContext:
    """All that the loop and the verbs share."""
    reporter = Reporter(client, Recorder(client, "test"), now=lambda: datetime.now(UTC), may_write=lambda: True)
    metrics = Metrics()
    return SchedulingContext(
        client=client,
        state=state,
        feasibility=Feasibility(state.tables),
        binder=Binder(client, state, may_write=lambda: True, now_ns=time.time_ns),
        reporter=reporter,
        metrics=metrics,
        offer_holds=OfferHolds(state, clock=clock, metrics=metrics),
        may_write=lambda: True,
        clock=clock,
    )


def clearing_of(context: SchedulingContext, budgets: Store[PodDisruptionBudget]) -> Clearing:
    """What chooses victims."""
    return Clearing(context, budgets=DisruptionBudgets(budgets), rng=Random(1))


@dataclass
class Scene:
    """The state of a cluster, the verbs and a clock that stands still until it is moved."""

    policy: str = "binpack"
    client: Client = field(default_factory=nobody)
    now: float = 100.0
    #: Asked about more nodes, filter offers the best alone.
    all_up_to: int = OFFER_ALL

    def __post_init__(self) -> None:
        self.state = state_of(self.policy)
        self.budgets: Store[PodDisruptionBudget] = Store()
        #: The pods that kube-scheduler is to try again.
        self.again: list[Pod] = []
        self.context = context_of(self.state, self.client, clock=lambda: self.now)
        self.binder, self.metrics = self.context.binder, self.context.metrics
        self.verbs = Verbs(
            self.context,
            plan=clearing_of(self.context, self.budgets).plan,
            try_again=self.again.append,
            offer_all_up_to=self.all_up_to,
        )

    def add_node(self, name: str, gpus: int | Sequence[Gpu] = 2) -> None:
        node = msgspec.convert(node_object(name, gpus), Node)
        self.state.on_node(Change(ChangeType.ADDED, None, node))

    def add_pod(self, manifest: Mapping[str, Any]) -> Pod:
        """The watch shows a pod."""
        pod = msgspec.convert(manifest, Pod)
        self.state.on_pod(Change(ChangeType.ADDED, None, pod))
        return pod

    def bind(self, manifest: Mapping[str, Any], node: str, card: int, gib: int) -> Pod:
        """The watch shows a pod that somebody has given this card."""
        meta, spec, status = manifest["metadata"], manifest["spec"], manifest["status"]
        annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(card), "ALIYUN_COM_GPU_MEM_POD": str(gib)}
        return self.add_pod(
            {
                "metadata": {**meta, "annotations": annotations},
                "spec": {**spec, "nodeName": node},
                "status": {**status, "phase": "Running"},
            }
        )

    def gone(self, pod: Pod) -> None:
        self.state.on_pod(Change(ChangeType.DELETED, pod, None))

    def shown(self, body: bytes) -> bytes:
        """The request, once the watch has shown its pod."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            manifest = json.loads(body)["Pod"]
            known = self.state.pod(manifest["metadata"]["uid"])
            if known is None or not known.spec.node_name:
                self.add_pod(manifest)
        return body

    def filter(self, body: bytes) -> dict[str, Any]:
        self.shown(body)
        answer: dict[str, Any] = json.loads(self.verbs.filter(body))
        return answer

    def prioritize(self, body: bytes) -> dict[str, int]:
        return {entry["Host"]: entry["Score"] for entry in json.loads(self.verbs.prioritize(self.shown(body)))}

    def preempt(self, body: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.verbs.preempt(self.shown(body)))["NodeNameToMetaVictims"]
        return answer

    def free(self, node: str) -> list[int]:
        """GiB free on each card."""
        state = self.state.engine.ledger.node(node)
        assert state is not None
        return [0 if card.exclusive else (card.inventory.memory_mib - card.memory_mib) // 1024 for card in state.slots]
