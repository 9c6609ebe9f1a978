"""Random lives of pods in three clusters while everything goes wrong: `python -m tests.clusters.fault_run 10000`.

Home and two members are the product's embedded API servers; managers, their client and HTTP are the product's too. Only
the wire (`memory_wire`) and the clock (`virtual_time`) are not, so that a run takes some milliseconds and its number
tells all that happens in it. Managers are killed, stand still, believe that they lead both; requests and answers are
lost or late; wires are cut in one direction or both; tenants and administrators delete, evict and force on both sides;
members fill up; namespaces go; clocks are ten minutes apart.

A witness in the API servers counts doubles: a pod with more than one copy that has a node. Pods that are neither over
nor running, once all is well again, are lost; so are those that ended at home as their copies did not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.clusters.choice import ClusterChoice
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.manager import ClusterManager
from shoal.clusters.member import Member
from shoal.embedded.deletion import DeleteOptions
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import NAMESPACES, PODS
from shoal.embedded.store import Object
from shoal.kube.client import Client
from shoal.kube.errors import UnreachableError, api_error
from shoal.kube.events import Recorder
from shoal.kube.transport import Call, _CutOffError, _NotSentError
from shoal.model.contract import clusters
from tests.clusters import virtual_time
from tests.clusters.fault_clusters import FINISHED, NAMESPACE, TOKEN, Clock, Cluster, Outcome, Witness, origin_of
from tests.clusters.memory_wire import Wire, WireClient

HOME, MEMBERS = "home", ("east", "west")
#: Virtual seconds in which faults happen, and after which all must be well again.
TROUBLE, PATIENCE = 20.0, 900.0
CONFIG = ClusterManagerConfig(
    namespace="default",
    workers=4,
    mirror_seconds=0.05,
    member_seconds=2.0,
    place_seconds=0.3,
    refused_seconds=0.3,
    sweep_seconds=2.0,
    probe_port=None,
    metrics_port=None,
)


# Managers


class Manager:
    """One manager, on wires of its own. What goes wrong with its calls is drawn for each."""

    def __init__(self, number: int, run: Run) -> None:
        self.number = number
        self._run = run
        self.dead = asyncio.Event()
        self.wires = {name: Wire(one.serve, run.rng, lag=run.lag) for name, one in run.clusters.items()}
        self._late: set[asyncio.Task[bytes]] = set()
        self.table = _Table([])

    async def live(self) -> None:
        """Manage until killed."""
        task = asyncio.create_task(self._manage())
        await self.dead.wait()
        for wire in self.wires.values():
            wire.cut()
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    async def _manage(self) -> None:
        run = self._run
        async with contextlib.AsyncExitStack() as stack:
            made: dict[str, Client] = {}
            for name, wire in self.wires.items():
                client = made[name] = await stack.enter_async_context(WireClient(wire, TOKEN, name))
                self._trouble(name, client)
            members = [Member(name, one.uid, made[name], own=name == HOME) for name, one in run.clusters.items()]
            self.table = _Table(members)
            # Not at work: what Events say is not looked at here, and costs a third of a run.
            recorder = Recorder(made[HOME], clusters.NAME_MANAGER)
            manager = ClusterManager(
                CONFIG,
                made[HOME],
                self.table,
                self._choose,
                recorder,
                home_cluster=run.clusters[HOME].uid,
                clock=asyncio.get_running_loop().time,
                now=Clock(run.rng),
            )
            async with manager:
                await manager.run()

    async def _choose(self, pod: Any, selector: Any, members: Any, siblings: Any = ()) -> ClusterChoice:
        """Anywhere, and not always the same."""
        names = sorted(members)
        if HOME in names and self._run.rng.random() < 0.8:
            names = [name for name in names if name != HOME] or names
        return ClusterChoice(self._run.rng.choice(names), ())

    def _trouble(self, name: str, client: Client) -> None:
        transport = client._transport
        send = transport._once

        async def once(call: Call) -> bytes:
            if self.dead.is_set():
                await asyncio.Event().wait()
            fault = self._run.fault_for(call)
            if fault:
                self._run.outcome.tell(f"manager {self.number}: {call.verb} {name}{call.path}: {fault}")
            return await self._send(send, call, fault)

        transport._once = once  # type: ignore[method-assign]

    async def _send(self, send: Callable[[Call], Any], call: Call, fault: str) -> bytes:
        rng = self._run.rng
        if fault == "late":
            # On its way when everybody has given it up: the manager stood still, or the network did.
            task = asyncio.create_task(self._later(send, call, rng.choice([0.2, 1.0, 5.0, 15.0])))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return await asyncio.shield(task)
        if fault == "not sent":
            raise _NotSentError(f"{call.asked}: no connection")
        if fault == "request lost":
            raise _CutOffError(f"{call.asked}: the connection broke")
        if fault == "forbidden":
            raise api_error(asked=call.asked, status=403, reason="Forbidden", message="exceeded quota")
        if fault == "busy":
            raise api_error(asked=call.asked, status=503, message="busy")
        if fault == "killed before":
            self.die()
        answer: bytes = await send(call)
        match fault:
            case "killed after":
                self.die()
                await asyncio.Event().wait()
            case "answer lost":
                raise _CutOffError(f"{call.asked}: the connection broke")
            case "no answer":
                await asyncio.sleep(30.0)
                raise UnreachableError(f"{call.asked}: no answer in time")
            case "error":
                raise api_error(asked=call.asked, status=500, message="etcdserver: request timed out")
            case "slow":
                await asyncio.sleep(rng.choice([0.2, 3.0]))
        return answer

    @staticmethod
    async def _later(send: Callable[[Call], Any], call: Call, seconds: float) -> bytes:
        await asyncio.sleep(seconds)
        answer: bytes = await send(call)
        return answer

    def die(self) -> None:
        """Killed, in the middle of whatever it does."""
        self.dead.set()


class _Table:
    """The members, of which one may be out for a while."""

    def __init__(self, members: list[Member]) -> None:
        self.members = self._all = {one.name: one for one in members}
        self.problems: dict[str, str] = {}
        self._calls: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Remember who wants to know."""
        self._calls.append(call)

    def without(self, out: str) -> None:
        """That one is out, all others are in."""
        self.members = {name: replace(one) for name, one in self._all.items() if name != out}
        for call in self._calls:
            call()


FAULTS = (
    "late",
    "not sent",
    "request lost",
    "answer lost",
    "no answer",
    "error",
    "busy",
    "slow",
    "killed before",
    "killed after",
)

#: A copy that comes late, after another manager was refused one there and has taken the pod elsewhere, is the worst.
FAULTS_OF_CREATION = (*FAULTS, *(("late", "forbidden") * 5))


# One run


class Run:
    """Three clusters, a few pods, one or two managers, and what goes wrong."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)
        self.outcome = Outcome(number)
        self.lag = self.rng.choice([0.001, 0.02, 1.0])
        self.clusters = {name: Cluster(name, self.rng) for name in (HOME, *MEMBERS)}
        self.witness = Witness(self.outcome)
        for cluster in self.clusters.values():
            self.witness.watch(cluster)
        #: How likely a call about a pod meets a fault.
        self.chance = self.rng.choice([0.05, 0.15, 0.3, 0.5])
        self.managers: list[Manager] = []
        #: Home's pods by UID that are still wanted there, and those that somebody meddled with.
        self.wanted: dict[str, str] = {}
        self.meddled: set[str] = set()
        self.names = [f"pod-{number}" for number in range(self.rng.randint(1, 3))]

    def fault_for(self, call: Call) -> str:
        """What goes wrong with a call; empty for nothing."""
        if asyncio.get_running_loop().time() > TROUBLE or "/pods" not in call.path:
            return ""
        # What is written matters more than what is read.
        if self.rng.random() > (self.chance / 3 if call.verb == "GET" else self.chance):
            return ""
        fault = self.rng.choice(FAULTS_OF_CREATION if call.verb == "POST" else FAULTS)
        self.outcome.faults[fault] += 1
        return fault

    async def live(self) -> Outcome:
        """From the first pod to the last trace of it."""
        async with contextlib.AsyncExitStack() as stack:
            for cluster in self.clusters.values():
                await stack.enter_async_context(cluster.running())
            async with asyncio.TaskGroup() as group:
                keeping = [group.create_task(self._keep(number)) for number in range(self.rng.choice([1, 2, 2]))]
                people = group.create_task(self._meddle())
                for name in self.names:
                    await asyncio.sleep(self.rng.random() * 2)
                    self._submit(name)
                await people
                await asyncio.sleep(max(0.0, TROUBLE - asyncio.get_running_loop().time()))
                await self._until_well()
                await self._until_empty()
                for task in keeping:
                    task.cancel()
                for manager in self.managers:
                    manager.die()
        return self.outcome

    async def _keep(self, number: int) -> None:
        """A manager, and the next when it is killed."""
        while True:
            manager = Manager(number, self)
            self.managers.append(manager)
            try:
                await manager.live()
            finally:
                self.managers.remove(manager)
            self.outcome.tell(f"manager {number} was killed")
            await asyncio.sleep(self.rng.random() * 3)

    def _submit(self, name: str) -> None:
        runs = self.rng.choice([{}, {"runs": "well"}, {"runs": "badly"}])
        meta = {"name": name, "finalizers": [clusters.FINALIZER_HOME], "annotations": runs}
        gates = [{"name": clusters.GATE_HOME}]
        spec = {"containers": [{"name": "main", "image": "none"}], "schedulingGates": gates}
        with contextlib.suppress(ApiStatus):  # the last one of that name is not gone, or the namespace is
            made = self.clusters[HOME].registry.create(PODS, NAMESPACE, {"metadata": meta, "spec": spec})
            self.wanted[made["metadata"]["uid"]] = name

    # What people and networks do

    async def _meddle(self) -> None:
        events = [self._delete_at_home, self._force_at_home, self._submit_again, self._delete_there, self._force_there]
        events += [self._evict_there, self._fill, self._cut, self._silence, self._compact, self._kill]
        events += [self._rejoin]
        events += [self._delete_namespace_there] if self.rng.random() < 0.2 else []
        events += [self._delete_namespace_at_home] if self.rng.random() < 0.05 else []
        for _ in range(self.rng.randint(0, 6)):
            await asyncio.sleep(self.rng.random() ** 2 * 6)
            event = self.rng.choice(events)
            self.outcome.tell(event.__name__.strip("_"))
            self.outcome.faults[event.__name__.strip("_")] += 1
            with contextlib.suppress(ApiStatus):
                await event()

    def _drawn(self, clusters: tuple[str, ...]) -> tuple[Cluster, Object] | None:
        found = [(one, pod) for name in clusters for one in [self.clusters[name]] for pod in one.pods()]
        return self.rng.choice(found) if found else None

    async def _delete_at_home(self) -> None:
        drawn = self._drawn((HOME,))
        if drawn is not None:
            self.wanted.pop(drawn[1]["metadata"]["uid"], None)
            self._do(drawn, drawn[0].delete)

    async def _force_at_home(self) -> None:
        drawn = self._drawn((HOME,))
        if drawn is not None:
            self.wanted.pop(drawn[1]["metadata"]["uid"], None)
            self._do(drawn, drawn[0].force)

    async def _submit_again(self) -> None:
        self._submit(self.rng.choice(self.names))

    async def _delete_there(self) -> None:
        drawn = self._drawn(MEMBERS)
        if drawn is not None:
            self._do(drawn, drawn[0].delete)

    async def _evict_there(self) -> None:
        drawn = self._drawn(MEMBERS)
        if drawn is not None:
            self._do(drawn, drawn[0].evict)

    async def _force_there(self) -> None:
        drawn = self._drawn(MEMBERS)
        if drawn is not None:
            self.witness.forced.add(origin_of(drawn[1]))
            self._do(drawn, drawn[0].force)

    def _do(self, drawn: tuple[Cluster, Object], act: Callable[[Object], None]) -> None:
        self.outcome.tell(f"… {drawn[0].name} {drawn[1]['metadata']['name']}")
        self.meddled.add(origin_of(drawn[1]))
        act(drawn[1])

    async def _fill(self) -> None:
        """A member has no room for a while, whatever it offered."""
        cluster = self.clusters[self.rng.choice(MEMBERS)]
        cluster.full = True
        asyncio.get_running_loop().call_later(self.rng.random() * 10, self._empty, cluster)

    @staticmethod
    def _empty(cluster: Cluster) -> None:
        cluster.full = False
        cluster._changed.set()

    async def _cut(self) -> None:
        for manager in self.managers:
            manager.wires[self.rng.choice(list(manager.wires))].cut()

    async def _silence(self) -> None:
        """Between a manager and a cluster nothing passes, in one direction or both."""
        for manager in self.rng.sample(self.managers, min(1, len(self.managers))):
            wire = manager.wires[self.rng.choice(list(manager.wires))]
            wire.silence(*self.rng.choice([(True, True), (True, False), (False, True)]))
            asyncio.get_running_loop().call_later(self.rng.choice([1.0, 5.0, 20.0]), wire.silence, False, False)

    async def _compact(self) -> None:
        """Watches that were cut must list anew."""
        for cluster in self.clusters.values():
            cluster.registry.store.forget(PODS.key)
        await self._cut()

    async def _rejoin(self) -> None:
        """A member is taken out, and joined again."""
        name = self.rng.choice(MEMBERS)
        for manager in self.managers:
            manager.table.without(name)
            asyncio.get_running_loop().call_later(self.rng.random() * 10, manager.table.without, "")

    async def _kill(self) -> None:
        if self.managers:
            self.rng.choice(self.managers).die()

    async def _delete_namespace_there(self) -> None:
        cluster = self.clusters[self.rng.choice(MEMBERS)]
        self._delete_namespace(cluster)
        asyncio.get_running_loop().call_later(self.rng.random() * 20, self._make_again, cluster)

    def _make_again(self, cluster: Cluster) -> None:
        """Once the old one is gone: it waits for its pods."""
        if cluster.registry.store.get(NAMESPACES.key, ("", NAMESPACE)) is None:
            cluster.make_namespace(NAMESPACE)
        else:
            asyncio.get_running_loop().call_later(1.0, self._make_again, cluster)

    async def _delete_namespace_at_home(self) -> None:
        self.wanted.clear()
        self._delete_namespace(self.clusters[HOME])

    def _delete_namespace(self, cluster: Cluster) -> None:
        self.meddled.update(origin_of(pod) for pod in cluster.pods())
        cluster.deletion.delete(NAMESPACES, "", NAMESPACE, DeleteOptions())

    # What must hold

    async def _until_well(self) -> None:
        """Every pod that is wanted runs or has run, and nothing else does."""
        end = asyncio.get_running_loop().time() + PATIENCE
        while (why := self._not_well()) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1.0)
        self.outcome.losses.extend(why)
        home = self.clusters[HOME]
        for uid, name in self.wanted.items():
            pod = home.pod(name)
            phase = "" if pod is None or pod["metadata"]["uid"] != uid else pod["status"].get("phase")
            if phase == "Succeeded" and uid not in self.witness.succeeded:
                self.outcome.losses.append(f"{name} succeeded at home, and nowhere else")
            if phase == "Failed" and uid not in self.meddled and not _fails(pod):
                self.outcome.losses.append(f"{name} failed, and nobody meddled with it")

    def _not_well(self) -> list[str]:
        home, found = self.clusters[HOME], []
        for uid, name in self.wanted.items():
            pod = home.pod(name)
            if pod is None or pod["metadata"]["uid"] != uid:
                found.append(f"{name} is gone, and nobody deleted it")
                continue
            live = len(self.witness.live.get(uid, ()))
            phase, lasts = pod["status"].get("phase"), "runs" not in pod["metadata"].get("annotations", {})
            if phase in FINISHED and live:
                found.append(f"{name} is {phase} at home, and runs")
            elif phase not in FINISHED and not (phase == "Running" and live and lasts):
                found.append(f"{name} is {phase} at home, {live} of it run")
        known = {pod["metadata"]["uid"] for pod in home.pods()}
        found += [
            f"{pod['metadata']['name']} in {name} has no pod at home"
            for name in MEMBERS
            for pod in self.clusters[name].pods()
            if origin_of(pod) not in known
        ]
        going = (pod["metadata"]["name"] for pod in home.pods() if "deletionTimestamp" in pod["metadata"])
        return [*found, *(f"{name} does not go from home" for name in going)]

    async def _until_empty(self) -> None:
        """Deleted at home, pods go everywhere."""
        self.wanted.clear()
        for pod in self.clusters[HOME].pods():
            self.clusters[HOME].delete(pod)
        end = asyncio.get_running_loop().time() + PATIENCE
        while (left := self._left()) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1.0)
        self.outcome.losses.extend(f"{one} is left after all" for one in left)

    def _left(self) -> list[str]:
        return [f"{pod['metadata']['name']} in {name}" for name, one in self.clusters.items() for pod in one.pods()]


def _fails(pod: Object | None) -> bool:
    return pod is not None and pod["metadata"].get("annotations", {}).get("runs") == "badly"


def play(number: int) -> Outcome:
    """The run of that number, which is always the same."""
    logging.disable(logging.CRITICAL)
    try:
        return virtual_time.run(_played(number))
    finally:
        logging.disable(logging.NOTSET)


async def _played(number: int) -> Outcome:
    return await Run(number).live()


def main() -> int:
    """Play many, on all cores, and tell what was doubled or lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters.fault_run")
    parser.add_argument("runs", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--story", action="store_true", help="tell all that happened in the runs that went wrong")
    arguments = parser.parse_args()
    numbers, started = range(arguments.first, arguments.first + arguments.runs), time.monotonic()
    faults: Counter[str] = Counter()
    doubles = losses = 0
    with multiprocessing.Pool(arguments.jobs) as pool:
        for played, one in enumerate(pool.imap_unordered(play, numbers, chunksize=10), start=1):
            if played % 1000 == 0:
                sys.stdout.write(f"{played} runs after {time.monotonic() - started:.0f} s\n")
                sys.stdout.flush()
            faults += one.faults
            doubles, losses = doubles + bool(one.doubles), losses + bool(one.losses)
            if not one.well:
                told = [*one.doubles, *one.losses, *(one.story if arguments.story else ())]
                sys.stdout.write(f"run {one.number}: " + "\n  ".join(told) + "\n")
                sys.stdout.flush()
    seconds = time.monotonic() - started
    sys.stdout.write(f"{len(numbers)} runs, {faults.total()} faults: {doubles} with doubles, {losses} with losses; ")
    sys.stdout.write(f"{seconds:.0f} s\n")
    for name, count in faults.most_common():
        sys.stdout.write(f"  {count:7} {name}\n")
    return 1 if doubles or losses else 0


if __name__ == "__main__":
    sys.exit(main())
