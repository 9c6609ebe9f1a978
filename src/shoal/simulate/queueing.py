"""Pods that wait for room: first come, first served, with backfilling.

After each departure the waiting pods are tried in the order of arrival, and each that fits is placed. Only the node
that the pod left has more room than at the last try, so a pod need not be tried unless it would fit there; and of
equal pods only the first, until it is placed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from shoal.model.request import Request, accepts_model
from shoal.placement.columns import WHOLE
from shoal.placement.ledger import NodeLedger
from shoal.simulate.scenario import Arrival


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has free."""

    cpu_milli: int
    memory_mib: int
    model: str
    #: The free percent of each card, most first; 100 only where nobody is.
    cards: tuple[int, ...]


def room_on(node: NodeLedger) -> Room:
    """What the ledger says is free there."""
    if node.inventory is None:
        return Room(0, 0, "", ())
    return Room(
        node.inventory.cpu_milli - node.cpu_used,
        node.inventory.memory_mib - node.memory_used,
        node.inventory.gpus[0].model if node.inventory.gpus else "",
        tuple(sorted((0 if card.exclusive else WHOLE - card.compute for card in node.slots), reverse=True)),
    )


@dataclass(slots=True)
class EqualPods:
    """Waiting pods with equal requests, in the order of arrival."""

    request: Request
    models: frozenset[str]
    pods: deque[Arrival] = field(default_factory=deque)

    def fits(self, room: Room) -> bool:
        request = self.request
        if request.cpu_milli > room.cpu_milli or request.memory_mib > room.memory_mib:
            return False
        if not request.containers:
            return True
        container = request.containers[0]
        least = WHOLE if container.share.exclusive else container.share.compute
        return (
            container.gpus <= len(room.cards) and room.cards[container.gpus - 1] >= least and room.model in self.models
        )


class WaitingPods:
    """All waiting pods of a cluster with cards of these models."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = tuple(models)
        self._lines: dict[Request, EqualPods] = {}
        self.gpu_milli = 0

    def __iter__(self) -> Iterator[Arrival]:
        return (pod for line in self._lines.values() for pod in line.pods)

    def join(self, pod: Arrival) -> None:
        request = pod.pod.request
        line = self._lines.get(request)
        if line is None:
            accepted = frozenset(model for model in self._models if accepts_model(request.selector, model))
            line = self._lines[request] = EqualPods(request, accepted)
        line.pods.append(pod)
        self.gpu_milli += pod.pod.gpu_milli

    def retry(self, node: NodeLedger, place: Callable[[Arrival], bool]) -> None:
        """A pod has left this node: place those that fit now."""
        room = room_on(node)
        heads = [(line.pods[0].number, line) for line in self._lines.values() if line.fits(room)]
        heapify(heads)
        while heads:
            _, line = heappop(heads)
            if not line.fits(room) or not place(line.pods[0]):
                continue
            room = room_on(node)
            self._take_first(line)
            if line.pods:
                heappush(heads, (line.pods[0].number, line))

    def _take_first(self, line: EqualPods) -> None:
        self.gpu_milli -= line.pods.popleft().pod.gpu_milli
        if not line.pods:
            del self._lines[line.request]
