"""What a scheduler asks beside the decision itself: which nodes, how good each, and what if some are favoured.

Random clusters and pods are those of `test_reference`. A node's worth has two ways to come about, tried again because
it changed and tried with all others: both must give the same number, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.contract.keti import KetiPolicy
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.gpu import NodeGpus
from shoal.model.request import CardSelector, Request, Share
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.engine import Engine
from shoal.placement.errors import RowsError
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES, Policy, fgd_policy, keti_policy, policy_named, preferring
from shoal.placement.weights import FAVOUR
from shoal.placement.worth.normal import loss, loss_at
from tests.placement.clusters import GIB, WHOLE, card, ledger_of, node, refusals, request, uuid_of
from tests.placement.test_reference import random_nodes, random_request

SHARE = request(Share(2 * GIB))
EVERY = [
    *POLICIES.values(),
    fgd_policy([SHARE]),
    preferring(policy_named("fragmentation"), ["T4", "A100"]),
    replace(policy_named("fragmentation"), name="unpressed", pressures=(), grain=0.0),
]
BEST = [policy for policy in EVERY if not policy.random]
WORLDS = 3
ARRIVALS = 50


def measure(ledger: Ledger, each: NodeGpus, rng: Random) -> None:
    """A node tells its load, or nothing any more."""
    cards = {
        gpu.uuid: CardDigest(
            unattributed_mib=rng.choice([None, 0, 5 * GIB]),
            utilisation=rng.choice([None, rng.randrange(101)]),
            celsius=rng.randrange(30, 90),
            watts=rng.choice([None, 0, 50, 300]),
        )
        for gpu in each.gpus
        if rng.random() < 0.7
    }
    ledger.measure(each.name, rng.choice([None, LoadDigest(cards), LoadDigest(cards, cpu=rng.randrange(101))]))


def busy(policy: Policy, *, labels: bool = False) -> Iterator[tuple[Random, Engine, list[Request]]]:
    """Engines on clusters that pods come to and leave, looked at between the arrivals."""
    for number in range(WORLDS):
        rng = Random(f"{policy.name} {number}")
        nodes = [*random_nodes(rng), *(replace(each, name=f"also-{each.name}") for each in random_nodes(rng))]
        if labels:
            nodes = [replace(each, policy=rng.choice([None, None, "spread", "binpack"])) for each in nodes]
        requests = [random_request(rng, kind) for kind in range(12)]
        requests.append(replace(requests[0], selector=CardSelector(not_uuids=frozenset({uuid_of(nodes[0].name, 0)}))))
        engine = Engine(ledger_of(*nodes), policy, rng=Random(0))
        for arrival in range(ARRIVALS):
            engine.place(str(arrival), rng.choice(requests))
            if rng.random() < 0.4:
                engine.remove(str(rng.randrange(arrival + 1)))
            if rng.random() < 0.2:
                measure(engine.ledger, rng.choice(nodes), rng)
            if rng.random() < 0.05:
                gone = rng.choice(nodes)
                engine.ledger.remove_node(gone.name)
                engine.decide(SHARE)
                engine.ledger.set_inventory(gone)
            yield rng, engine, requests


def node_of(
    engine: Engine, asked: Request, *, among: BoolArray | None = None, favour: FloatArray | None = None
) -> str | None:
    made = engine.decide(asked, among=among, favour=favour)
    return None if made is None else made.node


# Worths


@pytest.mark.parametrize("labels", [False, True], ids=["plain", "labelled"])
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_worths_do_not_depend_on_what_was_known_before(policy: Policy, labels: bool) -> None:
    for rng, engine, requests in busy(policy, labels=labels):
        asked = rng.choice(requests)
        kept, node = engine.worths(asked), node_of(engine, asked)
        engine.forget()
        assert kept.tolist() == engine.worths(asked).tolist()
        assert policy.random or node == node_of(engine, asked)


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_worths_are_finite_where_the_pod_fits(policy: Policy) -> None:
    for rng, engine, requests in busy(policy):
        asked = rng.choice(requests)
        expected = {each.name for each in engine.ledger.nodes()} - set(refusals(engine, asked))
        fits, worths = engine.fits(asked), engine.worths(asked)
        assert not np.isnan(worths).any()
        assert fits.tolist() == (worths > -np.inf).tolist()
        assert {engine.ledger.node_at(row).name for row in np.flatnonzero(fits).tolist()} == expected


@pytest.mark.parametrize("policy", BEST, ids=lambda policy: policy.name)
def test_the_decision_is_the_highest_worth(policy: Policy) -> None:
    """With any nodes left out and any favour, pressures included."""
    for rng, engine, requests in busy(policy):
        asked = rng.choice(requests)
        rows = engine.ledger.columns.rows
        among = np.array([rng.random() < 0.7 for _ in range(rows)])
        favour = np.array([rng.choice([0, 0, 1, rng.random(), rng.uniform(-1, 1) / FAVOUR]) for _ in range(rows)])
        worths = np.where(among, engine.worths(asked) + FAVOUR * favour, -np.inf)
        best = int(worths.argmax())
        expected = engine.ledger.node_at(best).name if worths[best] > -np.inf else None
        assert node_of(engine, asked, among=among, favour=favour) == expected


def test_worths_of_an_empty_cluster() -> None:
    assert Engine(Ledger()).worths(SHARE).tolist() == []


def test_a_worth_is_found_by_the_name_of_its_node() -> None:
    ledger = ledger_of(node("small", [1]), node("large", [16]))
    worths = Engine(ledger).worths(SHARE)
    rows = [ledger.row_of(name) for name in ("small", "large", "nobody")]
    assert rows == [0, 1, None]
    assert [ledger.node_at(row).name for row in (0, 1)] == ["small", "large"]
    assert worths[0] == -np.inf < worths[1]


def test_a_row_is_given_to_another_node_when_nobody_holds_it() -> None:
    ledger = ledger_of(node("old", [16]))
    engine = Engine(ledger)
    assert engine.place("a", SHARE) is not None
    ledger.remove_node("old")
    assert ledger.row_of("old") == 0
    engine.remove("a")
    assert ledger.row_of("old") is None
    ledger.set_inventory(node("new", [16]))
    assert ledger.row_of("new") == 0
    assert engine.fits(SHARE).tolist() == [True]


@given(st.floats(-20, 20) | st.floats(-1e17, 1e17) | st.integers(-8000, 8000).map(lambda step: step / 1000))
def test_the_loss_of_one_number_is_that_of_many(t: float) -> None:
    assert loss_at(t) == loss(np.array([t]))[0] == loss(np.full(20_000, t))[0]


# Favour


@pytest.mark.parametrize("policy", BEST, ids=lambda policy: policy.name)
def test_one_of_favour_outweighs_every_score(policy: Policy) -> None:
    for rng, engine, requests in busy(policy):
        asked = rng.choice(requests)
        favour = np.array([float(rng.randint(0, 3)) for _ in range(engine.ledger.columns.rows)])
        fits = np.flatnonzero(engine.fits(asked))
        name = node_of(engine, asked, favour=favour)
        assert (name is None) == (len(fits) == 0)
        if name is not None:
            assert favour[engine.ledger.row_of(name)] == favour[fits].max()


@pytest.mark.parametrize("policy", BEST, ids=lambda policy: policy.name)
def test_equal_favour_changes_nothing(policy: Policy) -> None:
    for rng, engine, requests in busy(policy):
        asked = rng.choice(requests)
        nobody = np.zeros(engine.ledger.columns.rows)
        assert node_of(engine, asked, favour=nobody) == node_of(engine, asked)


def test_favour_outweighs_a_split_and_a_wanted_model() -> None:
    both = request(Share(10 * GIB), Share(10 * GIB))
    split = Engine(ledger_of(node("together", [32]), node("apart", [16, 16])))
    assert node_of(split, both) == "together"
    assert node_of(split, both, favour=np.array([0.0, 1.0])) == "apart"
    wanted = preferring(policy_named("fragmentation"), ["A100"])
    models = Engine(ledger_of(node("a", [card("a", 0, model="A100")]), node("t", [16])), wanted)
    assert node_of(models, SHARE) == "a"
    assert node_of(models, SHARE, favour=np.array([0.0, 1.0])) == "t"


def test_a_small_favour_weighs_against_the_scores() -> None:
    """Pods want whole cards: one is broken on `whole`, on `begun` nothing more is lost."""
    ledger = ledger_of(node("whole", [16]), node("begun", [16]))
    engine = Engine(ledger)
    for number in range(10):
        engine.wait(str(number), request(WHOLE))
    assert engine.place("there", SHARE, among=np.array([False, True])) is not None
    worths = engine.worths(SHARE)
    gap = worths[1] - worths[0]
    assert gap > 0.5
    for favour, name in ((0.9 * gap, "begun"), (1.1 * gap, "whole")):
        assert node_of(engine, SHARE, favour=np.array([favour / FAVOUR, 0.0])) == name


def test_random_draws_among_the_most_favoured() -> None:
    engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(6))), policy_named("random"), rng=Random(3))
    favour = np.array([0, 1, 0, 1, 1, 2.0])
    among = np.array([True] * 5 + [False])
    assert {node_of(engine, SHARE, among=among, favour=favour) for _ in range(100)} == {"n1", "n3", "n4"}


def test_the_second_best_is_the_second_by_the_sum() -> None:
    policy = keti_policy(KetiPolicy(avoid_best_node=True))
    engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(3))), policy)
    assert node_of(engine, SHARE, favour=np.array([0, 1.0, 2.0])) == "n1"


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_a_pod_is_placed_among_the_nodes_it_may_go_to(policy: Policy) -> None:
    engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(3))), policy)
    among = np.array([True, False, True])
    whole = request(WHOLE)
    first = engine.place("a", whole, among=among, favour=np.array([0, 2.0, 1.0]))
    assert first is not None
    assert first.node == "n2"
    second = engine.place("b", whole, among=among)
    assert second is not None
    assert second.node == "n0"
    assert engine.place("c", whole, among=among) is None
    assert engine.demand.counts[engine.class_of(whole)] == 3


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"among": np.ones(2, np.bool_)}, r"among has shape \(2,\), the ledger 3 rows"),
        ({"favour": np.zeros(4)}, r"favour has shape \(4,\), the ledger 3 rows"),
        ({"favour": np.array([0, np.nan, 0])}, r"favour of row 1 is nan: .*among"),
        ({"favour": np.array([0, 0, -np.inf])}, r"favour of row 2 is -inf: .*among"),
    ],
)
def test_wishes_that_cannot_be(wishes: dict[str, Any], says: str) -> None:
    engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(3))))
    with pytest.raises(RowsError, match=says):
        engine.decide(SHARE, **wishes)
    with pytest.raises(RowsError, match=says):
        engine.place("a", SHARE, **wishes)
    assert engine.demand.counts == {}


def test_a_card_without_memory_left_still_has_its_compute() -> None:
    """Tried again, node by node, as well as with all others."""
    engine = Engine(ledger_of(*(node(f"n{n}", [16]) for n in range(4))))
    compute = request(Share(compute=10))
    assert engine.fits(compute).all()
    assert engine.place("full", request(Share(16 * GIB))) is not None
    kept = engine.worths(compute)
    assert engine.fits(compute).all()
    engine.forget()
    assert kept.tolist() == engine.worths(compute).tolist()
