"""The times of the fence: whatever is late, lost or started anew, a member's fence has fallen before home's time is up.

Home counts from the moment in which it last read when the scheduler looked. Renewals may arrive at any time, in any
order; schedulers start anew with another clock of their own; all that they have in common is the API server's clock.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.clusters.config import least_replace_seconds
from shoal.model.contract import clusters
from shoal.model.errors import CodecError
from shoal.scheduler.fence import FenceClock

FENCE = 240
#: Whole seconds of the server's clock, and of what answers take.
ROUNDING = 3.0
_BEGINNING = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass
class World:
    """A member with one scheduler and one Lease, and a manager that reads and renews; `now` is the true time."""

    #: What the server's clock says when it is 0.
    server: datetime.datetime
    now: float = 0.0
    own: float = 0.0
    room: str = ""
    told_at: dict[str, float] = field(default_factory=dict)
    #: What home has read, and when it last read something.
    known: str = ""
    heard: float = 0.0
    #: Renewals on their way: what they hold and when they arrive.
    sent: list[tuple[float, str]] = field(default_factory=list)
    lease: str = ""

    def __post_init__(self) -> None:
        self.restart(0.0)

    def restart(self, own: float) -> None:
        """Another process, whose clock began elsewhere."""
        self.own = own - self.now
        self.times = FenceClock(lambda: self.now + self.own)

    def look(self, seconds: float) -> None:
        """The scheduler asks for the time, for which the answer takes so long, and tells the moment."""
        asked = self.now + self.own
        said = self.server + datetime.timedelta(seconds=self.now + seconds / 2)
        self.pass_by(seconds)
        self.times.take(said.replace(microsecond=0), asked=asked)
        self.room = self.times.tell()
        self.told_at.setdefault(self.room, self.now)

    def read(self) -> None:
        """Home reads the moment."""
        if self.room:
            self.known, self.heard = self.room, self.now

    def renew(self, delay: float) -> None:
        """Home sends what it knows, which arrives whenever it does."""
        if self.known:
            self.sent.append((self.now + delay, self.known))

    def pass_by(self, seconds: float) -> None:
        """Time goes on, and what was sent arrives."""
        self.now += seconds
        for one in sorted(one for one in self.sent if one[0] <= self.now):
            self.lease = one[1]
            self.sent.remove(one)


_STEP = st.one_of(
    st.tuples(st.just("look"), st.floats(0, 1)),
    st.tuples(st.just("read"), st.just(0.0)),
    st.tuples(st.just("renew"), st.one_of(st.floats(0, 2), st.floats(0, 1000))),
    st.tuples(st.just("restart"), st.floats(0, 1e6)),
    st.tuples(st.just("pass"), st.one_of(st.floats(0, 20), st.floats(0, 400))),
)


#: A fence that is renewed, and one that is renewed late.
_RENEWED: list[tuple[str, float]] = [("look", 0.0), ("read", 0.0), ("renew", 0.0)]
_LATE: list[tuple[str, float]] = [("look", 0.0), ("read", 0.0), ("renew", 200.0), ("pass", 200.0)]


@example(0.0, [*_RENEWED, ("pass", 100.0), ("restart", 0.0), ("pass", 100.0), ("restart", 0.0), ("pass", 40.0)])
@example(0.0, [*_LATE, ("pass", 40.0)])
@example(0.0, [("look", 0.0), ("look", 1.0), *_RENEWED])
@given(st.floats(0, 1e8), st.lists(_STEP, min_size=10, max_size=60))
def test_no_renewal_outlasts_homes_time(server: float, steps: Sequence[tuple[str, float]]) -> None:
    world = World(_BEGINNING + datetime.timedelta(seconds=server))
    for kind, value in steps:
        match kind:
            case "look":
                world.look(value)
            case "read":
                world.read()
            case "renew":
                world.renew(value)
            case "restart":
                world.restart(value)
                world.look(0.1)  # nothing is decided before the server has told its time
            case "pass":
                world.pass_by(value)
        if world.lease:
            age, true = world.times.age(world.lease), world.now - world.told_at[world.lease]
            assert age >= true - 1e-3, "never younger than it is"
            assert age <= true + ROUNDING, "nor much older: what is renewed stays"
            if world.now >= world.heard + FENCE:
                assert age >= FENCE - 1e-3, "its copies are removed"


def test_home_waits_for_what_is_removed_to_end() -> None:
    for fence in (4, 8, 60, 240, 3600):
        # The scheduler looks, the copy gets its grace period, and there is time left for rounding and for kubelet.
        look = max(1.0, fence / clusters.FENCE_LOOKS)
        assert least_replace_seconds(fence) >= fence + look + clusters.fence_grace(fence) + ROUNDING - 1
    assert least_replace_seconds(240) == 300


def test_a_moment_of_the_future_counts_from_when_it_was_seen() -> None:
    world = World(_BEGINNING)
    world.look(0.0)
    future = "2036-01-01T00:00:00.000000Z"
    assert world.times.age(future) == 0
    world.pass_by(100)
    world.look(0.0)
    assert world.times.age(future) == 100


@pytest.mark.parametrize("written", ["", "soon", "2026-01-01", "2026-01-01T00:00:00", "9" * 5000])
def test_what_is_no_moment_is_told(written: str) -> None:
    with pytest.raises(CodecError):
        FenceClock(lambda: 0.0).age(written)
