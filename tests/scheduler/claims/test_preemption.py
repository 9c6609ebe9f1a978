"""Who gives way to a pod with claims: against every possible choice, and case by case."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.store import Change, ChangeType, Store
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import dra
from shoal.model.gpu import Gpu, MigInstance
from shoal.model.request import Share
from shoal.placement.ledger import Booking
from shoal.scheduler.claims.errors import PodCostError
from shoal.scheduler.preemption import Clearing, PodOnNode, PreemptionPlan, choose
from shoal.scheduler.queue.order import Standing
from tests.scheduler.claims.test_partitions import a_partition, cut
from tests.scheduler.claims.world import World, asks
from tests.scheduler.extender.scene import clearing_of, context_of, nobody
from tests.scheduler.test_preemption_properties import subsets
from tests.soak import times

GIB = 1024
CARD = 8
PRIORITY = 10
WHOLE = 0

#: Memory in GiB, 0 for a whole card; and compute.
amounts = st.tuples(st.sampled_from([1, 2, 4, 7, WHOLE]), st.sampled_from([0, 0, 40]))


@dataclass(frozen=True)
class OnCard:
    """A share of a card, and the pods of which one must be there for it to be held."""

    card: int
    amount: tuple[int, int]
    users: frozenset[str]
    by_number: bool = False


@dataclass(frozen=True)
class Place:
    cards: int
    pods: tuple[PodOnNode, ...]
    held: tuple[OnCard, ...]


def room(beside: list[tuple[int, int]]) -> bool:
    if any(memory == WHOLE for memory, _ in beside):
        return len(beside) == 1
    return sum(memory for memory, _ in beside) <= CARD and sum(compute for _, compute in beside) <= 100


@st.composite
def places(draw: st.DrawFn) -> Place:
    """A node with pods that hold shares by number, and claims, some of which several pods use."""
    cards = draw(st.integers(1, 2))
    pods = tuple(
        PodOnNode(
            f"p{number}",
            draw(st.sampled_from([0, 1, 9, 10])),
            None,
            tuple(draw(st.lists(st.sampled_from("xy"), max_size=2, unique=True))),
        )
        for number in range(draw(st.integers(1, 5)))
    )
    names = st.sampled_from([pod.uid for pod in pods])
    held: list[OnCard] = []
    for _ in range(draw(st.integers(0, 6))):
        by_number = draw(st.booleans())
        users = draw(st.frozensets(names, min_size=1, max_size=1 if by_number else 3))
        one = OnCard(draw(st.integers(0, cards - 1)), draw(amounts), users, by_number)
        taken = [other for other in held if other.card == one.card]
        if by_number and any(other.by_number and other.users == users for other in held):
            continue
        if room([one.amount, *(other.amount for other in taken)]):
            held.append(one)
    return Place(cards, pods, tuple(held))


def fits(place: Place, asked: tuple[int, int], count: int, gone: frozenset[str]) -> bool:
    left = [one for one in place.held if not one.users <= gone]
    free = [card for card in range(place.cards) if room([asked, *(one.amount for one in left if one.card == card)])]
    return len(free) >= count


def best(
    place: Place, asked: tuple[int, int], count: int, budgets: Mapping[Hashable, int]
) -> tuple[frozenset[str], int] | None:
    """Of all sets of victims that make room the one that lets off the most important, those with a budget first."""
    lower = sorted((pod for pod in place.pods if pod.priority < PRIORITY), key=lambda pod: -pod.priority)
    left, breaking = dict(budgets), set()
    for pod in lower:
        for name in pod.disruption_budgets:
            left[name] -= 1
            if left[name] < 0:
                breaking.add(pod.uid)
    order = [pod.uid for pod in lower if pod.uid in breaking] + [pod.uid for pod in lower if pod.uid not in breaking]
    enough = [away for away in subsets(order) if fits(place, asked, count, away)]
    if not lower or not enough:
        return None
    away = min(enough, key=lambda away: [uid in away for uid in order])
    return away, len(away & breaking)


def share(amount: tuple[int, int]) -> dict[str, Any]:
    memory, compute = amount
    return ({} if memory == WHOLE else {"memory": f"{memory}Gi"}) | ({"compute": compute} if compute else {})


def world_of(place: Place) -> World:
    made = World()
    made.add_node("n1", [Gpu(f"GPU-{index}", index, CARD * GIB, "T") for index in range(place.cards)])
    ledger = made.state.engine.ledger
    for one in place.held:
        memory, compute = one.amount
        uuid = f"GPU-{one.card}"
        if one.by_number:
            (user,) = one.users
            own = Share(memory * GIB, compute) if memory != WHOLE else Share(exclusive=True)
            ledger.assume(Booking(user, Allocation("n1", (ContainerAllocation("main", (CardShare(uuid, 0, own),)),))))
            continue
        result: dict[str, Any] = {"request": "gpu", "driver": dra.DRIVER, "pool": "n1", "device": dra.device_name(uuid)}
        result |= {"shareID": "s", "consumedCapacity": {"memory": f"{memory or CARD}Gi", "compute": str(compute)}}
        reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in sorted(one.users)]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        made.show(made.claim(asks(**share(one.amount))), status)
    return made


@settings(max_examples=times(300), deadline=None)
@given(
    places(),
    amounts,
    st.integers(1, 2),
    st.fixed_dictionaries({"x": st.integers(0, 2), "y": st.integers(0, 1)}),
)
def test_no_better_set_of_victims_exists(
    place: Place, asked: tuple[int, int], count: int, budgets: dict[Hashable, int]
) -> None:
    made = world_of(place)
    pod = made.pod(made.claim(asks(**share(asked), count=count)))
    plan = choose(
        ["n1"],
        pods_on=lambda _: place.pods,
        fits=made.claims.allocator.fits_without(pod),
        priority=PRIORITY,
        budgets=budgets,
        limit=1,
    )
    expected = best(place, asked, count, budgets)
    assert (None if plan is None else (frozenset(one.uid for one in plan.victims), plan.violations)) == expected


# Case by case, on the state as the watch shows it


class Scene(World):
    """A world whose pods are bound and have priorities."""

    def __init__(self, *cards: Gpu) -> None:
        super().__init__()
        self.add_node("n1", cards or [Gpu("GPU-0", 0, CARD * GIB, "T")])
        self.budgets: Store[PodDisruptionBudget] = Store()
        self.clearing: Clearing = clearing_of(context_of(self.state, nobody()), self.budgets)

    def holder(self, priority: int, *requests: dict[str, Any], claim: Any = None) -> Pod:
        """A pod that is bound, with a claim of its own or with this one."""
        made = self.pod(claim or self.claim(*requests), priority=priority)
        plan = self.place(made)
        assert plan is not None
        return self.bind(made, plan.node)

    def bind(self, pod: Pod, node: str) -> Pod:
        raw = msgspec.to_builtins(pod)
        raw["spec"]["nodeName"] = node
        bound = msgspec.convert(raw, Pod)
        self.state.on_pod(Change(ChangeType.ADDED, None, bound))
        return bound

    def victims(self, pod: Pod) -> set[str] | None:
        plan = self.plan(pod)
        return None if plan is None else {one.uid for one in plan.victims}

    def plan(self, pod: Pod) -> PreemptionPlan | None:
        return self.clearing.plan(pod, ["n1"], self.claims.allocator.fits_without(pod))


def uids(*pods: Pod) -> set[str]:
    return {pod.metadata.uid for pod in pods}


def test_the_lowest_holder_of_a_claim_gives_way() -> None:
    scene = Scene()
    low, _ = scene.holder(1, asks(memory="4Gi")), scene.holder(5, asks(memory="4Gi"))
    assert scene.victims(scene.pod(scene.claim(asks(memory="3Gi")), priority=9)) == uids(low)
    assert scene.victims(scene.pod(scene.claim(asks(memory="3Gi")), priority=1)) is None, "not to its equal"
    never = scene.pod(scene.claim(asks(memory="3Gi")), priority=9, preemptionPolicy="Never")
    assert scene.victims(never) is None
    assert scene.victims(scene.pod(scene.claim(asks(memory="9Gi")), priority=9)) is None, "not in vain"


def test_all_who_share_a_claim_give_way_or_none() -> None:
    scene = Scene()
    shared = scene.claim(asks(memory="8Gi"), name="shared")
    first = scene.holder(1, claim=shared)
    second = scene.holder(5, claim=shared)
    now = scene.state.claims.find("default", "shared")
    assert now is not None
    status = msgspec.to_builtins(now)["status"]
    status["reservedFor"] = [
        {"resource": "pods", "name": one.metadata.name, "uid": one.metadata.uid} for one in (first, second)
    ]
    scene.show(shared, status)
    assert scene.victims(scene.pod(scene.claim(asks(memory="1Gi")), priority=9)) == uids(first, second)
    assert scene.victims(scene.pod(scene.claim(asks(memory="1Gi")), priority=5)) is None, "the second stays"


def test_a_pod_by_number_makes_holders_of_claims_give_way() -> None:
    scene = Scene()
    low = scene.holder(1, asks(memory="6Gi"))
    raw = {
        "metadata": {"name": "n", "namespace": "default", "uid": "n"},
        "spec": {
            "priority": 9,
            "containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "4"}}}],
        },
    }
    plan = scene.clearing.plan(msgspec.convert(raw, Pod), ["n1"])
    assert plan is not None
    assert {one.uid for one in plan.victims} == uids(low)


def test_partitions_come_free_with_their_pods() -> None:
    scene = Scene(cut(0, 5, 5))
    low, _ = scene.holder(1, a_partition()), scene.holder(5, a_partition())
    assert scene.victims(scene.pod(scene.claim(a_partition()), priority=9)) == uids(low)


def test_a_pod_whose_claim_is_allocated_goes_where_that_is() -> None:
    scene = Scene()
    scene.add_node("n2", [Gpu("GPU-n2", 0, CARD * GIB, "T")])
    shared = scene.claim(asks(memory="1Gi"), name="shared")
    holder = scene.holder(9, claim=shared)
    other = "n2" if holder.spec.node_name == "n1" else "n1"
    pod = scene.pod(shared, scene.claim(asks(memory="1Gi")), priority=9)
    fits = scene.claims.allocator.fits_without(pod)
    assert fits(holder.spec.node_name, frozenset())
    assert not fits(other, frozenset())


async def test_the_pod_waits_until_claims_are_deallocated_and_taken_back() -> None:
    scene = Scene(Gpu("GPU-0", 0, CARD * GIB, "T"), Gpu("GPU-1", 1, CARD * GIB, "T"))
    low = scene.holder(1, asks())
    middle = scene.holder(5, asks())
    assert middle is not None
    pod = scene.pod(scene.claim(asks()), priority=9)
    standing, everywhere = Standing("default", 9), np.ones(scene.state.engine.ledger.columns.rows, np.bool_)

    def clear() -> frozenset[str]:
        fits = scene.claims.allocator.fits_without(pod)
        cleared = scene.clearing.clear(pod, standing, everywhere, fits)
        assert cleared is not None
        return cleared.victims

    assert clear() == uids(low)
    scene.state.on_pod(Change(ChangeType.DELETED, low, None))
    claim = scene.state.claims.find("default", low.spec.resource_claims[0].resource_claim_name or "")
    assert claim is not None
    assert clear() == uids(low), "its claim is still allocated: nobody else has to go"
    scene.show(claim, None)
    assert scene.place(pod) is not None


def test_claims_that_are_too_hard_to_serve_make_nobody_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple(MigInstance(f"MIG-{number}", "1g", GIB) for number in range(24))
    scene = Scene(Gpu("GPU-0", 0, 24 * GIB, "T", mig=True, mig_instances=parts))
    for _ in range(24):
        scene.holder(1, a_partition())
    hard = scene.pod(scene.claim(a_partition(count=20), constraints=[{"distinctAttribute": "x.dev/none"}]), priority=9)
    assert scene.victims(hard) is None
    monkeypatch.setattr("shoal.scheduler.claims.costs.POD_LIMIT", 500)
    monkeypatch.setattr("shoal.scheduler.claims.costs.POD_LIMIT_PER_DEVICE", 0)
    fits = scene.claims.allocator.fits_without(scene.pod(scene.claim(a_partition(count=20)), priority=9))
    every = frozenset(pod for pod in scene.state.engine.ledger.node("n1").pods)  # type: ignore[union-attr]
    with pytest.raises(PodCostError):
        fits("n1", every)
