"""The pauses between tries."""

import random

import pytest

from shoal.model.backoff import Backoff

BACKOFF = Backoff(first=0.5, longest=3.0)


def test_pauses_double_up_to_the_longest() -> None:
    assert [BACKOFF.after(failures) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("failures", [64, 10_000])
def test_any_number_of_failures_has_a_pause(failures: int) -> None:
    assert BACKOFF.after(failures) == 3.0
    assert Backoff(1e-9, float("inf")).after(failures) == 1e-9 * 2.0 ** min(failures - 1, 64)


def test_one_pause_after_another() -> None:
    pauses = [0.0]
    for _ in range(4):
        pauses.append(BACKOFF.longer(pauses[-1]))
    assert pauses == [BACKOFF.after(failures) for failures in range(5)]


def test_a_random_part_of_the_pause() -> None:
    rng = random.Random(1)
    pauses = [BACKOFF.jittered(2, rng) for _ in range(100)]
    assert 0.5 <= min(pauses) < 0.6 < 0.9 < max(pauses) <= 1.0
    assert 1.25 <= max(BACKOFF.jittered(2, rng, least=0.5, most=1.5) for _ in range(100)) <= 1.5
    assert BACKOFF.jittered(0, rng) == 0.0
