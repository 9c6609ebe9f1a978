"""What goes wrong around the cluster manager, on three real control planes: it stands still, clocks differ, people and
machines meddle on both sides. Nothing runs twice and nothing is lost.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shoal.clusters.choice import ClusterChoice
from shoal.kube.client import Client
from shoal.kube.errors import NotFoundError, UnauthorizedError
from shoal.kube.resources import NAMESPACES, PODS, SECRETS, RawObject, Resource
from shoal.kube.transport import Call, _CutOffError
from tests.clusters import manager_process
from tests.clusters.site import (
    EAST,
    HOME,
    JOBS,
    MEMBERS,
    WEST,
    Site,
    StaticMembers,
    condition,
    eventually,
    pod,
    pod_meta,
    pod_spec,
)
from tests.testbed.clock_skew import skewed
from tests.testbed.processes import Process

#: Seconds of a lease, as in an installation: on a busy machine a leader loses one of 3 s.
LEASE = 15
ROLE_BINDINGS: Resource[RawObject] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", dict, namespaced=False
)


def manager(site: Site, name: str, environment: Mapping[str, str] | None = None, **settings: Any) -> Process:
    """A manager as a program, not started yet."""
    planes, run = site.planes.planes, site.planes.planes[HOME].run
    given = [str(planes[HOME].api.kubeconfig()), *(f"{place}={planes[place].api.kubeconfig()}" for place in MEMBERS)]
    command = [sys.executable, "-m", manager_process.__name__, *given]
    # A Lease of the test's own: that of another test may not have run out.
    quick = {"lease_name": site.namespace, "lease_seconds": LEASE, "mirror_seconds": 0.05, "sweep_seconds": 2.0}
    written = {manager_process.SETTINGS: json.dumps({**quick, **settings})}
    return run.process(f"{site.namespace}-{name}", command, {**os.environ, **written, **(environment or {})})


@contextlib.asynccontextmanager
async def started(*programs: Process) -> AsyncIterator[None]:
    """They run while the block does."""
    try:
        for program in programs:
            program.start()
        yield
    finally:
        for program in programs:
            program.kill()


async def start_again(program: Process) -> None:
    """Start it again whenever it has ended, as a Deployment does: a manager that has lost its lease ends."""
    while True:
        if not program.alive:
            program.start()
        await asyncio.sleep(0.5)


async def until_said(program: Process, words: str, count: int = 1) -> None:
    """Wait until its log has these words."""

    async def said() -> bool:
        assert program.alive or words in program.tail(1000), program.tail()
        return program.tail(1000).count(words) >= count

    await eventually(said, f"{program.name} says {words!r}")


async def until_empty(site: Site) -> None:
    """Nothing of the test's is left in any cluster."""
    for place in (HOME, *MEMBERS):

        async def empty(place: str = place) -> bool:
            return not await site.pods(place)

        try:
            await eventually(empty, f"nothing is left in {place}")
        except AssertionError as error:
            left = [
                json.dumps({**one["metadata"], "managedFields": None, **one["status"]})
                for one in await site.pods(place)
            ]
            raise AssertionError("\n".join([str(error), *left])) from None


async def delete_what_is_over(site: Site, names: list[str]) -> None:
    """Delete pods at home once they have ended, until cancelled."""
    while True:
        for one in await site.pods(HOME):
            over = one["status"].get("phase") in ("Succeeded", "Failed") and "deletionTimestamp" not in one["metadata"]
            if over and one["metadata"]["name"] in names:
                with contextlib.suppress(NotFoundError):
                    await site.home.delete(PODS, one["metadata"]["name"], namespace=site.namespace)
        await asyncio.sleep(0.05)


async def test_a_manager_that_stands_still_between_any_two_calls(site: Site) -> None:
    """Pod N's manager stands still before its N-th call, for longer than its lease; another takes over, and finishes.

    Then the first goes on, and sends what it was about to.
    """
    names = [f"pod-{number}" for number in range(1, 15)]
    first = manager(site, "first", {manager_process.HOLD: "1"}, member_seconds=300.0)
    second = manager(site, "second")
    async with started(first), asyncio.TaskGroup() as group:
        await until_said(first, "leads")
        people = group.create_task(delete_what_is_over(site, names))
        for name in names:
            await site.create(PODS.raw, pod(name, runs_for=0.1))

        async def all_stand() -> bool:
            left = {one["metadata"]["name"] for one in await site.pods(HOME)}
            return all(name not in left or f"held {name} " in first.tail(1000) for name in names)

        await eventually(all_stand, "each is held before a call of its own, or has lived its life")
        held = first.tail(1000).count("held pod-")
        os.kill(first.pid, signal.SIGSTOP)
        async with started(second):
            keeping = group.create_task(start_again(second))
            await until_said(second, "leads")
            await until_empty(site)
            os.kill(first.pid, signal.SIGCONT)
            await until_said(first, f"sent {held} late")
            people.cancel()
            # What came too late is answered for: whatever it has made is taken away again.
            await until_empty(site)
            keeping.cancel()
    assert held >= 8, "a life has so many calls"
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == len(names)


async def test_an_answer_that_is_lost_to_any_call(site: Site) -> None:
    """Of some pods the answer to the first call of each kind never comes, of pod N that to its N-th call, though the
    server has acted on it.
    """
    names = [f"pod-{number}" for number in (*range(1, 13), EACH_KIND, EACH_KIND + 1)]
    made = {place: await site.client(place) for place in (HOME, *MEMBERS)}
    calls: Counter[int] = Counter()
    lost: set[tuple[int, str]] = set()
    for place, client in made.items():
        lose_answers(place, client, calls, lost)
    table = StaticMembers(*(site.member(place, made[place]) for place in MEMBERS))
    async with site.managing(table, home=made[HOME]), asyncio.TaskGroup() as group:
        people = group.create_task(delete_what_is_over(site, names))
        for name in names:
            await site.create(PODS.raw, pod(name, runs_for=0.1))
        await until_empty(site)
        people.cancel()
    assert len({number for number, _ in lost}) >= 8, "a life has so many calls"
    # Whichever member each went to.
    kinds = {"home PATCH", "home PATCH status", "home GET", "member POST", "member PATCH", "member DELETE"}
    assert kinds <= {kind for number, kind in lost if number >= EACH_KIND}
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == len(names)


#: From this number on pods lose the first answer of each kind.
EACH_KIND = 100


def lose_answers(place: str, client: Client, calls: Counter[int], lost: set[tuple[int, str]]) -> None:
    """Have this client lose answers; the calls of each pod, and the kinds of those that were lost, are written down."""
    transport = client._transport
    send = transport._once

    async def once(call: Call) -> bytes:
        number = manager_process.pod_of(call)
        answer = await send(call)
        if number is None:
            return answer
        calls[number] += 1
        where = place if place == HOME else "member"
        kind = f"{where} {call.verb}{' status' if call.path.endswith('/status') else ''}"
        if (number, kind) not in lost and number in (calls[number], *range(EACH_KIND, number + 1)):
            lost.add((number, kind))
            raise _CutOffError(f"{call.asked}: the connection broke")
        return answer

    transport._once = once  # type: ignore[method-assign]


async def test_managers_whose_clocks_are_ten_minutes_off(site: Site) -> None:
    folder = site.planes.planes[HOME].run.folder("clocks")
    ahead = manager(site, "ahead", skewed(folder, 600))
    behind = manager(site, "behind", skewed(folder, -600))
    held = {"metadata": pod_meta(0.2), "spec": pod_spec(restartPolicy="Never")}
    job = {"metadata": {"name": "burst"}, "spec": {"completions": 8, "parallelism": 4, "template": held}}
    async with started(ahead):
        await until_said(ahead, "leads")
        async with started(behind):
            await site.create(JOBS, job)

            async def some() -> bool:
                return bool(site.ledger.opened)

            await eventually(some, "the first is at work")
            ahead.kill()

            async def complete() -> bool:
                found = await site.home.get(JOBS, "burst", namespace=site.namespace)
                return bool(found["status"].get("succeeded", 0) == 8)

            await eventually(complete, "the other has finished the work")
    assert "leads" in behind.tail(1000)
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == 8


# What people and machines do


async def test_an_evicted_copy_fails_at_home_and_is_not_run_again(site: Site) -> None:
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        await site.clients[EAST].evict("one", namespace=site.namespace)
        await site.until_phase("one", "Failed")
        shown = await site.pod(HOME, "one")
        assert condition(shown, "DisruptionTarget")["status"] == "True"
        await site.until_phase("one", "", EAST)
    assert not site.ledger.doubled()


async def test_a_member_that_is_full_after_its_offer(site: Site) -> None:
    """East says that it fits, and has no room when the copy comes: the pod goes to the next."""
    asked: list[str] = []

    async def promised(pod: RawObject, selector: Any, members: Mapping[str, Any], siblings: Any = ()) -> ClusterChoice:
        asked.extend(sorted(members))
        return ClusterChoice(min(members), ())

    too_much = [{"name": "main", "image": "none:1", "resources": {"limits": {"example.com/card": "1"}}}]
    node = site.planes.planes[WEST].api.request("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
    room = {"status": {"capacity": {"example.com/card": "4"}, "allocatable": {"example.com/card": "4"}}}
    path = f"/api/v1/nodes/{node}/status"
    site.planes.planes[WEST].api.request("PATCH", path, room, "application/merge-patch+json")
    async with site.managing(choosing=promised, place_seconds=0.5):
        await site.create(PODS.raw, pod("one", containers=too_much))
        await site.until_phase("one", "Running")
        assert await site.phase("one", WEST) == "Running"
        assert await site.pod(EAST, "one") is None
    assert EAST in asked
    assert not site.ledger.doubled()


async def test_a_namespace_that_goes_from_a_member_midway(site: Site) -> None:
    """What ran there fails, what had not run goes elsewhere, and the namespace is not held up."""
    async with site.managing(place_seconds=3600.0):
        await site.create(PODS.raw, pod("runs"))
        await site.create(PODS.raw, pod("waits", nodeSelector={"only": "nobody"}))
        await site.until_phase("runs", "Running")

        async def opened() -> bool:
            copy = await site.pod(EAST, "waits")
            return copy is not None and not copy["spec"].get("schedulingGates")

        await eventually(opened, "the other is there too, without a node")
        await site.clients[EAST].delete(NAMESPACES, site.namespace)
        for name in ("runs", "waits"):
            # As a namespace's controller does, which members of the test bed have not.
            await site.clients[EAST].delete(PODS, name, namespace=site.namespace)
        await site.until_phase("runs", "Failed")

        async def elsewhere() -> bool:
            return await site.pod(WEST, "waits") is not None

        await eventually(elsewhere, "the one that had not run is elsewhere")

        async def empty() -> bool:
            return not await site.pods(EAST)

        await eventually(empty, "nothing holds the namespace up")
    assert not site.ledger.doubled()


async def test_a_namespace_that_goes_from_home_midway(site: Site) -> None:
    async with site.managing():
        for name in ("one", "two"):
            await site.create(PODS.raw, pod(name))
        for name in ("one", "two"):
            await site.until_phase(name, "Running")
        await site.home.delete(NAMESPACES, site.namespace)
        await until_empty(site)
    assert not site.ledger.doubled()


async def test_what_was_removed_by_force_while_no_manager_ran_is_swept(site: Site) -> None:
    """Home's pod is gone, finalizer and all, and nobody saw it go."""
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
    await site.home.patch(PODS, "one", {"metadata": {"finalizers": None}}, namespace=site.namespace)
    await site.home.delete(PODS, "one", namespace=site.namespace, grace_seconds=0)
    await site.until_phase("one", "")
    assert await site.phase("one", EAST) == "Running"
    async with site.managing():
        await site.until_phase("one", "", EAST)


async def test_a_member_whose_credentials_are_revoked_is_waited_for(site: Site) -> None:
    """Its copies run on and its pods stay as they are; with new credentials all goes on, and nothing twice."""
    old, new = [await credentials(site, f"token-{number}") for number in range(2)]
    members = StaticMembers(site.member(EAST, old))
    async with site.managing(members, refused_seconds=1.0):
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        await site.clients[EAST].delete(SECRETS, "token-0", namespace=site.namespace)

        async def revoked() -> bool:
            try:
                await old.get(PODS, "one", namespace=site.namespace)
            except UnauthorizedError:
                return True
            return False

        await eventually(revoked, "the server does not know the token any more")
        await site.home.delete(PODS, "one", namespace=site.namespace)

        async def told() -> bool:
            return any("east" in one for one in await site.events("ClusterNotAnswering"))

        await eventually(told, "an Event says so")
        assert await site.phase("one", EAST) == "Running"
        assert await site.pod(HOME, "one") is not None
        members.join(site.member(EAST, new))
        await site.until_phase("one", "", HOME)
        await site.create(PODS.raw, pod("two"))
        await site.until_phase("two", "Running")
    assert await site.pod(EAST, "one") is None
    assert not site.ledger.doubled()


async def credentials(site: Site, name: str) -> Client:
    """A token in east that ends when the Secret of that name is deleted, as `shoal clusters join` makes them."""
    east, where = site.clients[EAST], site.namespace
    secret = await east.create(SECRETS.raw, {"metadata": {"name": name}}, namespace=where)
    binding = {
        "metadata": {"name": f"{where}-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": where}],
    }
    await east.create(ROLE_BINDINGS, binding)
    bound = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": secret["metadata"]["uid"]}
    wanted = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
    path = f"/api/v1/namespaces/{where}/serviceaccounts/default/token"
    token = json.loads(await east.request("POST", path, body=wanted))["status"]["token"]
    return await site.client(EAST, token=token)
