"""Claims become shares of cards: which ones, which not, and why."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kube.objects.node import Node
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import CardShare, Held
from shoal.model.contract import dra, shoal
from shoal.model.errors import RequestError
from shoal.model.gpu import Gpu
from shoal.model.request import Share
from shoal.scheduler.state.claim_bookings import claim_key
from tests.scheduler.claims.world import World, asks, cards_of
from tests.testbed.fake_nodes import CARD_MIB, node

GIB = 1024
#: The pods of the reference, in GiB, on one node of four cards of 24 GiB.
SEQUENCE = (5, 6, 5, 1, 12, 8, 9, 3, 4, 10, 4, 5, 1, 11, 12, 9, 3, 2, 1, 8)


def cards(name: str, sizes: list[int], *, model: str = "T", numa: tuple[int, ...] = ()) -> list[Gpu]:
    places = numa or tuple(0 for _ in sizes)
    return [Gpu(f"GPU-{name}-{i}", i, gib * GIB, model, numa=places[i]) for i, gib in enumerate(sizes)]


def world(*sizes: int, policy: str = "fragmentation") -> World:
    made = World(policy)
    made.add_node("n1", cards("n1", list(sizes or (24, 24))))
    return made


def test_a_share_takes_memory_and_compute_of_one_card() -> None:
    made = world()
    ((card,),) = cards_of(made.ask(asks(memory="3000Mi", compute=20)))
    assert made.used() == {card: (3000, 20, False)}


def test_shares_are_packed_as_the_policy_packs_them() -> None:
    made = world()
    first, second = (cards_of(made.ask(asks(memory="3Gi"))) for _ in range(2))
    assert first == second


def test_best_fit_leaves_three_of_the_reference_pods_waiting_where_first_fit_leaves_five() -> None:
    made = world(24, 24, 24, 24, policy="binpack")
    waiting = [gib for gib in SEQUENCE if made.ask(asks(memory=f"{gib}Gi")) is None]
    assert len(waiting) == 3


def test_a_claim_that_says_nothing_of_memory_gets_a_whole_card() -> None:
    made = world()
    small = cards_of(made.ask(asks(memory="1Gi")))
    whole = cards_of(made.ask(asks()))
    assert whole != small
    assert made.used()[whole[0][0]] == (0, 0, True)
    assert made.ask(asks(compute=10)) is None  # also all memory, and no card is untouched


def test_count_gives_different_cards() -> None:
    made = world(24, 24, 24)
    (got,) = cards_of(made.ask(asks(memory="3Gi", count=3)))
    assert len(set(got)) == 3
    assert made.ask(asks(memory="3Gi", count=4)) is None


def test_requests_of_one_claim_may_share_a_card() -> None:
    made = world(24)
    (got,) = cards_of(made.ask(asks("a", memory="3Gi"), asks("b", memory="4Gi")))
    assert got == ["GPU-n1-0", "GPU-n1-0"]
    assert made.used() == {"GPU-n1-0": (7 * GIB, 0, False)}


def test_a_selector_pins_a_card() -> None:
    made = world(24, 24, 24)
    select = [f'device.attributes["{dra.DRIVER}"].index == 2']
    assert cards_of(made.ask(asks(memory="1Gi", select=select))) == [["GPU-n1-2"]]
    assert made.ask(asks(memory="24Gi", select=select)) is None
    assert made.ask(asks(memory="24Gi")) is not None


def test_wishes_of_one_pod_with_different_selectors() -> None:
    made = world(24, 24)
    first, second = ([f'device.attributes["{dra.DRIVER}"].index == {index}'] for index in (1, 0))
    (got,) = cards_of(made.ask(asks("a", memory="1Gi", select=first), asks("b", memory="1Gi", select=second)))
    assert got == ["GPU-n1-1", "GPU-n1-0"]


def test_cards_with_an_attribute_in_common_and_without() -> None:
    made = World()
    made.add_node("n1", cards("n1", [24, 24, 24, 24], numa=(0, 1, 0, 1)))
    made.ask(asks(memory="22Gi", select=[f'device.attributes["{dra.DRIVER}"].index == 0']))
    numa = f"{dra.DRIVER}/{dra.ATTRIBUTE_NUMA}"
    pair = (asks("a", memory="20Gi"), asks("b", memory="20Gi"))
    (got,) = cards_of(made.ask(*pair, constraints=[{"matchAttribute": numa}]))
    assert set(got) == {"GPU-n1-1", "GPU-n1-3"}
    few = (asks("a", memory="1Gi"), asks("b", memory="1Gi"))
    (got,) = cards_of(made.ask(*few, constraints=[{"requests": ["a", "b"], "distinctAttribute": numa}]))
    assert {int(name[-1]) % 2 for name in got} == {0, 1}
    assert made.ask(*few, asks("c", memory="1Gi"), constraints=[{"distinctAttribute": numa}]) is None
    assert made.ask(*few, constraints=[{"matchAttribute": "example.com/no"}]) is None


def test_distinct_cards_over_requests_with_counts() -> None:
    """The stock scheduler of 1.36.3 lets a card come twice here."""
    made = world(24, 24, 24)
    uuid = f"{dra.DRIVER}/{dra.ATTRIBUTE_UUID}"
    pair = (asks("a", memory="1Gi", count=2), asks("b", memory="1Gi", count=2))
    assert made.ask(*pair, constraints=[{"distinctAttribute": uuid}]) is None
    made.add_node("n2", 4)
    (got,) = cards_of(made.ask(*pair, constraints=[{"distinctAttribute": uuid}]))
    assert len(set(got)) == 4


def test_all_devices_are_all_that_match_or_none() -> None:
    made = world(24, 24, 16)
    large = [f'device.capacity["{dra.DRIVER}"].memory.compareTo(quantity("20Gi")) >= 0']
    (got,) = cards_of(made.ask(asks(allocationMode="All", memory="10Gi", select=large)))
    assert got == ["GPU-n1-0", "GPU-n1-1"]
    assert made.ask(asks(allocationMode="All", memory="15Gi")) is None


def test_the_first_alternative_that_can_be_had() -> None:
    made = world(24)
    wish = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "large", **asks(memory="20Gi")["exactly"]},
            {"name": "small", **asks(memory="3Gi")["exactly"]},
        ],
    }
    plans = [made.ask(wish) for _ in range(3)]
    names = [decision.results[0][0].name for plan in plans if plan for decision in plan.decisions]
    assert names == ["gpu/large", "gpu/small"]
    assert plans[2] is None


def test_tainted_cards_are_for_those_that_tolerate_it() -> None:
    made = World()
    taint = {"key": dra.TAINT_UNHEALTHY, "value": "xid79", "effect": "NoSchedule"}
    own = cards("n1", [24, 24])
    made.add_node("n1", own, taints={"GPU-n1-0": [taint]})
    assert cards_of(made.ask(asks(memory="20Gi"))) == [["GPU-n1-1"]]
    assert made.ask(asks(memory="20Gi")) is None
    tolerations = [{"key": dra.TAINT_UNHEALTHY, "operator": "Exists"}]
    assert cards_of(made.ask(asks(memory="20Gi", tolerations=tolerations))) == [["GPU-n1-0"]]


def test_admin_access_takes_nothing_of_a_card() -> None:
    made = world(24)
    made.ask(asks())
    used = made.used()
    assert cards_of(made.ask(asks(allocationMode="All", adminAccess=True))) == [["GPU-n1-0"]]
    assert made.used() == used


def test_claims_that_others_allocated_are_booked_whoever_did() -> None:
    made = world(24)
    other = made.claim(asks(memory="20Gi"))
    result = {
        "request": "gpu",
        "driver": dra.DRIVER,
        "pool": "n1",
        "device": dra.device_name("GPU-n1-0"),
        "shareID": "11111111-1111-1111-1111-111111111111",
        "consumedCapacity": {"memory": "20Gi", "compute": "30"},
    }
    made.show(other, {"allocation": {"devices": {"results": [result]}}})
    assert made.used() == {"GPU-n1-0": (20 * GIB, 30, False)}
    assert made.ask(asks(memory="5Gi")) is None
    made.show(other, None)
    assert made.used() == {}
    odd: dict[str, Any]
    for odd in ({"shareID": None}, {"consumedCapacity": {}}, {"consumedCapacity": {"memory": "30Gi"}}):
        made.show(other, {"allocation": {"devices": {"results": [result | odd]}}})
        assert made.used() == {"GPU-n1-0": (0, 0, True)}
    made.gone(other)
    assert made.used() == {}


def test_a_claim_that_its_node_still_holds_stays_booked() -> None:
    made = world(24)
    plan = made.ask(asks(memory="20Gi"))
    assert plan is not None
    claim = plan.decisions[0].claim
    held = Held({}, 1, {claim.metadata.uid: (CardShare("GPU-n1-0", 0, Share(20 * GIB)),)})
    _tell(made, held)
    made.gone(claim)
    assert made.ask(asks(memory="5Gi")) is None
    _tell(made, Held({}, 2))
    assert made.used() == {}


def test_a_node_says_nothing_about_claims_of_another() -> None:
    """In whatever order the allocation and the lie come, and after the lie has ended."""
    for order in (("claim", "lie"), ("lie", "claim")):
        made = world(24)
        made.add_node("n2", cards("n2", [24]))
        claim = made.claim(asks(memory="20Gi"))
        result: dict[str, Any] = {"request": "gpu", "driver": dra.DRIVER, "pool": "n1"}
        result |= {"device": dra.device_name("GPU-n1-0")}
        result |= {"shareID": "s", "consumedCapacity": {"memory": "20Gi"}}
        lies = (Share(1), 0, "GPU-n2-0"), (Share(exclusive=True), 0, "GPU-n2-0"), (Share(1), 0, "GPU-n1-0")
        for share, index, uuid in lies:
            lie = Held({}, 1, {claim.metadata.uid: (CardShare(uuid, index, share),)})
            for step in order:
                if step == "claim":
                    made.show(claim, {"allocation": {"devices": {"results": [result]}}})
                else:
                    _tell(made, lie, "n2")
            books = made.state.engine.ledger.node("n1")
            assert books is not None
            assert books.cards["GPU-n1-0"].memory_mib == 20 * GIB
            _tell(made, Held({}, 2), "n2")
            assert made.used() == {"GPU-n1-0": (20 * GIB, 0, False)}
            made.show(claim, None)
            assert made.used() == {}


def test_what_a_node_still_holds_of_a_claim_counts_beside_its_new_allocation() -> None:
    made = world(24)
    made.add_node("n2", cards("n2", [24]))
    plan = made.ask(asks(memory="20Gi"))
    assert plan is not None
    claim = plan.decisions[0].claim
    _tell(made, Held({}, 1, {claim.metadata.uid: (CardShare("GPU-n1-0", 0, Share(20 * GIB)),)}))
    assert made.used() == {"GPU-n1-0": (20 * GIB, 0, False)}, "counted once"
    for pool, memory in (("n2", "20Gi"), ("n1", "1Gi")):
        result: dict[str, Any] = {"request": "gpu", "driver": dra.DRIVER, "pool": pool}
        result |= {"device": dra.device_name(f"GPU-{pool}-0")}
        result |= {"shareID": "s", "consumedCapacity": {"memory": memory}}
        made.show(claim, {"allocation": {"devices": {"results": [result]}}})
        assert made.used()["GPU-n1-0"][0] >= 20 * GIB
    _tell(made, Held({}, 2))
    assert made.used() == {"GPU-n1-0": (GIB, 0, False)}


def test_a_claim_is_not_freed_by_pods_of_other_namespaces() -> None:
    """Who may write a claim's status can list anybody's pods: they would be evicted in vain."""
    made = world(24)
    plan = made.ask(asks(memory="20Gi"))
    assert plan is not None
    claim = plan.decisions[0].claim
    there = made.pod(metadata={"namespace": "other"}, nodeName="n1")
    own = made.pod(nodeName="n1")
    for pod, freed in ((there, frozenset()), (own, frozenset({claim_key(claim.metadata.uid)}))):
        made.state.on_pod(Change(ChangeType.ADDED, None, pod))
        uid = pod.metadata.uid
        status = {**made.claims_status(plan), "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}]}
        made.show(claim, status)
        assert made.state.claims.freed_by("n1", {uid}) == freed


def _tell(made: World, held: Held, name: str = "n1") -> None:
    manifest = node(name, cards(name, [24]))
    manifest["metadata"]["annotations"][shoal.ANNOTATION_HELD] = shoal.encode_held(held)
    old = made.state.node(name)
    made.state.on_node(Change(ChangeType.MODIFIED, old, msgspec.convert(manifest, Node)))


def test_a_pod_goes_where_its_claim_is() -> None:
    made = world(24)
    made.add_node("n2", 4)
    claim = made.claim(asks(memory="3Gi"), name="shared")
    first = made.place(made.pod(claim))
    now = made.state.claims.find("default", "shared")
    assert first is not None
    assert now is not None
    used = made.used()
    second = made.place(made.pod(now))
    assert second is not None
    assert (second.node, second.decisions) == (first.node, ())
    assert made.used() == used


def test_nodes_that_publish_nothing_are_not_used() -> None:
    made = World()
    made.state.on_node(Change(ChangeType.ADDED, None, msgspec.convert(node("bare", 4), Node)))
    assert made.ask(asks(memory="1Gi")) is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asks(deviceClassName="none"), "no device class 'none'"),
        (asks(select=['ip("1.1.1.1") == ip("1.1.1.1")']), "uses ip(), which is not supported"),
        (asks(allocationMode="Some"), "allocationMode 'Some'"),
        (asks(count=33), "at most 32"),
    ],
)
def test_what_cannot_be_met_is_refused_in_words(request_: dict, why: str) -> None:
    made = world()
    with pytest.raises(RequestError) as refused:
        made.ask(request_)
    assert why in str(refused.value)


def test_gpus_by_number_and_claims_in_one_pod_are_refused() -> None:
    made = world()
    container = {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
    with pytest.raises(RequestError, match="by number"):
        made.place(made.pod(made.claim(asks(memory="1Gi")), containers=[container]))


def test_claims_and_shares_by_number_live_on_one_ledger() -> None:
    made = world(24)
    container = {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "20"}}}
    assert made.state.place(made.pod(containers=[container])) is not None
    assert made.ask(asks(memory="5Gi")) is None
    assert made.ask(asks(memory="4Gi")) is not None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_no_card_is_ever_over_booked_and_all_comes_back(seed: int) -> None:
    rng = Random(seed)
    made = World(rng.choice(["fragmentation", "binpack", "spread"]))
    for number in range(rng.randint(1, 4)):
        made.add_node(f"n{number}", rng.randint(1, 4))
    plans = []
    for _ in range(25):
        count = rng.choice([1, 1, 1, 2])
        body: dict = {"count": count, "memory": f"{rng.randint(1, CARD_MIB)}Mi", "compute": rng.choice([0, 10, 50])}
        if rng.random() < 0.2:
            body.pop("memory")
        second = [asks("b", memory="1Gi")] if rng.random() < 0.3 else []
        constraint = {"distinctAttribute": f"{dra.DRIVER}/uuid"} if rng.random() < 0.3 else None
        plan = made.ask(asks(**body), *second, **({"constraints": [constraint]} if constraint else {}))
        if plan is not None:
            plans.append(plan)
        if plans and rng.random() < 0.3:
            done = plans.pop(rng.randrange(len(plans)))
            made.gone(done.decisions[0].claim)
        assert made.state.engine.ledger.over_booked() == []
    for plan in plans:
        made.gone(plan.decisions[0].claim)
    assert made.used() == {}
