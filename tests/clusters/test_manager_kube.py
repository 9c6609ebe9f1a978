"""The cluster manager on three real control planes: what becomes of pods and their copies, and of faults on the way."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from shoal.clusters.choice import ClusterChoice
from shoal.kube.errors import ConflictError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, RawObject
from shoal.model.contract import clusters, keti
from tests.clusters import manager_process
from tests.clusters.site import (
    DEPLOYMENTS,
    EAST,
    HOME,
    JOBS,
    MEMBERS,
    STATEFUL_SETS,
    WEST,
    Site,
    StaticMembers,
    condition,
    eventually,
    pod,
    pod_meta,
    pod_spec,
)
from tests.kube.relay import Relay
from tests.soak import times
from tests.testbed.processes import Process


async def test_a_pod_runs_elsewhere_shows_it_at_home_and_ends_with_it(site: Site) -> None:
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        shown, copy = await site.pod(HOME, "one"), await site.pod(EAST, "one")
        assert shown is not None
        assert copy is not None
        node = copy["spec"]["nodeName"]
        dispatched = condition(shown, clusters.CONDITION_DISPATCHED)
        assert dispatched["status"] == "True"
        assert node in dispatched["message"]
        assert f"shoal logs one -n {site.namespace}" in dispatched["message"]
        assert "Running" in site.planes.planes[HOME].api.kubectl("get", "pod", "one", "-n", site.namespace)
        assert not shown["status"].get("podIP")
        assert await site.events("Dispatched")
        await site.home.delete(PODS, "one", namespace=site.namespace)
        await site.until_phase("one", "", HOME)
        assert await site.pod(EAST, "one") is None
        assert await site.pod(WEST, "one") is None


# Controllers stay at home


def template(app: str, runs_for: float | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": pod_meta(runs_for, labels={"app": app}), "spec": pod_spec(**spec)}


def job(name: str, *, runs_for: float | None = 0.2, **spec: Any) -> RawObject:
    held = template(name, runs_for, restartPolicy="Never")
    return {"metadata": {"name": name}, "spec": {"template": held, **spec}}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("plain", {"completions": 3, "parallelism": 2}),
        ("indexed", {"completions": 3, "parallelism": 3, "completionMode": "Indexed"}),
        ("replacing", {"completions": 1, "podReplacementPolicy": "Failed"}),
    ],
)
async def test_a_job_completes_by_what_ran_elsewhere(site: Site, name: str, spec: Mapping[str, Any]) -> None:
    async with site.managing():
        await site.create(JOBS, job(name, **spec))

        async def complete() -> bool:
            found = await site.home.get(JOBS, name, namespace=site.namespace)
            return bool(found["status"].get("succeeded", 0) == spec["completions"])

        await eventually(complete, "the Job is complete")
        assert len(site.ledger.placed) == spec["completions"]
        assert not site.ledger.doubled()


async def test_a_replacement_waits_for_its_predecessors_copy(site: Site) -> None:
    async with site.managing():
        await site.create(JOBS, job("stays", runs_for=None, podReplacementPolicy="Failed"))
        first = await only_pod(site)
        await site.until_phase(first, "Running", EAST)
        # Its node does not answer, so that the copy does not end.
        site.planes.nodes[EAST].kubelet.kill()
        try:
            await site.home.delete(PODS, first, namespace=site.namespace)

            async def replaced() -> bool:
                return len(await site.pods(HOME)) == 2

            await eventually(replaced, "the Job has made another pod, as its own was failed by PodGC")
            (second,) = [one["metadata"]["name"] for one in await site.pods(HOME) if one["metadata"]["name"] != first]

            async def told() -> bool:
                return condition(await site.pod(HOME, second), clusters.CONDITION_DISPATCHED).get("status") == "False"

            await eventually(told, "the second waits, and says so")
            assert [one["metadata"]["name"] for one in await site.pods(EAST)] == [first]
        finally:
            site.planes.nodes[EAST].kubelet.start()
        await site.until_phase(second, "Running", EAST)
        assert await site.pod(EAST, first) is None


async def only_pod(site: Site) -> str:
    async def there() -> bool:
        return len(await site.pods(HOME)) == 1

    await eventually(there, "there is one pod")
    return str((await site.pods(HOME))[0]["metadata"]["name"])


@pytest.mark.parametrize("kind", [DEPLOYMENTS, STATEFUL_SETS], ids=["deployment", "statefulset"])
async def test_a_controller_counts_what_runs_elsewhere(site: Site, kind: Any) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")}
    async with site.managing():
        await site.create(kind, {"metadata": {"name": "web"}, "spec": {**spec, "serviceName": "web"}})

        async def ready(count: int = 2) -> bool:
            found = await site.home.get(kind, "web", namespace=site.namespace)
            return bool(found["status"].get("readyReplicas", 0) == count)

        await eventually(ready, "both are ready")
        assert len(await site.pods(EAST)) == 2
        # One of them is deleted where it runs: home sees it fail and makes another.
        gone = (await site.pods(EAST))[0]["metadata"]
        await site.clients[EAST].delete(PODS, gone["name"], namespace=site.namespace, uid=gone["uid"])

        async def another() -> bool:
            copies = [one["metadata"]["uid"] for one in await site.pods(EAST)]
            return gone["uid"] not in copies and len(copies) == 2 and await ready()

        await eventually(another, "another took its place")
        assert not site.ledger.doubled()


# Where to


async def test_an_unknown_name_waits_until_it_is_joined(site: Site) -> None:
    members = StaticMembers(site.member(EAST))
    async with site.managing(members):
        await site.create(PODS.raw, pod("pinned", annotations={keti.ANNOTATION_CLUSTER: WEST}))

        async def told() -> bool:
            return any("known are: east" in one for one in await site.events("UnknownCluster"))

        await eventually(told, "an Event lists the clusters that are known")
        waits = condition(await site.pod(HOME, "pinned"), clusters.CONDITION_DISPATCHED)
        assert waits["status"] == "False"
        assert await site.pod(EAST, "pinned") is None
        members.join(site.member(WEST))
        await site.until_phase("pinned", "Running")
        assert await site.phase("pinned", WEST) == "Running"


async def test_the_own_cluster_is_opened_at_home(site: Site) -> None:
    async with site.managing(StaticMembers(site.member(HOME))):
        await site.create(PODS.raw, pod("here"))
        await site.until_phase("here", "Running")
    shown = await site.pod(HOME, "here")
    assert shown is not None
    assert shown["spec"].get("nodeName")
    assert not shown["metadata"].get("finalizers")


async def test_a_cluster_without_the_namespace_is_ruled_out(site: Site) -> None:
    site.planes.planes[HOME].api.create_namespace(other := f"{site.namespace}-2")
    site.planes.planes[WEST].api.create_namespace(other)
    site.namespace = other
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        assert await site.phase("one", WEST) == "Running"
        assert any("not found" in one for one in await site.events("DispatchRefused"))


async def test_a_cluster_with_a_pod_of_that_name_is_ruled_out(site: Site) -> None:
    theirs = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "none:1"}]}}
    before = await site.clients[EAST].create(PODS.raw, theirs, namespace=site.namespace)
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        assert await site.phase("one", WEST) == "Running"
        await site.home.delete(PODS, "one", namespace=site.namespace)
        await site.until_phase("one", "", HOME)
    after = await site.pod(EAST, "one")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_cluster_that_does_not_open_what_the_pod_names_is_ruled_out(site: Site) -> None:
    settings: RawObject = {"metadata": {"name": "settings"}, "data": {}}
    for place in (EAST, WEST):
        await site.clients[place].create(CONFIG_MAPS, settings, namespace=site.namespace)
    opened = {"metadata": {"annotations": {clusters.ANNOTATION_MAY_USE: "configmaps/settings"}}}
    await site.clients[WEST].patch(NAMESPACES, site.namespace, opened)
    named = [{"name": "main", "image": "none:1", "envFrom": [{"configMapRef": {"name": "settings"}}]}]
    async with site.managing():
        await site.create(PODS.raw, pod("one", containers=named))
        await site.until_phase("one", "Running")
        assert await site.phase("one", WEST) == "Running"
    assert await site.pod(EAST, "one") is None


async def test_a_copy_without_a_node_is_taken_back(site: Site) -> None:
    """East has no node for it, west has, and both are believed to."""
    site.planes.planes[WEST].api.kubectl("label", "node", "--all", "--overwrite", "only=west")
    async with site.managing(place_seconds=0.5):
        await site.create(PODS.raw, pod("picky", nodeSelector={"only": "west"}))
        await site.until_phase("picky", "Running")
        assert await site.phase("picky", WEST) == "Running"
        assert await site.pod(EAST, "picky") is None
    shown = await site.pod(HOME, "picky")
    assert shown is not None
    assert clusters.decode(
        clusters.Sent, shown["metadata"]["annotations"][clusters.ANNOTATION_DISPATCH], what="it"
    ) == clusters.Sent(attempt=2, cluster=WEST, uid=site.uids[WEST])


# What others do


async def test_a_copy_deleted_before_it_had_a_node_is_made_again(site: Site) -> None:
    async with site.managing(place_seconds=3600.0):
        await site.create(PODS.raw, pod("picky", nodeSelector={"only": "nobody"}))

        async def opened() -> bool:
            copy = await site.pod(EAST, "picky")
            return copy is not None and not copy["spec"].get("schedulingGates")

        await eventually(opened, "its copy is open")
        before = await site.pod(EAST, "picky")
        assert before is not None
        await site.clients[EAST].delete(PODS, "picky", namespace=site.namespace)

        async def anew() -> bool:
            copy = await site.pod(EAST, "picky")
            return copy is not None and copy["metadata"]["uid"] != before["metadata"]["uid"] and await opened()

        await eventually(anew, "there is another copy")

        async def told() -> bool:
            why = condition(await site.pod(HOME, "picky"), clusters.CONDITION_DISPATCHED)
            said = any("0/2 nodes" in one for one in await site.events("FailedScheduling"))
            return said and "without a node yet: 0/2 nodes" in why.get("message", "")

        await eventually(told, "home says what the scheduler there says")


async def test_a_copy_removed_by_force_is_not_run_again(site: Site) -> None:
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        bare = {"metadata": {"finalizers": None}}
        await site.clients[EAST].patch(PODS, "one", bare, namespace=site.namespace)
        await site.clients[EAST].delete(PODS, "one", namespace=site.namespace, grace_seconds=0)
        await site.until_phase("one", "Failed")
        assert await site.pod(EAST, "one") is None
    assert not site.ledger.doubled()


async def test_an_edited_copy_is_left_alone_and_told_of(site: Site) -> None:
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        bare = {"metadata": {"annotations": {clusters.ANNOTATION_ORIGIN: None}}}
        await site.clients[EAST].patch(PODS, "one", bare, namespace=site.namespace)

        async def told() -> bool:
            return any("lost its annotation" in one for one in await site.events("UnreadableRequest"))

        await eventually(told, "an Event says what was edited")
        assert await site.phase("one") == "Running"
        assert await site.phase("one", EAST) == "Running"
    assert not site.ledger.doubled()


async def test_a_home_pod_removed_by_force_takes_its_copy_along(site: Site) -> None:
    async with site.managing():
        await site.create(PODS.raw, pod("one"))
        await site.until_phase("one", "Running")
        await forced(site, "one")
        await site.until_phase("one", "", EAST)


async def forced(site: Site, name: str) -> None:
    """Remove a pod at home with its finalizers."""
    with contextlib.suppress(NotFoundError):
        await site.home.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace=site.namespace)
        await site.home.delete(PODS, name, namespace=site.namespace, grace_seconds=0)


# Faults


async def test_answers_that_are_lost_change_nothing(site: Site) -> None:
    async with contextlib.AsyncExitStack() as stack:
        relays = {place: await stack.enter_async_context(Relay(site.planes.planes[place].api.port)) for place in _ALL}
        made = {place: await site.client(place, port=relay.port) for place, relay in relays.items()}
        table = StaticMembers(*(site.member(place, made[place]) for place in MEMBERS))
        await stack.enter_async_context(site.managing(table, home=made[HOME]))
        for number in range(6):
            for relay in relays.values():
                relay.lose_answers(2)
            await site.create(PODS.raw, pod(f"pod-{number}", runs_for=0.2))
            await site.until_phase(f"pod-{number}", "Succeeded")
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == 6


_ALL = (HOME, *MEMBERS)


async def test_a_silent_member_is_waited_for(site: Site) -> None:
    async with Relay(site.planes.planes[EAST].api.port) as relay:
        east = site.member(EAST, await site.client(EAST, port=relay.port))
        async with site.managing(StaticMembers(east)):
            await site.create(PODS.raw, pod("one"))
            await site.until_phase("one", "Running")
            await relay.block()
            await site.home.delete(PODS, "one", namespace=site.namespace)

            async def told() -> bool:
                return bool(await site.events("ClusterNotAnswering"))

            await eventually(told, "an Event says that the cluster does not answer")
            assert await site.pod(HOME, "one") is not None
            assert await site.phase("one", EAST) == "Running"
            relay.unblock()
            await site.until_phase("one", "", HOME)
            assert await site.pod(EAST, "one") is None


async def test_a_member_that_hangs_holds_up_nobody_else(site: Site) -> None:
    async with Relay(site.planes.planes[EAST].api.port) as relay:
        east = site.member(EAST, await site.client(EAST, port=relay.port))
        members = StaticMembers(east, site.member(WEST))
        names = [f"pod-{number}" for number in range(3)]
        async with site.managing(members, workers=1, member_seconds=0.5):
            for name in names:
                await site.create(PODS.raw, pod(name))
                await site.until_phase(name, "Running")
            relay.hang()
            for name in names:
                await site.home.delete(PODS, name, namespace=site.namespace)
            await site.create(PODS.raw, pod("other", annotations={keti.ANNOTATION_CLUSTER: WEST}))
            await site.until_phase("other", "Running")
            for name in names:
                assert await site.pod(HOME, name) is not None
                assert await site.phase(name, EAST) == "Running"


async def test_a_manager_killed_after_any_call_loses_and_doubles_nothing(site: Site) -> None:
    """A pod's whole life, with a manager that is killed after its first call, its second, and so on."""
    lives, after = 0, 1
    while True:
        name = f"pod-{after}"
        await site.create(PODS.raw, pod(name, runs_for=0.1))
        async with site.killed_after(after) as fuse:
            whole_life = await _until_blown(fuse.blown, _life(site, name))
        async with site.managing():
            await _life(site, name)
        lives += 1
        if whole_life:
            break
        after += 1
    assert after >= 8, "a life takes this many calls"
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == lives
    for place in _ALL:
        assert not await site.pods(place)


async def _life(site: Site, name: str) -> None:
    """A pod runs to its end, and is deleted."""
    if await site.phase(name):
        await eventually(lambda: _is_over(site, name), f"{name} is over")
        with contextlib.suppress(NotFoundError):
            await site.home.delete(PODS, name, namespace=site.namespace)
    await site.until_phase(name, "", HOME)
    for place in MEMBERS:
        await site.until_phase(name, "", place)


async def _is_over(site: Site, name: str) -> bool:
    return await site.phase(name) in ("Succeeded", "Failed", "")


async def _until_blown(blown: asyncio.Event, life: Any) -> bool:
    """Whether a life was lived before the manager was killed."""
    living, dying = asyncio.ensure_future(life), asyncio.ensure_future(blown.wait())
    await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
    for task in (living, dying):
        if not task.done():
            task.cancel()
    await asyncio.wait({living, dying})
    return not living.cancelled() and living.exception() is None


async def test_two_managers_at_once_and_people_who_delete(site: Site) -> None:
    """Managers that do not know of each other, some of them killed, while pods come, end and are deleted on both sides.

    What is deleted in a member before it had a node may run again; what had a node never does.
    """
    rng, names = random.Random(18), [f"pod-{number}" for number in range(times(12))]
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(site.managing(choosing=_anywhere(rng), place_seconds=0.2, refused_seconds=0.5))
        people = stack.enter_async_context
        fuse = await people(site.killed_after(rng.randint(5, 60)))
        for name in names:
            await site.create(PODS.raw, pod(name, runs_for=rng.choice([0.1, None])))
            victim = rng.choice(names[: names.index(name) + 1])
            match rng.randrange(5):
                case 0:
                    await forced(site, victim)
                case 1:
                    with contextlib.suppress(NotFoundError):
                        await site.home.delete(PODS, victim, namespace=site.namespace)
                case 2:
                    with contextlib.suppress(NotFoundError, ConflictError):
                        await site.clients[rng.choice(MEMBERS)].delete(PODS, victim, namespace=site.namespace)
            if fuse.blown.is_set():
                fuse = await people(site.killed_after(rng.randint(5, 60)))
        await eventually(lambda: _settled(site), "every pod has run, and copies are where home says")
        for name in names:
            with contextlib.suppress(NotFoundError):
                await site.home.delete(PODS, name, namespace=site.namespace)
        for place in _ALL:

            async def empty(place: str = place) -> bool:
                return not await site.pods(place)

            await eventually(empty, f"nothing is left in {place}")
    assert not site.ledger.doubled()


def _anywhere(rng: random.Random) -> Any:
    """A choice that changes its mind."""

    async def choose(pod: RawObject, selector: Any, members: Mapping[str, Any], siblings: Any = ()) -> Any:
        return ClusterChoice(rng.choice(sorted(members)), ())

    return choose


async def _settled(site: Site) -> bool:
    """Every pod at home runs or has run."""
    return all(one["status"]["phase"] != "Pending" for one in await site.pods(HOME))


# As a program


async def test_of_two_programs_one_leads_and_another_follows_when_it_is_killed(site: Site) -> None:
    planes, run = site.planes.planes, site.planes.planes[HOME].run
    given = [str(planes[HOME].api.kubeconfig()), *(f"{place}={planes[place].api.kubeconfig()}" for place in MEMBERS)]
    command = [sys.executable, "-m", manager_process.__name__, *given]
    programs = [run.process(f"manager-{site.namespace}-{number}", command) for number in range(2)]
    try:
        for program in programs:
            program.start()
        leader = await _leading(programs)
        await site.create(JOBS, job("burst", completions=20, parallelism=20))
        await eventually(lambda: _dispatched(site), "it is at work")
        leader.kill()

        async def complete() -> bool:
            found = await site.home.get(JOBS, "burst", namespace=site.namespace)
            return bool(found["status"].get("succeeded", 0) == 20)

        await eventually(complete, "the other has finished the work")
        assert await _leading(programs) is not leader
    finally:
        for program in programs:
            program.kill()
    assert not site.ledger.doubled()
    assert len(site.ledger.placed) == 20


async def _leading(programs: list[Process]) -> Process:
    """The program that leads, by its metrics; those that are up are ready."""
    found: list[Process] = []

    async def leads() -> bool:
        for program in programs:
            assert program.alive or program.log.exists()
            ports = program.tail(1000).split()[:2]
            if program.alive and len(ports) == 2 and all(word.isdigit() for word in ports):
                async with aiohttp.ClientSession() as session:
                    text = await (await session.get(f"http://127.0.0.1:{ports[1]}/metrics")).text()
                    ready = await session.get(f"http://127.0.0.1:{ports[0]}/readyz")
                if "shoal_clusters_leads 1" in text and ready.status == 200:
                    found.append(program)
        return bool(found)

    await eventually(leads, "one leads")
    return found[0]


async def _dispatched(site: Site) -> bool:
    return bool(site.ledger.opened)
