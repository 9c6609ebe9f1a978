"""No pod runs twice and none is lost, in any order of events; and every rule of the dispatch is needed for that."""

from dataclasses import replace

import pytest

from shoal.clusters.dispatch import (
    Absent,
    CopyPod,
    DispatchStep,
    DispatchView,
    HomePod,
    LastRead,
    Wish,
    collect,
    next_step,
)
from tests.clusters.search import Rules, Scene, reached, search
from tests.soak import SOAK

IN_SOAK = pytest.mark.skipif(SOAK == 1, reason="make soak tries this too")
NOBODY: frozenset[str] = frozenset()
ADMIN = frozenset({"member"})
TENANT = frozenset({"tenant"})
FORCE = frozenset({"force"})


def told(path: tuple[Scene, ...]) -> str:
    return "\n".join(f"{scene.home} {scene.copies}" for scene in path)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Rules(managers=1, attempts=3, copies=4), id="one manager, killed anywhere"),
        pytest.param(Rules(people=NOBODY), id="two managers that believe to lead"),
        pytest.param(Rules(attempts=1, people=TENANT), id="two managers, and a tenant who deletes"),
        pytest.param(Rules(attempts=1, people=ADMIN), id="two managers, and a member's admin who deletes"),
        pytest.param(Rules(people=FORCE), id="two managers, and copies removed by force"),
        pytest.param(Rules(managers=1, cuts=True, people=NOBODY), id="a member cut off"),
        pytest.param(Rules(managers=1, cuts=True, attempts=1, people=TENANT), id="a member cut off, and a tenant"),
        pytest.param(Rules(managers=1, cuts=True, attempts=1, people=ADMIN), id="a member cut off, and its admin"),
        pytest.param(Rules(managers=1, cuts=True, attempts=1, replaced=False), id="a member cut off, mode Wait"),
        pytest.param(Rules(), id="everybody", marks=IN_SOAK),
        pytest.param(Rules(managers=1, cuts=True, copies=3), id="everybody, and a member cut off", marks=IN_SOAK),
    ],
)
def test_never_twice_and_never_stuck(rules: Rules) -> None:
    found = search(rules)
    assert found.wrong == (), told(found.wrong)
    assert found.stuck == (), found.stuck[0]
    assert found.scenes > 10_000, "a search that sees little shows little"


def test_a_run_is_reached() -> None:
    """The search would find nothing wrong with a manager that does nothing."""
    idle = Rules(managers=1, people=NOBODY, next_step=lambda view, wish: next_step(view, Wish()))
    assert search(idle).stuck


def opened_without_a_second_look(view: DispatchView, wish: Wish) -> DispatchStep:
    behind = isinstance(view.copy, CopyPod) and view.copy.gated
    return next_step(replace(view, last=LastRead.HOME) if behind else view, wish)


def absence_believed(view: DispatchView, wish: Wish) -> DispatchStep:
    return next_step(replace(view, last=LastRead.COPY) if view.copy is Absent.GONE else view, wish)


def end_forgotten(view: DispatchView, wish: Wish) -> DispatchStep:
    behind = isinstance(view.copy, CopyPod) and view.copy.gated
    return next_step(replace(view, home=replace(view.home, over=False)) if behind else view, wish)


def run_forgotten(view: DispatchView, wish: Wish) -> DispatchStep:
    return next_step(replace(view, home=replace(view.home, ran=False)), wish)


def given_up_without_a_fence(view: DispatchView, wish: Wish) -> DispatchStep:
    sent = view.home.dispatch
    return next_step(replace(view, home=replace(view.home, dispatch=sent and replace(sent, replace=True))), wish)


def mark_forgotten(view: DispatchView, wish: Wish) -> DispatchStep:
    sent = view.home.dispatch
    return next_step(replace(view, home=replace(view.home, dispatch=sent and replace(sent, lost=False))), wish)


def collected_as_before(copy: CopyPod, home: HomePod | Absent, cluster: str, *, last: LastRead) -> DispatchStep:
    if isinstance(home, HomePod) and home.dispatch is not None:
        home = replace(home, dispatch=replace(home.dispatch, lost=False))
    return collect(copy, home, cluster, last=last)


CUT = Rules(managers=1, cuts=True, attempts=1, people=NOBODY)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(replace(CUT, fence=False), id="nobody fences"),
        pytest.param(replace(CUT, margin=False), id="home's time is up before the member's"),
        pytest.param(replace(CUT, grace=False), id="home's time is up before copies have ended"),
        pytest.param(replace(CUT, fence_unplaced=False), id="the fence spares what has no node"),
        pytest.param(replace(CUT, counted_anew=False), id="a new manager does not count anew"),
        pytest.param(replace(CUT, replaced=False, next_step=given_up_without_a_fence), id="mode Wait is given up"),
        pytest.param(replace(CUT, next_step=mark_forgotten), id="what was given up is not remembered"),
        pytest.param(
            replace(CUT, attempts=2, copies=3, collect=collected_as_before), id="what was given up is not collected"
        ),
    ],
)
def test_each_rule_of_a_cut_is_needed(rules: Rules) -> None:
    found = search(rules)
    assert found.wrong or found.stuck


def test_what_is_cut_off_is_replaced() -> None:
    """Nothing would be wrong if no pod were ever given up."""
    scenes = reached(CUT)
    assert any(scene.succeeded for scene in scenes)
    assert any(scene.succeeded and scene.runs for scene in scenes)
    assert not any(scene.succeeded for scene in reached(replace(CUT, replaced=False)))


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Rules(next_step=run_forgotten, people=FORCE, managers=1), id="what ran is made again"),
        pytest.param(Rules(next_step=opened_without_a_second_look, people=NOBODY), id="home is not read again"),
        pytest.param(Rules(version_checked=False, people=NOBODY), id="removals are not conditional"),
        pytest.param(Rules(copies_gated=False, people=NOBODY), id="copies begin open"),
        pytest.param(Rules(gates_guarded=False, attempts=1), id="a tenant may open the gate at home"),
        pytest.param(Rules(copies_kept=False, managers=1), id="a copy that ran vanishes unseen"),
        pytest.param(Rules(next_step=end_forgotten, people=ADMIN, attempts=1), id="what is over is opened again"),
        pytest.param(Rules(next_step=absence_believed, people=NOBODY), id="not there, by an old look, is gone"),
    ],
)
def test_each_rule_is_needed(rules: Rules) -> None:
    assert search(rules).wrong
