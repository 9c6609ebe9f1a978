"""Episodes of over-use."""

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.metrics.overuse import MOST_FOLLOWED, QUIET_SECONDS, Overuse, OveruseWatch, words
from shoal.metrics.snapshot import ContainerName
from tests.soak import times

CONTAINER = ContainerName("ml", "trainer", "main", "u1")
CARD = "GPU-1"
GRACE = 60.0
STEP = 5.0


def watch() -> OveruseWatch:
    return OveruseWatch(grace=GRACE, longest_gap=2 * STEP)


def play(
    one: OveruseWatch, uses: Sequence[int | None], *, start: float = 0.0, requested: int | None = 100
) -> tuple[list[Overuse], float]:
    """Look once a step: the Events that were due, and the seconds at the end."""
    found, total = [], 0.0
    for number, used in enumerate(uses):
        total, due = one.look(start + STEP * number, CONTAINER, CARD, requested=requested, used=used)
        if due is not None:
            found.append(due)
    return found, total


def test_one_event_per_episode_after_the_grace_time() -> None:
    one = watch()
    assert play(one, [150] * 12) == ([], 55.0)
    found, total = play(one, [150] * 100, start=60.0)
    assert found == [Overuse(CONTAINER, CARD, 100, 150, 60.0)]
    assert total == 555.0


def test_a_short_peak_is_no_event_and_counts_its_seconds() -> None:
    found, total = play(watch(), [50, 150, 150, 150, 50, 50])
    assert (found, total) == ([], 10.0)


def test_a_use_around_the_share_is_one_episode() -> None:
    found, _ = play(watch(), [101, 99] * 500)
    assert len(found) <= 1
    found, _ = play(watch(), [101, 101, 101, 99] * 500)
    assert len(found) == 1


def test_a_new_episode_is_told_again_after_a_while() -> None:
    one = watch()
    first, _ = play(one, [150] * 20 + [10] * 20)
    again, _ = play(one, [150] * 20, start=200.0)
    assert (len(first), again) == (1, [])  # too soon after the last
    later, _ = play(one, [10] * 20 + [150] * 20, start=QUIET_SECONDS + 400)
    assert len(later) == 1


def test_what_is_not_known_changes_nothing() -> None:
    one = watch()
    found, total = play(one, [150] * 6 + [None] * 2 + [150] * 5)
    assert (found, total) == ([], 25.0 + 10.0 + 20.0)
    assert play(one, [150] * 50, requested=None) == ([], total)


def test_a_card_nobody_gave_it() -> None:
    found, _ = play(watch(), [1] * 20, requested=0)
    assert "nothing was booked" in words(found[0], 3)
    assert "GPU3 (GPU-1)" in words(found[0], 3)


def test_both_amounts_are_told() -> None:
    due = Overuse(CONTAINER, CARD, 8 << 30, 12 << 30, 65.0)
    assert "main uses 12288 MiB of GPU0" in words(due, 0)
    assert "8192 MiB were booked for it, for 65 s" in words(due, 0)


def test_a_long_gap_counts_little() -> None:
    one = watch()
    one.look(0.0, CONTAINER, CARD, requested=100, used=150)
    total, due = one.look(500.0, CONTAINER, CARD, requested=100, used=150)
    assert (total, due) == (2 * STEP, None)


def test_what_is_followed_is_bounded() -> None:
    one = watch()
    for number in range(2 * MOST_FOLLOWED):
        one.look(0.0, ContainerName("ns", f"p{number}", "c", f"u{number}"), CARD, requested=0, used=1)
    assert len(one._followed) == MOST_FOLLOWED


@settings(max_examples=times(100))
@given(
    st.lists(st.tuples(st.floats(-50, 50), st.none() | st.integers(0, 200)), max_size=300),
    st.none() | st.just(0) | st.just(100),
)
def test_whatever_comes_there_is_no_spam(steps: list[tuple[float, int | None]], requested: int | None) -> None:
    """Clocks that go back too: seconds never shrink, no Event without over-use, none within the quiet time."""
    one = watch()
    now, total = 1000.0, 0.0
    events: list[float] = []
    for passed, used in steps:
        now += passed
        seconds, due = one.look(now, CONTAINER, CARD, requested=requested, used=used)
        assert total <= seconds <= total + 2 * STEP
        total = seconds
        if due is not None:
            assert used is not None
            assert requested is not None
            assert used > requested
            assert due.seconds >= GRACE
            events.append(now)
    assert all(b - a >= QUIET_SECONDS for a, b in itertools.pairwise(events))
