"""Partitions of MIG as devices of claims: whole, never twice, within the counters of their card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kube.objects.claims import ResourceClaim
from shoal.model.allocation import CardShare
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from shoal.model.request import Share
from shoal.scheduler.claims.allocator import ClaimsPlan
from shoal.scheduler.feasibility.feasibility import Verdict
from tests.scheduler.claims.world import World, asks, cards_of, counters_of, slice_of

GIB = 1024
DOMAIN = f'device.attributes["{dra.DRIVER}"]'
MIG = f'{DOMAIN}.type == "mig"'


def cut(index: int, *sizes: int, gib: int = 40, **more: Any) -> Gpu:
    """A card of 40 GiB that is cut into partitions of these sizes."""
    parts = tuple(
        MigInstance(f"MIG-{index}-{number}", f"{size // 5}g.{size}gb", size * GIB) for number, size in enumerate(sizes)
    )
    return Gpu(f"GPU-{index}", index, gib * GIB, "A100", mig=True, mig_instances=parts, **more)


def world(*gpus: Gpu, **published: Any) -> World:
    made = World()
    made.add_node("n1", gpus, **published)
    return made


def a_partition(**exactly: Any) -> dict[str, Any]:
    return asks(select=[MIG, *exactly.pop("select", [])], **exactly)


def test_a_partition_is_allocated_whole() -> None:
    made = world(cut(0, 5, 5))
    plan = made.ask(a_partition())
    assert plan is not None
    (result,) = made.claims_status(plan)["allocation"]["devices"]["results"]
    assert (result["device"], result["pool"]) == ("mig-0-0", "n1")
    assert "shareID" not in result or result["shareID"] is None
    assert not result.get("consumedCapacity")


def test_no_partition_is_given_twice_and_each_comes_free_with_its_claim() -> None:
    made = world(cut(0, 5, 5))
    first, second = made.claim(a_partition()), made.claim(a_partition())
    plans = [made.place(made.pod(one)) for one in (first, second)]
    assert sorted(cards_of(plan)[0][0] for plan in plans) == ["MIG-0-0", "MIG-0-1"]
    assert made.ask(a_partition()) is None
    made.gone(first)
    assert cards_of(made.ask(a_partition())) == cards_of(plans[0])


def test_what_others_allocated_is_taken() -> None:
    """Whoever did, with a share ID or without, and before the node's inventory is known."""
    for share_id in (None, "s"):
        made = World()
        claim = made.claim(a_partition())
        result = {"request": "gpu", "driver": dra.DRIVER, "pool": "n1", "device": "mig-0-0", "shareID": share_id}
        made.show(claim, {"allocation": {"devices": {"results": [result]}}})
        made.add_node("n1", [cut(0, 5, 5)])
        assert cards_of(made.ask(a_partition())) == [["MIG-0-1"]]
        assert made.ask(a_partition()) is None


def test_a_partition_stays_taken_until_its_node_has_it_back() -> None:
    """A pod that was deleted by force leaves no claim behind, and a container that runs."""
    made = world(cut(0, 5))
    claim = made.claim(a_partition())
    made.place(made.pod(claim))
    held = {claim.metadata.uid: (CardShare("MIG-0-0", 0, Share(exclusive=True)),)}
    made.state.claims.on_held("n1", held)
    made.gone(claim)
    assert made.ask(a_partition()) is None
    made.state.claims.on_held("n1", {})
    assert made.ask(a_partition()) is not None


def test_selectors_see_type_profile_and_parent() -> None:
    made = world(cut(0, 5, 20), cut(1, 10), Gpu("GPU-2", 2, 24 * GIB, "T"))
    for expression, expected in (
        (f'{DOMAIN}.profile == "4g.20gb"', "MIG-0-1"),
        (f'{DOMAIN}.parentUUID == "GPU-1"', "MIG-1-0"),
        (f'{DOMAIN}.type == "gpu"', "GPU-2"),
    ):
        select = f"has({DOMAIN}.parentUUID) && {expression}" if "type" not in expression else expression
        assert cards_of(made.ask(asks(select=[select]))) == [[expected]]


def test_a_request_for_memory_gets_the_smallest_partition_that_has_it() -> None:
    made = world(cut(0, 20, 10, 5))
    assert cards_of(made.ask(a_partition(memory="6Gi"))) == [["MIG-0-1"]]
    assert cards_of(made.ask(a_partition(memory="6Gi"))) == [["MIG-0-0"]]
    assert made.ask(a_partition(memory="6Gi")) is None


def test_a_request_that_accepts_both_gets_a_card_while_one_has_room() -> None:
    made = world(cut(0, 5, 5), Gpu("GPU-1", 1, 6 * GIB, "T"))
    assert [cards_of(made.ask(asks(memory="4Gi")))[0][0] for _ in range(3)] == ["GPU-1", "MIG-0-0", "MIG-0-1"]
    assert made.ask(asks(memory="4Gi")) is None
    assert made.used()["GPU-1"] == (4 * GIB, 0, False)


def test_partitions_of_one_card_or_of_several() -> None:
    made = world(cut(0, 5), cut(1, 5, 5), cut(2, 5))
    parent = f"{dra.DRIVER}/{dra.ATTRIBUTE_PARENT}"
    together = made.ask(a_partition(count=2), constraints=[{"matchAttribute": parent}])
    assert cards_of(together) == [["MIG-1-0", "MIG-1-1"]]
    assert made.ask(a_partition(count=2), constraints=[{"matchAttribute": parent}]) is None
    apart = made.ask(a_partition(count=2), constraints=[{"distinctAttribute": parent}])
    assert cards_of(apart) == [["MIG-0-0", "MIG-2-0"]]


def test_counters_bound_what_is_allocated_of_a_card() -> None:
    """Three partitions of 20 GiB on a card of 40: the third is published, and cannot be had."""
    made = world(cut(0, 20, 20, 20, gib=40))
    first = made.claim(a_partition())
    made.place(made.pod(first))
    assert made.ask(a_partition(count=2)) is None
    assert made.ask(a_partition()) is not None
    assert made.ask(a_partition()) is None
    made.gone(first)
    assert made.ask(a_partition()) is not None


def test_a_pool_whose_counters_make_no_sense_is_not_used() -> None:
    for broken in ({}, {"name": "other"}, {"counters": {"memory": {"value": "many"}}}):
        made = world(cut(0, 5, 5))
        counters = counters_of("n1", [cut(0, 5, 5)])
        counters["spec"]["sharedCounters"] = [{**counters["spec"]["sharedCounters"][0], **broken}] if broken else []
        made.publish(counters)
        assert made.ask(a_partition()) is None


def test_partitions_that_the_inventory_does_not_have_are_not_given() -> None:
    made = world(cut(0, 5))
    made.publish(slice_of("n1", [cut(0, 5, 5)]))
    assert made.ask(a_partition()) is not None
    assert made.ask(a_partition()) is None


def test_what_is_published_as_something_else_than_it_is_is_not_given() -> None:
    card = Gpu("GPU-1", 1, 24 * GIB, "T")
    made = world(cut(0, 5), card)
    published = slice_of("n1", [cut(0, 5), card])
    whole, part = published["spec"]["devices"]
    for device, uuid in ((whole, "MIG-0-0"), (part, "GPU-1")):
        device["name"] = dra.device_name(uuid, mig=device is part)
        device["attributes"][dra.ATTRIBUTE_UUID] = {"string": uuid}
    made.publish(published)
    assert made.ask(a_partition()) is None
    assert made.ask(asks()) is None
    assert made.used() == {}


def test_partitions_of_a_sick_card_are_not_given() -> None:
    made = world(replace(cut(0, 5), healthy=False), cut(1, 5))
    assert cards_of(made.ask(a_partition())) == [["MIG-1-0"]]
    assert made.ask(a_partition()) is None


def test_cards_and_partitions_in_one_claim() -> None:
    made = world(cut(0, 5), Gpu("GPU-1", 1, 24 * GIB, "T"))
    plan = made.ask(asks("share", memory="3Gi", select=[f'{DOMAIN}.type == "gpu"']), {**a_partition(), "name": "part"})
    assert cards_of(plan) == [["GPU-1", "MIG-0-0"]]
    assert made.used() == {"GPU-1": (3 * GIB, 0, False), "MIG-0-0": (0, 0, True)}


def test_the_pod_is_told_that_partitions_are_short() -> None:
    made = world(cut(0, 5))
    made.ask(a_partition())
    pod = made.pod(made.claim(a_partition()))
    assert made.place(pod) is None
    rows = made.state.engine.ledger.columns.rows
    _, verdict = made.claims.refusal(pod, Verdict(np.ones(rows, np.bool_), None, ()))
    assert not verdict.allowed.any()
    assert "no MIG partitions free" in verdict.rejections[-1].reason


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_comes_and_goes_nothing_is_sold_twice(data: st.DataObject) -> None:
    sizes = st.lists(st.sampled_from([5, 10, 20]), min_size=1, max_size=5)
    gpus = [cut(index, *data.draw(sizes)) for index in range(data.draw(st.integers(1, 3)))]
    made = world(*gpus, Gpu("GPU-9", 9, 24 * GIB, "T"))
    there: list[tuple[ResourceClaim, ClaimsPlan]] = []
    for _ in range(data.draw(st.integers(1, 15))):
        leaves: bool = data.draw(st.booleans())
        if there and leaves:
            made.gone(there.pop(data.draw(st.integers(0, len(there) - 1)))[0])
        else:
            claim = made.claim(asks(memory=f"{data.draw(st.integers(1, 21))}Gi", count=data.draw(st.integers(1, 3))))
            plan = made.place(made.pod(claim))
            if plan is not None:
                there.append((claim, plan))
        _check(gpus, [uuid for _, plan in there for uuid in cards_of(plan)[0]])


def _check(gpus: list[Gpu], given_away: list[str]) -> None:
    for gpu in gpus:
        sizes = {part.uuid: part.memory_mib for part in gpu.mig_instances}
        own = [uuid for uuid in given_away if uuid in sizes]
        assert len(own) == len(set(own))
        assert sum(sizes[uuid] for uuid in own) <= gpu.memory_mib
