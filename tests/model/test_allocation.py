"""What a pod holds of its cards: the peak over its phases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.request import ContainerKind, Share, phases

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def held(*containers: tuple[ContainerKind, dict[str, int]]) -> dict[str, int]:
    allocation = Allocation(
        "n1",
        tuple(
            ContainerAllocation(f"c{i}", tuple(CardShare(uuid, 0, Share(mib)) for uuid, mib in cards.items()), kind)
            for i, (kind, cards) in enumerate(containers)
        ),
    )
    return {uuid: share.memory_mib for uuid, share in allocation.held().items()}


@pytest.mark.parametrize(
    ("containers", "peak"),
    [
        ([], {}),
        ([(APP, {"a": 3})], {"a": 3}),
        ([(APP, {"a": 3}), (APP, {"a": 4, "b": 1})], {"a": 7, "b": 1}),
        ([(INIT, {"a": 9}), (APP, {"a": 3})], {"a": 9}),
        ([(INIT, {"a": 2}), (INIT, {"a": 4}), (APP, {"a": 3})], {"a": 4}),
        ([(INIT, {"b": 5}), (APP, {"a": 3})], {"a": 3, "b": 5}),
        ([(SIDECAR, {"a": 2}), (INIT, {"a": 4}), (APP, {"a": 3})], {"a": 6}),
        ([(INIT, {"a": 4}), (SIDECAR, {"a": 2}), (APP, {"a": 3})], {"a": 5}),
        # i1 (2), sidecar (2), i2 (4), app (3): the peak is i2 beside the sidecar.
        ([(INIT, {"a": 2}), (SIDECAR, {"a": 2}), (INIT, {"a": 4}), (APP, {"a": 3})], {"a": 6}),
    ],
)
def test_held(containers: list[tuple[ContainerKind, dict[str, int]]], peak: dict[str, int]) -> None:
    assert held(*containers) == peak


def test_shares_add_and_join() -> None:
    one, other = Share(100, 10, 1), Share(50, 20, 1, exclusive=True)
    assert one + other == Share(150, 30, 2, True)
    assert one | other == Share(100, 20, 1, True)


@given(st.lists(st.tuples(st.sampled_from(ContainerKind), st.integers(0, 100)), max_size=6))
def test_peak_by_walking_through_the_pods_life(containers: list[tuple[ContainerKind, int]]) -> None:
    # Kubernetes' own formula, written out: the largest of every init moment and the running state.
    sidecars, peak = 0, 0
    for kind, amount in containers:
        if kind is SIDECAR:
            sidecars += amount
        elif kind is INIT:
            peak = max(peak, sidecars + amount)
    peak = max(peak, sidecars + sum(amount for kind, amount in containers if kind is APP))
    assert max(sum(phase) for phase in phases(tuple(containers))) == peak
