"""The score of an offer: from 0 to 1, more for a tight fit than for a wasteful one, and comparable between clusters."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.gpu import Gpu
from shoal.placement.policies import POLICIES
from shoal.placement.worth.demand import DemandCounter
from tests.scheduler.extender.requests import pod
from tests.scheduler.offer.scene import OfferScene
from tests.soak import times

GIB = 1024


def cluster(
    nodes: Sequence[Sequence[int]], *, card: int = 16, policy: str = "fragmentation", demand: int = 0
) -> OfferScene:
    """Nodes with cards on which so many GiB are used; `demand`: pods of this size are usual here."""
    scene = OfferScene(policy=policy)
    for number, used in enumerate(nodes):
        name = f"n{number}"
        scene.add_node(name, [Gpu(f"GPU-{name}-{i}", i, card * GIB, "T") for i in range(len(used))])
        for index, gib in enumerate(used):
            if gib:
                scene.bind(pod(f"{name}-{index}", mem=str(gib)), name, index, gib)
    engine = scene.state.engine
    engine.demand = DemandCounter()  # what was put there is no demand: clusters of any size know the same one
    for number in range(40 if demand else 0):
        scene.state.wait(scene.add_pod(pod(f"usual-{number}", mem=str(demand))))
    engine.refresh()
    return scene


@pytest.mark.parametrize("policy", ["fragmentation", "binpack", "spread"])
@pytest.mark.parametrize(
    ("better", "worse", "asked"),
    [
        ([[12, 0]], [[0, 0]], {"mem": "4"}),
        ([[12]], [[8]], {"mem": "4"}),
        ([[8]], [[4]], {"mem": "4"}),
        ([[4]], [[0]], {"mem": "4"}),
        ([[0]], [[0]], {"mem": "4"}),
        ([[0, 16]], [[0, 0]], {"mem": "8"}),
    ],
)
def test_a_tight_fit_scores_above_a_wasteful_one(
    policy: str, better: list[list[int]], worse: list[list[int]], asked: dict[str, Any]
) -> None:
    tight = cluster(better, policy=policy).ask(pod(**asked)).score
    wasteful = cluster(worse, policy=policy).ask(pod(**asked)).score
    assert 0 < wasteful <= tight <= 1
    if min(16 - used for used in better[0] if 16 - used >= int(asked["mem"])) < 16 - min(worse[0]):
        assert wasteful < tight


def test_a_pod_that_fills_its_card_could_go_nowhere_better() -> None:
    assert cluster([[12]]).ask(pod(mem="4")).score == 1.0
    assert cluster([[0]]).ask(pod(mem="16")).score == 1.0
    assert cluster([[0, 0]]).ask(pod(gpu="1")).score == 1.0


def test_smaller_cards_are_a_tighter_fit() -> None:
    small, large = cluster([[0]], card=16), cluster([[0]], card=80)
    assert small.ask(pod(mem="12")).score > large.ask(pod(mem="12")).score


def test_a_piece_that_the_usual_pods_need_is_dearer_than_one_that_nobody_does() -> None:
    """Pods of 8 GiB are usual in both clusters. In one a pod of 6 spoils a place for one of them, in the other none."""
    spoils, spares = cluster([[8, 16]], demand=8), cluster([[10, 16]], demand=8)
    assert spares.ask(pod(mem="6")).score > spoils.ask(pod(mem="6")).score


def test_prices_of_one_cluster_do_not_make_it_dearer_than_another() -> None:
    """The same place, priced by another demand: what fits without waste is as good here as there."""
    for demand in (0, 2, 4, 8, 16):
        assert cluster([[12, 16]], demand=demand).ask(pod(mem="4")).score == pytest.approx(1.0)


used = st.lists(st.lists(st.sampled_from([0, 2, 4, 8, 10, 12, 16]), min_size=1, max_size=4), min_size=1, max_size=4)
asked = st.sampled_from(
    [{"mem": "1"}, {"mem": "4"}, {"mem": "6"}, {"mem": "16"}, {"gpu": "1"}, {"gpu": "2"}, {"mps": "1"}]
)


@settings(max_examples=times(100), deadline=None)
@given(
    nodes=used,
    wanted=asked,
    policy=st.sampled_from(sorted(POLICIES)),
    demand=st.sampled_from([0, 2, 6, 8, 16]),
)
def test_the_score_is_from_0_to_1_and_more_nodes_never_make_it_worse(
    nodes: list[list[int]], wanted: dict[str, Any], policy: str, demand: int
) -> None:
    small = cluster(nodes, policy=policy, demand=demand)
    offer = small.ask(pod(**wanted), count=3)
    assert 0.0 <= offer.score <= 1.0
    assert (offer.score > 0) == (offer.fits > 0)
    same = cluster([*nodes, *nodes], policy=policy, demand=demand)
    assert same.ask(pod(**wanted)).score >= offer.score - 1e-9, "twice as many equal nodes"
    larger = cluster([*nodes, *([0] * len(one) for one in nodes)], policy=policy, demand=demand)
    assert larger.ask(pod(**wanted)).score >= offer.score - 1e-9, "as many more, and empty"
