from random import Random
from statistics import fmean

import pytest

from shoal.simulate.errors import SettingsError
from shoal.simulate.scenario import Churn, Lifetimes, arrival_rate, draw
from tests.simulate.made_up import pod, workload

EXP = Churn(Lifetimes.EXP, 0.5)
TRACE = Churn(Lifetimes.TRACE, 0.5)


def test_the_rate_makes_the_offered_demand_the_load():
    work = workload(pod("a", 0.5), pod("b", 2), pod("c", 0))
    assert arrival_rate(work, [1.0, 1.0, 1.0], 100, 0.9) == pytest.approx(0.9 * 100 / (2.5 / 3))
    # Weighted by lifetime: (0.5·4 + 2·1 + 0·1) / 6 GPUs.
    assert arrival_rate(work, [4.0, 1.0, 1.0], 100, 0.9) == pytest.approx(0.9 * 100 / (4 / 6))


def test_exponential_lifetimes_start_empty_and_run_for_six():
    work = workload(pod("a", 1), pod("b", 1))
    scenario = draw(work, 2000, EXP, Random(1))
    assert scenario.start == ()
    times = [arrival.time for arrival in scenario.later]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 6
    assert len(times) == pytest.approx(6000, rel=0.05)
    assert fmean(arrival.lifetime for arrival in scenario.later) == pytest.approx(1, rel=0.05)
    assert sum(arrival.pod.name == "a" for arrival in scenario.later) == pytest.approx(3000, rel=0.07)
    assert [arrival.number for arrival in scenario.later] == list(range(len(times)))


def test_lifetimes_of_the_trace_are_in_units_of_their_mean_and_last_a_minute_at_least():
    work = workload(pod("a", 1, lifetime=0), pod("b", 1, lifetime=60), pod("c", 1, lifetime=480))
    scenario = draw(work, 1000, TRACE, Random(1))
    assert {(item.pod.name, item.lifetime) for item in scenario.later} == {("a", 0.3), ("b", 0.3), ("c", 2.4)}
    assert scenario.later[-1].time < 3


def test_the_start_is_drawn_in_proportion_to_lifetime_with_a_uniform_rest_of_life():
    work = workload(pod("short", 1, lifetime=100), pod("long", 1, lifetime=300))
    scenario = draw(work, 8000, TRACE, Random(1))
    assert len(scenario.start) == 4000
    assert {arrival.time for arrival in scenario.start} == {0.0}
    rests = {name: [a.lifetime for a in scenario.start if a.pod.name == name] for name in ("short", "long")}
    assert len(rests["long"]) == pytest.approx(3000, rel=0.05)
    assert 0 <= min(rests["long"]) < max(rests["long"]) <= 1.5
    assert fmean(rests["long"]) == pytest.approx(0.75, rel=0.05)
    assert fmean(rests["short"]) == pytest.approx(0.25, rel=0.07)
    assert scenario.later[0].number == 4000


def test_a_trace_without_times_cannot_give_lifetimes():
    work = workload(pod("a", 1, lifetime=5), pod("b", 1))
    with pytest.raises(SettingsError, match=r"made-up: pod b has no creation_time and deletion_time.*--lifetimes exp"):
        draw(work, 10, TRACE, Random(1))


def test_the_scenario_depends_on_the_seed_alone():
    work = workload(pod("a", 1, lifetime=100), pod("b", 0.5, lifetime=300))
    assert draw(work, 50, TRACE, Random(3)) == draw(work, 50, TRACE, Random(3))
    assert draw(work, 50, TRACE, Random(3)) != draw(work, 50, TRACE, Random(4))
