"""The life of a pod as the engine hears of it: waiting, placed, seen in the cluster, displaced, gone; in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES, Policy
from shoal.placement.worth.demand import NO_DEMAND
from tests.placement.clusters import GIB, WHOLE, booking, ledger_of, node, request

HALF = request(Share(8 * GIB), cores=1)
CPU = request(cores=3, gib=1)


def cluster() -> Ledger:
    return ledger_of(node("n1", [16, 16], cores=8), node("n2", [16, 16], cores=8), node("cpu", cores=4))


# Pods without a GPU


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_a_pod_without_a_gpu_is_placed_by_its_cpu(policy: Policy) -> None:
    engine = Engine(cluster(), policy)
    placed = [engine.place(str(number), CPU) for number in range(6)]
    assert [None if made is None else made.containers for made in placed] == [()] * 5 + [None]
    nodes = sorted(made.node for made in placed if made is not None)
    assert nodes == ["cpu", "n1", "n1", "n2", "n2"]
    assert engine.ledger.columns.cpu_free[:3].tolist() == [2000, 2000, 1000]
    assert engine.demand.counts == {engine.class_of(CPU): 6}
    engine.remove("0")
    assert engine.place("5", CPU) == placed[0]


def test_a_pod_without_a_gpu_goes_where_it_may_and_is_wanted() -> None:
    engine = Engine(cluster())
    assert (engine.worths(CPU) > -np.inf).all()
    made = engine.place("a", CPU, among=np.array([True, True, False]), favour=np.array([0.0, 1.0, 2.0]))
    assert made is not None
    assert made.node == "n2"
    assert (engine.worths(request(cores=6)) > -np.inf).tolist() == [True, False, False]


def test_a_pod_that_asks_for_nothing_fits_on_every_node() -> None:
    engine = Engine(cluster())
    assert (engine.worths(request()) > -np.inf).all()
    made = engine.place("a", request())
    assert made is not None
    assert made.containers == ()


# Waiting, seen, displaced, gone


def test_a_pod_that_others_placed_is_booked_and_counts() -> None:
    engine = Engine(cluster())
    seen = booking("theirs", "n1", {0: Share(8 * GIB)}, cores=1)
    for _ in range(2):
        engine.confirm(seen, HALF)
        assert engine.ledger.booking("theirs") == seen
        assert engine.demand.counts == {engine.class_of(HALF): 1}
        assert engine.demand.arrivals == 1
    assert not engine.ledger.is_assumed("theirs")
    engine.remove("theirs")
    engine.remove("theirs")
    assert list(engine.ledger.bookings()) == []
    assert engine.demand.counts == {}


def test_a_pod_placed_here_is_seen_later() -> None:
    engine = Engine(cluster())
    engine.wait("a", HALF)
    assert engine.place("a", HALF) is not None
    assumed = engine.ledger.booking("a")
    assert assumed is not None
    engine.wait("a", HALF)
    assert engine.ledger.is_assumed("a"), "news from before the binding takes nothing back"
    engine.confirm(assumed, HALF)
    assert not engine.ledger.is_assumed("a")
    assert engine.demand.arrivals == 1
    assert engine.demand.counts == {engine.class_of(HALF): 1}


def test_a_pod_whose_binding_failed_waits_again() -> None:
    engine = Engine(ledger_of(node("n1", [16])))
    whole = request(WHOLE)
    placed = engine.place("a", whole)
    assert engine.place("b", whole) is None
    for _ in range(2):
        engine.release("a")
    assert engine.demand.counts == {engine.class_of(whole): 2}
    assert engine.place("b", whole) == placed
    engine.remove("a")
    engine.remove("b")
    assert engine.demand.counts == {engine.class_of(whole): 1}, "it went as one refused, not as one placed"
    engine.place("c", whole)
    engine.remove("c")
    assert engine.demand.counts == {}


def test_a_pod_seen_with_another_request_counts_as_what_it_is_now() -> None:
    engine = Engine(cluster())
    engine.wait("a", CPU)
    engine.confirm(booking("a", "n1", {0: Share(8 * GIB)}, cores=1), HALF)
    assert engine.demand.counts == {engine.class_of(HALF): 1}
    assert engine.demand.arrivals == 1
    engine.remove("a")
    assert engine.demand.counts == {}


def test_who_is_not_known_is_released_and_removed_without_trace() -> None:
    engine = Engine(cluster())
    engine.release("nobody")
    engine.remove("nobody")
    assert (engine.demand.counts, engine.demand.arrivals) == ({}, 0)
    assert engine.place("a", HALF) is not None


def test_pods_that_are_only_heard_of_make_the_demand_too() -> None:
    """It is made anew before the next question, not at every word."""
    engine = Engine(cluster())
    for number in range(25):
        engine.wait(str(number), request(WHOLE))
    assert engine.valuation.demand is NO_DEMAND
    engine.decide(HALF)
    assert engine.valuation.demand.worth.worth[:100].tolist() == [0.0] * 100, "nobody wants a share"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "place", "confirm", "release", "remove"]),
        st.integers(0, 5),
        st.sampled_from([HALF, CPU, request(WHOLE, cores=1), request(Share(4 * GIB))]),
    ),
    max_size=30,
)


def tell(engine: Engine, word: str, pod: str, asked: Request) -> None:
    known = engine.ledger.booking(pod)
    if word == "wait":
        engine.wait(pod, asked)
    elif word == "place" and known is None:
        engine.place(pod, asked)
    elif word == "confirm":
        engine.confirm(known or booking(pod, "n1", {0: Share(GIB)}), asked)
    elif word == "release":
        engine.release(pod)
    elif word == "remove":
        engine.remove(pod)


@given(STEPS)
def test_every_word_may_be_said_twice(steps: list[tuple[str, int, Request]]) -> None:
    once, twice = Engine(cluster()), Engine(cluster())
    for word, pod, asked in steps:
        tell(once, word, str(pod), asked)
        for _ in range(2):
            tell(twice, word, str(pod), asked)
    assert list(once.ledger.bookings()) == list(twice.ledger.bookings())
    assert {each.request: n for each, n in once.demand.counts.items()} == {
        each.request: n for each, n in twice.demand.counts.items()
    }
    assert once.demand.arrivals == twice.demand.arrivals
    assert once.worths(HALF).tolist() == twice.worths(HALF).tolist()


# After a restart


def test_an_engine_that_hears_of_all_pods_is_as_good_as_the_old_one() -> None:
    asked = [HALF, CPU, request(WHOLE), request(Share(4 * GIB), cores=1)]
    old = Engine(cluster())
    for number in range(14):
        old.place(str(number), asked[number % 4])
    old.remove("4")
    new = Engine(cluster())
    for number in [*range(4), *range(5, 14)]:
        held = old.ledger.booking(str(number))
        if held is None:
            new.wait(str(number), asked[number % 4])
        else:
            new.confirm(held, asked[number % 4])
    for engine in (old, new):
        engine.refresh()
    assert {each.request: n for each, n in old.demand.counts.items()} == {
        each.request: n for each, n in new.demand.counts.items()
    }
    for question in asked:
        assert old.worths(question).tolist() == new.worths(question).tolist()
        assert old.decide(question) == new.decide(question)


def test_a_rebuild_with_the_same_bookings_changes_no_decision() -> None:
    engine = Engine(cluster())
    for number in range(5):
        engine.place(str(number), HALF)
    before, made = engine.worths(HALF).tolist(), engine.decide(HALF)
    engine.ledger.rebuild(list(engine.ledger.bookings()))
    assert engine.worths(HALF).tolist() == before
    bookings = list(engine.ledger.bookings())
    engine.ledger.rebuild([])
    assert engine.worths(HALF).tolist() != before
    engine.ledger.rebuild(bookings)
    assert engine.worths(HALF).tolist() == before
    assert engine.decide(HALF) == made
