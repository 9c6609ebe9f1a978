import pytest

from shoal.simulate.cluster import Idle
from shoal.simulate.report.curves import Curve, curve, mean_idle, pictures
from shoal.simulate.runs import compare_static
from tests.simulate.report.results import ignore


def test_a_curve_is_the_mean_and_the_extremes_over_the_seeds():
    runs = [[(1.0, 10.0), (2.0, 20.0)], [(2.0, 30.0), (3.0, 40.0)]]
    assert curve(runs) == Curve((1, 2, 3), (5, 25, 30), (0, 20, 20), (10, 30, 40))


def test_idle_gpus_are_averaged():
    assert mean_idle([Idle(1, 2, 3), Idle(3, 4, 6)]) == Idle(2, 3, 4.5)
    assert mean_idle([]) == Idle(0, 0, 0)


def test_the_picture_shows_what_was_idle_when_all_had_arrived(comparison):
    results = compare_static(comparison, 1, ignore)
    (picture,) = pictures(results)
    assert picture.churn is None
    assert picture.seeds == 2
    assert list(picture.curves) == list(picture.idle) == ["fragmentation", "binpack"]
    own = [run.alloc_130 for run in results if run.policy == "binpack"]
    assert picture.allocated["binpack"] == pytest.approx(sum(own) / 2)
    last = [[fill for fill in run.fills if fill.arrived <= 100][-1] for run in results if run.policy == "binpack"]
    idle = picture.idle["binpack"]
    assert idle.shares + idle.no_cpu + idle.usable == pytest.approx(
        100 - sum(fill.last_allocated for fill in last) / len(last)
    )
