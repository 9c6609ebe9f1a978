"""A filter that somebody adds to the policies' list is obeyed by the scheduler, the extender and `shoal why`.

Node `closed` would do by its cards, its CPU and its memory, under every policy; the filter alone refuses it. That the
policies themselves obey is in `tests/placement/test_filters.py`.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from shoal.analysis.dry_run import DryRun
from shoal.analysis.node_fit import by_node
from shoal.analysis.unschedulable import preempts, unschedulable
from shoal.placement.engine import Engine
from shoal.placement.policies import FILTERS, POLICIES
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.diagnosis import diagnose
from shoal.scheduler.feasibility.feasibility import Feasibility
from tests.analysis.small import Small
from tests.placement.clusters import RefusesNode
from tests.scheduler.extender.requests import args, binding, pod, preemption
from tests.scheduler.extender.scene import Scene, clearing_of

pytestmark = pytest.mark.parametrize("policy", sorted(POLICIES))


def add_filter(engine: Engine) -> None:
    engine.use(replace(engine.policy, filters=(*FILTERS, RefusesNode("closed"))))


def scene_of(policy: str, *names: str, all_up_to: int = 64) -> Scene:
    scene = Scene(policy=policy, all_up_to=all_up_to)
    for name in names:
        scene.add_node(name, 2)
    add_filter(scene.state.engine)
    return scene


@pytest.mark.parametrize("all_up_to", [0, 64], ids=["best alone", "all that fit"])
def test_the_extender_filters(policy: str, all_up_to: int) -> None:
    scene = scene_of(policy, "closed", "open", all_up_to=all_up_to)
    answer = scene.filter(args(pod(mem="4"), ["closed", "open"]))
    assert answer["NodeNames"] == ["open"]


def test_the_extender_says_why(policy: str) -> None:
    answer = scene_of(policy, "closed").filter(args(pod(mem="4"), ["closed"]))
    assert not answer["NodeNames"]
    assert answer["FailedNodes"] == {"closed": "node(s) refused by Closed: closed (closed for the day)"}


def test_the_extender_scores(policy: str) -> None:
    scores = scene_of(policy, "closed", "open").prioritize(args(pod(mem="4"), ["closed", "open"]))
    assert scores["closed"] == 0 < scores["open"]


async def test_the_extender_does_not_bind(policy: str) -> None:
    scene = scene_of(policy, "closed")
    scene.add_pod(pod(mem="4"))
    answer = await scene.verbs.bind(binding(pod(mem="4"), "closed"))
    assert b"closed for the day" in answer
    assert scene.free("closed") == [16, 16]


def full(policy: str) -> Scene:
    """A pod of low priority on every card."""
    scene = scene_of(policy, "closed", "open")
    for node in ("closed", "open"):
        for card in (0, 1):
            scene.bind(pod(f"{node}{card}", mem="16"), node, card, 16)
    return scene


def test_the_extender_preempts(policy: str) -> None:
    scene = full(policy)
    wanted = pod("high", mem="8", priority=5)
    found = scene.preempt(preemption(wanted, {"closed": ["uid-closed0"], "open": ["uid-open0"]}))
    assert found.keys() == {"open"}


def test_preemption_finds_no_victims(policy: str) -> None:
    scene = full(policy)
    plans = clearing_of(scene.context, scene.budgets)
    wanted = scene.add_pod(pod("high", mem="8", priority=5))
    assert plans.plan(wanted, ["closed"]) is None
    plan = plans.plan(wanted, ["closed", "open"])
    assert plan is not None
    assert plan.node == "open"


def test_the_scheduler_tells_and_wakes_up_for_anything(policy: str) -> None:
    scene = scene_of(policy, "closed")
    waiting = scene.add_pod(pod(mem="4"))
    engine = scene.state.engine
    diagnosis = diagnose(engine, scene.state.request(waiting), Feasibility(scene.state.tables).verdict(waiting))
    assert diagnosis.message == (
        "0/1 nodes are available: 1 node(s) refused by Closed. Closest: closed (closed for the day)."
    )
    assert diagnosis.helps == ~ClusterEvent(0)


def test_why_names_the_filter(policy: str) -> None:
    small = Small({"closed": {"gpus": 1}, "open": {"gpus": 1}}, policy=policy)
    waiting = small.add("waits", {"mem": 8}, place=False)
    found = DryRun(small.snapshot)
    add_filter(found.engine)
    told = {each.node: each for each in by_node(found, waiting, details=2)}
    assert told["open"].fits
    assert (told["closed"].refused_by, told["closed"].why) == ("Closed", "closed for the day")
    assert not told["closed"].has_room


def test_why_makes_nobody_leave(policy: str) -> None:
    small = Small({"closed": {"gpus": 1}}, policy=policy)
    small.add("there", {"mem": 16})
    waiting = small.add("waits", {"mem": 8}, place=False)
    waiting = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, priority=5))
    found = DryRun(small.snapshot)
    everywhere = np.ones(1, np.bool_)
    assert preempts(found, waiting, everywhere) is not None
    add_filter(found.engine)
    assert preempts(found, waiting, everywhere) is None
    told = unschedulable(found, waiting, details=1)
    assert (told.preempts, told.clearing, told.would_fit_mib) == (None, None, None)
