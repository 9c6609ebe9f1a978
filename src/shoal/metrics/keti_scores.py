"""KETI's scores of nodes and cards from what their collectors tell. Pure.

The load counts as in the scheduler's policy (`shoal.placement.keti_load`): hot and crowded cards are worth less, and
all is on one scale, 0 to 100. KETI's two terms for speed, flops and bandwidth, are measured against the fastest card
that is known; a card's score is the mean of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

from shoal.metrics.api import metric_pb2 as metric
from shoal.metrics.api import score_pb2 as score
from shoal.placement import keti_load

#: What a node of which nothing was measured is worth, and the speed of a card that does not tell it.
_MIDDLE: Final = 50.0
_MOST_PODS: Final = 2**31 - 1

_Use = Literal["milli_cpu_usage", "memory_usage", "storage_usage"]


def scores(nodes: Mapping[str, metric.MultiMetric]) -> score.AnalysisScore:
    """The scores of all nodes, by name."""
    cards = [card for node in nodes.values() for card in node.gpu_metrics.values()]
    flops = max((_positive(card, "flops") or 0.0 for card in cards), default=0.0)
    bandwidth = max((_positive(card, "bandwidth") or 0.0 for card in cards), default=0.0)
    return score.AnalysisScore(
        scores={
            name: score.NodeScore(
                node_score=_node(node.node_metric),
                gpu_scores=_cards(node.gpu_metrics, fastest=flops, widest=bandwidth),
            )
            for name, node in nodes.items()
        }
    )


def _node(node: metric.NodeMetric) -> float:
    found = keti_load.node_score(
        _part(node, "milli_cpu_usage", "milli_cpu_total"),
        _part(node, "memory_usage", "memory_total"),
        _part(node, "storage_usage", "storage_total"),
    )
    return _MIDDLE if found is None else found


def _part(node: metric.NodeMetric, used: _Use, total: str) -> float | None:
    """How much of something is used; None where that was not told."""
    whole = _positive(node, total)
    return None if whole is None or not node.HasField(used) else getattr(node, used) / whole


def _cards(cards: Mapping[str, metric.GPUMetric], *, fastest: float, widest: float) -> dict[str, score.GPUScore]:
    watts = {uuid: _watts(card) for uuid, card in cards.items()}
    together = keti_load.watts_together(list(watts.values()))
    made = {}
    for uuid, card in cards.items():
        pods = min(max(card.pod_count, 0), _MOST_PODS)
        load = keti_load.card_score(
            pods=pods,
            utilisation=card.utilization if card.HasField("utilization") else None,
            celsius=card.temperature if card.HasField("temperature") else None,
            watts=watts[uuid],
            watts_of_all=together,
        )
        speed = _speed((_positive(card, "flops"), fastest), (_positive(card, "bandwidth"), widest))
        made[uuid] = score.GPUScore(gpu_score=(load + speed) / 2, pod_count=pods)
    return made


def _watts(card: metric.GPUMetric) -> float | None:
    return card.power_used / 1000 if card.HasField("power_used") else None


def _speed(*terms: tuple[float | None, float]) -> float:
    known = [100.0 * value / best for value, best in terms if value is not None and best > 0]
    return sum(known) / len(known) if known else _MIDDLE


def _positive(message: metric.GPUMetric | metric.NodeMetric, name: str) -> float | None:
    value = float(getattr(message, name))
    return value if math.isfinite(value) and value > 0 else None
