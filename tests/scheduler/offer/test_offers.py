"""What an offer says: how many fit, by cards and by Kubernetes' own filters, and if none does, why and for how long."""

import itertools
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract.clusters import Offer
from shoal.model.contract.load import CardDigest, LoadDigest
from shoal.scheduler.diagnosis import diagnose
from shoal.scheduler.errors import WireError
from shoal.scheduler.offer.offers import Offers
from tests.scheduler.extender.requests import args, pod
from tests.scheduler.offer.scene import CALLER, OfferScene, books
from tests.testbed.fake_nodes import node as node_object


def with_spec(manifest: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**manifest, "spec": {**manifest["spec"], **spec}}


@pytest.fixture(params=["binpack", "fragmentation", "spread", "keti"])
def scene(request: pytest.FixtureRequest) -> OfferScene:
    made = OfferScene(policy=request.param)
    for name in ("a", "b"):
        made.add_node(name, 2)
    return made


ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "p"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
MANY = {"resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}
PORT = [
    {
        "name": "main",
        "resources": {"limits": {"aliyun.com/gpu-mem": "1"}, "requests": {"aliyun.com/gpu-mem": "1"}},
        "ports": [{"containerPort": 80, "hostPort": 80}],
    }
]


@pytest.mark.parametrize(
    ("asked", "count", "fits"),
    [
        (pod(mem="16"), 1, 1),
        (pod(mem="16"), 1000, 4),
        (pod(mem="4"), 10, 10),
        (pod(mem="4"), 1000, 16),
        (pod(mem="9"), 1000, 4),
        (pod(gpu="1"), 1000, 4),
        (pod(gpu="2"), 1000, 2),
        (pod(mps="1"), 7, 7),
        (pod(mem="4", cpu="60"), 1000, 4),
        (pod(mem="17"), 1, 0),
        (pod(gpu="3"), 1, 0),
        (with_spec(pod(mem="1"), nodeSelector={"kubernetes.io/hostname": "a"}), 1000, 32),
        (with_spec(pod(mem="1"), nodeSelector={"kubernetes.io/hostname": "c"}), 1, 0),
        (with_spec(pod(mem="1"), affinity=ANTI), 1000, 2),
        (with_spec(pod(), containers=PORT), 1000, 2),
        (with_spec(pod(mem="16"), nodeName="gone", schedulingGates=[{"name": "shoal.dev/cluster"}]), 9, 4),
    ],
)
def test_how_many_fit(scene: OfferScene, asked: dict[str, Any], count: int, fits: int) -> None:
    before = books(scene)
    offer = scene.ask(asked, count=count)
    assert offer.fits == fits
    assert bool(offer.score) == bool(offer.why == "") == bool(fits)
    assert not offer.held
    assert books(scene) == before, "nothing is left of it"
    assert scene.ask(asked, count=count) == offer, "and it can be asked again"


def test_what_is_booked_counts(scene: OfferScene) -> None:
    scene.bind(pod("x", mem="10"), "a", 0, 10)
    scene.bind(pod("y", mem="1"), "b", 1, 1)
    assert scene.ask(pod(gpu="1"), count=9).fits == 2
    assert scene.ask(pod(mem="6"), count=99).fits == 1 + 2 + 2 + 2
    scene.filter(args(scene_pod := pod("held", gpu="1"), ["a"]))
    assert scene.ask(pod(gpu="1"), count=9).fits == 1, "what is held between filter and bind counts too"
    assert scene.verbs.holds.of(scene_pod["metadata"]["uid"]) is not None


def test_a_node_that_takes_nobody(scene: OfferScene) -> None:
    tainted = {**node_object("a", 2), "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}
    scene.state.on_node(Change(ChangeType.MODIFIED, None, msgspec.convert(tainted, Node)))
    assert scene.ask(pod(gpu="1"), count=9).fits == 2
    tolerating = with_spec(pod(gpu="1"), tolerations=[{"key": "k", "operator": "Exists"}])
    assert scene.ask(tolerating, count=9).fits == 4


def test_why_nothing_fits_is_told_in_the_words_of_a_waiting_pod(scene: OfferScene) -> None:
    for name, card in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
        scene.bind(pod(f"{name}{card}", mem="10"), name, card, 10)
    asked = msgspec.convert(pod(mem="8"), Pod)
    request, verdict = scene.state.request(asked), scene.context.feasibility.verdict(asked)
    offer = scene.ask(pod(mem="8"))
    assert offer.why == diagnose(scene.state.engine, request, verdict).message
    assert offer.why.startswith("0/2 nodes are available: 2 Insufficient")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (pod(mem="-1"), "gpu-mem"),
        (pod(mem="x"), "gpu-mem"),
        (pod(mem="1", gpu="1"), "one"),
        ({**pod(), "metadata": {"name": "p", "annotations": {"clusterName": "there"}}}, "asks for cluster 'there'"),
        (with_spec(pod(), containers=[{**MANY, "name": f"c{n}"} for n in range(9)]), "9 containers ask for GPUs"),
        (
            {**pod(), "metadata": {"name": "p", "annotations": {"shoal.dev/policy": "no such"}}},
            "no such",
        ),
    ],
)
def test_a_request_that_cannot_be_met_is_answered_in_words(scene: OfferScene, asked: dict[str, Any], why: str) -> None:
    offer = scene.ask(asked, origin="u1", hold=10)
    assert (offer.fits, offer.score, offer.held) == (0, 0.0, False)
    assert why in offer.why
    assert not scene.bookings()


def test_a_longer_count_than_there_is_time_for_is_answered_with_what_was_found() -> None:
    scene = OfferScene()
    scene.add_node("a", 8)
    ticks = itertools.count()
    offers = Offers(
        replace(scene.context, clock=lambda: next(ticks) / 1000),  # each look at the clock takes a millisecond
        keep_clear=lambda allowed, standing: allowed,
        departures=scene.departures,
        cluster="",
        count_seconds=0.01,
    )
    asked = msgspec.json.encode({"pod": pod(mem="1"), "count": 128})
    answer = msgspec.json.decode(offers.answer(CALLER, asked), type=Offer)
    assert 5 <= answer.fits < 20
    assert not scene.bookings()


# What is told besides


def test_the_queue_is_who_waits_here(scene: OfferScene) -> None:
    assert scene.ask(pod(gpu="1")).queue == 0
    for number in range(3):
        scene.see(msgspec.convert(with_spec(pod(f"w{number}", gpu="8"), schedulerName="gpu-scheduler"), Pod))
    gated = with_spec(pod("gated", gpu="1"), schedulerName="gpu-scheduler", schedulingGates=[{"name": "x"}])
    scene.see(msgspec.convert(gated, Pod))
    assert scene.ask(pod(gpu="1")).queue == 3


def test_the_queue_of_kube_scheduler_is_who_was_refused(scene: OfferScene) -> None:
    scene.filter(args(pod("big", gpu="3"), ["a", "b"]))
    assert scene.ask(pod(gpu="1")).queue == 1
    assert scene.ask(pod(gpu="1")).queue == 1, "asking makes nobody wait"


def leave(scene: OfferScene, name: str) -> None:
    running = scene.bind(pod(name, mem="1"), "a", 0, 1)
    gone = Change(ChangeType.DELETED, running, None)
    scene.departures.on_pod(gone)
    scene.state.on_pod(gone)


def test_the_wait_is_a_guess_by_who_left_lately(scene: OfferScene) -> None:
    for card in (0, 1):
        for node in ("a", "b"):
            scene.bind(pod(f"{node}{card}", mem="14"), node, card, 14)
    assert scene.ask(pod(gpu="1")).wait is None, "nobody has left yet"
    for number in range(10):
        leave(scene, f"l{number}")
        scene.now += 6
    assert scene.ask(pod(gpu="1")).wait == pytest.approx(6)
    scene.filter(args(pod("first", gpu="1"), ["a", "b"]))
    assert scene.ask(pod(gpu="1")).wait == pytest.approx(12), "one is ahead"
    assert scene.ask(pod(gpu="3")).wait is None, "no node has so many"
    assert scene.ask(pod(mem="17")).wait is None, "no card is so large"
    elsewhere = with_spec(pod(gpu="1"), nodeSelector={"x": "y"})
    assert scene.ask(elsewhere).wait is None, "no node is such a one"
    assert scene.ask(pod(mem="1")).wait is None, "it fits now"
    scene.now += 3600
    assert scene.ask(pod(gpu="1")).wait is None, "too long ago"


def test_the_load_is_that_of_the_cards_somebody_measures(scene: OfferScene) -> None:
    assert scene.ask(pod()).load is None
    cards = {"GPU-a-0": CardDigest(utilisation=90), "GPU-a-1": CardDigest(utilisation=30)}
    scene.state.engine.ledger.measure("a", LoadDigest(cards=cards))
    assert scene.ask(pod()).load == pytest.approx(0.6)
    scene.state.engine.ledger.measure("a", None)
    assert scene.ask(pod()).load is None


def test_nobody_is_preempted_for_an_offer(scene: OfferScene) -> None:
    for node in ("a", "b"):
        for card in (0, 1):
            scene.bind(pod(f"{node}{card}", mem="16", priority=-5), node, card, 16)
    before = books(scene)
    assert scene.ask(pod(gpu="1", priority=1000)).fits == 0
    assert books(scene) == before


# Hostile input


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"pod": 1}',
        b'{"pod": []}',
        b'{"count": 1}',
        b'{"pod": {}, "count": 0}',
        b'{"pod": {}, "count": 1001}',
        b'{"pod": {}, "count": -1}',
        b'{"pod": {}, "count": "1"}',
        b'{"pod": {}, "count": 1.5}',
        b'{"pod": {}, "hold": 61}',
        b'{"pod": {}, "hold": -1}',
        b'{"pod": {}, "origin": "a/b"}',
        b'{"pod": {}, "origin": "' + b"a" * 65 + b'"}',
        b'{"pod": {}, "more": 1}',
        b'{"pod": {"spec": {"containers": {}}}}',
        b'{"pod": {"spec": {"containers": [{"resources": {"limits": {"a": []}}}]}}}',
        b'{"pod": {"metadata": {"labels": {"a": 1}}}}',
        b'{"pod": {"spec": {"priority": "high"}}}',
        b'{"pod": {"a": "\xff"}}',
        b'{"pod": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    ],
)
def test_what_cannot_be_read_is_refused_in_words(scene: OfferScene, body: bytes) -> None:
    before = books(scene)
    with pytest.raises(WireError, match=r"cannot be read|nested too deeply"):
        scene.offers.answer(CALLER, body)
    assert books(scene) == before


@pytest.mark.parametrize("depth", [10, 500, *range(850, 1050, 10), 5000])
def test_deep_json_is_answered_or_refused(depth: int) -> None:
    """Between what can be read and what can be worked with lies a depth at which only the first works. Python 3.12 and
    newer reach it later than 3.11, whose limit is 1,000.
    """
    scene = OfferScene()
    scene.add_node("a", 2)
    body = b'{"pod": {"spec": {"affinity": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}}}"
    try:
        answered = scene.offers.answer(CALLER, body)
    except WireError as error:
        answered = str(error).encode()
    fits, refused = answered.startswith(b'{"fits":1'), b"nested too deeply" in answered
    assert fits if depth < 800 else fits or refused
    assert refused or depth < 1000 or sys.version_info >= (3, 12)
    assert not scene.bookings()


HUGE: dict[str, dict[str, Any]] = {
    "selector": {"nodeSelector": {f"key-{n}": "x" * 20 for n in range(25_000)}},
    "containers": {
        "containers": [{"name": f"c{n}", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}} for n in range(10_000)]
    },
    "tolerations": {"tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(15_000)]},
    "claims": {"volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(10_000)]},
    "affinity": {"affinity": {"nodeAffinity": {"x": ["y" * 100] * 10_000}}},
}


@pytest.mark.parametrize("part", HUGE)
def test_a_pod_of_a_megabyte_of_rules_is_refused(part: str) -> None:
    scene = OfferScene()
    scene.add_node("a", 2)
    with pytest.raises(WireError, match=r"at most 32768 are looked at: make it smaller"):
        scene.ask({"metadata": {"name": "p"}, "spec": {**pod()["spec"], **HUGE[part]}}, count=2)


def test_a_pod_of_a_megabyte_that_no_decision_reads_is_answered() -> None:
    scene = OfferScene()
    scene.add_node("a", 2)
    asked = pod(mem="16")
    asked["metadata"]["annotations"] = {"note": "x" * 500_000}
    asked["spec"]["containers"][0]["env"] = [{"name": f"E{n}", "value": "x" * 100} for n in range(5000)]
    offer = scene.ask(asked, count=9)
    assert offer.fits == 2
    assert not scene.bookings()
