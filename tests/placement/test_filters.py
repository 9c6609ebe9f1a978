"""A filter in the list is obeyed: by every policy, by every way to try a class, and wherever victims are looked for.

What the extender, preemption and `shoal why` make of it is in `tests/scheduler/test_added_filter.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.model.request import Request, Share
from shoal.placement.classes import PodClass
from shoal.placement.columns import BoolArray
from shoal.placement.engine import Engine
from shoal.placement.filters import CardFit, NodeResources
from shoal.placement.ledger import NodeLedger
from shoal.placement.policies import FILTERS, POLICIES, Policy, fgd_policy, policy_named, preferring
from shoal.placement.trial import ClassTables, NodeFilter, NodeRefusal, OneFilter, Trial
from tests.placement.clusters import GIB, WHOLE, RefusesNode, booking, ledger_of, node, refusals, request

SHARE = request(Share(2 * GIB))
REQUESTS = {
    "share": SHARE,
    "whole": request(WHOLE),
    "no card": request(cores=1),
    "clients": request(Share(clients=1)),
    "two cards": request(Share(2 * GIB), gpus=2),
    "apart": request(Share(10 * GIB), Share(10 * GIB)),
}
EVERY = [*POLICIES.values(), fgd_policy([SHARE]), preferring(policy_named("fragmentation"), ["T4"])]


class RefusesPlainly(RefusesNode):
    """The same filter, with a plain form."""

    def plain(self, tables: ClassTables) -> OneFilter:
        ledger = tables.ledger
        return lambda node: ledger.node_at(node.row).name not in self._nodes


def picky(policy: Policy, added: NodeFilter, *, first: bool) -> Policy:
    return replace(policy, filters=(added, *FILTERS) if first else (*FILTERS, added))


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("added", [RefusesNode("b"), RefusesPlainly("b")], ids=["arrays", "plain"])
@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_every_policy_obeys(policy: Policy, asked: Request, added: NodeFilter, first: bool) -> None:
    """Also when nodes are tried again because they changed, one by one: pods come and go between the decisions."""
    engine = Engine(ledger_of(*(node(name, [16, 16], cores=32) for name in "abcd")), picky(policy, added, first=first))
    for number in range(15):
        engine.remove(str(number - 3))
        allocation = engine.place(str(number), asked)
        assert allocation is not None
        assert allocation.node != "b"
        assert not engine.fits(asked)[1]
    for number in range(15):
        engine.remove(str(number))
    assert list(refusals(engine, asked)) == ["b"]
    assert engine.fits(asked).tolist() == [True, False, True, True]


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_where_every_node_is_refused_nothing_is_placed(policy: Policy, asked: Request) -> None:
    engine = Engine(
        ledger_of(node("a", [16, 16]), node("b", [16, 16])), picky(policy, RefusesNode("a", "b"), first=False)
    )
    assert engine.place("pod", asked) is None
    assert not engine.fits(asked).any()
    assert [each.reason for each in refusals(engine, asked).values()] == [RefusesNode.reason] * 2


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_nobody_has_to_leave_a_node_that_is_refused(policy: Policy, asked: Request) -> None:
    ledger = ledger_of(node("a", [16, 16]), node("b", [16, 16]))
    gone = {name: frozenset({f"{name}0", f"{name}1"}) for name in "ab"}
    for name, uids in gone.items():
        for index, uid in enumerate(sorted(uids)):
            ledger.assume(booking(uid, name, {index: WHOLE}, cores=32))
    fits = Engine(ledger, picky(policy, RefusesNode("b"), first=False)).fits_without(asked)
    assert not fits("a", frozenset())
    assert fits("a", gone["a"])
    assert not fits("b", gone["b"])


def test_a_filter_with_a_plain_form_decides_as_the_one_without() -> None:
    nodes = [node(f"n{number}", [16, 16, 16], cores=24) for number in range(12)]
    closed = ("n1", "n4", "n5", "n11")
    engines = [
        Engine(ledger_of(*nodes), picky(policy_named("fragmentation"), added, first=False))
        for added in (RefusesNode(*closed), RefusesPlainly(*closed))
    ]
    asked = list(REQUESTS.values())
    for number in range(120):
        for engine in engines:
            engine.remove(str(number - 25))
        plain, arrays = (engine.place(str(number), asked[number * 7 % len(asked)]) for engine in engines)
        assert plain == arrays


class NeedsSpareCores(NodeResources):
    """Only the arrays are overridden: the inherited plain form does not say the same."""

    def passes(self, trial: Trial) -> BoolArray:
        enough: BoolArray = super().passes(trial) & (trial.cpu_after >= 16_000)
        return enough


def test_a_plain_form_counts_only_beside_its_own_arrays() -> None:
    policy = replace(policy_named("fragmentation"), filters=(NeedsSpareCores(), CardFit()))
    engine = Engine(ledger_of(node("a", [16] * 8, cores=24), node("b", [16] * 8, cores=24)), policy)
    asked = request(Share(GIB), cores=4)
    placed = [engine.place(str(number), asked) for number in range(6)]
    assert [allocation is not None for allocation in placed] == [True] * 4 + [False] * 2


def test_a_refusal_says_by_which_filter_and_whether_leaving_pods_may_help() -> None:
    engine = Engine(
        ledger_of(node("bare"), node("full", [16], cores=1)),
        picky(policy_named("binpack"), RefusesNode("bare", "full"), first=False),
    )
    told = {
        name: [(each.filter, each.resolvable) for each in engine.explain(request(Share(20 * GIB), cores=2), known)]
        for name in ("bare", "full")
        if (known := engine.ledger.node(name)) is not None
    }
    assert told == {
        "bare": [(CardFit.name, False), (RefusesNode.name, True)],
        "full": [(NodeResources.name, True), (CardFit.name, True), (RefusesNode.name, True)],
    }


class Recording(NodeFilter):
    """Passes every node, and notes which were left when it was asked."""

    name = "Recording"

    def __init__(self) -> None:
        self.left: list[list[str]] = []

    def passes(self, trial: Trial) -> BoolArray:
        assert trial.passed is not None
        self.left.append([trial.ledger.node_at(int(row)).name for row in trial.rows[trial.passed]])
        return np.ones(len(trial.rows), np.bool_)

    def refusal(self, node: NodeLedger, pod_class: PodClass) -> NodeRefusal | None:
        return None


def test_filters_are_asked_in_their_order() -> None:
    recording = Recording()
    policy = replace(policy_named("fragmentation"), filters=(NodeResources(), recording, CardFit()))
    engine = Engine(ledger_of(node("a", [16]), node("b", [1]), node("c", [16], cores=1)), policy)
    allocation = engine.place("pod", request(Share(2 * GIB), cores=2))
    assert allocation is not None
    assert allocation.node == "a"
    assert recording.left == [["a", "b"]]
