"""What a bound pod holds, and which pods that have ended still hold their cards. Pure.

What the agent of its node says a pod was given counts most (`shoal.dev/held`). Where the agent says nothing, the
decision in the pod's annotations counts, whoever made it, as far as the pod asks for it. A pod that asks for cards and
has no decision that can be believed is booked on cards that the engine would choose on its node, or, when none are
free, on the emptiest ones: too much booked on one card is better than a card that looks free and is not.

The API server forgets a pod that is deleted by force at once, and whoever may write a pod's status can say that it has
ended; its containers use their cards until they are gone. The node's agent knows when. On a node without an agent the
pod's last status is believed, and a pod that vanished while its containers ran has a time to end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation, Held
from shoal.model.bound import allocation_of
from shoal.model.contract import kubernetes, nvidia, shoal
from shoal.model.contract.decisions import RECORD_ANNOTATIONS
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import CodecError
from shoal.model.gpu import NodeGpus
from shoal.model.manifest import pod_parts
from shoal.model.node import held_written
from shoal.model.request import Request
from shoal.placement.ledger import Booking, NodeLedger

#: How long containers of a pod that vanished may go on, on a node without an agent: kubelet's default of 30 s.
GRACE_SECONDS: Final = 30.0


class Origin(Enum):
    """How it is known which cards a pod holds."""

    NODE = "its node's agent"
    OWN = "its own record"
    FOREIGN = "the annotations of another scheduler"
    GUESSED = "a guess: the pod carries no decision"


@dataclass(frozen=True, slots=True)
class BookedPod:
    """What a bound pod holds and how that is known; `problem` tells a person what is wrong with the pod's record."""

    booking: Booking
    origin: Origin
    problem: str = ""


def decision_in(annotations: Mapping[str, str]) -> tuple[str | None, ...]:
    """The annotations that tell which cards a pod has; while they and the node stay the same, so does its booking."""
    return tuple(annotations.get(name) for name in RECORD_ANNOTATIONS) if annotations else ()


def holding_of(
    pod: Pod,
    request: Request,
    *,
    inventory: NodeGpus | None,
    unit: MemoryUnit,
    given: tuple[CardShare, ...] | None,
    guess: Callable[[], Allocation],
    no_room: Callable[[Allocation], str],
) -> BookedPod:
    """The holding of a pod bound to a node. `inventory` is None while the node is not known.

    `given` is what its node's agent says it has; `no_room` says why an allocation has no room on the node.
    """
    node = pod.spec.node_name
    problem = ""
    allocation: Allocation | None = None
    try:
        allocation = allocation_of(pod_parts(pod), node=inventory or NodeGpus(node), unit=unit, request=request)
    except CodecError as error:
        problem = str(error)
    if given is not None:
        if allocation is None or allocation.held() != {card.uuid: card.share for card in given}:
            allocation = given_by_node(node, given)
        return BookedPod(booking(pod, request, allocation), Origin.NODE)
    if allocation is not None:
        problem = no_room(allocation)
    if allocation is None or problem:
        origin = Origin.GUESSED if request.containers else Origin.FOREIGN
        allocation = guess() if request.containers else Allocation(node, ())
    elif pod.metadata.annotations.get(shoal.ANNOTATION_ALLOCATION) is not None:
        origin = Origin.OWN
    else:
        origin = Origin.FOREIGN
    return BookedPod(booking(pod, request, allocation), origin, problem)


def claims_for_nothing(pod: Pod, request: Request) -> bool:
    """Whether a pod that asks for no card has a record of some; replicas have a resource of their own."""
    if request.containers or shoal.ANNOTATION_ALLOCATION not in pod.metadata.annotations:
        return False
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return not any(nvidia.RESOURCE_GPU_SHARED in one.resources.limits for one in containers)


def given_by_node(node: str, cards: tuple[CardShare, ...]) -> Allocation:
    """What a node's agent says a pod was given, as an allocation without names of containers."""
    return Allocation(node, (ContainerAllocation("", cards),))


def booking(pod: Pod, request: Request, allocation: Allocation) -> Booking:
    """The entry of a pod in the ledger."""
    return Booking(pod.metadata.uid, allocation, request.cpu_milli, request.memory_mib)


def on_its_cards(booking: Booking, node: NodeLedger | None) -> bool:
    """Whether the node has all cards of the booking by the names in it, which differ between inventories."""
    cards = {} if node is None else node.cards
    names = (card.uuid for container in booking.allocation.containers for card in container.cards)
    return all(name in cards and cards[name].gpu is not None for name in names)


def has_all_cards(allocation: Allocation, request: Request) -> bool:
    """Whether containers have as many cards as they ask for. A guess made before the node told its cards has none.

    What a node gave has no names of containers, and counts as it is.
    """
    asked = {container.name: container.gpus for container in request.containers}
    return bool(allocation.containers) and all(
        len(container.cards) == asked.get(container.name, len(container.cards)) for container in allocation.containers
    )


def on_emptiest_cards(node: NodeLedger | None, name: str, request: Request) -> Allocation:
    """The request on the cards with the most memory free, fit or not. A node without cards has none to give."""
    cards = [] if node is None else [card.inventory for card in node.slots]
    used = {} if node is None else {card.inventory.uuid: card.memory_mib for card in node.slots}
    cards.sort(key=lambda gpu: (used[gpu.uuid] - gpu.memory_mib, gpu.index))
    return Allocation(
        name,
        tuple(
            ContainerAllocation(
                container.name,
                tuple(CardShare(gpu.uuid, gpu.index, container.share) for gpu in cards[: container.gpus]),
                container.kind,
                container.memory_limit_mib,
            )
            for container in request.containers
        ),
    )


class HeldByNodes:
    """What the agent of each node last said is held."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}
        self._held: dict[str, Held] = {}

    def take(self, node: Node) -> set[str] | None:
        """Read what the node says: the pods of which it says something new, None when nothing has changed.

        Raises CodecError when it cannot be read; then what it said before still counts.
        """
        name = node.metadata.name
        written = held_written(node.metadata.annotations, node.status.capacity)
        if written == self._written.get(name):
            return None
        held = None if written is None else shoal.decode_held(written)
        before = self.pods(name)
        if written is None or held is None:
            self.drop(name)
        else:
            self._written[name], self._held[name] = written, held
        after = self.pods(name)
        return {uid for uid in {**before, **after} if before.get(uid) != after.get(uid)}

    def drop(self, node: str) -> None:
        """The node is gone, or its agent is for good."""
        self._written.pop(node, None)
        self._held.pop(node, None)

    def of(self, node: str) -> Held | None:
        """What the node's agent says; None where there is none."""
        return self._held.get(node)

    def pods(self, node: str) -> dict[str, tuple[CardShare, ...]]:
        """What pods hold on a node, as its agent says."""
        held = self._held.get(node)
        return {} if held is None else dict(held.pods)

    def cards(self, node: str, uid: str) -> tuple[CardShare, ...] | None:
        """What a pod has been given on a node; None if its agent does not say."""
        held = self._held.get(node)
        return None if held is None else held.pods.get(uid)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that has ended for the API server and may still hold its cards, at most until `until`.

    `version` is the resource version in which it had ended. `unseen`: nobody told of its end, and the version is that
    of a list without it. Its node's agent may have told before of all that it knows, and say nothing more.
    """

    node: str
    version: int
    until: float
    unseen: bool = False

    def is_over(self, uid: str, held: Held | None, now: float) -> bool:
        """Whether time alone frees its cards: where no agent tells, or one that had time to and does not list it."""
        return self.until <= now and (held is None or (self.unseen and uid not in held.pods))


def has_left(pod: Pod, version: int, held: Held | None) -> bool:
    """Whether a pod that has ended has left its cards; `held` is what its node's agent says."""
    if held is not None:
        return held.releases(pod.metadata.uid, version)
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    runs = any(one.state is not None and one.state.running is not None for one in statuses)
    return pod.status.phase in kubernetes.FINISHED_PHASES or not runs
