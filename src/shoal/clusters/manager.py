"""The manager's loops: follows the members that come and go, takes pods in turn, and looks for copies nobody watches.

Safe with several at once, and with watches that lag: what may be done is decided in `dispatch`, call by call.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.copies import DispatchedPod, is_lost, read_home
from shoal.clusters.dispatch import Absent
from shoal.clusters.dispatching import Dispatching
from shoal.clusters.fences import Fences
from shoal.clusters.member import MemberTable
from shoal.clusters.metrics import ManagerMetrics
from shoal.clusters.references import ReferenceCopies, SentPod
from shoal.clusters.watches import CopyWatch, HomeWatch
from shoal.clusters.wishes import Choosing, Wishes
from shoal.clusters.work import WorkQueue
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.lease import boot_clock
from shoal.kube.resources import Key, key_of
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: How long to leave a pod alone whose turn ended with an error of ours.
_BROKEN_SECONDS = 30.0
#: How often it is looked whether members answer.
_PULSE_SECONDS = 1.0


def utc_now() -> datetime.datetime:
    """This moment, for people."""
    return datetime.datetime.now(datetime.UTC)


class ClusterManager:
    """All of one manager. In `async with` it follows the clusters; `run` does the work."""

    def __init__(
        self,
        config: ClusterManagerConfig,
        client: Client,
        members: MemberTable,
        choosing: Choosing,
        recorder: Recorder,
        *,
        home_cluster: str,
        may_write: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = utc_now,
    ) -> None:
        self._config = config
        self._members = members
        self._home_cluster = home_cluster
        self._clock = clock
        self.queue = WorkQueue()
        self.homes = HomeWatch(client, self.queue.add, clock=clock)
        #: The watches of members, by identity.
        self.watches: dict[str, CopyWatch] = {}
        #: Whether this process leads.
        self.may_write = may_write
        self._copies = ReferenceCopies(client, home_cluster, clock=clock)
        self.metrics = ManagerMetrics(self._member_states, lambda: len(self.queue))
        self.fences = Fences(
            config,
            client,
            members,
            self._under_fences,
            home_cluster=home_cluster,
            missed=self._missed,
            may_write=may_write,
            clock=boot_clock,
            now=now,
        )
        self._dispatching = Dispatching(
            config,
            client,
            self.homes,
            self.watches,
            home_cluster=home_cluster,
            wishes=Wishes(
                members,
                choosing,
                self.homes.siblings,
                self._copies,
                is_silent=self._is_silent,
                refused_seconds=config.refused_seconds,
                clock=clock,
            ),
            fences=self.fences,
            copies=self._copies,
            queue=self.queue,
            recorder=recorder,
            metrics=self.metrics,
            may_write=may_write,
            clock=clock,
            now=now,
        )
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        members.on_change(self._changed.set)

    async def __aenter__(self) -> ClusterManager:
        await self.homes.reflector.__aenter__()
        await self._follow_members()
        self._following = asyncio.create_task(self._follow(), name="members")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        for watch in self.watches.values():
            await watch.reflector.stop()
        self.watches.clear()
        await self.homes.reflector.stop()
        self.queue.close()

    def not_ready(self) -> str:
        """What keeps the manager from its work, in words; empty when nothing does."""
        return "" if self.homes.reflector.synced.is_set() else "home's pods have not been read yet"

    def wake(self) -> None:
        """Pods that are nowhere are tried again: a cluster came, or has room."""
        for key in list(self._dispatching.waiting):
            self.queue.add(key)

    async def run(self) -> None:
        """See to pods until cancelled."""
        await self.homes.reflector.wait_synced()
        await self.fences.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fences.run(), name="fences")
            group.create_task(self._sweep(), name="sweep")
            group.create_task(self._keep_references(), name="references")
            for number in range(self._config.workers):
                group.create_task(self._work(), name=f"worker {number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                await self._dispatching.see_to(key)
            except Exception:
                # One odd pod must not stop the others.
                log.exception("pod %s/%s: left alone for %.0f s", *key, _BROKEN_SECONDS)
                self.queue.add_after(key, _BROKEN_SECONDS)
            finally:
                self.queue.done(key)

    async def _follow(self) -> None:
        """Keep the watches to the members there are; wake who waits for one that answers again."""
        answering: dict[str, bool] = {}
        while True:
            if self._changed.is_set():
                self._changed.clear()
                await self._follow_members()
                self.wake()
            for uid, watch in self.watches.items():
                before = answering.get(uid, False)
                answering[uid] = watch.answers
                if before is not watch.answers:
                    log.info("cluster %s %s", watch.member.name, "answers" if watch.answers else "does not answer")
                    self._wake_sent_to(uid)
            await self._pulse()

    async def _pulse(self) -> None:
        """A moment later, or when members have changed; those that are silent are asked meanwhile."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches.values():
                if not watch.answers:
                    group.create_task(watch.ask())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PULSE_SECONDS):
                    await self._changed.wait()

    async def _follow_members(self) -> None:
        wanted = {one.uid: one for one in self._members.members.values() if not one.own}
        for uid, watch in list(self.watches.items()):
            if wanted.get(uid) is not watch.member:
                del self.watches[uid]
                await watch.reflector.stop()
                if uid not in wanted:
                    self._wake_sent_to(uid)
        for uid, member in wanted.items():
            if uid not in self.watches:
                watch = CopyWatch(member, self._home_cluster, self.queue.add, clock=self._clock)
                await watch.reflector.__aenter__()
                self.watches[uid] = watch

    def _missed(self, cluster: str) -> None:
        if cluster in self.watches:
            self.watches[cluster].got_no_answer()

    def _is_silent(self, cluster: str) -> bool:
        watch = self.watches.get(cluster)
        if watch is None:
            return False
        return not watch.answers and (watch.reflector.synced.is_set() or self.fences.is_silent(cluster))

    def _under_fences(self) -> Iterator[tuple[str, str]]:
        """Identity of the cluster and namespace of each copy under a fence."""
        for pod in self.homes:
            try:
                home = read_home(pod)
            except CodecError:
                continue
            sent = home.dispatch
            if sent is not None and sent.replace and not sent.lost and (home.deleting or not home.over):
                yield sent.cluster, pod.metadata.namespace

    def _wake_sent_to(self, cluster: str) -> None:
        for pod in self.homes:
            if self._place(pod) == cluster:
                self.queue.add(key_of(pod))

    @staticmethod
    def _place(pod: DispatchedPod) -> str:
        try:
            home = read_home(pod)
        except CodecError:
            return ""
        return home.dispatch.cluster if home.dispatch is not None and (home.deleting or not home.over) else ""

    async def _sweep(self) -> None:
        """Look for what no change has told of: copies without a home, pods without their copy, pods that end."""
        while True:
            for key in self._astray():
                self.queue.add(key)
            await asyncio.sleep(self._config.sweep_seconds)

    def _astray(self) -> set[Key]:
        found: set[Key] = set()
        for watch in self.watches.values():
            for pod in watch.reflector.store:
                home = self.homes.get(key_of(pod))
                if home is None or is_lost(home) or not watch.is_of(pod, home.metadata.uid):
                    found.add(key_of(pod))
        for pod in self.homes:
            place = self._place(pod)
            there = self.watches.get(place)
            gone = there is not None and there.look(key_of(pod)) is Absent.GONE
            if pod.metadata.deletion_timestamp is not None or (place and gone):
                found.add(key_of(pod))
        return found

    async def _keep_references(self) -> None:
        """Keep copies of ConfigMaps and Secrets as they are at home, while pods use them."""
        while True:
            await asyncio.sleep(self._config.reference_seconds)
            if self.may_write():
                try:
                    await self._copies.keep_up(self._sent())
                except Exception:
                    # Odd content must not stop the dispatches.
                    log.exception(
                        "copies of ConfigMaps and Secrets: left alone for %g s", self._config.reference_seconds
                    )

    def _sent(self) -> Iterator[SentPod]:
        """The pods that have a copy in a member that answers."""
        for pod in self.homes:
            there = self.watches.get(self._place(pod))
            copy = there.look(key_of(pod)) if there is not None else Absent.UNKNOWN
            if there is not None and isinstance(copy, DispatchedPod) and there.is_of(copy, pod.metadata.uid):
                yield SentPod(key_of(pod), pod.metadata.uid, there.member, copy.metadata.uid)

    def _member_states(self) -> dict[str, tuple[bool, int]]:
        return {one.member.name: (one.answers, len(one.reflector.store)) for one in self.watches.values()}
