"""A scene: a few made-up nodes and a few pods as users write them, placed one after another, each with its reason.

For showing and trying, not for measuring: one decision at a time, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.model import quantity
from shoal.model.allocation import Allocation
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import ModelError
from shoal.model.gpu import Gpu, Link, NodeGpus
from shoal.model.pod import request_of
from shoal.model.request import Request
from shoal.placement.books.ledger import Ledger
from shoal.placement.engine import Engine
from shoal.placement.explain import refusals
from shoal.placement.policy import Policy
from shoal.placement.trial import Refusal

#: NVLink lanes of a pair of cards in a scene.
_LANES = 4


class Fate(StrEnum):
    """What becomes of a pod."""

    PLACED = "placed"
    PENDING = "pending"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NodeSketch:
    """A made-up node: equal cards, in NVLink pairs if so wanted, some of them broken."""

    name: str
    cpu: str
    memory: str
    gpus: int
    model: str
    mib: int
    pairs: bool = False
    broken: tuple[int, ...] = ()

    def node(self) -> NodeGpus:
        cards = tuple(self._card(index) for index in range(self.gpus))
        return NodeGpus(self.name, cards, quantity.milli(self.cpu), quantity.mebibytes(self.memory))

    def _card(self, index: int) -> Gpu:
        partner = index ^ 1
        linked = self.pairs and partner < self.gpus
        return Gpu(
            self._uuid(index),
            index,
            self.mib,
            self.model,
            links=(Link(self._uuid(partner), _LANES),) if linked else (),
            healthy=index not in self.broken,
            fault="XID 79: the card has fallen off the bus" if index in self.broken else "",
        )

    def _uuid(self, index: int) -> str:
        return f"GPU-{self.name}-{index}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the scene: its manifest and what must become of it."""

    manifest: Mapping[str, object]
    expect: Fate

    @property
    def name(self) -> str:
        metadata = self.manifest["metadata"]
        return str(metadata["name"]) if isinstance(metadata, Mapping) else "?"


@dataclass(frozen=True, slots=True)
class Scene:
    """Nodes and pods, and the unit in which `aliyun.com/gpu-mem` is counted."""

    unit: MemoryUnit
    nodes: tuple[NodeSketch, ...]
    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a pod: its cards, or why it has none."""

    pod: Pod
    request: Request | None = None
    allocation: Allocation | None = None
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    error: str = ""

    @property
    def fate(self) -> Fate:
        if self.request is None:
            return Fate.REFUSED
        return Fate.PENDING if self.allocation is None else Fate.PLACED


def play(scene: Scene, policy: Policy) -> tuple[Ledger, list[Outcome]]:
    """Place the pods in order; the ledger as it stands in the end, and what became of each pod."""
    ledger = Ledger()
    for sketch in scene.nodes:
        ledger.set_inventory(sketch.node())
    engine = Engine(ledger, policy)
    return ledger, [_place(engine, pod, scene.unit) for pod in scene.pods]


def _place(engine: Engine, pod: Pod, unit: MemoryUnit) -> Outcome:
    try:
        request = request_of(pod.manifest, unit=unit)
    except ModelError as error:
        return Outcome(pod, error=str(error))
    allocation = engine.place(pod.name, request)
    if allocation is not None:
        return Outcome(pod, request, allocation)
    return Outcome(pod, request, refusals=refusals(engine.ledger, engine.policy, engine.class_of(request)))


def read_scene(data: Mapping[str, object]) -> Scene:
    """A scene from a parsed file that ships with the package."""
    nodes, pods = data["nodes"], data["pods"]
    if not isinstance(nodes, Sequence) or not isinstance(pods, Sequence):
        raise ValueError("a scene lists its nodes and its pods")
    return Scene(
        MemoryUnit.parse(str(data["unit"])),
        tuple(NodeSketch(**{**node, "broken": tuple(node.get("broken", ()))}) for node in nodes),
        tuple(Pod({k: v for k, v in pod.items() if k != "expect"}, Fate(pod["expect"])) for pod in pods),
    )
