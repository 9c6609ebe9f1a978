"""Whatever is asked, held, replaced and forgotten: the books are as if nobody had ever asked.

Two scenes get the same pods of their own; one is asked for offers as well. When all holds are over both are the same,
to the last number that a decision depends on, and decide alike.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kube.objects.pod import Pod
from tests.scheduler.extender.requests import pod
from tests.scheduler.offer.scene import OfferScene, books, copy_of
from tests.soak import times

limits = st.sampled_from(
    [{"mem": "1"}, {"mem": "6"}, {"mem": "16"}, {"mem": "40"}, {"gpu": "1"}, {"gpu": "2"}, {"mps": "1"}, {"cpu": "90"}]
)
origins = st.sampled_from(["", "u1", "u2", "u3"])
callers = st.sampled_from(["one", "other"])
offers = st.tuples(
    st.just("offer"), limits, st.sampled_from([1, 2, 5, 40]), origins, st.sampled_from([0, 1, 20, 60]), callers
)
steps = st.lists(
    st.one_of(
        offers,
        offers,
        st.tuples(st.just("pass"), st.sampled_from([0.5, 5.0, 30.0])),
        st.tuples(st.just("own"), limits),
        st.tuples(st.just("gone"), st.integers(0, 5)),
    ),
    max_size=20,
)


def scene_of(policy: str) -> OfferScene:
    scene = OfferScene(policy=policy)
    for name, cards in (("a", 2), ("b", 2), ("c", 4)):
        scene.add_node(name, cards)
    return scene


def place(scene: OfferScene, name: str, wanted: dict[str, Any]) -> str | None:
    """A pod of the cluster's own is placed; its node."""
    made = scene.add_pod(pod(name, **wanted))
    allocation = scene.state.place(made)
    return None if allocation is None else allocation.node


@settings(max_examples=times(40), deadline=None)
@given(history=steps, policy=st.sampled_from(["binpack", "fragmentation", "spread"]))
def test_offers_leave_no_trace(history: list[tuple], policy: str) -> None:
    asked, never = scene_of(policy), scene_of(policy)
    own: list[str] = []
    for number, (kind, *rest) in enumerate(history):
        if kind == "offer":
            wanted, count, origin, hold, caller = rest
            before = asked.holds.keys()
            offer = asked.ask(pod("q", **wanted), count=count, origin=origin, hold=hold, caller=caller)
            assert 0 <= offer.fits <= count
            assert offer.held <= bool(offer.fits and origin and hold)
            assert asked.holds.keys() - before <= ({f"offer:{origin}:{caller}"} if origin else set())
        elif kind == "pass":
            for scene in (asked, never):
                scene.now += rest[0]
            asked.holds.expire()
        elif kind == "own" and not len(asked.holds):  # what is held changes where others go: that is what it is for
            name = f"own-{number}"
            assert place(asked, name, rest[0]) == place(never, name, rest[0])
            own.append(name)
        elif kind == "gone" and rest[0] < len(own):
            name = own.pop(rest[0])
            for scene in (asked, never):
                scene.gone(scene.state.pod(f"uid-{name}"))  # type: ignore[arg-type]
        assert not asked.state.engine.ledger.over_booked()
    for scene in (asked, never):
        scene.now += 60
    asked.holds.expire()
    assert len(asked.holds) == 0
    assert books(asked) == books(never)
    for number, wanted in enumerate(({"mem": "3"}, {"gpu": "1"}, {"mps": "1"})):
        assert place(asked, f"last-{number}", wanted) == place(never, f"last-{number}", wanted)


@settings(max_examples=times(40), deadline=None)
@given(wanted=limits, others=st.lists(limits, max_size=6), policy=st.sampled_from(["binpack", "fragmentation"]))
def test_a_copy_always_gets_what_is_held_for_it(
    wanted: dict[str, Any], others: list[dict[str, Any]], policy: str
) -> None:
    """Whoever else comes between the offer and the copy."""
    scene = scene_of(policy)
    offer = scene.ask(copy_of("u1", **wanted), origin="u1", hold=30)
    if not offer.held:
        assert not offer.fits
        return
    (held,) = (booking.allocation for booking in scene.bookings().values())
    for number, limits_of_other in enumerate(others):
        place(scene, f"other-{number}", limits_of_other)
    copy = scene.see(msgspec.convert(copy_of("u1", **wanted), Pod))
    waiting = scene.loop.queue.pop(scene.now)
    assert waiting is not None
    _, placed = scene.loop._place(waiting, copy)
    assert placed == held
