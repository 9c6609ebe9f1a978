"""Digests of nodes: what they change, for how long, and what hostile ones cannot do. The clock is the test's."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.kube.objects.others import Lease
from shoal.kube.store import Change, ChangeType
from shoal.model.contract.load import ANNOTATION_LOAD, CardDigest, LoadDigest, encode_load
from shoal.model.request import Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.scheduler import live_loads as live
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.live_loads import LiveLoads
from tests.placement.clusters import GIB, booking, ledger_of, node, request
from tests.soak import times

TTL = 100.0
NAMES = ("n1", "n2")


def lease(name: str, digest: str | None) -> Lease:
    annotations = {} if digest is None else {ANNOTATION_LOAD: digest}
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations}}, Lease)


def stray(node_name: str, gib: float, *, index: int = 0) -> str:
    cards = {f"GPU-{node_name}-{index}": CardDigest(unattributed_mib=int(gib * GIB))}
    return encode_load(LoadDigest(cards))


class Told:
    """Loads on two nodes of two cards with 16 GiB each, and the events they told."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or ledger_of(*(node(name, [16, 16]) for name in NAMES))
        self.now = 0.0
        self.events: list[ClusterEvent] = []
        self.loads = LiveLoads(self.ledger, news=self.events.append, ttl=TTL, clock=lambda: self.now)

    def see(self, name: str, digest: str | None) -> None:
        self.loads.on_lease(Change(ChangeType.MODIFIED, None, lease(name, digest)))

    def gone(self, name: str) -> None:
        self.loads.on_lease(Change(ChangeType.DELETED, lease(name, None), None))

    def free(self) -> dict[str, list[int]]:
        return {each.name: [card.free_mib // GIB for card in each.slots] for each in self.ledger.nodes()}


def test_memory_of_nobody_lowers_its_card_and_no_other() -> None:
    told = Told()
    told.see("n1", stray("n1", 10))
    assert told.free() == {"n1": [6, 16], "n2": [16, 16]}
    assert told.events == []
    told.see("n1", stray("n1", 4))
    assert told.free() == {"n1": [12, 16], "n2": [16, 16]}
    assert told.events == [ClusterEvent.LIVE_LOAD]


def test_a_digest_runs_out_by_the_own_clock() -> None:
    told = Told()
    told.see("n1", stray("n1", 10))
    told.now = 60
    told.see("n2", stray("n2", 10))
    told.now = 99.9
    told.loads.expire()
    assert told.free() == {"n1": [6, 16], "n2": [6, 16]}
    told.now = 100
    told.loads.expire()
    assert told.free() == {"n1": [16, 16], "n2": [6, 16]}
    assert told.events == [ClusterEvent.LIVE_LOAD]
    told.see("n2", stray("n2", 10))  # the same again is a change of the Lease
    told.now = 199
    told.loads.expire()
    assert told.free()["n2"] == [6, 16]


def test_what_is_gone_or_cannot_be_read_leaves_requests_alone(caplog: Any) -> None:
    told = Told()
    for ending in (lambda: told.gone("n1"), lambda: told.see("n1", None), lambda: told.see("n1", '{"version":9}')):
        told.see("n1", stray("n1", 10))
        ending()
        assert told.free()["n1"] == [16, 16]
    assert len(told.events) == 3
    told.see("n1", '{"version":9}')
    told.see("n1\nforged", "x" * 100)
    assert sum("does not count" in record.message for record in caplog.records) == 2
    assert not any("\n" in record.message for record in caplog.records)


def test_a_digest_speaks_of_the_cards_of_its_node_alone() -> None:
    """A card of another node, one that nobody knows, and more than a card has."""
    told = Told()
    told.see("n1", stray("n2", 16))
    told.see("n2", stray("n2", 900, index=7))
    told.see("nowhere", stray("n1", 16))
    assert told.free() == {"n1": [16, 16], "n2": [16, 16]}
    told.see("n1", stray("n1", 2**20))
    assert told.free() == {"n1": [0, 16], "n2": [16, 16]}


def test_no_digest_makes_a_card_emptier_than_its_bookings() -> None:
    told = Told(ledger_of(node("n1", [16])))
    told.ledger.confirm(booking("p", "n1", {0: Share(10 * GIB)}))
    for digest in (LoadDigest({}), LoadDigest({"GPU-n1-0": CardDigest(0, 0, 0, 0, 0, 0)})):
        told.see("n1", encode_load(digest))
        assert told.free() == {"n1": [6]}
    told.see("n1", stray("n1", 12))
    assert told.free() == {"n1": [0]}
    assert told.ledger.over_booked() == []
    assert told.ledger.booking("p") is not None


def test_a_little_is_tolerated() -> None:
    """What driver and MPS daemon take keeps no card from being given whole."""
    told = Told(ledger_of(node("n1", [16])))
    engine, whole = Engine(told.ledger), request(Share(exclusive=True))
    told.see("n1", stray("n1", 0.25))
    assert engine.decide(whole) is not None
    told.see("n1", stray("n1", 0.5))
    assert engine.decide(whole) is None
    assert engine.decide(request(Share(15 * GIB))) is not None


def test_a_load_that_comes_before_its_node_counts_when_the_node_does() -> None:
    told = Told(ledger_of())
    told.see("n1", stray("n1", 10))
    told.ledger.set_inventory(node("n1", [16]))
    assert told.free() == {"n1": [6]}
    told.ledger.remove_node("n1")
    told.ledger.set_inventory(node("n1", [16, 16]))
    assert told.free() == {"n1": [6, 16]}


def test_there_is_a_bound_on_nodes(monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "MAX_NODES", 1)
    told = Told()
    told.see("other", stray("other", 1))
    told.see("n1", stray("n1", 10))
    assert (len(told.loads), told.free()["n1"]) == (1, [16, 16])
    told.gone("other")
    told.see("n1", stray("n1", 10))
    assert told.free()["n1"] == [6, 16]


class Histories(RuleBasedStateMachine):
    """Any order of digests, ends and time: what is free follows from the digests that are young enough."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.known: dict[str, tuple[float, float]] = {}

    @rule(name=st.sampled_from(NAMES), gib=st.sampled_from([0, 1, 8, 16, 100]))
    def see(self, name: str, gib: float) -> None:
        before = self.told.free()
        heard = len(self.told.events)
        self.told.see(name, stray(name, gib))
        self.known[name] = gib, self.told.now
        assert (len(self.told.events) > heard) == (self.told.free()[name][0] > before[name][0])

    @rule(name=st.sampled_from(NAMES))
    def goes(self, name: str) -> None:
        self.told.gone(name)
        self.known.pop(name, None)

    @rule(seconds=st.sampled_from([1.0, 40.0, 99.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.told.now += seconds
        self.told.loads.expire()
        self.known = {name: seen for name, seen in self.known.items() if self.told.now - seen[1] < TTL}

    @invariant()
    def free_follows_from_what_counts(self) -> None:
        expected = {name: [max(0, 16 - self.known.get(name, (0, 0))[0]), 16] for name in NAMES}
        assert self.told.free() == expected
        assert len(self.told.loads) == len(self.known)


Histories.TestCase.settings = settings(max_examples=times(40), stateful_step_count=30)
TestHistories = Histories.TestCase
