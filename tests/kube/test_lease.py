"""Leader election on the real server: one leads, another takes over, never two."""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from shoal.kube.client import Client
from shoal.kube.errors import KubeError, LeadershipLostError
from shoal.kube.lease import Election, Terms
from shoal.kube.resources import LEASES
from tests.kube.conftest import access_of
from tests.kube.relay import Relay
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer

TERMS = Terms(duration=4, renew_deadline=2.5, retry=0.4)


class Candidate:
    """A process of the election, as a task, with the times in which it worked."""

    def __init__(self, client: Client, namespace: str, name: str, terms: Terms = TERMS) -> None:
        self.election = Election(client, namespace=namespace, name="leader", identity=name, terms=terms)
        self.working = False
        self.spans: list[tuple[float, float]] = []
        self.release = asyncio.Event()
        self.task = asyncio.create_task(self.election.run(self._work), name=name)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.working = True
        try:
            await self.release.wait()
        finally:
            self.working = False
            self.spans.append((began, loop.time()))

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


@contextlib.asynccontextmanager
async def candidates(client: Client, namespace: str, count: int) -> AsyncIterator[list[Candidate]]:
    made = [Candidate(client, namespace, f"c{number}") for number in range(count)]
    try:
        yield made
    finally:
        for candidate in made:
            await candidate.stop()


def leaders(made: list[Candidate]) -> list[Candidate]:
    return [candidate for candidate in made if candidate.working]


async def test_one_leads_and_hands_over_at_once(client: Client, namespace: str) -> None:
    """A clean stop releases: the next need not wait for the lease to run out."""
    terms = Terms(duration=600, renew_deadline=60, retry=0.2)
    first = Candidate(client, namespace, "first", terms)
    await until(lambda: first.working, "the first leads")
    second = Candidate(client, namespace, "second", terms)
    await until(lambda: second.election.leader == first.election.identity, "the second sees the first")
    assert first.election.leading
    assert not second.election.leading
    await first.stop()
    await until(lambda: second.working, "the second leads, long before 600 s")
    await second.stop()
    lease = await client.get(LEASES, "leader", namespace=namespace)
    assert lease.spec.holder_identity == ""
    assert lease.spec.lease_transitions == 1
    assert first.spans[0][1] <= second.spans[0][0]


async def test_three_candidates_take_turns(client: Client, namespace: str) -> None:
    async with candidates(client, namespace, 3) as made:
        for left in (3, 2, 1):
            await until(lambda: len(leaders(made)) == 1, "one leads")
            assert sum(candidate.election.leading for candidate in made) == 1
            await leaders(made)[0].stop()
            assert len([c for c in made if not c.task.done()]) == left - 1
        spans = sorted(span for candidate in made for span in candidate.spans)
        assert len(spans) == 3
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


async def test_work_that_ends_ends_the_election(client: Client, namespace: str) -> None:
    candidate = Candidate(client, namespace, "c")
    await until(lambda: candidate.working, "it leads")
    candidate.release.set()
    await asyncio.wait_for(candidate.task, 60)
    assert (await client.get(LEASES, "leader", namespace=namespace)).spec.holder_identity == ""


async def test_an_error_of_the_work_is_raised(client: Client, namespace: str) -> None:
    async def work() -> None:
        raise ZeroDivisionError

    election = Election(client, namespace=namespace, name="leader", identity="c", terms=TERMS)
    with pytest.raises(ZeroDivisionError):
        await election.run(work)
    assert (await client.get(LEASES, "leader", namespace=namespace)).spec.holder_identity == ""


async def test_a_leader_cut_off_stops_before_another_begins(
    apiserver: ApiServer, client: Client, namespace: str
) -> None:
    async with Relay(apiserver.port) as relay:
        access = replace(access_of(apiserver.kubeconfig()), server=f"https://127.0.0.1:{relay.port}")
        async with Client(access) as far:
            first = Candidate(far, namespace, "first")
            await until(lambda: first.working, "the first leads")
            second = Candidate(client, namespace, "second")
            await until(lambda: bool(second.election.leader), "the second looks on")
            relay.hang()  # worse than a cut: nothing fails, nothing answers
            await until(lambda: first.task.done(), "the first gives up")
            assert not second.working
            assert not first.election.leading
            with pytest.raises(LeadershipLostError, match="stop and start anew"):
                await first.task
            await until(lambda: second.working, "the second takes over")
            await second.stop()
    assert first.spans[0][1] < second.spans[0][0]


async def test_a_holder_that_is_killed_is_replaced(apiserver: ApiServer, client: Client, namespace: str) -> None:
    """kill -9 of a process of its own: it releases nothing, its lease runs out."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HOLDER, str(apiserver.kubeconfig()), namespace), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"leading\n"
        candidate = Candidate(client, namespace, "next")
        await until(lambda: candidate.election.leader.startswith("victim_"), "it sees the holder")
        # Watching a renewed record for longer than it lasts does not make it free.
        seen = (await client.get(LEASES, "leader", namespace=namespace)).spec.renew_time
        await asyncio.sleep(TERMS.duration + 1)
        assert not candidate.working
        assert (await client.get(LEASES, "leader", namespace=namespace)).spec.renew_time != seen
    finally:
        process.kill()
        await process.communicate()
    await until(lambda: candidate.working, "the next takes over")
    await candidate.stop()
    lease = await client.get(LEASES, "leader", namespace=namespace)
    assert lease.spec.lease_transitions == 1


_HOLDER = """
import asyncio, sys
from pathlib import Path
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.lease import Election, Terms

async def work():
    sys.stdout.write("leading\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

async def main():
    async with Client(load_kubeconfig([Path(sys.argv[1])], environ={}, explicit=True)) as client:
        terms = Terms(duration=4, renew_deadline=2.5, retry=0.4)
        await Election(client, namespace=sys.argv[2], name="leader", identity="victim", terms=terms).run(work)

asyncio.run(main())
"""


async def test_the_clock_of_others_is_not_trusted(client: Client, namespace: str) -> None:
    """A record from a holder whose clock is a year ahead, or behind, runs out by what we see, not by what it says."""
    for year in ("2000", "2100"):
        name = f"leader-{year}"
        spec = {
            "holderIdentity": "odd",
            "leaseDurationSeconds": 2,
            "renewTime": f"{year}-01-01T00:00:00.000000Z",
            "acquireTime": f"{year}-01-01T00:00:00.000000Z",
        }
        await client.create(LEASES, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def work() -> None:
            pass

        await Election(client, namespace=namespace, name=name, identity="c", terms=TERMS).run(work)
        assert loop.time() - began >= 2


async def test_a_lease_taken_away_is_lost(client: Client, namespace: str) -> None:
    candidate = Candidate(client, namespace, "c")
    await until(lambda: candidate.working, "it leads")
    lease = await client.get(LEASES, "leader", namespace=namespace)
    usurped = msgspec.structs.replace(lease.spec, holder_identity="usurper")
    while True:
        with contextlib.suppress(KubeError):
            await client.replace(LEASES, msgspec.structs.replace(lease, spec=usurped))
            break
        lease = await client.get(LEASES, "leader", namespace=namespace)
    with pytest.raises(LeadershipLostError, match="usurper"):
        await asyncio.wait_for(candidate.task, 60)
    assert (await client.get(LEASES, "leader", namespace=namespace)).spec.holder_identity == "usurper"


async def test_a_deleted_lease_is_lost(client: Client, namespace: str) -> None:
    candidate = Candidate(client, namespace, "c")
    await until(lambda: candidate.working, "it leads")
    await client.delete(LEASES, "leader", namespace=namespace)
    with pytest.raises(LeadershipLostError):
        await asyncio.wait_for(candidate.task, 60)


async def test_an_edit_of_the_lease_does_no_harm(client: Client, namespace: str) -> None:
    candidate = Candidate(client, namespace, "c")
    await until(lambda: candidate.working, "it leads")
    await client.patch(LEASES, "leader", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
    edited = await client.get(LEASES, "leader", namespace=namespace)

    renewed = ""
    async with asyncio.timeout(60):
        while not renewed or renewed == edited.spec.renew_time:
            await asyncio.sleep(0.1)
            renewed = (await client.get(LEASES, "leader", namespace=namespace)).spec.renew_time or ""
    assert candidate.working
    await candidate.stop()
    assert (await client.get(LEASES, "leader", namespace=namespace)).metadata.labels == {"a": "b"}


async def test_leading_ends_by_the_clock_alone(client: Client, namespace: str) -> None:
    """A process that stood still does not lead when it wakes, before any of its tasks has run."""
    ahead = [0.0]
    election = Election(
        client,
        namespace=namespace,
        name="leader",
        identity="c",
        terms=TERMS,
        clock=lambda: asyncio.get_running_loop().time() + ahead[0],
    )

    async def work() -> None:
        assert election.leading
        ahead[0] = TERMS.renew_deadline
        assert not election.leading

    await election.run(work)


@pytest.mark.parametrize("terms", [(15, 15, 2), (15, 10, 10), (15, 10, 0), (15.5, 10, 2), (2, 10, 1)])
def test_terms_that_cannot_hold(terms: tuple[float, float, float]) -> None:
    with pytest.raises(KubeError, match="correct the terms"):
        Terms(*terms)


def test_terms_are_scaled_to_a_lease() -> None:
    assert Terms.lasting(15) == Terms()
    assert Terms.lasting(3) == Terms(duration=3.0, renew_deadline=2.0, retry=0.4)
