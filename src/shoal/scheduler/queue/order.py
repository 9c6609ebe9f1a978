"""Who is above whom among pods that wait, and the active queue: the pods that are ready to be tried, in their order.

Between namespaces `spec.priority` decides alone: a PriorityClass is the administrator's to give. KETI's annotation
`priority` is anybody's to write, so it orders the pods of one namespace, among those of one `spec.priority`.

Every pod has a ticket, its number in the order of arrival. Whose turn it is goes by `spec.priority` and then by ticket.
It is then the turn of that pod's *group*, the pods of its namespace and priority: of those the most urgent is tried,
then who came first. When that is another than the ticket's holder, the two exchange tickets. So the tickets of a group
are the same whatever its pods are annotated with, and pods of other namespaces are tried when they would have been.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from shoal.kube.objects.pod import Pod
from shoal.model.contract import keti

#: What a heap sorts by. Keys of one heap are alike and no two pods have the same.
Key = tuple[Any, ...]


class Heap:
    """A sorted collection of pods by UID, the lowest key first, from which any may be taken in logarithmic time."""

    __slots__ = ("_items", "_keys")

    def __init__(self) -> None:
        self._items: list[tuple[Key, str]] = []
        self._keys: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        """All of them, in order; the first one costs no sorting."""
        first = self.first()
        if first is not None:
            yield first
            yield from sorted((uid for uid in self._keys if uid != first), key=self._keys.__getitem__)

    def key(self, uid: str) -> Key:
        return self._keys[uid]

    def push(self, uid: str, key: Key) -> None:
        self._keys[uid] = key
        heappush(self._items, (key, uid))
        if len(self._items) > 2 * len(self._keys) + 64:
            self._items = [(key, uid) for uid, key in self._keys.items()]
            heapify(self._items)

    def discard(self, uid: str) -> None:
        self._keys.pop(uid, None)

    def first(self) -> str | None:
        while self._items:
            key, uid = self._items[0]
            if self._keys.get(uid) == key:
                return uid
            heappop(self._items)
        return None


@dataclass(frozen=True, slots=True)
class Standing:
    """What decides who goes first, before the time of arrival does."""

    namespace: str
    #: `spec.priority`.
    priority: int = 0
    #: What the annotation is worth.
    urgency: int = 0

    @property
    def group(self) -> tuple[str, int]:
        """The same for pods among which the annotation decides."""
        return self.namespace, self.priority

    def is_above(self, other: Standing) -> bool:
        """Whether this pod goes before the other. Of pods of two namespaces with one priority neither does."""
        if self.group == other.group:
            return self.urgency > other.urgency
        return self.priority > other.priority


def standing_of(pod: Pod) -> Standing:
    """The standing of a pod."""
    word = pod.metadata.annotations.get(keti.ANNOTATION_PRIORITY)
    return Standing(pod.metadata.namespace, pod.spec.priority or 0, keti.priority(word))


class ActivePod(Protocol):
    """A pod as the active queue knows it. `arrival` stays; tickets are exchanged."""

    arrival: int
    ticket: int

    @property
    def uid(self) -> str: ...

    @property
    def standing(self) -> Standing: ...


class ActiveQueue:
    """The pods that are ready to be tried; each operation takes logarithmic time."""

    __slots__ = ("_groups", "_there", "_turns")

    def __init__(self) -> None:
        self._there: dict[str, ActivePod] = {}
        self._turns = Heap()
        self._groups: dict[tuple[str, int], Heap] = {}

    def enter(self, pod: ActivePod) -> None:
        standing = pod.standing
        self._there[pod.uid] = pod
        self._turns.push(pod.uid, turn(pod))
        self._groups.setdefault(standing.group, Heap()).push(pod.uid, (-standing.urgency, pod.arrival))

    def leave(self, uid: str) -> None:
        """Remove the pod, with the ticket it holds; a pod that is not in the queue is passed over."""
        pod = self._there.pop(uid, None)
        if pod is None:
            return
        self._turns.discard(uid)
        group = self._groups[pod.standing.group]
        group.discard(uid)
        if not group:
            del self._groups[pod.standing.group]

    def call(self) -> str | None:
        """The pod to try next; it holds the ticket of the turn from now on, and stays in the queue."""
        holder = self._turns.first()
        if holder is None:
            return None
        called = self._groups[self._there[holder].standing.group].first()
        assert called is not None
        if called != holder:
            self._exchange(self._there[called], self._there[holder])
        return called

    def _exchange(self, one: ActivePod, other: ActivePod) -> None:
        one.ticket, other.ticket = other.ticket, one.ticket
        for pod in (one, other):
            self._turns.push(pod.uid, turn(pod))


def turn(pod: ActivePod) -> tuple[int, int]:
    """The sort key of the active queue, the lowest first."""
    return -pod.standing.priority, pod.ticket
