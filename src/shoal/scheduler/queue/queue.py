"""Who is tried next: the pods that wait for a node. No I/O and no clock; `now` is monotonic time in seconds.

A pod is in exactly one place: *gated*, *active* (ready to be tried), *backoff* (ready at a known time), *parked*
(unschedulable until something happens) or *in flight* (popped, its decision not told yet). An event that comes while a
pod is in flight counts as if it came after: the pod is not parked past it.

Equal pods (one template and priority, or one gang) are woken one at a time. The first of them leads: if it is placed,
or fails for a reason of its own, the next is woken; if it is parked again, what it met holds for the others too. So an
event costs a try per class of pods, not per pod, however many wait. A pod parked for a reason of its own waits in a
class of its own.

Whether pods fit, and what an event means, is not decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from shoal.model.backoff import Backoff
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.queue.order import ActiveQueue, Heap, Key, Standing, turn

#: The pauses after failed tries: kube-scheduler's.
BACKOFF: Final = Backoff(first=1.0, longest=10.0)
#: When no pod of a class was tried for this long, the one that waited longest is, in case an event was missed.
SWEEP_AFTER: Final = 300.0


class QueuePlace(Enum):
    """Where a pod of the queue is."""

    GATED = "gated"
    ACTIVE = "active"
    BACKOFF = "backoff"
    PARKED = "parked"
    IN_FLIGHT = "in flight"


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod as the queue knows it. The queue counts `attempts` and sets `queued_at`; they do not make pods differ."""

    uid: str
    namespace: str
    name: str
    #: `spec.priority`: the higher goes first.
    priority: int = 0
    #: The higher goes first among the pods of one namespace and priority.
    urgency: int = 0
    #: The same for pods that fit in the same places; None for a pod like no other.
    template: Hashable = None
    gang: Hashable = None
    gated: bool = False
    attempts: int = field(default=0, compare=False)
    queued_at: float = field(default=0.0, compare=False)

    @property
    def equals(self) -> Hashable:
        """A key that is the same for equal pods: what one try of them finds holds for all."""
        if self.gang is not None:
            return "gang", self.gang
        return ("pod", self.uid) if self.template is None else ("template", self.template, self.standing)

    @property
    def standing(self) -> Standing:
        return Standing(self.namespace, self.priority, self.urgency)


class SchedulingQueue:
    """Pods in the order in which they are to be tried: by priority, then by when they first came.

    What a pod says of its own urgency moves it among those of its namespace and priority alone (`order`).
    """

    def __init__(self) -> None:
        self._entries: dict[str, _QueueEntry] = {}
        self._counts: Counter[QueuePlace] = Counter()
        self._active = ActiveQueue()
        self._backoff = Heap()
        self._flight: dict[str, _QueueEntry] = {}
        #: Where equal pods are parked, with the time of the last try of one of them, the longest ago first.
        self._tried: dict[tuple[Hashable, ClusterEvent], float] = {}
        self._equals: dict[Hashable, _EqualPods] = {}
        self._by_reason: dict[ClusterEvent, dict[Hashable, _ParkedPods]] = {}
        self._arrivals = 0
        self._now = float("-inf")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def place_of(self, uid: str) -> QueuePlace | None:
        entry = self._entries.get(uid)
        return None if entry is None else entry.place

    def counts(self) -> Mapping[QueuePlace, int]:
        """How many pods are in each place."""
        return {place: self._counts[place] for place in QueuePlace}

    # Pods come and go

    def add(self, pod: QueuedPod, now: float) -> None:
        """A pod is new or may have changed. One that did is tried again; one that did not stays where it is."""
        self._now = now
        entry = self._entries.get(pod.uid)
        if entry is None:
            self._arrivals += 1
            entry = _QueueEntry(replace(pod, attempts=0, queued_at=now), self._arrivals)
            self._entries[pod.uid] = entry
            self._put(entry, QueuePlace.GATED if pod.gated else QueuePlace.ACTIVE)
            return
        if entry.pod == pod:
            return
        in_flight = entry.place is QueuePlace.IN_FLIGHT
        if not in_flight:
            self._lift(entry)
        self._pass_on(entry)
        entry.alone = False
        entry.pod = replace(pod, attempts=entry.pod.attempts, queued_at=entry.pod.queued_at)
        if in_flight:
            entry.missed |= ClusterEvent.POD_CHANGED
        elif pod.gated:
            self._put(entry, QueuePlace.GATED)
        else:
            self._ready(entry)

    def remove(self, uid: str) -> None:
        """The pod is bound or gone."""
        entry = self._entries.get(uid)
        if entry is not None:
            self._lift(entry)
            del self._entries[uid]
            self._pass_on(entry)

    # A try and how it ends

    def pop(self, now: float) -> QueuedPod | None:
        """The pod to try next; it is in flight until `park`, `retry` or `remove` says how the try ended."""
        self.sweep(now)
        while (uid := self._backoff.first()) is not None and self._entries[uid].due <= now:
            entry = self._entries[uid]
            self._lift(entry)
            self._put(entry, QueuePlace.ACTIVE)
        uid = self._active.call()
        return None if uid is None else self._fly(self._entries[uid])

    def take(self, uids: Iterable[str], now: float) -> list[QueuedPod]:
        """Pull these pods out, wherever they wait, as a gang goes together. Gated pods and those in flight stay."""
        self._now = now
        entries = [self._entries[uid] for uid in dict.fromkeys(uids) if uid in self._entries]
        return [self._fly(entry) for entry in entries if entry.place not in (QueuePlace.GATED, QueuePlace.IN_FLIGHT)]

    def placed(self, uid: str) -> None:
        """The pod has its place and only its Binding is open: its equals need not wait for that."""
        entry = self._flight.get(uid)
        if entry is not None:
            self._pass_on(entry)

    def park(self, uid: str, reasons: ClusterEvent, now: float, *, alone: bool = False) -> None:
        """The pod fits nowhere until one of these happens; `alone` if that does not hold for its equals.

        A pod that is not in flight any more stays where it is.
        """
        entry = self._land(uid, now)
        if entry is None:
            return
        entry.reasons = reasons
        if alone:
            self._pass_on(entry)
            entry.alone = True
        if entry.pod.gated:
            self._pass_on(entry)
            self._put(entry, QueuePlace.GATED)
        elif entry.missed & (reasons | ClusterEvent.POD_CHANGED):
            self._ready(entry)
        else:
            entry.leads = False
            self._put(entry, QueuePlace.PARKED)

    def retry(self, uid: str, now: float) -> None:
        """The try failed for no reason of the pod's: it comes back by itself after a pause."""
        entry = self._land(uid, now)
        if entry is None:
            return
        self._pass_on(entry)
        if entry.pod.gated:
            self._put(entry, QueuePlace.GATED)
        else:
            self._ready(entry)

    # What happens meanwhile

    def wake(self, events: ClusterEvent, now: float) -> None:
        """Something happened: of equal pods that are parked for it one is woken."""
        self._now = now
        if not events:
            return
        for entry in self._flight.values():
            entry.missed |= events
        for reasons in [reasons for reasons in self._by_reason if reasons & events]:
            for equals, parked in list(self._by_reason[reasons].items()):
                self._wake_one(self._equals[equals], [parked])

    def sweep(self, now: float) -> None:
        """Make one of equal pods active of which none was tried for long."""
        self._now = now
        while self._tried:
            (equals, reasons), since = next(iter(self._tried.items()))
            if now < since + SWEEP_AFTER:
                return
            self._note_try(equals, reasons)
            entry = self._entries[self._equals[equals].parked[reasons].longest()]
            self._lift(entry)
            self._put(entry, QueuePlace.ACTIVE)
            entry.leads = True

    def next_time(self) -> float | None:
        """When `pop` may find a pod without any further call."""
        times = []
        uid = self._backoff.first()
        if uid is not None:
            times.append(self._entries[uid].due)
        if self._tried:
            times.append(next(iter(self._tried.values())) + SWEEP_AFTER)
        return min(times, default=None)

    # Parts

    def _fly(self, entry: _QueueEntry) -> QueuedPod:
        self._lift(entry)
        entry.alone = False
        entry.pod = replace(entry.pod, attempts=entry.pod.attempts + 1)
        entry.missed = ClusterEvent(0)
        self._put(entry, QueuePlace.IN_FLIGHT)
        return entry.pod

    def _land(self, uid: str, now: float) -> _QueueEntry | None:
        self._now = now
        entry = self._flight.get(uid)
        if entry is not None:
            self._lift(entry)
            entry.due = now + BACKOFF.after(entry.pod.attempts)
        return entry

    def _ready(self, entry: _QueueEntry) -> None:
        self._put(entry, QueuePlace.BACKOFF if entry.due > self._now else QueuePlace.ACTIVE)

    def _pass_on(self, entry: _QueueEntry) -> None:
        """A pod that led leaves the lead to the next of its equals."""
        if entry.leads:
            entry.leads = False
            equals = self._equals.get(entry.equals)
            if equals is not None:
                self._wake_one(equals, equals.parked.values())

    def _wake_one(self, equals: _EqualPods, groups: Iterable[_ParkedPods]) -> None:
        """Make sure that one of these equal pods is tried from now on, as early as possible."""
        lead = self._first(equals.active)
        if lead is None:
            ready = [entry for parked in groups if (entry := self._first(parked.ready(self._now)))]
            lead = min(ready, key=lambda entry: entry.order, default=None) or self._first(equals.backoff)
        if lead is None:
            resting = [entry for parked in groups if (entry := self._first(parked.resting))]
            lead = min(resting, key=lambda entry: entry.due, default=None)
        if lead is None:
            return
        if lead.place is QueuePlace.PARKED:
            self._lift(lead)
            self._ready(lead)
        lead.leads = True

    def _first(self, uids: Iterable[str]) -> _QueueEntry | None:
        return next((self._entries[uid] for uid in uids), None)

    def _note_try(self, equals: Hashable, reasons: ClusterEvent) -> None:
        self._tried.pop((equals, reasons), None)
        self._tried[equals, reasons] = self._now

    def _put(self, entry: _QueueEntry, place: QueuePlace) -> None:
        uid = entry.pod.uid
        entry.place = place
        self._counts[place] += 1
        if place is QueuePlace.IN_FLIGHT:
            self._flight[uid] = entry
        if place in (QueuePlace.GATED, QueuePlace.IN_FLIGHT):
            return
        equals = self._equals.setdefault(entry.equals, _EqualPods())
        if place is QueuePlace.ACTIVE:
            self._active.enter(entry)
            equals.active[uid] = None
        elif place is QueuePlace.BACKOFF:
            self._backoff.push(uid, (entry.due, entry.order))
            equals.backoff[uid] = None
        else:
            self._note_try(entry.equals, entry.reasons)
            parked = equals.parked.setdefault(entry.reasons, _ParkedPods())
            self._by_reason.setdefault(entry.reasons, {})[entry.equals] = parked
            parked.add(entry)

    def _lift(self, entry: _QueueEntry) -> None:
        uid = entry.pod.uid
        self._counts[entry.place] -= 1
        self._flight.pop(uid, None)
        self._active.leave(uid)
        self._backoff.discard(uid)
        equals = self._equals.get(entry.equals)
        if equals is None or entry.place in (QueuePlace.GATED, QueuePlace.IN_FLIGHT):
            return
        equals.active.pop(uid, None)
        equals.backoff.pop(uid, None)
        if entry.place is QueuePlace.PARKED:
            parked = equals.parked[entry.reasons]
            parked.leave(uid)
            if not parked:
                del equals.parked[entry.reasons]
                del self._by_reason[entry.reasons][entry.equals]
                del self._tried[entry.equals, entry.reasons]
        if not (equals.active or equals.backoff or equals.parked):
            del self._equals[entry.equals]


class _QueueEntry:
    """A pod, where it is, and what is known of its tries."""

    __slots__ = ("alone", "arrival", "due", "leads", "missed", "place", "pod", "reasons", "ticket")

    def __init__(self, pod: QueuedPod, arrival: int) -> None:
        #: Its number in the order of arrival, and its ticket, which `order` exchanges.
        self.arrival = self.ticket = arrival
        self.pod = pod
        self.place = QueuePlace.GATED
        #: When its backoff ends.
        self.due = float("-inf")
        self.reasons = ClusterEvent(0)
        #: What happened while it was in flight.
        self.missed = ClusterEvent(0)
        #: Its equals are parked until its try has ended.
        self.leads = False
        #: Its last try failed for a reason of its own.
        self.alone = False

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def equals(self) -> Hashable:
        """The key of the class in which it waits."""
        return ("pod", self.pod.uid) if self.alone else self.pod.equals

    @property
    def standing(self) -> Standing:
        return self.pod.standing

    @property
    def order(self) -> Key:
        """Sorts equal pods, and those whose backoff ends at once. It stays while the pod is not in the active queue."""
        return turn(self)


class _EqualPods:
    """Equal pods, by the place they are in."""

    __slots__ = ("active", "backoff", "parked")

    def __init__(self) -> None:
        self.active: dict[str, None] = {}
        self.backoff: dict[str, None] = {}
        self.parked: dict[ClusterEvent, _ParkedPods] = {}


class _ParkedPods:
    """Equal pods parked for the same reasons."""

    __slots__ = ("_parked", "_ready", "resting")

    def __init__(self) -> None:
        #: All of them, in the order in which they came here.
        self._parked: dict[str, None] = {}
        self._ready = Heap()
        #: Those whose backoff was not over when last looked at, the soonest first.
        self.resting = Heap()

    def __bool__(self) -> bool:
        return bool(self._parked)

    def add(self, entry: _QueueEntry) -> None:
        self._parked[entry.pod.uid] = None
        self.resting.push(entry.pod.uid, (entry.due, entry.order))

    def leave(self, uid: str) -> None:
        del self._parked[uid]
        self._ready.discard(uid)
        self.resting.discard(uid)

    def longest(self) -> str:
        """The one that has been here longest."""
        return next(iter(self._parked))

    def ready(self, now: float) -> Heap:
        """Those whose backoff is over, in order."""
        while (uid := self.resting.first()) is not None and (key := self.resting.key(uid))[0] <= now:
            self.resting.discard(uid)
            self._ready.push(uid, key[1])
        return self._ready
