"""A refusal tells why not; it exists exactly where the engine cannot place the pod. Wordings are among the cases."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from shoal.model.allocation import Allocation
from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import policy_named
from tests.placement.clusters import GIB, WHOLE, booking, card, ledger_of, node, refusals, request, uuid_of
from tests.placement.test_reference import World, disturb, random_nodes, random_request


def decide_on(engine: Engine, name: str, asked: Request) -> Allocation | None:
    """Where the pod would go, were there no other node."""
    books = engine.ledger.node(name)
    assert books is not None
    only = np.zeros(engine.ledger.columns.rows, np.bool_)
    only[books.row] = True
    return engine.decide(asked, among=only)


@pytest.mark.parametrize("name", ["fragmentation", "binpack", "keti"])
def test_a_node_is_refused_exactly_when_the_engine_cannot_place_there(name: str) -> None:
    for seed in range(6):
        rng = Random(f"{name} {seed}")
        world = World(random_nodes(rng))
        ledger = ledger_of(*world.nodes.values())
        engine = Engine(ledger, policy_named(name))
        requests = [random_request(rng, number) for number in range(14)]
        for number in range(60):
            if rng.random() < 0.1:
                disturb(ledger, world, rng)
            asked = rng.choice(requests)
            told = refusals(engine, asked)
            there = {books.name for books in ledger.nodes()}
            assert set(told) == {each for each in there if decide_on(engine, each, asked) is None}
            without = engine.fits_without(asked)
            assert set(told) == {each for each in there if not without(each, frozenset())}
            assert all(refusal.reason for refusal in told.values())
            placed = engine.place(str(number), asked)
            assert (placed is None) == (set(told) == there)
            if rng.random() < 0.2:
                engine.remove(str(rng.randrange(number + 1)))


def binpacking(ledger: Ledger) -> Engine:
    return Engine(ledger, policy_named("binpack"))


def reasons(ledger: Ledger, asked: Request) -> dict[str, str]:
    return {name: told.reason for name, told in refusals(binpacking(ledger), asked).items()}


def test_nobody_is_refused_where_all_fits() -> None:
    assert reasons(ledger_of(node("n1", [16])), request(Share(GIB))) == {}


def test_who_asks_for_no_cpu_is_not_refused_for_lack_of_it() -> None:
    ledger = ledger_of(node("n1", [16], cores=4))
    ledger.confirm(booking("a", "n1", {}, cores=5))
    assert reasons(ledger, request(Share(GIB))) == {}
    assert reasons(ledger, request(Share(GIB), cores=1)) == {"n1": "-1000m CPU free, 1000m wanted"}


def test_a_whole_card_and_a_share_that_find_their_cards_in_one_order_only() -> None:
    """Card 0 alone holds the share, so the whole card must be card 1."""
    ledger = ledger_of(node("n1", [24, 16]))
    assert reasons(ledger, request(WHOLE, Share(20 * GIB))) == {}
    assert list(reasons(ledger, request(WHOLE, WHOLE, Share(GIB)))) == ["n1"]


def test_a_node_that_is_gone_is_not_spoken_of() -> None:
    ledger = ledger_of(node("n1", [16]), node("n2", [16]))
    ledger.remove_node("n1")
    assert list(reasons(ledger, request(Share(17 * GIB)))) == ["n2"]


def test_every_card_says_its_own_reason() -> None:
    ledger = ledger_of(
        node(
            "n1",
            [
                card("n1", 0, healthy=False, fault="Xid 79"),
                card("n1", 1, mig=True),
                card("n1", 2),
                card("n1", 3, mps_clients=0),
                card("n1", 4),
                card("n1", 5),
            ],
        )
    )
    ledger.confirm(booking("a", "n1", {2: WHOLE}))
    ledger.confirm(booking("b", "n1", {4: Share(10 * GIB)}))
    ledger.confirm(booking("c", "n1", {4: Share(7 * GIB)}))
    ledger.confirm(booking("d", "n1", {5: Share(15 * GIB, 90)}))
    told = refusals(binpacking(ledger), request(Share(2 * GIB, 20, 1)))["n1"]
    says = [told.cards[uuid_of("n1", index)] for index in range(6)]
    assert told.reason == "0 of 6 cards fit 2048 MiB + 20 % compute + 1 MPS client, 1 wanted"
    assert says[0] == "unhealthy: Xid 79"
    assert "MIG" in says[1]
    assert says[2] == "taken whole by another pod"
    assert says[3] == "0 MPS clients free of 0, 1 wanted"
    assert "over-booked" in says[4]
    assert says[5] == "1024 MiB free of 16384, 2048 wanted, 10 % compute free of 100, 20 wanted"


def test_cards_that_would_do_say_nothing() -> None:
    ledger = ledger_of(node("n1", [16, 16, 16]))
    ledger.confirm(booking("a", "n1", {1: Share(15 * GIB)}))
    told = refusals(binpacking(ledger), request(Share(2 * GIB), gpus=3))["n1"]
    assert told.reason == "2 of 3 cards fit 2048 MiB, 3 wanted"
    assert list(told.cards) == [uuid_of("n1", 1)]
