"""The judge of the chaos sees what it is there to see."""

import json
from typing import Any

import pytest

from tests.scheduler.chaos.history import BookingHistory, Card

CARDS = {"GPU-0": Card("a", 16384, 2), "GPU-1": Card("b", 16384, 2)}


def pod(uid: str, *, node: str = "a", record: str = "a", phase: str = "Running", **card: Any) -> dict[str, Any]:
    held = {"uuid": "GPU-0", "index": 0, **card}
    allocation = {"node": record, "containers": [{"name": "main", "cards": [held]}]}
    return {
        "metadata": {
            "name": uid,
            "uid": uid,
            "resourceVersion": "7",
            "annotations": {"shoal.dev/allocation": json.dumps(allocation)},
        },
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (pod("q", memory=7000), "q came to card GPU-0 with 17000 of 16384 MiB held"),
        (pod("q", memory=1, clients=3), "q came to card GPU-0 with 3 of 2 clients"),
        (pod("q", exclusive=True), "q came to card GPU-0, which somebody has whole, with 2 pods"),
        (pod("q", record="b"), "q is on a, its record names b"),
        (pod("q", uuid="GPU-1"), "q came to card GPU-1, which a does not have"),
    ],
)
def test_what_is_wrong_is_told(second: dict[str, Any], said: str) -> None:
    state = BookingHistory(CARDS)
    state.see("ADDED", pod("p", memory=10000))
    assert state.wrong == []
    state.see("ADDED", second)
    assert state.wrong == [f"7: {said}"]


@pytest.mark.parametrize(("kind", "phase"), [("DELETED", "Running"), ("MODIFIED", "Succeeded"), ("MODIFIED", "Failed")])
def test_who_has_left_holds_nothing(kind: str, phase: str) -> None:
    state = BookingHistory(CARDS)
    state.see("ADDED", pod("p", exclusive=True))
    state.see(kind, pod("p", exclusive=True, phase=phase))
    state.see("ADDED", pod("q", memory=16384))
    assert state.wrong == []
    assert state.bound == {"p", "q"}


def test_who_is_going_still_holds() -> None:
    state = BookingHistory(CARDS)
    going = pod("p", memory=10000)
    state.see("ADDED", going)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    state.see("MODIFIED", going)
    state.see("ADDED", pod("q", memory=10000))
    assert len(state.wrong) == 1
