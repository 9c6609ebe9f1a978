"""Home's side of the fence: whom it believes to keep fences, from when it counts, and what the next manager knows."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.fences import Fences
from shoal.clusters.member import Member
from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.lease import boot_clock
from shoal.kube.resources import CONFIG_MAPS, LEASES
from shoal.model.contract import clusters
from tests.clusters.site import StaticMembers

FENCE, REPLACE = 240, 300.0
#: The member and, in the same server, home's namespace.
EAST, HOME, SYSTEM, TEAM = "east-uid", "home-uid", "kube-system", "default"
CONFIG = ClusterManagerConfig(namespace="default", fence_seconds=FENCE, replace_seconds=REPLACE)


class Clock:
    """The own clock, which the test moves on."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return boot_clock() + self.passed


class Place:
    """A server that is home and member at once, and managers that come and go."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.clock = Clock()
        self.member = Member("east", EAST, client)
        self.members = StaticMembers(self.member)

    def manager(self) -> Fences:
        """What one manager knows."""
        return Fences(
            CONFIG,
            self.client,
            self.members,
            lambda: [(EAST, TEAM)],
            home_cluster=HOME,
            missed=lambda cluster: None,
            may_write=lambda: True,
            clock=self.clock,
            now=lambda: datetime.datetime.now(datetime.UTC),
        )

    async def look(self, moment: str) -> None:
        """What a scheduler there tells."""
        data = {"data": {clusters.KEY_FENCE: moment}}
        await self.client.patch(CONFIG_MAPS, clusters.NAME_ROOM, data, namespace=SYSTEM)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with (
        EmbeddedApi(tmp_path / "embedded") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        await client.create(CONFIG_MAPS.raw, {"metadata": {"name": clusters.NAME_ROOM}}, namespace=SYSTEM)
        await client.create(LEASES.raw, {"metadata": {"name": CONFIG.lease_name}}, namespace="default")
        yield Place(client)


async def test_only_a_scheduler_that_is_seen_at_work_keeps_fences(place: Place) -> None:
    fences = place.manager()
    await fences.begin()
    assert await fences.fence_in(place.member) == 0, "nobody told a moment"
    await place.look("2026-01-01T00:00:00.000000Z")
    await fences.renew()
    assert await fences.fence_in(place.member) == FENCE
    assert fences.seconds_left(EAST, FENCE) is None, "it may have been told long ago"
    await place.look("2026-01-01T00:00:10.000000Z")
    await fences.renew()
    assert fences.seconds_left(EAST, FENCE) == pytest.approx(REPLACE, abs=60)
    assert fences.seconds_left(EAST, 0) is None, "mode Wait"
    lease = await place.client.get(LEASES, clusters.fence_name(HOME), namespace=TEAM)
    assert (lease.spec.renew_time, lease.spec.lease_duration_seconds) == ("2026-01-01T00:00:10.000000Z", FENCE)
    place.clock.passed += 61
    await fences.renew()
    assert fences.seconds_left(EAST, FENCE) is None, "it looks no more, while its server answers"
    assert await fences.fence_in(place.member) == 0
    silence = fences.silence(EAST, FENCE)
    assert silence is not None
    assert "no scheduler of Shoal there" in silence.words("east")


async def test_time_counts_from_the_last_answer_and_anew_for_each_manager(place: Place) -> None:
    fences = place.manager()
    await fences.begin()
    for second in (0, 10):
        await place.look(f"2026-01-01T00:00:{second:02}.000000Z")
        await fences.renew()
    assert not fences.is_silent(EAST)
    place.members.members = {}  # it does not answer
    place.clock.passed += REPLACE - 60
    await fences.renew()
    left = fences.seconds_left(EAST, FENCE)
    assert left is not None
    assert 0 < left <= 60
    assert fences.is_silent(EAST)
    fences.heard(place.member)
    assert fences.seconds_left(EAST, FENCE) == pytest.approx(REPLACE, abs=1)
    place.clock.passed += REPLACE + 1
    await fences.renew()
    left = fences.seconds_left(EAST, FENCE)
    assert left is not None
    assert left <= 0
    assert fences.seconds_left(EAST, 2 * FENCE) == pytest.approx(FENCE * 2.5 - REPLACE - 1, abs=1), "made under more"
    record = fences.record().clusters[EAST]
    assert record.fenced
    assert record.since
    # The next one knows that fences were kept, and since when it is silent; its own time begins now.
    other = place.manager()
    assert other.seconds_left(EAST, FENCE) is None
    await other.begin()
    assert other.seconds_left(EAST, FENCE) == pytest.approx(REPLACE, abs=1)
    silence = other.silence(EAST, FENCE)
    assert silence is not None
    assert f"{silence.since:%Y-%m-%dT%H:%M:%SZ}" == record.since
    assert "this pod fails at" in silence.words("east")


def test_times_by_which_a_pod_would_run_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="replaceSeconds must be 300 at least"):
        ClusterManagerConfig(fence_seconds=240, replace_seconds=299)
