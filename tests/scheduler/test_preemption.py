"""Victims, case by case, on real books. Against every possible choice: test_preemption_properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shoal.kube.codec import codec_of
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.resources import POD_DISRUPTION_BUDGETS
from shoal.model.request import Request, Share
from shoal.placement.engine import Engine
from shoal.placement.ledger import Ledger
from shoal.scheduler.preemption import (
    PodOnNode,
    PreemptionPlan,
    allowances,
    budgets_of,
    candidate_limit,
    choose,
    may_preempt,
)
from tests.placement.clusters import GIB, WHOLE, booking, ledger_of, node, request


def chosen(
    ledger: Ledger,
    asked: Request,
    pods: Mapping[str, Iterable[PodOnNode]],
    *,
    priority: int = 100,
    budgets: Mapping[Any, int] | None = None,
    limit: int = 100,
) -> PreemptionPlan | None:
    return choose(
        pods,
        pods_on=lambda name: list(pods[name]),
        fits=Engine(ledger).fits_without(asked),
        priority=priority,
        budgets=budgets or {},
        limit=limit,
    )


def victims(plan: PreemptionPlan | None) -> tuple[str, list[str]] | None:
    return None if plan is None else (plan.node, [pod.uid for pod in plan.victims])


def one_card(*shares: tuple[str, Share], gib: int = 16) -> Ledger:
    ledger = ledger_of(node("n1", [gib]))
    for uid, share in shares:
        ledger.assume(booking(uid, "n1", {0: share}))
    return ledger


def test_no_more_give_way_than_must() -> None:
    ledger = one_card(("small", Share(2 * GIB)), ("large", Share(8 * GIB)), ("middle", Share(4 * GIB)))
    pods = [PodOnNode("small", 1), PodOnNode("middle", 2), PodOnNode("large", 0)]
    assert victims(chosen(ledger, request(Share(6 * GIB)), {"n1": pods})) == ("n1", ["large"])
    assert victims(chosen(ledger, request(Share(12 * GIB)), {"n1": pods})) == ("n1", ["small", "large"])
    assert victims(chosen(ledger, request(WHOLE), {"n1": pods})) == ("n1", ["middle", "small", "large"])


def test_the_higher_priority_is_let_off_though_it_costs_a_victim_more() -> None:
    ledger = one_card(("high", Share(8 * GIB)), ("low1", Share(4 * GIB)), ("low2", Share(4 * GIB)))
    pods = [PodOnNode("low1", 1), PodOnNode("high", 9), PodOnNode("low2", 1)]
    assert victims(chosen(ledger, request(Share(8 * GIB)), {"n1": pods})) == ("n1", ["low1", "low2"])


def test_only_lower_priorities_give_way() -> None:
    ledger = one_card(("equal", Share(16 * GIB)))
    assert chosen(ledger, request(Share(GIB)), {"n1": [PodOnNode("equal", 100)]}) is None
    assert victims(chosen(ledger, request(Share(GIB)), {"n1": [PodOnNode("equal", 99)]})) == ("n1", ["equal"])
    assert chosen(ledger, request(Share(17 * GIB)), {"n1": [PodOnNode("equal", 99)]}) is None, "not even then"


def test_cpu_of_pods_without_cards_is_freed_too() -> None:
    ledger = ledger_of(node("n1", [16], cores=4))
    ledger.assume(booking("cpu", "n1", {}, cores=3))
    ledger.assume(booking("gpu", "n1", {0: Share(8 * GIB)}, cores=1))
    pods = [PodOnNode("cpu", 1), PodOnNode("gpu", 1)]
    assert victims(chosen(ledger, request(Share(8 * GIB), cores=2), {"n1": pods})) == ("n1", ["cpu"])


def test_of_several_cards_the_cheapest_is_emptied() -> None:
    ledger = ledger_of(node("n1", [16, 16, 16]))
    ledger.assume(booking("a", "n1", {0: Share(10 * GIB)}))
    ledger.assume(booking("b", "n1", {1: Share(10 * GIB), 2: Share(10 * GIB)}))
    pods = [PodOnNode("a", 5), PodOnNode("b", 1)]
    assert victims(chosen(ledger, request(WHOLE), {"n1": pods})) == ("n1", ["b"])
    assert victims(chosen(ledger, request(WHOLE, gpus=3), {"n1": pods})) == ("n1", ["a", "b"])


def test_nobody_gives_way_where_the_pod_could_not_be_served() -> None:
    for one_container in (False, True):
        ledger = ledger_of(replace(node("n1", [16, 16]), one_container=one_container))
        ledger.assume(booking("there", "n1", {0: Share(10 * GIB), 1: Share(10 * GIB)}))
        pods = {"n1": [PodOnNode("there", 1)]}
        assert (chosen(ledger, request(Share(8 * GIB), gpus=2), pods) is None) is one_container
        assert victims(chosen(ledger, request(Share(8 * GIB)), pods)) == ("n1", ["there"])


def test_mps_clients_and_whole_cards() -> None:
    ledger = ledger_of(node("n1", [16, 16]))
    for number in range(10):
        ledger.assume(booking(f"client{number}", "n1", {0: Share(clients=1)}))
    ledger.assume(booking("whole", "n1", {1: WHOLE}))
    pods = [PodOnNode(f"client{number}", 1, f"2026-01-01T00:00:{(number + 4) % 10:02}Z") for number in range(10)]
    whole = PodOnNode("whole", 1, "2026-01-01T00:00:30Z")
    assert victims(chosen(ledger, request(Share(clients=1)), {"n1": [*pods, whole]})) == ("n1", ["whole"])
    plan = chosen(ledger, request(Share(clients=1)), {"n1": [*pods, PodOnNode("whole", 50)]})
    assert victims(plan) == ("n1", ["client5"]), "the one that runs for the shortest"


def test_budgets_are_spared_if_others_will_do() -> None:
    ledger = one_card(("a", Share(8 * GIB)), ("b", Share(8 * GIB)))
    pods = {"n1": [PodOnNode("a", 1, disruption_budgets=("web",)), PodOnNode("b", 5)]}
    asked = request(Share(8 * GIB))
    assert victims(chosen(ledger, asked, pods, budgets={"web": 1})) == ("n1", ["a"])
    assert victims(chosen(ledger, asked, pods, budgets={"web": 0})) == ("n1", ["b"])
    plan = chosen(ledger, request(WHOLE), pods, budgets={"web": 0})
    assert plan is not None
    assert plan.violations == 1


def two_nodes() -> Ledger:
    ledger = ledger_of(node("n1", [16]), node("n2", [16]))
    for uid, name, gib in (("a", "n1", 16), ("b", "n2", 8), ("c", "n2", 8)):
        ledger.assume(booking(uid, name, {0: Share(gib * GIB)}))
    return ledger


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        pytest.param(PodOnNode("a", 5), PodOnNode("b", 1), PodOnNode("c", 1), "n2", id="lowest highest priority"),
        pytest.param(PodOnNode("a", 5), PodOnNode("b", 5), PodOnNode("c", -9), "n1", id="smallest sum, none negative"),
        pytest.param(
            PodOnNode("a", 1, disruption_budgets=("x",)),
            PodOnNode("b", 9),
            PodOnNode("c", 9),
            "n2",
            id="fewest broken budgets",
        ),
    ],
)
def test_the_node_is_chosen_by(a: PodOnNode, b: PodOnNode, c: PodOnNode, expected: str) -> None:
    plan = chosen(two_nodes(), request(WHOLE), {"n1": [a], "n2": [b, c]})
    assert plan is not None
    assert plan.node == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "n1"),
        ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "n2"),
        ("2026-01-01T00:00:00Z", None, "n2"),
        (None, None, "n1"),
    ],
)
def test_then_by_the_latest_start_then_the_first(first: str | None, second: str | None, expected: str) -> None:
    ledger = ledger_of(node("n1", [16]), node("n2", [16]))
    for uid, name in (("a", "n1"), ("b", "n2")):
        ledger.assume(booking(uid, name, {0: WHOLE}))
    plan = chosen(ledger, request(WHOLE), {"n1": [PodOnNode("a", 1, first)], "n2": [PodOnNode("b", 1, second)]})
    assert plan is not None
    assert plan.node == expected


def test_the_search_ends_at_the_limit_unless_all_break_budgets() -> None:
    names = [f"n{number}" for number in range(6)]
    ledger = ledger_of(*(node(name, [16]) for name in names))
    for name in names:
        ledger.assume(booking(f"on-{name}", name, {0: WHOLE}))
    pods = {name: [PodOnNode(f"on-{name}", 9 - place)] for place, name in enumerate(names)}
    plan = chosen(ledger, request(WHOLE), pods, limit=2)
    assert plan is not None
    assert plan.node == "n1"
    covered = {name: [PodOnNode(f"on-{name}", 1, disruption_budgets=("x",))] for name in names[:4]}
    plan = chosen(ledger, request(WHOLE), {**covered, "n4": pods["n4"], "n5": pods["n5"]}, limit=2)
    assert plan is not None
    assert (plan.node, plan.violations) == ("n4", 0)


@pytest.mark.parametrize(("nodes", "limit"), [(3, 100), (1000, 100), (1500, 150), (5000, 500)])
def test_a_hundred_nodes_or_a_tenth(nodes: int, limit: int) -> None:
    assert candidate_limit(nodes) == limit


def test_who_may_not_make_others_give_way() -> None:
    assert may_preempt(None)
    assert may_preempt("PreemptLowerPriority")
    assert not may_preempt("Never")


# The books behind it


def test_asking_leaves_the_books_alone_and_follows_them() -> None:
    ledger = one_card(("a", Share(16 * GIB)))
    fits = Engine(ledger).fits_without(request(Share(8 * GIB)))
    assert not fits("n1", frozenset())
    assert fits("n1", frozenset({"a", "unknown"}))
    assert not fits("n1", frozenset())
    assert not fits("elsewhere", frozenset())
    card = next(iter(ledger.nodes())).slots[0]
    assert card.memory_mib == 16 * GIB
    ledger.release("a")
    assert fits("n1", frozenset())
    ledger.assume(booking("b", "n1", {0: WHOLE}))
    assert not fits("n1", frozenset({"a"}))
    assert fits("n1", frozenset({"b"}))
    ledger.remove_node("n1")
    assert not fits("n1", frozenset({"b"}))


def test_sick_and_over_booked_cards() -> None:
    ledger = one_card(("a", Share(8 * GIB)))
    ledger.confirm(booking("b", "n1", {0: Share(10 * GIB)}))
    fits = Engine(ledger).fits_without(request(Share(4 * GIB)))
    assert not fits("n1", frozenset())
    assert fits("n1", frozenset({"a"}))


# Disruption budgets


def budget(name: str, selector: object, allowed: int = 1, **status: object) -> PodDisruptionBudget:
    content = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"minAvailable": "50%", "selector": selector},
        "status": {"disruptionsAllowed": allowed, "observedGeneration": 1, "conditions": [], **status},
    }
    return codec_of(PodDisruptionBudget).one(msgspec.json.encode(content), asked="test")


def by_label(budget: PodDisruptionBudget, pod: Pod) -> bool:
    wanted = (budget.spec.selector or {}).get("matchLabels", {})
    return all(pod.metadata.labels.get(key) == value for key, value in wanted.items())


def test_budgets_as_the_server_sends_them() -> None:
    web = {"matchLabels": {"app": "web"}}
    known = [
        budget("web", web, 2),
        budget("other", {"matchLabels": {"app": "db"}}),
        budget("empty", {}),
        budget("hollow", {"matchLabels": {}}),
        budget("none", None),
        budget("counted", web, disruptedPods={"p": "2026-01-01T00:00:00Z"}),
    ]
    pod = Pod(metadata=ObjectMeta(name="p", namespace="team", labels={"app": "web"}))
    assert budgets_of(pod, known, matches=by_label) == (("team", "web"),)
    bare = Pod(metadata=ObjectMeta(name="p", namespace="team"))
    assert budgets_of(bare, known, matches=by_label) == ()
    far = Pod(metadata=ObjectMeta(name="p", namespace="far", labels={"app": "web"}))
    assert budgets_of(far, known, matches=by_label) == ()
    assert allowances(known[:2]) == {("team", "web"): 2, ("team", "other"): 1}
    assert POD_DISRUPTION_BUDGETS.path(namespace="team") == "/apis/policy/v1/namespaces/team/poddisruptionbudgets"
