"""Policies by name, and what the engine does around them; what each one chooses is among the cases."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from shoal.model.contract.keti import KetiPolicy
from shoal.model.request import CardSelector, ContainerRequest, Request, Share
from shoal.placement.engine import Engine
from shoal.placement.errors import PolicyError
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES, Policy, fgd_policy, keti_policy, policy_named, preferring
from tests.placement.clusters import GIB, WHOLE, booking, card, ledger_of, node, request

SHARE = request(Share(2 * GIB))
QUESTIONS = (SHARE, request(WHOLE, gpus=2, cores=4), request(Share(GIB), Share(GIB)), request(cores=1))
EVERY = [*POLICIES.values(), fgd_policy([SHARE]), preferring(policy_named("spread"), ["T4"])]


def test_policies_are_known_by_name() -> None:
    assert all(policy_named(name).name == name for name in POLICIES)


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"no policy 'best'.* binpack, .* spread"):
        policy_named("best")


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_an_empty_cluster_has_no_place(policy: Policy) -> None:
    assert [Engine(Ledger(), policy).decide(question) for question in QUESTIONS] == [None] * len(QUESTIONS)


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_pods_that_are_seen_before_their_node(policy: Policy) -> None:
    """After a restart pods may be listed first; the engine must decide all the same, and count them when it comes."""
    ledger = Ledger()
    ledger.confirm(booking("early", "n1", {0: Share(15 * GIB)}))
    engine = Engine(ledger, policy)
    assert engine.decide(SHARE) is None
    ledger.set_inventory(node("n1", [16]))
    assert engine.decide(SHARE) is None
    ledger.release("early")
    assert engine.decide(SHARE) is not None


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_a_decision_books_nothing(policy: Policy) -> None:
    engine = Engine(ledger_of(node("n1", [16])), policy)
    asked = request(Share(16 * GIB))
    assert engine.decide(asked) == engine.decide(asked) is not None
    assert list(engine.ledger.bookings()) == []
    assert engine.demand.arrivals == 0


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_the_cluster_outgrows_its_first_arrays(policy: Policy) -> None:
    """More nodes and more cards a node than the columns began with, while an engine looks on."""
    ledger = ledger_of(node("n0", [16]))
    engine = Engine(ledger, policy)
    assert engine.place("first", request(WHOLE)) is not None
    for number in range(1, 150):
        ledger.set_inventory(node(f"n{number}", [4]))
    assert engine.decide(request(Share(8 * GIB))) is None
    ledger.set_inventory(node("large", [16] * 20))
    placed = engine.place("second", request(WHOLE, gpus=20))
    assert placed is not None
    assert placed.node == "large"
    assert engine.decide(request(Share(8 * GIB))) is None


def test_among_limits_the_nodes() -> None:
    engine = Engine(ledger_of(node("n1", [16]), node("n2", [16]), node("n3", [16])), policy_named("binpack"))
    placed = engine.decide(SHARE, among=np.array([False, False, True]))
    assert placed is not None
    assert placed.node == "n3"
    assert engine.decide(SHARE, among=np.zeros(3, np.bool_)) is None


def test_a_place_is_booked_and_given_back() -> None:
    engine = Engine(ledger_of(node("n1", [16], cores=4, gib=8)), policy_named("binpack"))
    asked = request(WHOLE, cores=4, gib=8)
    placed = engine.place("a", asked)
    kept = engine.ledger.booking("a")
    assert kept is not None
    assert (kept.allocation, kept.cpu_milli, kept.memory_mib) == (placed, 4000, 8 * GIB)
    assert engine.ledger.is_assumed("a")
    assert engine.place("b", asked) is None
    engine.remove("a")
    engine.remove("a")
    assert engine.place("b", asked) == placed


def test_the_decision_says_whose_it_is() -> None:
    engine = Engine(ledger_of(node("n1", [16])), policy_named("binpack"))
    own = Request(SHARE.containers, policy="spread")
    assert [made.policy for made in (engine.decide(SHARE), engine.decide(own)) if made] == ["binpack", "spread"]


def test_a_pod_with_an_unknown_policy_is_an_error_and_does_not_count() -> None:
    engine = Engine(ledger_of(node("n1", [16])))
    with pytest.raises(PolicyError, match="no policy 'chaos'"):
        engine.place("a", Request(SHARE.containers, policy="chaos"))
    assert engine.demand.counts == {}


def test_a_pod_may_ask_for_any_policy_the_engine_knows() -> None:
    keti = keti_policy(KetiPolicy(avoid_best_node=True))
    engine = Engine(ledger_of(node("n1", [16]), node("n2", [16])), policies=(keti,))
    made = engine.decide(Request(SHARE.containers, policy="keti"))
    assert made is not None
    assert made.node == "n2"
    with pytest.raises(PolicyError):
        engine.decide(Request(SHARE.containers, policy="binpack"))


def test_random_takes_every_node_that_fits_and_no_other() -> None:
    ledger = ledger_of(*(node(f"n{number}", [16 if number % 2 else 1]) for number in range(8)))
    engine = Engine(ledger, policy_named("random"), rng=Random(7))
    seen = {made.node for _ in range(200) if (made := engine.decide(SHARE))}
    assert seen == {"n1", "n3", "n5", "n7"}


def test_random_takes_every_card_that_fits_and_no_other() -> None:
    engine = Engine(ledger_of(node("n1", [16, 1, 16, 16])), policy_named("random"), rng=Random(7))
    seen = {made.containers[0].cards[0].index for _ in range(200) if (made := engine.decide(SHARE))}
    assert seen == {0, 2, 3}


def test_random_depends_on_its_numbers_alone() -> None:
    def run(seed: int) -> list[str]:
        engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(8))), policy_named("random"), rng=Random(seed))
        return [made.node for number in range(30) if (made := engine.place(str(number), SHARE))]

    assert run(1) == run(1) != run(2)


def test_a_policy_serves_several_clusters() -> None:
    """Typical pods accept A100 only, so others take the T4, in whichever order the nodes come."""
    half = ContainerRequest("main", 1, Share(compute=50))
    policy = fgd_policy([Request((half,), selector=CardSelector(models=frozenset({"A100"})))])
    for order in (["A100", "T4"], ["T4", "A100"]):
        engine = Engine(ledger_of(*(node(model, [card(model, 0, model=model)]) for model in order)), policy)
        made = engine.decide(Request((half,)))
        assert made is not None
        assert made.node == "T4"


@pytest.mark.parametrize("policy", [each for each in EVERY if not each.random], ids=lambda policy: policy.name)
def test_equal_cards_of_different_make_go_by_their_index(policy: Policy) -> None:
    """Which make was seen first, now or before a restart, must not matter."""
    mixed = node("n1", [card("n1", 0, model="A100"), card("n1", 1, model="T4")])
    for first in ("A100", "T4"):
        ledger = ledger_of(node("gone", [card("gone", 0, model=first)]), mixed)
        ledger.remove_node("gone")
        made = Engine(ledger, policy).decide(request(Share(compute=30)))
        assert made is not None
        assert [taken.index for taken in made.containers[0].cards] == [0]


def test_scarcity_follows_the_nodes_that_are_there() -> None:
    """Nodes that left and came back, with the same cards or others, leave nothing behind in the sums."""
    asked = request(WHOLE)
    confined = request(WHOLE, selector=CardSelector(models=frozenset({"A100"})))
    a100 = [node(name, [card(name, i, model="A100") for i in range(2)]) for name in ("a", "b")]
    ledger = ledger_of(*a100, node("t", [16] * 6))
    engine = Engine(ledger)
    for number in range(40):
        engine.demand.arrive(str(number), engine.class_of(confined if number % 2 else asked))
    engine.refresh()
    for inventory in (node("a", [16] * 2), a100[0], node("a", [16] * 2)):
        ledger.remove_node("a")
        engine.decide(asked)
        ledger.set_inventory(inventory)
        engine.decide(asked)
    fresh = Engine(ledger)
    fresh.valuation.adopt(engine.valuation.demand)
    everything = list(range(len(engine.valuation.demand.model_sets)))
    now, anew = engine.valuation.scarcity(everything), fresh.valuation.scarcity(everything)
    assert now is not None
    assert anew is not None
    assert now.tolist() == anew.tolist()
