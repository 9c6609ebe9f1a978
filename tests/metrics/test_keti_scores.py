"""KETI's scores with its faults corrected: hot, busy and crowded cards are worth less, and nothing divides by zero."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.metrics.api import metric_pb2 as metric
from shoal.metrics.keti_messages import multi_metric
from shoal.metrics.keti_scores import scores
from tests.metrics.measured import MeasuredNode

IDLE = {"pod_count": 0, "utilization": 0, "temperature": 40, "power_used": 60_000, "flops": 19_000, "bandwidth": 1.5}


def card_scores(**cards: dict[str, Any]) -> dict[str, float]:
    node = metric.MultiMetric(
        node_name="n", gpu_metrics={name: metric.GPUMetric(**card) for name, card in cards.items()}
    )
    return {name: made.gpu_score for name, made in scores({"n": node}).scores["n"].gpu_scores.items()}


def test_hot_busy_crowded_and_hungry_cards_score_low() -> None:
    made = card_scores(
        idle=IDLE,
        hot={**IDLE, "temperature": 85},
        used={**IDLE, "pod_count": 1, "utilization": 10},
        busy={**IDLE, "pod_count": 1, "utilization": 95},
        crowded={**IDLE, "pod_count": 8, "utilization": 10},
        hungry={**IDLE, "power_used": 300_000},
        slow={**IDLE, "flops": 8_000, "bandwidth": 0.3},
    )
    assert max(made, key=made.__getitem__) == "idle"
    assert made["busy"] < made["used"]
    assert made["crowded"] < made["used"]
    assert made["slow"] < made["idle"]
    assert all(0 <= value <= 100 for value in made.values())


def test_no_power_divides_nothing() -> None:
    made = card_scores(off={**IDLE, "power_used": 0}, on=IDLE)
    assert all(math.isfinite(value) for value in made.values())


def test_what_is_not_told_is_neither_best_nor_worst() -> None:
    silent = {key: value for key, value in IDLE.items() if key not in ("temperature", "power_used")}
    made = card_scores(
        silent=silent, cool={**IDLE, "temperature": 20, "power_used": 1}, hot={**IDLE, "temperature": 95}
    )
    assert made["hot"] < made["silent"] < made["cool"]


def test_a_node_is_worth_what_is_free_of_it() -> None:
    used = metric.NodeMetric(
        milli_cpu_total=16_000,
        milli_cpu_usage=4_000,
        memory_total=100,
        memory_usage=50,
        storage_total=1000,
        storage_usage=0,
    )
    nodes = {"n": metric.MultiMetric(node_name="n", node_metric=used), "silent": metric.MultiMetric(node_name="silent")}
    made = scores(nodes).scores
    assert made["n"].node_score == 75
    assert made["silent"].node_score == 50


def test_a_busy_simulated_card_loses_to_an_idle_one() -> None:
    node = MeasuredNode()
    for pod in range(4):
        node.run(0, f"pod-{pod}", mib=1000, percent=25)
    node.snapshot()
    snapshot = node.snapshot(600)
    made = scores({"node-1": multi_metric(snapshot)}).scores["node-1"]
    busy, idle = (made.gpu_scores[card.card.uuid] for card in snapshot.cards)
    assert busy.gpu_score < idle.gpu_score
    assert (busy.pod_count, idle.pod_count) == (4, 0)
    assert made.node_score == pytest.approx(100 * (3 / 4 + 3 / 4 + 1 / 2) / 3)


NUMBER = st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("pod_count", "utilization", "temperature", "power_used", "flops"), NUMBER),
                "bandwidth": st.floats(width=32),
            },
        ),
        max_size=5,
    ),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("memory_total", "memory_usage", "storage_total"), NUMBER)),
)
def test_whatever_a_collector_says_scores_are_numbers_from_0_to_100(
    cards: list[dict[str, Any]], load: dict[str, int]
) -> None:
    node = metric.MultiMetric(
        node_name="n",
        node_metric=metric.NodeMetric(**load),
        gpu_metrics={str(number): metric.GPUMetric(**card) for number, card in enumerate(cards)},
    )
    made = scores({"n": node}).scores["n"]
    assert 0 <= made.node_score <= 100
    assert all(0 <= card.gpu_score <= 100 for card in made.gpu_scores.values())
