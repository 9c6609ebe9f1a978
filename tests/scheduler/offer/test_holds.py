"""Cards held for pods of other clusters: bounded, short, replaced, and given to the copy they are for."""

import msgspec
import pytest

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.contract import clusters
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.extender.filtering import HELD
from shoal.scheduler.offer.holds import MOST_PODS, key_of
from shoal.scheduler.queue.queue import QueuePlace
from tests.scheduler.extender.requests import args, pod
from tests.scheduler.offer.scene import CALLER, OfferScene, books, copy_of


@pytest.fixture
def scene() -> OfferScene:
    made = OfferScene()
    for name in ("a", "b"):
        made.add_node(name, 2)
    return made


def held_cards(scene: OfferScene) -> dict[str, list[str]]:
    return {uid: sorted(booking.allocation.held()) for uid, booking in scene.bookings().items()}


def test_what_is_held_is_nobody_elses_until_it_is_over(scene: OfferScene) -> None:
    before = books(scene)
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
    assert len(scene.holds) == 1
    assert scene.ask(pod(gpu="1"), count=9).fits == 2
    scene.now += 9.9
    assert scene.ask(pod(gpu="1"), count=9).fits == 2
    scene.now += 0.1
    assert scene.ask(pod(gpu="1"), count=9).fits == 4
    assert len(scene.holds) == 0
    assert books(scene) == before


def test_holds_end_in_the_order_of_their_times(scene: OfferScene) -> None:
    scene.ask(pod(gpu="1"), origin="long", hold=60)
    scene.ask(pod(gpu="1"), origin="short", hold=5)
    scene.now += 5
    scene.holds.expire()
    assert scene.holds.keys() == {key_of(CALLER, "long")}
    scene.now += 55
    scene.holds.expire()
    assert not scene.holds.keys()


@pytest.mark.parametrize(("origin", "hold"), [("", 0), ("", 60), ("u1", 0)])
def test_without_a_pod_or_a_time_nothing_is_held(scene: OfferScene, origin: str, hold: int) -> None:
    assert not scene.ask(pod(gpu="1"), origin=origin, hold=hold).held
    assert not scene.bookings()


def test_who_asks_again_gets_one_hold(scene: OfferScene) -> None:
    for _ in range(5):
        assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
        scene.now += 5
    assert len(scene.holds) == 1
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10, count=2).fits == 2, "its own hold is not in the way"
    assert not scene.ask(pod(gpu="2"), origin="u1").held, "asked without a time it is given up"
    assert not scene.bookings()
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
    assert not scene.ask(pod(gpu="9"), origin="u1", hold=10).held, "and when nothing fits any more"
    assert not scene.bookings()


def test_one_hold_is_for_one_pod_whatever_the_count(scene: OfferScene) -> None:
    offer = scene.ask(pod(gpu="1"), count=4, origin="u1", hold=10)
    assert (offer.fits, offer.held) == (4, True)
    assert list(held_cards(scene)) == [key_of(CALLER, "u1")]


def test_callers_do_not_replace_each_other_s(scene: OfferScene) -> None:
    assert scene.ask(pod(gpu="1"), origin="u1", hold=10, caller="one").held
    assert scene.ask(pod(gpu="1"), origin="u1", hold=10, caller="other").held
    assert len(scene.holds) == 2
    assert not scene.ask(pod(gpu="1"), origin="u1", caller="other").held
    assert scene.holds.keys() == {key_of("one", "u1")}


def test_half_of_the_cards_may_be_held_and_something_for_one_pod_always(scene: OfferScene) -> None:
    assert scene.ask(pod(gpu="1"), origin="u1", hold=10).held
    assert scene.ask(pod(gpu="1"), origin="u2", hold=10, caller="other").held
    third = scene.ask(pod(gpu="1"), origin="u3", hold=10)
    assert (third.fits, third.held) == (1, False), "an offer all the same"
    assert len(scene.bookings()) == 2
    small = OfferScene()
    small.add_node("only", 1)
    assert small.ask(pod(gpu="1"), origin="u1", hold=10).held


def test_a_caller_holds_for_so_many_pods() -> None:
    scene = OfferScene()
    for number in range(20):
        scene.add_node(f"n{number}", 8)
    held = [scene.ask(pod(gpu="1"), origin=f"u{number}", hold=60).held for number in range(MOST_PODS + 3)]
    assert held == [True] * MOST_PODS + [False] * 3
    assert scene.ask(pod(gpu="1"), origin="u", hold=60, caller="other").held
    assert scene.ask(pod(gpu="1"), origin="u0", hold=60).held, "replacing one"
    assert len(scene.holds) == MOST_PODS + 1
    scene.now += 60
    scene.holds.expire()
    assert not scene.bookings()


def test_holds_are_shown_in_metrics(scene: OfferScene) -> None:
    scene.ask(pod(gpu="1"), origin="u1", hold=10)
    assert "shoal_scheduler_offers_held_pods 1" in "".join(scene.metrics.registry.pieces())
    scene.now += 10
    scene.holds.expire()
    assert "shoal_scheduler_offers_held_pods 0" in "".join(scene.metrics.registry.pieces())
    assert scene.metrics.offer_holds.value("expired") == 1


# The copy


def test_the_loop_gives_the_copy_what_is_held_for_it(scene: OfferScene) -> None:
    scene.bind(pod("x", mem="1"), "b", 1, 1)
    # By the time the copy comes, binpack would choose other cards than those that are held.
    assert scene.ask(pod(mem="9"), origin="u1", hold=10).held
    (cards,) = (booking.allocation.held() for uid, booking in scene.bookings().items() if uid == key_of(CALLER, "u1"))
    scene.bind(pod("y", mem="7"), "a", 0, 7)
    copy = scene.see(msgspec.convert(copy_of("u1", mem="9"), Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    _, placed = scene.loop._place(waiting, copy)
    assert placed is not None
    assert placed.held() == cards
    assert not len(scene.holds)
    assert scene.state.engine.ledger.is_assumed("uid-copy")


def test_filter_gives_the_copy_what_is_held_for_it(scene: OfferScene) -> None:
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
    (booking,) = scene.bookings().values()
    assert scene.filter(args(pod("other", gpu="2"), [booking.node]))["Error"] == HELD
    answer = scene.filter(args(copy_of("u1", gpu="2"), ["a", "b"]))
    assert answer["NodeNames"] == [booking.node], "that node alone"
    assert held_cards(scene)["uid-copy"] == sorted(booking.allocation.held())
    assert not len(scene.holds)
    assert scene.verbs.holds.of("uid-copy") is not None, "held for its bind from now on"
    assert scene.filter(args(copy_of("u1", gpu="2"), ["a", "b"]))["Error"] == "", "filtered once more, as any pod"


def test_a_pod_that_its_manager_leaves_at_home_gets_what_is_held_for_it(scene: OfferScene) -> None:
    """The manager's own cluster is asked as the others are; no copy is made there."""
    assert scene.ask(pod(gpu="2"), origin="uid-own", hold=10).held
    (booking,) = scene.bookings().values()
    assert scene.filter(args(pod("own", gpu="2"), ["a", "b"]))["NodeNames"] == [booking.node]
    assert held_cards(scene) == {"uid-own": sorted(booking.allocation.held())}


@pytest.mark.parametrize("fits_elsewhere", [True, False])
def test_a_copy_whose_held_node_may_not_take_it_any_more_is_placed_as_any_pod(
    scene: OfferScene, fits_elsewhere: bool
) -> None:
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
    (booking,) = scene.bookings().values()
    other = "b" if booking.node == "a" else "a"
    if not fits_elsewhere:
        scene.bind(pod("x", mem="1"), other, 0, 1)
    answer = scene.filter(args(copy_of("u1", gpu="2"), [other]))
    assert answer["NodeNames"] == ([other] if fits_elsewhere else [])
    assert not len(scene.holds)


def test_a_copy_that_asks_for_something_else_is_not_refused_by_its_hold(scene: OfferScene) -> None:
    for node in ("a", "b"):
        scene.bind(pod(node, mem="1"), node, 0, 1)
    assert scene.ask(pod(mem="9"), origin="u1", hold=10).held
    scene.ask(pod(mem="16"), origin="u2", hold=10)
    copy = scene.see(msgspec.convert(copy_of("u1", gpu="1"), Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    _, placed = scene.loop._place(waiting, copy)
    assert placed is not None
    assert scene.holds.keys() == {key_of(CALLER, "u2")}


def test_its_own_hold_is_not_in_the_way_of_a_copy_that_keeps_others_of_its_kind_away(scene: OfferScene) -> None:
    """Ports and anti-affinity count for what is held, too."""
    term = {"labelSelector": {"matchLabels": {"app": "copy"}}, "topologyKey": "kubernetes.io/hostname"}
    asked = copy_of("u1", gpu="1")
    asked["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a"}
    assert scene.ask(asked, origin="u1", hold=10).held
    assert scene.ask(asked, origin="u2", hold=10).fits == 0
    copy = scene.see(msgspec.convert(asked, Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    _, placed = scene.loop._place(waiting, copy)
    assert placed is not None
    assert placed.node == "a"


@pytest.mark.parametrize(
    "written", ["", "{}", "x", '{"cluster":"c","uid":"u1"}', '{"cluster":"c","uid":"u2","attempt":1}']
)
def test_only_the_copy_of_that_pod_gets_it(scene: OfferScene, written: str) -> None:
    assert scene.ask(pod(gpu="2"), origin="u1", hold=10).held
    stranger = copy_of("u1", gpu="2")
    stranger["metadata"]["annotations"] = {clusters.ANNOTATION_ORIGIN: written}
    assert scene.holds.take(msgspec.convert(stranger, Pod)) is None
    assert len(scene.holds) == 1


def test_a_copy_that_somebody_else_has_bound_needs_no_hold(scene: OfferScene) -> None:
    scene.ask(pod(mem="10"), origin="u1", hold=10)
    (booking,) = scene.bookings().values()
    copy = copy_of("u1", mem="10")
    copy["spec"]["nodeName"] = booking.node
    scene.see(msgspec.convert(copy, Pod))
    assert not len(scene.holds)
    assert set(scene.bookings()) == {"uid-copy"}
    assert not scene.state.engine.ledger.over_booked()


def test_the_node_goes_away_under_a_hold(scene: OfferScene) -> None:
    scene.ask(pod(gpu="2"), origin="u1", hold=10)
    (booking,) = scene.bookings().values()
    node = scene.state.node(booking.node)
    assert node is not None
    scene.state.on_node(Change(ChangeType.DELETED, node, None))
    answer = scene.filter(args(copy_of("u1", gpu="2"), ["a", "b"]))
    assert answer["NodeNames"] == [{"a": "b", "b": "a"}[booking.node]]
    assert not len(scene.holds)


# Pods of this cluster


class Told(OfferScene):
    """Remembers what happened."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.news = ClusterEvent(0)

        def note(event: ClusterEvent) -> None:
            self.news |= event

        self.state._news = note


def test_pods_that_wait_hear_of_the_end_of_a_hold_and_not_of_a_question() -> None:
    scene = Told()
    scene.add_node("a", 2)
    scene.news = ClusterEvent(0)
    scene.ask(pod(gpu="1"), count=2)
    scene.ask(pod(gpu="1"), count=2, origin="u1", hold=10)
    scene.ask(pod(gpu="1"), origin="u1", hold=10)
    assert not scene.news, "what was free is free, and what was held is held"
    scene.now += 10
    scene.holds.expire()
    assert scene.news & ClusterEvent.CARDS_FREED
    scene.ask(pod(gpu="1"), origin="u1", hold=10)
    scene.news = ClusterEvent(0)
    scene.ask(pod(gpu="1"), origin="u1")
    assert scene.news & ClusterEvent.CARDS_FREED, "given up"


async def test_nobody_is_evicted_for_cards_that_are_only_held() -> None:
    """A more important pod waits for the end of the hold: in the loop, and by filter."""
    scene = OfferScene()
    scene.add_node("a", 2)
    scene.bind(pod("low", mem="16", priority=-5), "a", 0, 16)
    assert scene.ask(pod(gpu="1"), origin="u1", hold=10).held
    important = pod("high", gpu="1", priority=1000)
    important["spec"]["schedulerName"] = "gpu-scheduler"
    scene.see(msgspec.convert(important, Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    scene.loop._try(waiting)
    assert scene.loop.queue.place_of("uid-high") is QueuePlace.PARKED
    assert not scene.loop._clearing._cleared, "nobody gives way"
    assert scene.filter(args(pod("high2", gpu="1", priority=1000), ["a"]))["Error"] == HELD
    scene.now += 10
    scene.holds.expire()
    assert scene.filter(args(pod("high2", gpu="1", priority=1000), ["a"]))["NodeNames"] == ["a"]


async def test_who_does_not_fit_even_without_holds_may_have_others_evicted() -> None:
    scene = OfferScene()
    scene.add_node("a", 2)
    scene.bind(pod("low", mem="16", priority=-5), "a", 0, 16)
    assert scene.ask(pod(mem="4"), origin="u1", hold=10).held
    important = pod("high", gpu="2", priority=1000)
    important["spec"]["schedulerName"] = "gpu-scheduler"
    scene.see(msgspec.convert(important, Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    scene.loop._try(waiting)
    assert not scene.loop._clearing._cleared, "the hold cannot be evicted, so nobody's leaving helps"
