"""The extender's parts on books that the test writes itself, as the watch would."""

import contextlib
import json
from collections.abc import Mapping, Sequence
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
from shoal.scheduler.extender.filtering import OFFER_ALL, OfferRule
from shoal.scheduler.extender.verbs import Verbs
from shoal.scheduler.feasibility.feasibility import Feasibility
from shoal.scheduler.feasibility.tables import ClusterTables
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.preemption.clearing import Clearing
from shoal.scheduler.preemption.search import DisruptionBudgets
from shoal.scheduler.reporting.reporter import Reporter
from shoal.scheduler.state.cluster_state import ClusterState
from tests.testbed.fake_nodes import node as node_object


def books_of(policy: str = "binpack") -> ClusterState:
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


def clearing_of(state: ClusterState, client: Client, budgets: Store[PodDisruptionBudget]) -> Clearing:
    """What chooses victims."""
    recorder = Recorder(client, "test")
    reporter = Reporter(client, recorder, now=lambda: datetime.now(UTC), may_write=lambda: True)
    return Clearing(
        state,
        Feasibility(state.tables),
        client,
        reporter,
        budgets=DisruptionBudgets(budgets),
        may_write=lambda: True,
        rng=Random(1),
    )


@dataclass
class Scene:
    """Books, verbs and a clock that stands still until it is moved."""

    policy: str = "binpack"
    client: Client = field(default_factory=nobody)
    now: float = 100.0
    #: Asked about more nodes, filter offers the best alone.
    all_up_to: int = OFFER_ALL

    def __post_init__(self) -> None:
        self.state = books_of(self.policy)
        self.budgets: Store[PodDisruptionBudget] = Store()
        self.metrics = Metrics()
        #: The pods that kube-scheduler is to try again.
        self.again: list[Pod] = []
        self.binder = Binder(self.client, self.state, may_write=lambda: True, now_ns=lambda: 1_700_000_000_000_000_000)
        self.verbs = Verbs(
            self.state,
            self.binder,
            plan=clearing_of(self.state, self.client, self.budgets).plan,
            short=Feasibility(self.state.tables).short,
            metrics=self.metrics,
            clock=lambda: self.now,
            offer=OfferRule(Feasibility(self.state.tables).prefers, all_up_to=self.all_up_to),
            try_again=self.again.append,
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
