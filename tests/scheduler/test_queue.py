"""The queue, case by case. What must hold for every sequence of calls is in test_queue_properties."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.queue.queue import BACKOFF, SWEEP_AFTER, QueuedPod, QueuePlace, SchedulingQueue


def pod(uid: str, **facts: Any) -> QueuedPod:
    return QueuedPod(uid, facts.pop("namespace", "team"), f"pod-{uid}", **facts)


def queue_of(*pods: QueuedPod, now: float = 0.0) -> SchedulingQueue:
    queue = SchedulingQueue()
    for each in pods:
        queue.add(each, now)
    return queue


def popped(queue: SchedulingQueue, now: float) -> list[str]:
    """All that can be popped now."""
    found = []
    while (each := queue.pop(now)) is not None:
        found.append(each.uid)
    return found


def parked(*pods: QueuedPod, reasons: ClusterEvent = ClusterEvent.CARDS_FREED, now: float = 0.0) -> SchedulingQueue:
    """A queue in which all of these were tried once and parked."""
    queue = queue_of(*pods, now=now)
    for uid in popped(queue, now):
        queue.park(uid, reasons, now)
    return queue


def test_priority_then_ketis_priority_then_first_come() -> None:
    queue = queue_of(
        pod("late", urgency=50),
        pod("high", priority=1000, urgency=10),
        pod("later", urgency=50),
        pod("keti-high", urgency=100),
        pod("higher", priority=1000, urgency=50),
    )
    assert popped(queue, 0.0) == ["higher", "high", "keti-high", "late", "later"]


def test_urgency_moves_a_pod_among_its_neighbours_alone() -> None:
    queue = queue_of(
        pod("a1", namespace="a"),
        pod("b1", namespace="b"),
        pod("a2", namespace="a", urgency=100),
        pod("b2", namespace="b", urgency=-100),
        pod("a3", namespace="a", urgency=100),
        pod("a4", namespace="a", priority=1),
    )
    assert popped(queue, 0.0) == ["a4", "a2", "b1", "a3", "b2", "a1"]


def test_a_place_that_was_given_up_stays_given_up() -> None:
    """The urgent pod has the other's place for good: it does not have its own as well."""
    queue = queue_of(pod("a1", namespace="a"), pod("b1", namespace="b"), pod("a2", namespace="a", urgency=100))
    for uid in popped(queue, 0.0):
        queue.park(uid, ClusterEvent.CARDS_FREED, 0.0)
    queue.remove("a2")
    queue.wake(ClusterEvent.CARDS_FREED, 5.0)
    assert popped(queue, 5.0) == ["b1", "a1"]


def test_a_place_goes_with_the_pod_that_holds_it() -> None:
    queue = queue_of(pod("a1", namespace="a"), pod("b1", namespace="b"), pod("a2", namespace="a", urgency=100))
    queue.remove("a1")
    assert popped(queue, 0.0) == ["b1", "a2"]


def test_what_is_told_of_a_pod() -> None:
    queue = queue_of(pod("a"), now=7.0)
    first = queue.pop(8.0)
    assert first is not None
    assert (first.attempts, first.queued_at) == (1, 7.0)
    queue.retry("a", 8.0)
    second = queue.pop(9.0)
    assert second is not None
    assert (second.attempts, second.queued_at) == (2, 7.0)


def test_backoff_doubles_up_to_ten_seconds() -> None:
    assert [BACKOFF.after(attempts) for attempts in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert BACKOFF.after(10**6) == 10
    queue, now = queue_of(pod("a")), 0.0
    for pause in (1, 2, 4, 8, 10, 10):
        assert popped(queue, now) == ["a"]
        queue.retry("a", now)
        assert queue.next_time() == now + pause
        assert queue.pop(now + pause - 0.001) is None
        now += pause


def test_only_its_reasons_wake_a_parked_pod() -> None:
    queue = parked(pod("a"), reasons=ClusterEvent.CARDS_FREED | ClusterEvent.NODE_TAINTS)
    queue.wake(ClusterEvent.NODE_LABELS | ClusterEvent.VOLUMES, 100.0)
    assert queue.place_of("a") is QueuePlace.PARKED
    queue.wake(ClusterEvent.NODE_TAINTS, 100.0)
    assert popped(queue, 100.0) == ["a"]


def test_an_event_does_not_cut_the_backoff_short() -> None:
    queue = parked(pod("a"), now=50.0)
    queue.wake(ClusterEvent.CARDS_FREED, 50.2)
    assert queue.place_of("a") is QueuePlace.BACKOFF
    assert queue.next_time() == 51.0
    assert popped(queue, 50.9) == []
    assert popped(queue, 51.0) == ["a"]


@pytest.mark.parametrize(
    ("event", "place"),
    [
        (ClusterEvent.CARDS_FREED, QueuePlace.BACKOFF),
        (ClusterEvent.VOLUMES, QueuePlace.PARKED),
        (ClusterEvent(0), QueuePlace.PARKED),
    ],
)
def test_events_during_the_decision_count(event: ClusterEvent, place: QueuePlace) -> None:
    queue = queue_of(pod("a"))
    queue.pop(0.0)
    queue.wake(event, 0.1)
    queue.park("a", ClusterEvent.CARDS_FREED, 0.2)
    assert queue.place_of("a") is place


def test_events_of_an_earlier_decision_do_not() -> None:
    queue = queue_of(pod("a"))
    queue.pop(0.0)
    queue.wake(ClusterEvent.CARDS_FREED, 0.1)
    queue.park("a", ClusterEvent.CARDS_FREED, 0.2)
    assert popped(queue, 2.0) == ["a"]
    queue.park("a", ClusterEvent.CARDS_FREED, 2.0)
    assert queue.place_of("a") is QueuePlace.PARKED


def test_a_pod_that_did_not_change_stays_and_one_that_did_is_tried() -> None:
    queue = parked(pod("a", template="t1"))
    queue.add(pod("a", template="t1"), 20.0)
    assert queue.place_of("a") is QueuePlace.PARKED
    queue.add(pod("a", template="t2"), 20.0)
    assert popped(queue, 20.0) == ["a"]


def test_a_change_during_the_decision_counts() -> None:
    queue = queue_of(pod("a", template="t1"))
    queue.pop(0.0)
    queue.add(pod("a", template="t2"), 0.1)
    queue.park("a", ClusterEvent.VOLUMES, 0.2)
    again = queue.pop(1.2)
    assert again is not None
    assert (again.template, again.attempts) == ("t2", 2)


def test_gated_pods_wait_for_their_gates() -> None:
    queue = queue_of(pod("a", gated=True), pod("b"))
    queue.wake(~ClusterEvent(0), 1000.0)
    assert popped(queue, 1000.0) == ["b"]
    queue.add(pod("a"), 1001.0)
    assert popped(queue, 1001.0) == ["a"]


def test_a_parked_pod_comes_back_after_five_minutes() -> None:
    queue = parked(pod("a"), reasons=ClusterEvent(0))
    assert queue.next_time() == SWEEP_AFTER == 300
    assert popped(queue, 299.9) == []
    assert popped(queue, 300.0) == ["a"]


def test_of_equal_pods_the_longest_parked_comes_back_and_speaks_for_all() -> None:
    queue = parked(*(pod(uid, template="t") for uid in "abc"), reasons=ClusterEvent(0))
    for now, uid in ((300.0, "a"), (600.0, "b"), (900.0, "c"), (1200.0, "a")):
        assert popped(queue, now - 0.1) == []
        assert popped(queue, now) == [uid]
        queue.park(uid, ClusterEvent(0), now)
    assert popped(queue, 1500.0) == ["b"]
    queue.remove("b")
    assert popped(queue, 1500.0) == ["a"], "there is room: the next is tried at once, by the order of all"


def test_a_try_of_one_counts_for_its_equals() -> None:
    queue = parked(pod("a", template="t"), pod("x"), reasons=ClusterEvent(0))
    queue.add(pod("b", template="t"), 100.0)
    queue.park(popped(queue, 100.0)[0], ClusterEvent(0), 100.0)
    assert queue.next_time() == 300
    assert popped(queue, 300.0) == ["x"]
    assert queue.next_time() == 400
    assert popped(queue, 400.0) == ["a"]


def test_a_removed_pod_is_gone_from_everywhere() -> None:
    queue = parked(pod("parked"))
    queue.add(pod("flying"), 0.0)
    queue.pop(0.0)
    queue.add(pod("backoff"), 0.0)
    queue.pop(0.0)
    queue.retry("backoff", 0.0)
    queue.add(pod("active"), 0.0)
    queue.add(pod("gated", gated=True), 0.0)
    assert queue.counts() == dict.fromkeys(QueuePlace, 1)
    for uid in ("parked", "flying", "backoff", "active", "gated", "unknown"):
        queue.remove(uid)
    queue.park("flying", ClusterEvent.CARDS_FREED, 1.0)
    queue.retry("flying", 1.0)
    assert len(queue) == 0
    assert queue.counts() == dict.fromkeys(QueuePlace, 0)
    assert queue.next_time() is None
    assert popped(queue, 10_000.0) == []


# Equal pods


def test_of_equal_pods_the_first_is_tried_and_speaks_for_all() -> None:
    queue = parked(*(pod(str(n), template="t") for n in range(50_000)))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 100.0) == ["0"]
    queue.park("0", ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 200.0) == []


def test_when_the_first_is_placed_the_next_is_tried() -> None:
    queue = parked(*(pod(uid, template="t") for uid in "abcd"))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 100.0) == ["a"]
    queue.placed("a")
    assert popped(queue, 100.0) == ["b"], "before the Binding of the first is settled"
    queue.remove("a")
    assert popped(queue, 100.0) == []
    queue.remove("b")
    assert popped(queue, 100.0) == ["c"]
    queue.park("c", ClusterEvent.CARDS_FREED, 100.0)
    assert queue.place_of("d") is QueuePlace.PARKED


@pytest.mark.parametrize("lost", ["deleted before its try", "an error", "changed", "changed in flight"])
def test_the_lead_is_never_lost(lost: str) -> None:
    queue = parked(pod("a", template="t"), pod("b", template="t"))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    if lost in ("an error", "changed in flight"):
        queue.pop(100.0)
    match lost:
        case "deleted before its try":
            queue.remove("a")
        case "an error":
            queue.retry("a", 100.0)
        case _:
            queue.add(pod("a", template="t2"), 100.0)
    assert "b" in popped(queue, 100.0)


def test_equal_pods_that_rest_do_not_hold_up_those_that_are_ready() -> None:
    queue = parked(pod("a", template="t"), pod("b", template="t"))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 100.0) == ["a"]
    queue.park("a", ClusterEvent.CARDS_FREED, 100.0)
    queue.wake(ClusterEvent.CARDS_FREED, 100.5)
    assert popped(queue, 100.5) == ["b"]


def test_one_of_those_that_rest_is_enough() -> None:
    queue = parked(pod("a", template="t"), pod("b", template="t"))
    queue.wake(ClusterEvent.CARDS_FREED, 0.5)
    queue.wake(ClusterEvent.CARDS_FREED, 0.6)
    assert queue.counts()[QueuePlace.BACKOFF] == 1


def test_one_that_led_and_was_parked_leads_no_more() -> None:
    queue = parked(pod("a", template="t"), pod("b", template="t"))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 100.0) == ["a"]
    queue.park("a", ClusterEvent.CARDS_FREED, 100.0)
    queue.remove("a")
    assert queue.place_of("b") is QueuePlace.PARKED


def test_a_pod_parked_for_a_reason_of_its_own_does_not_speak_for_its_equals() -> None:
    queue = parked(*(pod(uid, template="t") for uid in "abc"))
    queue.wake(ClusterEvent.CARDS_FREED, now=20.0)
    assert popped(queue, 20.0) == ["a"]
    queue.park("a", ClusterEvent.CLAIMS, 20.0, alone=True)
    assert popped(queue, 20.0) == ["b"], "the next is tried at once"
    queue.park("b", ClusterEvent.CARDS_FREED, 20.0)
    assert popped(queue, 40.0) == [], "what b met holds for c"
    queue.wake(ClusterEvent.CLAIMS, now=40.0)
    assert popped(queue, 40.0) == ["a"]
    queue.park("a", ClusterEvent.CARDS_FREED, 40.0)
    queue.wake(ClusterEvent.CARDS_FREED, now=60.0)
    assert len(popped(queue, 60.0)) == 1, "it is equal to the others again"


def test_each_pod_parked_for_a_reason_of_its_own_is_woken() -> None:
    queue = queue_of(pod("a", template="t"), pod("b", template="t"))
    for uid in popped(queue, 0.0):
        queue.park(uid, ClusterEvent.CLAIMS, 0.0, alone=True)
    queue.wake(ClusterEvent.CLAIMS, now=20.0)
    assert popped(queue, 20.0) == ["a", "b"]


def test_a_higher_priority_is_another_class() -> None:
    queue = parked(pod("low", template="t"), pod("high", template="t", priority=5))
    queue.wake(ClusterEvent.CARDS_FREED, 100.0)
    assert popped(queue, 100.0) == ["high", "low"]


def test_a_gang_is_woken_by_one_and_taken_whole() -> None:
    queue = parked(*(pod(uid, template=uid, gang="g") for uid in "abc"), reasons=ClusterEvent.GANG)
    queue.add(pod("d", gang="g", gated=True), 0.0)
    queue.wake(ClusterEvent.GANG, 50.0)
    first = queue.pop(50.0)
    assert first is not None
    assert first.uid == "a"
    assert [each.uid for each in queue.take(["a", "c", "b", "d", "x", "c"], 50.0)] == ["c", "b"]
    assert queue.counts()[QueuePlace.IN_FLIGHT] == 3
    for uid in "abc":
        queue.park(uid, ClusterEvent.CARDS_FREED, 50.0)
    assert queue.counts()[QueuePlace.PARKED] == 3
