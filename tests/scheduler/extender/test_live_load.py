"""Live load as kube-scheduler meets it: refused with words, never for good, and no pod gives way for nothing."""

from __future__ import annotations

import json

import pytest

from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.scheduler.live_loads import LiveLoads
from tests.scheduler.extender.requests import args, pod, preemption
from tests.scheduler.extender.scene import Scene

TTL = 100.0


class Loaded(Scene):
    """A node of two cards with 16 GiB each, and what was measured of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.add_node("a", 2)
        self.loads = LiveLoads(self.state.engine.ledger, news=lambda _: None, ttl=TTL, clock=lambda: self.now)

    def stray(self, *gib: int) -> None:
        node = self.state.engine.ledger.node("a")
        assert node is not None
        cards = zip(node.slots, gib, strict=False)
        digest = {card.inventory.uuid: CardDigest(unattributed_mib=each * 1024) for card, each in cards}
        self.loads.take("a", LoadDigest(digest))


@pytest.fixture
def scene() -> Loaded:
    return Loaded()


def test_filter_and_prioritize_know_it(scene: Loaded) -> None:
    scene.stray(10, 10)
    answer = scene.filter(args(pod("p", mem="8"), ["a"]))
    assert not answer["NodeNames"]
    assert "10240 MiB used by nobody's pod" in answer["FailedNodes"]["a"], "and it is not unresolvable"
    scene.stray(10, 0)
    assert scene.filter(args(pod("p", mem="8"), ["a"]))["NodeNames"] == ["a"]
    assert scene.prioritize(args(pod("p", mem="8"), ["a"])) == {"a": 10}


@pytest.mark.parametrize("gib", [10, 900])
def test_a_pod_it_refused_is_pointed_out_again(scene: Loaded, gib: int) -> None:
    """When less is used, and when nobody tells any more."""
    for ends in (lambda: scene.stray(0, 0), lambda: setattr(scene, "now", scene.now + TTL)):
        scene.stray(gib, gib)
        assert not scene.filter(args(pod("p", mem="8"), ["a"]))["NodeNames"]
        scene.verbs.tend()
        assert scene.again == []
        ends()
        scene.loads.expire()
        scene.verbs.tend()
        assert [one.metadata.name for one in scene.again] == ["p"]
        scene.again.clear()


def test_nobody_gives_way_for_memory_that_would_stay_used(scene: Loaded) -> None:
    for index in (0, 1):
        scene.bind(pod(f"low-{index}", mem="6"), "a", index, 6)
    scene.stray(10, 10)
    important = pod("p", mem="8", priority=9)
    scene.filter(args(important, ["a"]))
    scene.now += 60
    victims = {"a": ["uid-low-0", "uid-low-1"]}
    answer = json.loads(scene.verbs.preempt(scene.shown(preemption(important, victims))))
    assert answer["NodeNameToMetaVictims"] == {}
    scene.stray(10, 4)
    answer = json.loads(scene.verbs.preempt(scene.shown(preemption(important, victims))))
    assert [one["UID"] for one in answer["NodeNameToMetaVictims"]["a"]["Pods"]] == ["uid-low-1"]
