"""Measured load in the engine: what it refuses and in which words, what eviction frees, and what KETI's policy does."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from shoal.model.contract.keti import GpuPreference, KetiPolicy
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.placement.policies import POLICIES, Policy, keti_policy, policy_named
from tests.placement.clusters import GIB, WHOLE, booking, ledger_of, node, refusals, request, uuid_of

CLIENT = request(Share(clients=1))


def stray(ledger: Ledger, name: str, *gib: float, overuse: float = 0) -> None:
    """So much of each card is used by nobody's pod."""
    cards = {
        uuid_of(name, index): CardDigest(unattributed_mib=int(each * GIB), overuse_mib=int(overuse * GIB))
        for index, each in enumerate(gib)
    }
    ledger.measure(name, LoadDigest(cards))


def card_of(engine: Engine, asked: Request) -> tuple[str, int] | None:
    made = engine.decide(asked)
    return None if made is None else (made.node, made.containers[0].cards[0].index)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
def test_every_policy_keeps_off(policy: Policy) -> None:
    ledger = ledger_of(node("n1", [16, 16]))
    engine = Engine(ledger, policy, rng=Random(1))
    stray(ledger, "n1", 10, 0)
    for asked in (request(Share(8 * GIB)), request(WHOLE), CLIENT):
        assert card_of(engine, asked) == ("n1", 1)
    assert engine.decide(request(WHOLE, gpus=2)) is None
    assert engine.decide(request(Share(6 * GIB), gpus=2)) is not None
    assert engine.decide(request(Share(7 * GIB), gpus=2)) is None
    ledger.measure("n1", None)
    assert engine.decide(request(WHOLE, gpus=2)) is not None


def test_the_words() -> None:
    ledger = ledger_of(node("n1", [16]))
    engine = Engine(ledger)
    ledger.confirm(booking("p", "n1", {0: Share(2 * GIB)}))
    stray(ledger, "n1", 3, overuse=1)
    told = refusals(engine, request(Share(12 * GIB)))["n1"].cards["GPU-n1-0"]
    assert told == (
        "10240 MiB free of 16384, 12288 wanted, "
        "3072 MiB used by nobody's pod and 1024 MiB used by pods beyond their requests"
    )
    ledger.release("p")
    for asked in (request(WHOLE), CLIENT):
        assert "3072 MiB used by nobody's pod" in refusals(engine, asked)["n1"].cards["GPU-n1-0"]
    assert [each.name for each in engine.refused_by_load(request(WHOLE), ledger.nodes())] == ["n1"]
    assert engine.refused_by_load(request(Share(17 * GIB)), ledger.nodes()) == []
    assert engine.refused_by_load(request(Share(GIB)), ledger.nodes()) == []


def test_eviction_does_not_free_what_nobody_booked() -> None:
    ledger = ledger_of(node("n1", [16]))
    engine = Engine(ledger)
    ledger.confirm(booking("low", "n1", {0: Share(8 * GIB)}))
    stray(ledger, "n1", 8)
    fits = engine.fits_without(request(Share(12 * GIB)))
    assert not fits("n1", frozenset({"low"})), "the program of nobody would still be there"
    fits = engine.fits_without(request(Share(8 * GIB)))
    assert fits("n1", frozenset({"low"}))
    assert not fits("n1", frozenset())
    fits = engine.fits_without(request(WHOLE))
    assert not fits("n1", frozenset({"low"}))


def test_who_is_booked_stays_booked_and_is_confirmed() -> None:
    ledger = ledger_of(node("n1", [16]))
    ledger.assume(booking("p", "n1", {0: Share(12 * GIB)}))
    stray(ledger, "n1", 16)
    ledger.assume(booking("p", "n1", {0: Share(12 * GIB)}))
    ledger.confirm(booking("p", "n1", {0: Share(12 * GIB)}))
    ledger.confirm(booking("q", "n1", {0: Share(4 * GIB)}))
    assert ledger.over_booked() == []


# KETI's policy


def measured(**parts: int) -> CardDigest:
    return CardDigest(**{"utilisation": 20, "celsius": 50, "watts": 100, **parts})


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (measured(celsius=85), measured(celsius=40)),
        (measured(watts=350), measured(watts=50)),
        (measured(watts=100), measured(watts=0)),
        (measured(utilisation=95), measured(utilisation=5)),
    ],
)
def test_keti_takes_the_cooler_less_busy_card_and_node(worse: CardDigest, better: CardDigest) -> None:
    for first, second in ((worse, better), (better, worse)):
        wanted = 0 if first is better else 1
        busy = {0: Share(GIB), 1: Share(GIB)}
        ledger = ledger_of(node("n1", [16, 16]))
        ledger.confirm(booking("p", "n1", busy))
        engine = Engine(ledger, policy_named("keti"))
        engine.decide(request(Share(GIB)))
        ledger.measure("n1", LoadDigest({"GPU-n1-0": first, "GPU-n1-1": second}))
        assert card_of(engine, request(Share(GIB))) == ("n1", wanted)
        ledger = ledger_of(node("n0", [16]), node("n1", [16]))
        for name in ("n0", "n1"):
            ledger.confirm(booking(f"on-{name}", name, {0: Share(GIB)}))
        engine = Engine(ledger, keti_policy(KetiPolicy(node_weight=0.0, gpu_weight=1.0)))
        engine.decide(request(Share(GIB)))
        for name, digest in (("n0", first), ("n1", second)):
            ledger.measure(name, LoadDigest({f"GPU-{name}-0": digest, "x": measured(watts=100)}))
        if first.watts == second.watts:  # the power of a lone card is its node's: it tells nothing between nodes
            assert card_of(engine, request(Share(GIB))) == (f"n{wanted}", 0)


def test_keti_takes_the_less_loaded_node() -> None:
    ledger = ledger_of(node("n0", [16]), node("n1", [16]))
    engine = Engine(ledger, policy_named("keti"))
    assert card_of(engine, request(Share(GIB))) == ("n0", 0)
    ledger.measure("n0", LoadDigest({}, cpu=90, memory=80, storage=70))
    ledger.measure("n1", LoadDigest({}, cpu=10, memory=20, storage=30))
    assert card_of(engine, request(Share(GIB))) == ("n1", 0)
    ledger.measure("n0", None)
    assert card_of(engine, request(Share(GIB))) == ("n0", 0), "by requests it is empty"


def test_crowded_cards_are_worth_less_unless_they_are_to_be_packed() -> None:
    for prefer, card in ((GpuPreference.SPREAD, 1), (GpuPreference.BINPACK, 0)):
        ledger = ledger_of(node("n1", [16, 16]))
        for pod in ("a", "b"):
            ledger.confirm(booking(pod, "n1", {0: Share(GIB)}))
        ledger.confirm(booking("c", "n1", {1: Share(GIB)}))
        ledger.measure("n1", LoadDigest({"GPU-n1-0": measured(), "GPU-n1-1": measured()}))
        engine = Engine(ledger, keti_policy(replace(KetiPolicy(), prefer=prefer)))
        assert card_of(engine, request(Share(GIB))) == ("n1", card)


def test_other_policies_do_not_weigh_it() -> None:
    """And need not look at a node again when a card has become warmer."""
    ledger = ledger_of(node("n1", [16, 16]))
    engine = Engine(ledger, policy_named("fragmentation"))
    before = engine.decide(request(Share(GIB)))
    version = ledger.columns.version
    ledger.measure("n1", LoadDigest({"GPU-n1-0": measured(celsius=99)}, cpu=100))
    assert ledger.columns.version == version
    assert engine.decide(request(Share(GIB))) == before
