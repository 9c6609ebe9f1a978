"""The demand: who counts, when it is made anew, what it says; and the prices behind it, on examples done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.gpu import NodeGpus
from shoal.model.request import CardSelector, Request, Share
from shoal.placement.classes import PodClass
from shoal.placement.engine import Engine
from shoal.placement.worth.demand import NO_DEMAND, Demand, DemandCounter, demand_of
from shoal.placement.worth.prices import worth_of
from tests.placement.clusters import GIB, WHOLE, card, ledger_of, node, request
from tests.soak import times

SMALL = PodClass(request(Share(compute=10)))
LARGE = PodClass(request(WHOLE))


# Who counts


def test_a_pod_counts_from_its_arrival_to_its_departure() -> None:
    demand = DemandCounter()
    demand.arrive("a", SMALL)
    demand.arrive("b", SMALL)
    demand.arrive("c", LARGE)
    assert demand.counts == {SMALL: 2, LARGE: 1}
    demand.place("a")
    assert demand.counts == {SMALL: 2, LARGE: 1}
    demand.depart("a")
    assert demand.counts == {SMALL: 1, LARGE: 1}


def test_a_waiting_pod_counts_once_however_often_it_is_tried() -> None:
    demand = DemandCounter()
    for _ in range(3):
        demand.arrive("a", SMALL)
    assert demand.counts == {SMALL: 1}
    assert demand.arrivals == 1


def test_a_refused_pod_counts_until_the_first_pod_placed_after_it_departs() -> None:
    demand = DemandCounter()
    demand.arrive("before", SMALL)
    demand.place("before")
    demand.arrive("refused", LARGE)
    demand.depart("refused")
    demand.arrive("after", SMALL)
    demand.place("after")
    demand.arrive("later", SMALL)
    demand.place("later")
    demand.depart("before")
    assert demand.counts == {SMALL: 2, LARGE: 1}, "a pod placed before does not end it"
    demand.depart("later")
    assert demand.counts == {SMALL: 1}, "the first pod placed after it that departs does"
    demand.depart("after")
    assert demand.counts == {}


def test_refused_pods_leave_in_the_order_they_came() -> None:
    demand = DemandCounter()
    demand.arrive("one", LARGE)
    demand.depart("one")
    demand.arrive("between", SMALL)
    demand.place("between")
    demand.arrive("two", LARGE)
    demand.depart("two")
    demand.depart("between")
    assert demand.counts == {LARGE: 1}


def test_who_is_not_known_departs_without_trace() -> None:
    demand = DemandCounter()
    demand.depart("nobody")
    assert demand.counts == {}


def test_the_engine_counts_waiting_pods_and_places_them_later() -> None:
    engine = Engine(ledger_of(node("n1", [16])))
    whole = request(WHOLE)
    assert engine.place("first", whole) is not None
    assert engine.place("second", whole) is None
    assert engine.demand.counts[engine.class_of(whole)] == 2
    engine.remove("first")
    assert engine.place("second", whole) is not None
    assert engine.demand.counts[engine.class_of(whole)] == 1
    assert engine.demand.arrivals == 2


# When it is made anew


def test_the_next_refresh_doubles_to_320_and_then_comes_every_500() -> None:
    demand = DemandCounter()
    due = []
    for number in range(1700):
        if demand.arrivals == demand.next_refresh():
            raise AssertionError("a refresh that is due is in the past")
        due.append(demand.next_refresh())
        demand.arrive(str(number), SMALL)
    assert sorted(set(due)) == [10, 20, 40, 80, 160, 320, 500, 1000, 1500, 2000]
    assert due[9] == 10
    assert due[10] == 20
    assert due[320] == 500


def test_the_engine_refreshes_at_these_arrivals() -> None:
    engine = Engine(ledger_of(node("n1", [16])))
    seen: list[tuple[int, Demand]] = [(0, engine.valuation.demand)]
    for number in range(1, 1100):
        engine.place(str(number), request(Share(compute=10)))
        engine.remove(str(number))
        if engine.valuation.demand is not seen[-1][1]:
            seen.append((number, engine.valuation.demand))
    assert [arrivals for arrivals, _ in seen] == [0, 10, 20, 40, 80, 160, 320, 500, 1000]


# What it says


def demand_on(counts: dict[Request, int], *nodes: NodeGpus, cpu_milli: int = 0) -> Demand:
    columns = ledger_of(*nodes).columns
    return demand_of({PodClass(asked): count for asked, count in counts.items()}, columns, cpu_milli=cpu_milli)


def test_cores_spread_and_size_of_the_pods() -> None:
    """Three pods of one card and 10 cores, one of two cards and 4 cores: 5 cards, 34 cores."""
    demand = demand_on({request(WHOLE, cores=10): 3, request(WHOLE, gpus=2, cores=4): 1}, node("n1", [16] * 4))
    assert demand.cores_per_gpu == pytest.approx(6.8)
    assert demand.cores_spread == pytest.approx(math.sqrt((3 * 3.2**2 + 9.6**2) / 5))
    assert demand.pod_size == pytest.approx((3 * 1 + 1 * 4) / 5)


def test_blocks_count_what_is_at_least_as_hard() -> None:
    """Cards in demand: 8 in fours with 8 cores, 4 in twos with 16 cores, 2 in twos with 4 cores, 6 alone."""
    demand = demand_on(
        {
            request(WHOLE, gpus=4, cores=8): 2,
            request(WHOLE, gpus=2, cores=16): 2,
            request(WHOLE, gpus=2, cores=4): 1,
            request(WHOLE): 6,
        },
        node("n1", [16] * 8),
    )
    blocks = demand.blocks
    parts = dict(zip(zip(blocks.gpus.tolist(), blocks.cpu.tolist(), strict=True), blocks.part.tolist(), strict=True))
    assert parts == pytest.approx({(4, 8000): 8 / 20, (2, 16000): 4 / 20, (2, 4000): 14 / 20})


def test_only_pods_of_several_whole_cards_are_blocks() -> None:
    demand = demand_on({request(WHOLE): 5, request(Share(compute=40), gpus=2): 5}, node("n1", [16] * 4))
    assert len(demand.blocks.gpus) == 0


A100 = CardSelector(models=frozenset({"A100"}))
T4 = CardSelector(models=frozenset({"T4"}))


def model_sets(demand: Demand, *nodes: NodeGpus) -> dict[frozenset[str], float]:
    models = ledger_of(*nodes).columns.models
    return {
        frozenset(model for i, model in enumerate(models) if mask >> i & 1): part
        for mask, part in zip(demand.model_sets, demand.confined.tolist(), strict=True)
    }


def test_the_part_of_the_demand_confined_to_a_model() -> None:
    nodes = [node("n1", [16] * 3), node("n2", [card("n2", 0, model="A100")])]
    demand = demand_on({request(WHOLE, selector=A100): 1, request(WHOLE): 3}, *nodes)
    assert model_sets(demand, *nodes) == {frozenset({"A100"}): 0.25}


def test_all_models_together_are_no_confinement() -> None:
    """Nor is a node without cards a model."""
    nodes = [node("n0"), node("n1", [16] * 3), node("n2", [card("n2", 0, model="A100")])]
    demand = demand_on({request(WHOLE, selector=A100): 1, request(WHOLE, selector=T4): 3}, *nodes)
    assert model_sets(demand, *nodes) == {frozenset({"A100"}): 0.25, frozenset({"T4"}): 0.75}


def test_unions_of_models_are_watched_too() -> None:
    nodes = [node("n1", [16] * 3), node("n2", [card("n2", 0, model="A100")]), node("n3", [card("n3", 0, model="V100")])]
    either = CardSelector(models=frozenset({"A100", "V100"}))
    demand = demand_on({request(WHOLE, selector=A100): 1, request(WHOLE, selector=either): 1}, *nodes)
    assert model_sets(demand, *nodes) == {frozenset({"A100"}): 0.5, frozenset({"A100", "V100"}): 1.0}


def test_a_share_of_memory_is_measured_on_the_cards_that_can_hold_it() -> None:
    """8 GiB are 50 and 25 percent of the two makes, 20 GiB are 62.5 percent of the larger one."""
    cards = node("n1", [card("n1", 0, 16), card("n1", 1, 16), card("n1", 2, 32), card("n1", 3, 32)])
    for gib, size in ((8, 38), (20, 62)):
        demand = demand_on({request(Share(gib * GIB)): 7}, cards)
        np.testing.assert_allclose(demand.worth.worth, worth_of({size: 7.0}, 4).worth)


def test_pods_without_gpus_do_not_count_in_the_prices() -> None:
    assert demand_on({request(cores=4): 9}, node("n1", [16])) is NO_DEMAND
    assert demand_on({request(WHOLE): 9}, node("n1")) is NO_DEMAND


def test_cpu_is_the_bound_when_full_cards_would_take_all_of_it() -> None:
    """Pods of one card and 8 cores on 4 cards: 32 cores. Below 85 percent of the CPU nothing changes."""
    asked = {request(WHOLE, cores=8): 5}
    cards = node("n1", [16] * 4)
    assert demand_on(asked, cards, cpu_milli=64_000).cpu_bound == 0
    assert demand_on(asked, cards, cpu_milli=32_000).cpu_bound == 1
    assert demand_on(asked, cards, cpu_milli=16_000).cpu_bound == 1
    assert demand_on(asked, cards, cpu_milli=35_000).cpu_bound == pytest.approx((32 / 35 - 0.85) / 0.15)


# Prices: w(g) is the worth of a free share g, price(z) that of a pod of size z


def test_before_any_demand_every_unit_is_worth_the_same() -> None:
    flat = worth_of({}, 10)
    assert flat.worth.tolist() == [g / 100 for g in range(101)]
    assert flat.price.tolist() == flat.worth.tolist()


def test_whole_cards_only() -> None:
    """A touched card is worth nothing to anybody."""
    prices = worth_of({100: 5}, 8)
    assert prices.worth[:100].tolist() == [0.0] * 100
    assert prices.worth[100] == prices.price[100] == 1


def test_halves_only() -> None:
    prices = worth_of({50: 5}, 8)
    np.testing.assert_allclose(prices.worth[[0, 49, 50, 99, 100]], [0, 0, 0.5, 0.5, 1])
    assert prices.price[50] == pytest.approx(0.5)


def test_a_size_that_leaves_a_rest_nobody_wants() -> None:
    """One 70 a card: it is worth the whole card, and the 30 beside it nothing."""
    prices = worth_of({70: 5}, 8)
    np.testing.assert_allclose(prices.worth[[69, 70, 99, 100]], [0, 1, 1, 1])
    assert prices.price[70] == pytest.approx(1)
    assert prices.price[30] == pytest.approx(0)


def test_sixties_and_thirties() -> None:
    """More of both than fits: a card holds 60 + 30 or 30 + 30 + 30, either way 0.9 of it is used."""
    prices = worth_of({60: 5, 30: 5}, 9)
    assert prices.price[60] == pytest.approx(2 / 3)
    assert prices.price[30] == pytest.approx(1 / 3)
    np.testing.assert_allclose(prices.worth[[29, 30, 59, 60, 89, 90, 100]], np.array([0, 1, 1, 2, 2, 3, 3]) / 3)


def test_sixties_and_forties() -> None:
    """They fill cards together, and two forties fit where one sixty and a forty do: at most half a card each."""
    prices = worth_of({60: 10, 40: 10}, 10)
    assert prices.price[60] + prices.price[40] == pytest.approx(1)
    assert prices.price[40] <= 0.5
    assert prices.worth[20] == 0
    assert prices.worth[60] == pytest.approx(prices.price[60])


def test_a_rare_size_is_not_worthless() -> None:
    assert worth_of({100: 50, 30: 1}, 20).price[30] > 0.05


def test_an_unseen_size_costs_the_least_it_can_take_away() -> None:
    """Of halves only: 20 from a free 70 leaves the half that was there; 60 cannot but end one."""
    prices = worth_of({50: 5}, 8)
    assert prices.price[20] == pytest.approx(0)
    assert prices.price[60] == pytest.approx(0.5)


@settings(max_examples=times(40))
@given(st.dictionaries(st.integers(1, 100), st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 50))
def test_worths_and_prices_of_any_demand(demand: dict[int, float], cards: int) -> None:
    prices = worth_of(demand, cards)
    worth, price = prices.worth, prices.price
    assert worth[0] == 0
    assert worth[100] == price[100] == pytest.approx(1)
    assert (np.diff(worth) >= -1e-9).all()
    assert (price[1:] >= -1e-9).all()
    assert (price <= worth + 1e-9).all(), "a pod is not worth more than the share it fits"
    for one in range(0, 101, 7):
        assert (worth[one:] >= worth[one] + worth[: 101 - one] - 1e-9).all(), "two parts fit in one"
    for size in set(range(1, 100)) - set(demand):
        least = (worth[size:] - worth[: 101 - size]).min()
        assert price[size] == pytest.approx(least, abs=1e-9), "an unseen size costs the least it can take away"
