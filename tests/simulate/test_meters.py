import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.simulate.meters import TimeMeans, mean, quantile


def test_means_are_weighted_by_time_and_split_at_the_edges():
    means = TimeMeans(10, 5)
    means.hold(1, 0, 3)
    means.hold(4, 3, 3.5)
    means.hold(2, 3.5, 10)
    assert means.means() == pytest.approx([1, (1 + 2 + 1) / 2, 2, 2, 2])
    assert means.mean_from(0) == pytest.approx((3 + 2 + 13) / 10)
    assert means.mean_from(2) == pytest.approx(2)


@given(st.lists(st.tuples(st.floats(0.001, 3), st.floats(0, 100)), min_size=1, max_size=30), st.integers(1, 40))
def test_the_means_of_the_spans_add_up_to_the_whole(steps, spans):
    horizon = sum(length for length, _ in steps)
    means = TimeMeans(horizon, spans)
    now = 0.0
    for length, value in steps:
        means.hold(value, now, now + length)
        now += length
    whole = sum(length * value for length, value in steps) / horizon
    assert means.mean_from(0) == pytest.approx(whole, abs=1e-6)
    assert mean(means.means()) == pytest.approx(whole, abs=1e-6)


def test_a_quantile_is_a_value_that_so_many_do_not_exceed():
    values = [float(i) for i in range(20, 0, -1)]
    assert quantile(values, 0.95) == 19
    assert quantile(values, 1) == 20
    assert quantile(values, 0.5) == 10
    assert quantile([7.0], 0.95) == 7
    assert quantile([], 0.95) == 0
    assert mean([]) == 0
