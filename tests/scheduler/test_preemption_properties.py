"""The chosen victims against every possible choice, on small nodes with shares, whole cards and MPS clients.

What fits is worked out here once more, from the shares alone; nothing comes from the ledger or from the chooser.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.scheduler.preemption import PodOnNode, PreemptionPlan, choose
from tests.placement.clusters import GIB, WHOLE, booking, ledger_of, node, request
from tests.soak import times

CARD = 8 * GIB
CLIENTS = 10
PRIORITY = 10

amounts = st.builds(
    Share,
    st.sampled_from([0, 1, 2, 4, 8]).map(lambda gib: gib * GIB),
    st.sampled_from([0, 0, 40, 100]),
    st.sampled_from([0, 0, 1, 5]),
).filter(lambda share: share != Share())
shares = st.one_of(amounts, amounts, st.just(WHOLE))
starts = st.none() | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])


@dataclass(frozen=True)
class Held:
    """A pod on a node, with what it holds by the index of the card."""

    pod: PodOnNode
    shares: Mapping[int, Share]


@dataclass(frozen=True)
class Place:
    name: str
    cards: int
    held: tuple[Held, ...]


def room(shares: Sequence[Share]) -> bool:
    """Whether all of these can be on one card."""
    if any(share.exclusive for share in shares):
        return len(shares) == 1
    if len({share.memory_mib == share.compute == 0 for share in shares}) > 1:
        return False  # clients without sizes share cards with their like
    return (
        sum(share.memory_mib for share in shares) <= CARD
        and sum(share.compute for share in shares) <= 100
        and sum(share.clients for share in shares) <= CLIENTS
    )


@st.composite
def places(draw: st.DrawFn, name: str) -> Place:
    """A node and up to six pods that fit on it."""
    cards = draw(st.integers(1, 3))
    held: list[Held] = []
    for number in range(draw(st.integers(0, 6))):
        share = draw(shares)
        on = draw(st.lists(st.integers(0, cards - 1), min_size=1, max_size=2, unique=True))
        beside = {index: [each.shares[index] for each in held if index in each.shares] for index in on}
        if all(room([*beside[index], share]) for index in on):
            pod = PodOnNode(
                f"{name}-{number}",
                draw(st.sampled_from([0, 1, 1, 9, 10])),
                draw(starts),
                tuple(draw(st.lists(st.sampled_from("xy"), max_size=2, unique=True))),
            )
            held.append(Held(pod, dict.fromkeys(on, share)))
    return Place(name, cards, tuple(held))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return request(*draw(st.lists(shares, min_size=1, max_size=2)), gpus=draw(st.sampled_from([1, 1, 2])))


def fits(place: Place, asked: Request, without: frozenset[str]) -> bool:
    """Whether there is any way at all to give each container its cards."""
    there = [held for held in place.held if held.pod.uid not in without]
    taken = [[held.shares[index] for held in there if index in held.shares] for index in range(place.cards)]
    ways = [list(combinations(range(place.cards), container.gpus)) for container in asked.containers]
    for deal in product(*ways):
        own: dict[int, list[Share]] = {}
        for container, indices in zip(asked.containers, deal, strict=True):
            for index in indices:
                own.setdefault(index, []).append(container.share)
        whole_apart = all(len(mine) == 1 or not any(share.exclusive for share in mine) for mine in own.values())
        if whole_apart and all(room([*taken[index], *mine]) for index, mine in own.items()):
            return True
    return False


def subsets(uids: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(uids) + 1):
        yield from (frozenset(chosen) for chosen in combinations(uids, size))


def best_on(place: Place, asked: Request, budgets: Mapping[Hashable, int]) -> tuple[frozenset[str], int] | None:
    """Of all sets of victims that make room, the one that lets off the most important, and how many budgets it breaks.

    Pods that break a budget are let off before all others, then by priority, then by how long they run.
    """
    lower = [held.pod for held in place.held if held.pod.priority < PRIORITY]
    lower.sort(key=lambda pod: (-pod.priority, pod.started or "9"))
    left = dict(budgets)
    breaking = set()
    for pod in lower:
        for name in pod.disruption_budgets:
            left[name] -= 1
            if left[name] < 0:
                breaking.add(pod.uid)
    order = [pod.uid for pod in lower if pod.uid in breaking] + [pod.uid for pod in lower if pod.uid not in breaking]
    enough = [away for away in subsets(order) if fits(place, asked, away)]
    if not enough or not lower:
        return None
    away = min(enough, key=lambda away: [uid in away for uid in order])
    assert not any(other < away for other in enough), "fewer would do"
    return away, len(away & breaking)


def price(place: Place, away: frozenset[str], broken: int) -> tuple[object, ...]:
    """Lower is better; a later start counts as lower."""
    pods = [held.pod for held in place.held if held.pod.uid in away]
    if not pods:
        return broken, -(2**40)
    top = max(pod.priority for pod in pods)
    oldest = min(pod.started or "9" for pod in pods if pod.priority == top)
    return broken, top, sum(pod.priority + 2**31 for pod in pods), len(pods), [-ord(letter) for letter in oldest]


def plan_for(cluster: Sequence[Place], asked: Request, budgets: Mapping[Hashable, int]) -> PreemptionPlan | None:
    ledger = ledger_of(*(node(place.name, [CARD / GIB] * place.cards) for place in cluster))
    for place in cluster:
        for held in place.held:
            ledger.assume(booking(held.pod.uid, place.name, held.shares))
    pods = {place.name: [held.pod for held in place.held] for place in cluster}
    return choose(
        pods,
        pods_on=pods.__getitem__,
        fits=Engine(ledger).fits_without(asked),
        priority=PRIORITY,
        budgets=dict(budgets),
        limit=len(cluster),
    )


budget_tables = st.fixed_dictionaries({"x": st.integers(0, 2), "y": st.integers(0, 1)})


@settings(max_examples=times(400))
@given(places("n1"), requests(), budget_tables)
def test_on_one_node_no_better_set_of_victims_exists(
    place: Place, asked: Request, budgets: dict[Hashable, int]
) -> None:
    plan, best = plan_for([place], asked, budgets), best_on(place, asked, budgets)
    if best is None:
        assert plan is None
        return
    assert plan is not None
    assert (frozenset(pod.uid for pod in plan.victims), plan.violations) == best
    priorities = [pod.priority for pod in plan.victims]
    assert priorities == sorted(priorities, reverse=True)


@settings(max_examples=times(300))
@given(places("n1"), places("n2"), places("n3"), requests(), budget_tables)
def test_of_several_nodes_the_cheapest_is_taken(
    one: Place, two: Place, three: Place, asked: Request, budgets: dict[Hashable, int]
) -> None:
    cluster = [one, two, three]
    found = [(place, *best) for place in cluster if (best := best_on(place, asked, budgets)) is not None]
    plan = plan_for(cluster, asked, budgets)
    if not found:
        assert plan is None
        return
    expected, away, broken = min(found, key=lambda each: price(*each))
    assert plan is not None
    assert (plan.node, frozenset(pod.uid for pod in plan.victims)) == (expected.name, away)
    assert plan.violations == broken


@settings(max_examples=times(300))
@given(places("n1"), requests(), st.data())
def test_the_books_without_some_pods_say_what_fits(place: Place, asked: Request, data: st.DataObject) -> None:
    """Asked in any order, one node after itself: the answers are those of books that never had these pods."""
    ledger = ledger_of(node("n1", [CARD / GIB] * place.cards))
    for held in place.held:
        ledger.assume(booking(held.pod.uid, "n1", held.shares))
    engine_fit = Engine(ledger).fits_without(asked)
    uids = [held.pod.uid for held in place.held]
    for _ in range(4):
        away = data.draw(st.frozensets(st.sampled_from(uids)) if uids else st.just(frozenset()))
        assert engine_fit("n1", away) == fits(place, asked, away)
