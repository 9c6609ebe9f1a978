"""Which cluster a pod goes to: a table, and what holds whatever clusters answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clusters.choice import ClusterCandidate, ClusterChoice, Unasked, allowed_clusters, choose, keti_lines
from shoal.model.contract.clusters import ClusterSelector, Offer
from tests.soak import times

ROOM = Offer(fits=1, score=0.5)
FULL = Offer(fits=0, wait=30.0, why="no card has 8 GiB free")


@dataclass(frozen=True)
class Case:
    name: str
    candidates: tuple[ClusterCandidate, ...]
    chosen: str
    selector: ClusterSelector = field(default_factory=ClusterSelector)
    siblings: tuple[str, ...] = ()
    needed: int = 1
    #: Pieces of the reason, and the order of the ranking.
    why: tuple[str, ...] = ()
    ranking: tuple[str, ...] = ()


def at(name: str, answer: Offer | Unasked | str = ROOM, **weights: Any) -> ClusterCandidate:
    return ClusterCandidate(name, answer, **weights)


CASES = [
    Case("nobody is joined", (), "", why=("no cluster is joined", "shoal clusters join")),
    Case("the better offer", (at("a", Offer(1, 0.4)), at("b", Offer(1, 0.6))), "b", ranking=("b", "a")),
    Case("equal: the own cluster", (at("a"), at("b", own=True), at("c")), "b", ranking=("b", "a", "c")),
    Case("equal and none is the own: by name", (at("b"), at("a")), "a"),
    Case("as good as equal is equal", (at("a", Offer(1, 0.50001)), at("b", ROOM, own=True)), "b"),
    Case("a queue counts", (at("a", Offer(1, 0.6, queue=100)), at("b", Offer(1, 0.5))), "b"),
    Case("load counts", (at("a", Offer(1, 0.5, load=0.9)), at("b", Offer(1, 0.5, load=0.1))), "b"),
    Case("unknown load is in the middle", (at("a", ROOM), at("b", Offer(1, 0.5, load=0.1))), "b"),
    Case("cost counts", (at("a", Offer(1, 0.6), cost=2.0), at("b", Offer(1, 0.5))), "b"),
    Case("preference counts", (at("a", Offer(1, 0.6)), at("b", Offer(1, 0.5), preference=1.0)), "b"),
    Case(
        "only what fits, however good the other",
        (at("a", Offer(0, 1.0, why="full"), preference=9.0), at("b", Offer(1, 0.0), cost=9.0)),
        "b",
    ),
    Case(
        "none fits: the shortest wait first, and all are told",
        (at("c", "does not answer"), at("a", FULL), at("b", Offer(0, wait=5.0)), at("d", Offer(0, why="no such card"))),
        "",
        why=("no cluster has room now", "a: no card has 8 GiB free, about 30 s to wait", "c: does not answer"),
        ranking=("b", "a", "d", "c"),
    ),
    Case(
        "a cluster without Shoal comes after what fits for sure",
        (at("a", Unasked.TRIAL, own=True, preference=9.0), at("b", Offer(1, 0.0), cost=9.0)),
        "b",
        ranking=("b", "a"),
    ),
    Case("and before waiting", (at("a", FULL), at("b", Unasked.TRIAL)), "b", ranking=("b", "a")),
    Case("where it was tried it is not tried at once", (at("a", Unasked.TRIED), at("b", Unasked.TRIAL)), "b"),
    Case("tried everywhere: it waits", (at("a", Unasked.TRIED),), "", why=("tried there",)),
    Case("trials by preference", (at("a", Unasked.TRIAL), at("b", Unasked.TRIAL, preference=1.0)), "b"),
    Case(
        "clusterName pins",
        (at("a", Offer(1, 1.0)), at("b", Offer(1, 0.1))),
        "b",
        ClusterSelector(pinned="b"),
        ranking=("b", "a"),
    ),
    Case(
        "pinned to a full one: it waits",
        (at("a"), at("b", FULL)),
        "",
        ClusterSelector(pinned="b"),
        why=("b: no card has 8 GiB free",),
        ranking=("b", "a"),
    ),
    Case(
        "pinned to one that does not answer",
        (at("a"), at("b", "no connection: check the address")),
        "",
        ClusterSelector(pinned="b"),
        why=("b: no connection",),
    ),
    Case(
        "an unknown name waits, and the known ones are told",
        (at("b"), at("a")),
        "",
        ClusterSelector(pinned="c"),
        why=("no cluster is called 'c'", "known are 'a', 'b'"),
    ),
    Case("one unknown name of two", (at("a"), at("b")), "b", ClusterSelector(only=frozenset({"b", "c"}))),
    Case("shoal.dev/clusters", (at("a", Offer(1, 1.0)), at("b")), "b", ClusterSelector(only=frozenset({"b"}))),
    Case("shoal.dev/avoid-clusters", (at("a", Offer(1, 1.0)), at("b")), "b", ClusterSelector(avoid=frozenset({"a"}))),
    Case(
        "pinned to what it avoids",
        (at("a"),),
        "",
        ClusterSelector(pinned="a", avoid=frozenset({"a"})),
        why=("rule out every cluster",),
    ),
    Case("siblings stay together", (at("a", Offer(1, 1.0)), at("b", Offer(1, 0.1))), "b", siblings=("b",)),
    Case(
        "siblings stay together though it is full there",
        (at("a"), at("b", FULL)),
        "",
        siblings=("b",),
        why=("b: no card",),
    ),
    Case(
        "unless they may spread",
        (at("a", Offer(1, 1.0)), at("b", Offer(1, 0.1))),
        "a",
        ClusterSelector(spread=True),
        siblings=("b",),
    ),
    Case("a name counts more than siblings", (at("a"), at("b")), "a", ClusterSelector(pinned="a"), siblings=("b",)),
    Case("siblings in a cluster that is gone", (at("a"),), "a", siblings=("b",)),
    Case(
        "a gang goes where all of it fits",
        (at("a", Offer(3, 1.0)), at("b", Offer(4, 0.1))),
        "b",
        needed=4,
        ranking=("b", "a"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_table(case: Case) -> None:
    made = choose(case.selector, case.candidates, siblings=case.siblings, needed=case.needed)
    assert made.cluster == case.chosen, made
    for piece in case.why:
        assert piece in made.why
    if case.ranking:
        assert tuple(row.cluster for row in made.ranking) == case.ranking
    assert made.why
    assert {row.cluster for row in made.ranking} == {candidate.name for candidate in case.candidates}


def test_hostile_words_are_short_and_on_one_line() -> None:
    made = choose(ClusterSelector(), [at("a", Offer(0, why="x\n\x1b[31m" * 500)), at("b", "y\r" * 5000)])
    assert made.why.isprintable()
    assert len(made.why) < 1000


def test_weights_that_are_no_numbers_do_no_harm() -> None:
    odd = [at("a", cost=float("nan")), at("b", preference=float("-inf")), at("c", cost=float("inf"))]
    assert choose(ClusterSelector(), odd).cluster == "a"


def test_ketis_lines() -> None:
    made = choose(ClusterSelector(), [at("one", Offer(1, 0.5)), at("two", Offer(1, 0.4)), at("three", FULL)])
    assert keti_lines(made, gpus=2) == [
        "#Request Cluster Scheduling Called",
        "-pod requested gpu : 2",
        "--Cluster Name:  one",
        "---clusterScore: 90",
        "--Cluster Name:  two",
        "---clusterScore: 80",
        "#Best Cluster Is:  {one 90}",
    ]
    assert keti_lines(ClusterChoice("", ()), gpus=1)[-1] == "#Best Cluster Is:  { 0}"


NAMES = ["a", "b", "c", "d", "e"]
names = st.sampled_from(NAMES)
weights = st.one_of(st.just(0.0), st.floats(-1e6, 1e6))
offers = st.builds(
    Offer,
    fits=st.integers(0, 3),
    score=st.floats(0, 1),
    queue=st.integers(0, 200),
    wait=st.one_of(st.none(), st.floats(0, 1e9)),
    load=st.one_of(st.none(), st.floats(0, 1)),
)
answers = st.one_of(offers, offers, st.sampled_from(Unasked), st.text(min_size=1, max_size=20))
weighed: dict[str, Any] = {"own": st.booleans(), "cost": weights, "preference": weights}
candidates = st.builds(ClusterCandidate, name=names, answer=answers, **weighed)
clusters = st.lists(candidates, max_size=5, unique_by=lambda candidate: candidate.name)
selectors = st.builds(
    ClusterSelector,
    pinned=st.one_of(st.just(""), st.just(""), names),
    only=st.one_of(st.just(frozenset()), st.frozensets(names)),
    avoid=st.one_of(st.just(frozenset()), st.frozensets(names)),
    spread=st.booleans(),
)
sibling_sets: st.SearchStrategy[frozenset[str]] = st.frozensets(names, max_size=2)


def _fits(candidate: ClusterCandidate, needed: int) -> bool:
    return isinstance(candidate.answer, Offer) and candidate.answer.fits >= needed


@settings(max_examples=times(300))
@given(selectors, clusters, sibling_sets, st.integers(1, 3))
def test_never_what_is_ruled_out_nor_what_does_not_fit(
    selector: ClusterSelector, found: list[ClusterCandidate], siblings: frozenset[str], needed: int
) -> None:
    made = choose(selector, found, siblings=siblings, needed=needed)
    known = {candidate.name: candidate for candidate in found}
    allowed = {
        name
        for name in known
        if name not in selector.avoid
        and (not selector.pinned or name == selector.pinned)
        and (selector.pinned or not selector.only or name in selector.only)
    }
    if allowed & siblings and not selector.spread:
        allowed &= siblings
    assert allowed == allowed_clusters(selector, known, siblings=siblings)
    fitting = {name for name in allowed if _fits(known[name], needed)}
    trials = {name for name in allowed if known[name].answer is Unasked.TRIAL}
    assert made.cluster in (fitting or trials or {""})
    assert sorted(row.cluster for row in made.ranking) == sorted(known)
    assert {row.cluster for row in made.ranking if row.score is not None} == fitting


@settings(max_examples=times(150))
@given(selectors, clusters.flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))), sibling_sets)
def test_the_order_in_which_clusters_come_means_nothing(
    selector: ClusterSelector, orders: tuple[list[ClusterCandidate], list[ClusterCandidate]], siblings: frozenset[str]
) -> None:
    one, other = (choose(selector, found, siblings=siblings) for found in orders)
    assert one == other


with_room = offers.filter(lambda offer: offer.fits > 0)
fitting = st.builds(ClusterCandidate, name=st.just("f"), answer=with_room, **weighed)


@settings(max_examples=times(300))
@given(clusters, fitting, st.sampled_from(["score", "cost", "preference", "queue", "load"]), st.floats(0, 1))
def test_what_gets_better_never_falls_behind(
    others: list[ClusterCandidate], before: ClusterCandidate, what: str, amount: float
) -> None:
    def place(candidate: ClusterCandidate) -> int:
        ranking = choose(ClusterSelector(), [*others, candidate]).ranking
        return [row.cluster for row in ranking].index(candidate.name)

    assert place(_better(before, what, amount)) <= place(before)


def _better(candidate: ClusterCandidate, what: str, amount: float) -> ClusterCandidate:
    offer = candidate.answer
    assert isinstance(offer, Offer)
    match what:
        case "cost":
            return replace(candidate, cost=candidate.cost - 10 * amount)
        case "preference":
            return replace(candidate, preference=candidate.preference + 10 * amount)
        case "score":
            changed = {"score": offer.score + (1 - offer.score) * amount}
        case "queue":
            changed = {"queue": int(offer.queue * (1 - amount))}
        case _:
            changed = {"load": (0.5 if offer.load is None else offer.load) * (1 - amount)}
    return replace(candidate, answer=_changed(offer, changed))


def _changed(offer: Offer, fields: dict[str, Any]) -> Offer:
    return Offer(**{**{name: getattr(offer, name) for name in offer.__struct_fields__}, **fields})
