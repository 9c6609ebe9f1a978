"""The line of pods that are ready to be tried, in which a namespace orders its own places and nobody else's.

Every pod has a ticket, its number in the order of arrival. Whose turn it is goes by `spec.priority` and then by ticket.
It is then the turn of that pod's *group*, the pods of its namespace and priority: of those the most urgent is tried,
then who came first. When that is another than the ticket's holder, the two exchange tickets. So the tickets of a group
are the same whatever its pods are annotated with, and pods of other namespaces are tried when they would have been.
"""

from __future__ import annotations

from typing import Protocol

from shoal.scheduler.queue.heap import Heap
from shoal.scheduler.queue.standing import Standing


class InLine(Protocol):
    """A pod as the line knows it. `arrival` stays; tickets are exchanged."""

    arrival: int
    ticket: int

    @property
    def uid(self) -> str: ...

    @property
    def standing(self) -> Standing: ...


class Line:
    """Pods that are ready, each in logarithmic time."""

    __slots__ = ("_groups", "_there", "_turns")

    def __init__(self) -> None:
        self._there: dict[str, InLine] = {}
        self._turns = Heap()
        self._groups: dict[tuple[str, int], Heap] = {}

    def enter(self, pod: InLine) -> None:
        standing = pod.standing
        self._there[pod.uid] = pod
        self._turns.push(pod.uid, turn(pod))
        self._groups.setdefault(standing.group, Heap()).push(pod.uid, (-standing.urgency, pod.arrival))

    def leave(self, uid: str) -> None:
        """The pod goes, with the ticket it holds. One that is not in line may be named."""
        pod = self._there.pop(uid, None)
        if pod is None:
            return
        self._turns.discard(uid)
        group = self._groups[pod.standing.group]
        group.discard(uid)
        if not group:
            del self._groups[pod.standing.group]

    def call(self) -> str | None:
        """The pod to try next; it holds the ticket of the turn from now on, and stays in line."""
        holder = self._turns.first()
        if holder is None:
            return None
        called = self._groups[self._there[holder].standing.group].first()
        assert called is not None
        if called != holder:
            self._exchange(self._there[called], self._there[holder])
        return called

    def _exchange(self, one: InLine, other: InLine) -> None:
        one.ticket, other.ticket = other.ticket, one.ticket
        for pod in (one, other):
            self._turns.push(pod.uid, turn(pod))


def turn(pod: InLine) -> tuple[int, int]:
    """What the line is sorted by, the lowest first."""
    return -pod.standing.priority, pod.ticket
