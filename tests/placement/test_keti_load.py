"""KETI's scores of measured load: its terms, in the right direction, on one scale."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.placement.keti_load import card_score, node_score, watts_together

number = st.none() | st.floats(-1e6, 1e6)


def score(
    *, pods: int = 1, utilisation: float = 50, celsius: float = 50, watts: float = 100, of_all: float = 400
) -> float:
    return card_score(pods=pods, utilisation=utilisation, celsius=celsius, watts=watts, watts_of_all=of_all)


def test_hot_crowded_busy_and_hungry_cards_are_worth_less() -> None:
    assert score(celsius=80) < score(celsius=40)
    assert score(pods=3) < score(pods=1) < score(pods=0)
    assert score(utilisation=90) < score(utilisation=10)
    assert score(watts=300) < score(watts=100)


def test_no_power_divides_nothing_and_is_the_best() -> None:
    assert score(watts=0) > score(watts=1, of_all=50)
    assert score(watts=0, of_all=0) == score(watts=0, of_all=1000)


def test_the_scale_of_both() -> None:
    assert score(pods=0, celsius=0, watts=0) == pytest.approx(100)
    assert card_score(pods=9, utilisation=100, celsius=100, watts=1, watts_of_all=0) == 0
    assert node_score(0, 0, 0) == 100
    assert node_score(1, 1, 1) == 0
    assert node_score(0.5, 0.25, None) == pytest.approx(62.5)
    assert node_score(None, None, None) is None


@given(pods=st.integers(0, 1000), utilisation=number, celsius=number, watts=number, of_all=number)
def test_whatever_is_measured_stays_on_the_scale(
    pods: int, utilisation: float | None, celsius: float | None, watts: float | None, of_all: float | None
) -> None:
    found = card_score(
        pods=pods, utilisation=utilisation, celsius=celsius, watts=watts, watts_of_all=watts_together([of_all, watts])
    )
    assert math.isfinite(found)
    assert 0 <= found <= 100 + 1e-9
