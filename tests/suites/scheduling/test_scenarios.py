"""Where pods land, as data: the same on the embedded cluster, on a real one, and through the stock kube-scheduler.

A file of `scenarios/` holds a list. A scenario has a `name`, `nodes` (see `shorthand.py`), `steps`, and sometimes
`ways` (the only ones it is for), `options` of `shoal scheduler`, `unit: MiB`, and `fresh: true` where it matters that
the scheduler has learnt no demand from the scenarios before. It has a namespace, `{ns}`, and nodes of its own, `{a}`
for the node called a; both go when it ends. A step is one of

    pods         make pods, in this order (see `shorthand.py`)
    file         make what a file of `examples/` holds
    apply        make these objects
    patch        change the object at `path` `with` this
    delete       delete pods by name, or objects by path
    finish       have pods end well
    node         make nodes, or have those that exist be like this; `remove` deletes them
    bind         put pods on nodes as another scheduler would: `node`, and `annotations` written before
    restart      kill the scheduler and start it anew: it must know what it knew; `stop` and `start` are its halves
    expect       wait until pods are there: `a`, `a/0` (card 0 of a), `a/0,1`, a list of these when any will do, `gone`,
                 `waits` (now), or `{waits: [words of its condition]}`; `label=value*3` stands for the three pods that
                 have the label. What only holds for one way stands under `standalone` (both clusters) or `extender`.
                 Annotations of all families are checked against each other, the node and the request.
    annotations  what pods carry
    used         wait until the scheduler counts so many units on each card; `counted`: these pods
    usable       wait until just these cards of nodes take new pods
    says         wait until the scheduler's log says this
    event        wait for an event: `kind` and `name` of the object, `reason`, what the message `has`, and what no
                 message of that reason may hold (`lacks`)
"""

from pathlib import Path
from typing import Any

import pytest

from tests.suites.api.matching import load
from tests.suites.scheduling.play import EXAMPLES, Play
from tests.suites.scheduling.ways import EMBEDDED, WAYS, Way

FILES = {path.stem: load(path) for path in sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))}
SCENARIOS: dict[str, dict[str, Any]] = {f"{file}: {one['name']}": one for file, found in FILES.items() for one in found}
#: Steps that can fail because of what the scheduler did.
CHECKS = {"expect", "used", "usable", "counted", "event", "annotations", "restart"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every scenario on every way it is for; those with the same options one after the other."""
    if "way" not in metafunc.fixturenames:
        return
    ordered = sorted(SCENARIOS.items(), key=lambda item: str(item[1].get("options", "")))
    runs = [
        pytest.param(way, scenario, id=f"{way}: {name}", marks=() if way == EMBEDDED else pytest.mark.kube)
        for way in WAYS
        if metafunc.config.getoption("--cluster") in (None, "embedded" if way == EMBEDDED else "real")
        for name, scenario in ordered
        if way in scenario.get("ways", WAYS)
    ]
    metafunc.parametrize(("way", "scenario"), runs, indirect=["way"], scope="module")


def test_scenario(way: Way, scenario: dict[str, Any]) -> None:
    play = Play(way, scenario)
    try:
        for step in scenario["steps"]:
            play.step(step)
    finally:
        play.close()


def test_everything_is_looked_at() -> None:
    assert len(SCENARIOS) == sum(map(len, FILES.values()))
    played = {step["file"] for scenario in SCENARIOS.values() for step in scenario["steps"] if "file" in step}
    assert played == {path.name for path in EXAMPLES.glob("[0-9]*.yaml")}
    for name, scenario in SCENARIOS.items():
        assert any(step.keys() & CHECKS for step in scenario["steps"]), name
