"""A member cut off from its manager, on three real control planes: what is removed there, what is replaced at home, and
that nothing runs twice meanwhile. Schedulers of members have the rights of their own account, as shipped.

The times are scaled down; what is waited for is never a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.copies import DISPATCHED_PODS, DispatchedPod
from shoal.clusters.fences import read_record
from shoal.clusters.manager import ClusterManager
from shoal.clusters.mirror import DISRUPTED, REASON_LOST, REASON_SILENT
from shoal.kube.objects.others import Lease
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS, LEASES, PODS, RawObject
from shoal.kube.store import Change
from shoal.model.contract import clusters
from shoal.model.contract.clusters import Sent
from shoal.scheduler.config import SECRET
from tests.clusters.site import (
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
from tests.suites.scheduling.process import SchedulerProcess
from tests.suites.scheduling.ways import service_account

pytestmark = pytest.mark.kube

DEPLOY = Path(__file__).parents[2] / "deploy"
#: Far enough apart for a machine that has much else to do.
FENCE, REPLACE = 8, 30.0
APP = "lost"


class Timeline:
    """Which copies of an app ran at the same time, as the members' own servers tell."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self.most = 0
        self.ran: set[str] = set()

    def took(self, change: Change[DispatchedPod]) -> None:
        """Follow a member."""
        pod, meta = change.object, change.object.metadata
        if meta.labels.get("app") != APP:
            return
        status = yaml.safe_load(bytes(pod.status))
        states = [one["state"] for one in status.get("containerStatuses") or ()]
        if change.new is not None and status.get("phase") == "Running" and any("running" in one for one in states):
            self._running[meta.uid] = meta.name
            self.ran.add(meta.name)
        else:
            self._running.pop(meta.uid, None)
        self.most = max(self.most, len(self._running))


class Cut:
    """East behind a relay, schedulers in both members, and managers that come and go."""

    def __init__(
        self, site: Site, relay: Relay, schedulers: dict[str, SchedulerProcess], members: StaticMembers
    ) -> None:
        self.site = site
        self.relay = relay
        self.schedulers = schedulers
        self.timeline = Timeline()
        self._members = members

    @contextlib.asynccontextmanager
    async def managing(self, *, keeping: bool = True, replace: float = REPLACE) -> AsyncIterator[ClusterManager]:
        """A manager that has seen the schedulers at work."""
        lease = f"lost-{self.site.namespace}"
        given: dict[str, Any] = {"fence_seconds": FENCE, "replace_seconds": replace, "lease_name": lease}
        async with self.site.managing(self._members, **given) as manager:
            if keeping:
                kept = {self.site.uids[place] for place in MEMBERS}
                await eventually(lambda: self._kept(kept), "the manager knows that schedulers keep fences")
            yield manager

    async def _kept(self, kept: set[str]) -> bool:
        record = read_record(await self.lease())
        return record is not None and kept <= {uid for uid, one in record.clusters.items() if one.fenced}

    async def lease(self) -> Lease:
        """The one by which managers would lead."""
        return await self.site.home.get(LEASES, f"lost-{self.site.namespace}", namespace="default")


@pytest.fixture
async def cut(site: Site) -> AsyncIterator[Cut]:
    run = site.planes.planes[HOME].run
    schedulers: dict[str, SchedulerProcess] = {}
    settings = run.folder(f"lost-{site.namespace}") / "scheduler.yaml"
    offer = {"enabled": True, "host": "127.0.0.1", "port": 0}
    given = {"tls": {"secret": SECRET}, "offer": offer, "liveLoad": {"source": "off"}}
    settings.write_text(yaml.safe_dump(given))
    await site.home.create(LEASES.raw, {"metadata": {"name": f"lost-{site.namespace}"}}, namespace="default")
    async with contextlib.AsyncExitStack() as stack:
        for place in MEMBERS:
            api = site.planes.planes[place].api
            account = await service_account(api)
            for name in ("rbac", "room"):
                api.kubectl("apply", "-f", str(DEPLOY / "scheduler-offer" / f"{name}.yaml"))
            options = ["--config", str(settings), "--no-leader-elect"]
            schedulers[place] = SchedulerProcess(run, f"lost-{place}-{site.namespace}", account, options)
            stack.callback(schedulers[place].kill)
            schedulers[place].launch()
        relay = await stack.enter_async_context(Relay(site.planes.planes[EAST].api.port))
        east = site.member(EAST, await site.client(EAST, port=relay.port))
        made = Cut(site, relay, schedulers, StaticMembers(east, site.member(WEST)))
        for place in MEMBERS:
            follow = Reflector(
                site.clients[place], DISPATCHED_PODS, namespace=site.namespace, consumers=[made.timeline.took]
            )
            await stack.enter_async_context(follow)
        yield made


def template(**meta: Any) -> RawObject:
    return {"metadata": pod_meta(labels={"app": APP}, **meta), "spec": pod_spec()}


async def begin(site: Site) -> None:
    """A Job whose one pod runs in east."""
    held = template()
    held["spec"]["restartPolicy"] = "Never"
    await site.create(JOBS, {"metadata": {"name": "work"}, "spec": {"template": held, "backoffLimit": 3}})
    await eventually(lambda: _runs(site, EAST), "the Job's pod runs in east")


async def _of_job(site: Site) -> list[RawObject]:
    return [one for one in await site.pods(HOME) if one["metadata"].get("labels", {}).get("app") == APP]


async def _runs(site: Site, place: str) -> bool:
    """Whether a pod of the Job runs, and home knows where."""
    running = (one for one in await _of_job(site) if one["status"].get("phase") == "Running")
    return any(sent(one).cluster == place for one in running)


def sent(one: RawObject) -> Sent:
    return clusters.decode(Sent, one["metadata"]["annotations"][clusters.ANNOTATION_DISPATCH], what="it")


async def _failed(site: Site) -> bool:
    return any(one["status"].get("phase") == "Failed" for one in await _of_job(site))


async def _empty(site: Site, name: str) -> bool:
    return await site.pod(EAST, name) is None


async def test_what_was_cut_off_is_removed_there_and_replaced_here(cut: Cut) -> None:
    site = cut.site
    async with cut.managing(replace=20.0):
        await begin(site)
        (first,) = await _of_job(site)
        name = first["metadata"]["name"]
        assert sent(first).fence == FENCE

        async def renewed() -> bool:
            leases = (await site.clients[EAST].list(LEASES, namespace=site.namespace)).items
            return [(one.metadata.name, one.spec.lease_duration_seconds) for one in leases] == [
                (clusters.fence_name(site.uids[HOME]), FENCE)
            ]

        await eventually(renewed, "its fence is renewed")
        stateful = {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "serviceName": "db"}
        stateful["template"] = {"metadata": pod_meta(labels={"app": "db"}), "spec": pod_spec()}
        await site.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": stateful})
        await site.create(PODS.raw, pod("bare"))
        for one in ("db-0", "bare"):
            await site.until_phase(one, "Running")
        waiting = {one: await site.pod(EAST, one) for one in ("db-0", "bare")}
        await cut.relay.block()

        async def told() -> bool:
            said = await site.events(REASON_SILENT)
            return any("it is waited for" in one for one in said) and any("this pod fails at" in one for one in said)

        await eventually(told, "Events say what will happen, and when")

        async def removed() -> bool:
            copy = await site.pod(EAST, name)
            return copy is None or bool(copy["metadata"].get("deletionTimestamp"))

        await eventually(removed, "east has removed what was made under its fence")
        assert not await _failed(site), "home's time is longer"
        shown = condition(await site.pod(HOME, name), clusters.CONDITION_DISPATCHED)
        assert (shown["status"], shown["reason"]) == ("Unknown", REASON_SILENT)
        await eventually(lambda: _failed(site), "the pod has failed at home")
        over = await site.pod(HOME, name)
        assert condition(over, DISRUPTED)["reason"] == REASON_LOST
        await eventually(lambda: _runs(site, WEST), "its successor runs in west")
        record = read_record(await cut.lease())
        assert record is not None
        assert record.clusters[site.uids[EAST]].since
        assert not record.clusters[site.uids[WEST]].since
        # Pods of mode Wait run on.
        for one, before in waiting.items():
            assert before is not None
            copy = await site.pod(EAST, one)
            assert copy is not None
            assert (copy["metadata"]["uid"], copy["status"]["phase"]) == (before["metadata"]["uid"], "Running")
            assert not copy["metadata"].get("deletionTimestamp")
            assert await site.phase(one) == "Running"
        cut.relay.unblock()
        await eventually(lambda: _empty(site, name), "what is left of the first is gone from east")

        async def again() -> bool:
            shown = condition(await site.pod(HOME, "db-0"), clusters.CONDITION_DISPATCHED)
            return bool(shown.get("status") == "True")

        await eventually(again, "home sees the others again")
        assert await _runs(site, WEST)
    assert cut.timeline.most == 1
    assert len(cut.timeline.ran) == 2
    assert not site.ledger.doubled()


async def test_schedulers_and_managers_started_anew_within_the_cut_prolong_nothing(cut: Cut) -> None:
    """The scheduler is killed as soon as the cut begins, and again and again; and the manager once."""
    site, scheduler = cut.site, cut.schedulers[EAST]
    async with cut.managing():
        await begin(site)
        await cut.relay.block()
        scheduler.kill()
    (first,) = await _of_job(site)
    name = first["metadata"]["name"]

    async def removed() -> bool:
        copy = await site.pod(EAST, name)
        return copy is None or bool(copy["metadata"].get("deletionTimestamp"))

    async with cut.managing(keeping=False):
        for _ in range(3):
            before = await _moment(site)
            scheduler.launch()

            async def looked(before: str = before) -> bool:
                return await _moment(site) != before

            await eventually(looked, "the scheduler has looked")
            scheduler.kill()
        scheduler.launch()
        await eventually(removed, "east has removed the copy")
        assert not await _failed(site), "home's time is longer"
        await eventually(lambda: _failed(site), "the pod has failed at home")
        await eventually(lambda: _runs(site, WEST), "its successor runs in west")
        cut.relay.unblock()
        await eventually(lambda: _empty(site, name), "what is left of the first is gone from east")
        assert await _runs(site, WEST)
    assert cut.timeline.most == 1
    assert len(cut.timeline.ran) == 2


async def _moment(site: Site) -> str:
    """When the scheduler of east last looked."""
    found = await site.clients[EAST].get(CONFIG_MAPS, clusters.NAME_ROOM, namespace="kube-system")
    return found.data.get(clusters.KEY_FENCE, "")


async def test_where_no_scheduler_keeps_fences_pods_are_waited_for(cut: Cut) -> None:
    site = cut.site
    async with cut.managing():
        await begin(site)
        cut.schedulers[EAST].kill()

        async def known() -> bool:
            record = read_record(await cut.lease())
            return record is not None and not record.clusters[site.uids[EAST]].fenced

        await eventually(known, "the manager knows that nobody keeps fences there")
        await cut.relay.block()

        async def told() -> bool:
            return any("no scheduler of Shoal there" in one for one in await site.events(REASON_SILENT))

        await eventually(told, "an Event says so")
        assert not await _failed(site)
    assert cut.timeline.most == 1
