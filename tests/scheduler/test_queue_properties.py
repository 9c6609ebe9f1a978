"""Whatever is called in whatever order: no pod is lost, none is tried too early, and the best is tried first.

The model is plain: per pod what was last told of it. Pods like no other must be exactly where it says. Of equal pods
the queue may leave all but one parked, so for them it is held to what that is good for: if there is room, all of them
are tried.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.queue.order import Standing
from shoal.scheduler.queue.queue import QueuedPod, QueuePlace, SchedulingQueue
from tests.soak import times

UIDS = [f"p{number}" for number in range(6)]
FACES = (ClusterEvent.CARDS_FREED, ClusterEvent.GANG)

uids = st.sampled_from(UIDS)
events = st.sets(st.sampled_from(FACES)).map(lambda faces: ClusterEvent(sum(face.value for face in faces)))
some_events = st.sets(st.sampled_from(FACES), min_size=1).map(
    lambda faces: ClusterEvent(sum(face.value for face in faces))
)
#: Priority and urgency.
priorities = st.sampled_from([(0, 50), (0, 50), (0, 50), (0, 100), (7, 10)])
namespaces = st.sampled_from(["ns", "ns", "other"])
picks = st.integers(0, 5)
steps = st.sampled_from([0.0, 0.25, 1.0, 2.0, 7.5, 15.0, 301.0])


@dataclass
class Known:
    """A pod as the model has it. `ready_at` is when its backoff ends."""

    pod: QueuedPod
    arrival: int
    #: Whose turn it has; those of a namespace exchange them.
    ticket: int
    place: QueuePlace
    attempts: int = 0
    ready_at: float = 0.0
    reasons: ClusterEvent = field(default=ClusterEvent(0))
    missed: ClusterEvent = field(default=ClusterEvent(0))
    #: How many were parked before it.
    parked_as: int = 0
    #: Its last try ended for a reason of its own.
    own_reason: bool = False

    @property
    def alone(self) -> bool:
        return self.own_reason or (self.pod.template is None and self.pod.gang is None)

    @property
    def equals(self) -> Hashable:
        return ("pod", self.pod.uid) if self.alone else self.pod.equals

    def take_off(self) -> None:
        self.attempts += 1
        self.place, self.missed, self.own_reason = QueuePlace.IN_FLIGHT, ClusterEvent(0), False

    @property
    def turn(self) -> tuple[int, int]:
        return -self.pod.priority, self.ticket

    @property
    def rank_at_home(self) -> tuple[int, int]:
        return -self.pod.urgency, self.arrival


QUEUED = (QueuePlace.ACTIVE, QueuePlace.BACKOFF)


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = SchedulingQueue()
        self.known: dict[str, Known] = {}
        self.now = 0.0
        self.arrivals = 0
        self.parkings = 0
        #: When one of these equal pods was last tried.
        self.tried: dict[tuple[Hashable, ClusterEvent], float] = {}

    # What is told to the queue

    @rule(step=steps)
    def time_passes(self, step: float) -> None:
        self.now += step

    @initialize(
        pods=st.lists(st.tuples(uids, namespaces, priorities, st.sampled_from([None, "t1"])), min_size=3, max_size=8)
    )
    def start(self, pods: list[tuple[str, str, tuple[int, int], str | None]]) -> None:
        for uid, namespace, priority, template in pods:
            self.add(uid, namespace, priority, template, None, gated=False)

    @rule(
        uid=uids,
        namespace=namespaces,
        priority=priorities,
        template=st.sampled_from([None, "t1", "t1", "t2"]),
        gang=st.sampled_from([None, None, None, "g"]),
        gated=st.sampled_from([False, False, False, True]),
    )
    def add(
        self,
        uid: str,
        namespace: str,
        priority: tuple[int, int],
        template: str | None,
        gang: str | None,
        gated: bool,
    ) -> None:
        group = None if gang is None else (namespace, gang)
        pod = QueuedPod(uid, namespace, uid, *priority, template=template, gang=group, gated=gated)
        self.queue.add(pod, self.now)
        known = self.known.get(uid)
        if known is None:
            self.arrivals += 1
            place = QueuePlace.GATED if gated else QueuePlace.ACTIVE
            self.known[uid] = Known(pod, self.arrivals, self.arrivals, place)
        elif known.pod != pod:
            known.pod, known.own_reason = pod, False
            if known.place is QueuePlace.IN_FLIGHT:
                known.missed |= ClusterEvent.POD_CHANGED
            else:
                known.place = QueuePlace.GATED if gated else QueuePlace.ACTIVE
        self.follow()

    @rule(uid=uids)
    def remove(self, uid: str) -> None:
        self.queue.remove(uid)
        self.known.pop(uid, None)
        self.follow()

    @rule()
    def pop(self) -> None:
        self.check_popped(self.queue.pop(self.now))

    def check_popped(self, popped: QueuedPod | None) -> None:
        self.swept()
        due = [known for known in self.known.values() if known.place in QUEUED and known.ready_at <= self.now]
        holder = min(due, key=lambda known: known.turn, default=None)
        if holder is None:
            assert popped is None
            return
        group = [known for known in due if known.pod.standing.group == holder.pod.standing.group]
        best = min(group, key=lambda known: known.rank_at_home)
        best.ticket, holder.ticket = holder.ticket, best.ticket
        assert popped == best.pod
        best.take_off()
        assert popped.attempts == best.attempts

    @rule(wanted=st.lists(uids, max_size=4))
    def take(self, wanted: list[str]) -> None:
        taken = self.queue.take(wanted, self.now)
        waits = (*QUEUED, QueuePlace.PARKED)
        expected = [uid for uid in dict.fromkeys(wanted) if uid in self.known and self.known[uid].place in waits]
        assert [pod.uid for pod in taken] == expected
        for uid in expected:
            self.known[uid].take_off()
        self.follow()

    def flying(self, pick: int) -> str:
        """One of the pods in flight, if there is one; else any, to which nothing must happen."""
        flying = [uid for uid, known in self.known.items() if known.place is QueuePlace.IN_FLIGHT] or UIDS
        return flying[pick % len(flying)]

    @rule(
        meanwhile=st.none() | events,
        end=st.sampled_from(["park", "park", "park", "park alone", "retry", "placed", "remove"]),
        reasons=some_events,
    )
    def a_try(self, meanwhile: ClusterEvent | None, end: str, reasons: ClusterEvent) -> None:
        """A pod is popped, something may happen, and its try ends."""
        popped = self.queue.pop(self.now)
        self.check_popped(popped)
        if meanwhile is not None:
            self.wake(meanwhile)
        if popped is None:
            return
        match end:
            case "park" | "park alone":
                self.park_it(popped.uid, reasons, alone=end == "park alone")
            case "retry":
                self.retry_it(popped.uid)
            case "placed":
                self.queue.placed(popped.uid)
                self.follow()
            case "remove":
                self.remove(popped.uid)

    @rule(reasons=some_events)
    def nothing_fits(self, reasons: ClusterEvent) -> None:
        """Everybody who can be tried is, and is parked."""
        tried = []
        while (popped := self.queue.pop(self.now)) is not None:
            self.check_popped(popped)
            tried.append(popped.uid)
        self.check_popped(None)
        for uid in tried:
            self.park_it(uid, reasons)

    @rule(pick=picks, reasons=events, alone=st.booleans())
    def park(self, pick: int, reasons: ClusterEvent, alone: bool) -> None:
        self.park_it(self.flying(pick), reasons, alone=alone)

    def park_it(self, uid: str, reasons: ClusterEvent, *, alone: bool = False) -> None:
        self.queue.park(uid, reasons, self.now, alone=alone)
        known = self.known.get(uid)
        if known is not None and known.place is QueuePlace.IN_FLIGHT:
            self.land(known)
            known.reasons, known.own_reason = reasons, alone
            if not known.pod.gated and not known.missed & (reasons | ClusterEvent.POD_CHANGED):
                self.parkings += 1
                known.place, known.parked_as = QueuePlace.PARKED, self.parkings
                self.tried[known.equals, reasons] = self.now
        self.follow()

    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        self.retry_it(self.flying(pick))

    def retry_it(self, uid: str) -> None:
        self.queue.retry(uid, self.now)
        known = self.known.get(uid)
        if known is not None and known.place is QueuePlace.IN_FLIGHT:
            self.land(known)
        self.follow()

    def land(self, known: Known) -> None:
        known.ready_at = self.now + min(10, 2 ** (known.attempts - 1))
        known.place = QueuePlace.GATED if known.pod.gated else QueuePlace.ACTIVE

    @rule(pick=picks)
    def placed(self, pick: int) -> None:
        self.queue.placed(self.flying(pick))
        self.follow()

    @rule(events=events)
    def wake(self, events: ClusterEvent) -> None:
        """Who waits for one of these is tried, or one of its equals is, which speaks for it."""
        self.queue.wake(events, self.now)
        for known in self.known.values():
            if known.place is QueuePlace.IN_FLIGHT:
                known.missed |= events
            elif known.place is QueuePlace.PARKED and known.reasons & events:
                equals = [other for other in self.known if self.known[other].equals == known.equals]
                places = {self.queue.place_of(other) for other in equals}
                assert places & set(QUEUED)
                if known.alone:
                    known.place = QueuePlace.ACTIVE
        self.follow()

    @rule()
    def sweep(self) -> None:
        self.queue.sweep(self.now)
        self.swept()

    def swept(self) -> None:
        """Of equal pods parked for the same reasons the longest parked comes back when none was tried for long."""
        for bench, since in self.tried.items():
            if self.now >= since + 300:
                self.tried[bench] = self.now
                parked = [known for known in self.parked() if (known.equals, known.reasons) == bench]
                min(parked, key=lambda known: known.parked_as).place = QueuePlace.ACTIVE
        self.follow()

    def parked(self) -> list[Known]:
        return [known for known in self.known.values() if known.place is QueuePlace.PARKED]

    def follow(self) -> None:
        """A parked pod with equals may be woken for their sake at any time; nothing else moves without being told."""
        for uid, known in self.known.items():
            if known.place is QueuePlace.PARKED and not known.alone and self.queue.place_of(uid) in QUEUED:
                known.place = QueuePlace.ACTIVE
        benches = {(known.equals, known.reasons) for known in self.parked()}
        self.tried = {bench: since for bench, since in self.tried.items() if bench in benches}

    @precondition(lambda self: self.parked())
    @rule(events=some_events)
    def room_for_all(self, events: ClusterEvent) -> None:
        """Cards enough for everybody: whoever waits for this is tried, in less than half a minute."""
        expected = {
            uid for uid, known in self.known.items() if known.place is QueuePlace.PARKED and known.reasons & events
        }
        self.wake(events)
        seen: set[str] = set()
        while True:
            popped = self.queue.pop(self.now)
            self.check_popped(popped)
            if popped is not None:
                seen.add(popped.uid)
                self.remove(popped.uid)
                continue
            later = self.queue.next_time()
            if later is None or later > self.now + 20:
                break
            self.now = max(self.now, later)
        assert expected <= seen

    # What always holds

    @invariant()
    def everyone_is_in_one_place(self) -> None:
        assert len(self.queue) == len(self.known)
        assert all((uid in self.queue) == (uid in self.known) for uid in UIDS)
        places = [self.queue.place_of(uid) for uid in self.known]
        assert self.queue.counts() == {place: places.count(place) for place in QueuePlace}

    @invariant()
    def everyone_is_where_the_model_has_it(self) -> None:
        for uid, known in self.known.items():
            place = self.queue.place_of(uid)
            assert place in (QUEUED if known.place in QUEUED else (known.place,)), uid

    @invariant()
    def the_next_time_is_told(self) -> None:
        """Waiting until then misses nobody."""
        times = [since + 300 for since in self.tried.values()]
        backoffs = [
            known.ready_at for uid, known in self.known.items() if self.queue.place_of(uid) is QueuePlace.BACKOFF
        ]
        assert self.queue.next_time() == min(times + backoffs, default=None)

    def teardown(self) -> None:
        """In the end everyone who has no gate is tried, whatever happened."""
        for uid, known in self.known.items():
            if known.place is QueuePlace.IN_FLIGHT:
                self.queue.retry(uid, self.now)
        free = {uid for uid, known in self.known.items() if not known.pod.gated}
        tried = set()
        while (popped := self.queue.pop(self.now + 1000)) is not None:
            tried.add(popped.uid)
            self.queue.remove(popped.uid)
        assert tried == free


QueueMachine.TestCase.settings = settings(max_examples=times(200), stateful_step_count=40)
TestQueue = QueueMachine.TestCase


@given(
    st.lists(
        st.none() | st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.sampled_from([10, 50, 100])), max_size=60
    )
)
def test_no_word_on_a_pod_moves_a_pod_of_another_namespace(steps: list[tuple[str, int, int] | None]) -> None:
    """Pods come and are tried (None) in any order: whose turn it is is what it were had nobody said a word."""
    told, silent = SchedulingQueue(), SchedulingQueue()
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            namespace, priority, urgency = step
            pod = QueuedPod(str(number), namespace, str(number), priority, urgency)
            told.add(pod, 0.0)
            silent.add(replace(pod, urgency=0), 0.0)
            continue
        one, other = told.pop(0.0), silent.pop(0.0)
        assert (one and one.standing.group) == (other and other.standing.group)
        if one is not None and other is not None:
            told.remove(one.uid)
            silent.remove(other.uid)
    assert not len(told)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.sampled_from([10, 50, 100])), min_size=1))
def test_at_home_the_most_urgent_goes_first_then_who_came_first(pods: list[tuple[str, int, int]]) -> None:
    queue = SchedulingQueue()
    for number, (namespace, priority, urgency) in enumerate(pods):
        queue.add(QueuedPod(str(number), namespace, str(number), priority, urgency), 0.0)
    tried = []
    while (popped := queue.pop(0.0)) is not None:
        tried.append(popped)
    for group in {pod.standing.group for pod in tried}:
        at_home = [(-pod.urgency, int(pod.uid)) for pod in tried if pod.standing.group == group]
        assert at_home == sorted(at_home)


standings = st.builds(Standing, st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 2))


@given(standings, standings, standings)
def test_standing_back_never_goes_in_a_circle(one: Standing, two: Standing, three: Standing) -> None:
    assert not (one.is_above(two) and two.is_above(one))
    if one.is_above(two) and two.is_above(three):
        assert one.is_above(three)
    if one.namespace != two.namespace:
        assert one.is_above(two) == (one.priority > two.priority)


def test_the_same_pod_with_another_count_of_tries_is_the_same() -> None:
    pod = QueuedPod("a", "ns", "a")
    assert replace(pod, attempts=3, queued_at=9.0) == pod
