"""Whatever stands in slices, classes and claims: nothing breaks, and no card is given twice."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.model.errors import RequestError
from tests.scheduler.claims.test_allocator import cards
from tests.scheduler.claims.world import World, asks, slice_of

ODD: list[Any] = ["", "x", "-5Gi", "1e99", "0", 0, -1, 2**70, 1.5, "9" * 60, None, True, [], {}, ["a"], {"a": 1}, "é\n"]


def mutated(rng: Random, value: Any) -> Any:
    """The same with one thing in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: mutated(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], mutated(rng, value[place]), *value[place + 1 :]]
    return rng.choice(ODD)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_in_slices_and_claims_breaks_the_scheduler(seed: int) -> None:
    rng = Random(seed)
    world = World()
    own = cards("n1", [24, 24])
    world.add_node("n1", own)
    for _ in range(6):
        # What is no object of its kind never comes this far: the API server refuses it.
        with contextlib.suppress(msgspec.ValidationError, RequestError):
            made = slice_of("n1", own)
            world.publish({**made, "spec": mutated(rng, made["spec"])})
        with contextlib.suppress(msgspec.ValidationError, RequestError):
            world.ask(mutated(rng, asks(memory="3Gi", compute=10, count=1)))
        with contextlib.suppress(msgspec.ValidationError, RequestError):
            plan = world.ask(asks(memory="3Gi"))
            if plan is not None:
                status = world.claims_status(plan)
                world.show(plan.decisions[0].claim, mutated(rng, status))
    world.publish(slice_of("n1", own))
    with contextlib.suppress(RequestError):
        world.ask(asks(memory="1Gi"))


@pytest.mark.parametrize("count", [1, 4])
def test_a_slice_of_another_nodes_pool_counts_for_nothing(count: int) -> None:
    world = World()
    world.add_node("n1", cards("n1", [24]))
    foreign = slice_of("n2", cards("n1", [24] * count))
    foreign["spec"]["pool"]["name"] = "n1"
    world.publish(foreign)
    assert set(world.claims.allocator.devices.nodes) == {"n1"}
    assert len(world.claims.allocator.devices.nodes["n1"]) == 1


def test_a_pool_that_is_not_whole_is_not_used() -> None:
    world = World()
    world.add_node("n1", cards("n1", [24]))
    part = slice_of("n1", cards("n1", [24]))
    part["spec"]["pool"] |= {"generation": 2, "resourceSliceCount": 2}
    world.publish(part)
    assert world.ask(asks(memory="1Gi")) is None
    part["spec"]["pool"]["resourceSliceCount"] = 1
    world.publish(part)
    assert world.ask(asks(memory="1Gi")) is not None
