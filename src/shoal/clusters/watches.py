"""Pods as the manager knows them: the held ones at home, and their copies in each member.

A watch lags behind the answers of the manager's own calls, so that the newer of the two counts. Whatever is known here
may be old: `dispatch` asks the server where that matters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Final, Protocol

from shoal.clusters.copies import (
    DISPATCHED_PODS,
    DispatchedPod,
    is_held,
    is_lost,
    job_of,
    read_copy,
    read_home,
    slim_copy,
    slim_home,
)
from shoal.clusters.dispatch import Absent
from shoal.clusters.member import Member
from shoal.clusters.siblings import SiblingIndex, group_of
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.reflector import Reflector
from shoal.kube.resources import Key, key_of
from shoal.kube.store import Change, Store
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters
from shoal.model.errors import CodecError

#: Answers that are kept until the watch shows them, and for how many seconds; about a pod that the watch does not show
#: not for long, since it may be gone.
_ANSWERS: Final = 10_000
_ANSWER_SECONDS: Final = 60.0
_NEW_SECONDS: Final = 5.0
#: How long a silent member has to say that it is there.
_ASK_SECONDS: Final = 5.0


class Changed(Protocol):
    """Told of a pod that has changed; those that wait to be sent come first."""

    def __call__(self, key: Key, *, urgent: bool = False) -> None: ...


class KnownPods:
    """The pods of one watch, and what the server has answered since."""

    def __init__(
        self,
        store: Store[DispatchedPod],
        slim: Callable[[DispatchedPod], DispatchedPod],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._slim = slim
        self._clock = clock
        self._answers: BoundedCache[Key, tuple[float, DispatchedPod]] = BoundedCache(_ANSWERS)

    def get(self, key: Key) -> DispatchedPod | None:
        """The pod of that name."""
        watched = self._store.get(key[1], key[0])
        answer = self._answers.get(key)
        if answer is None:
            return watched
        since, answered = answer
        age = self._clock() - since
        if age > (_ANSWER_SECONDS if watched is not None else _NEW_SECONDS) or not _is_newer(answered, watched):
            self._answers.pop(key)
            return watched
        return answered

    def answered(self, pod: DispatchedPod | Absent, key: Key) -> None:
        """Take in what the server has answered."""
        if isinstance(pod, DispatchedPod):
            self._answers.put(key, (self._clock(), self._slim(pod)))
        elif pod is Absent.GONE:
            self._answers.pop(key)

    def took(self, change: Change[DispatchedPod]) -> None:
        """Forget an answer that the watch has come up with."""
        key = key_of(change.object)
        answer = self._answers.get(key)
        if answer is not None and not _is_newer(answer[1], change.object):
            self._answers.pop(key)


def _is_newer(answered: DispatchedPod, watched: DispatchedPod | None) -> bool:
    if watched is None:
        return True
    new, old = answered.metadata.resource_version, watched.metadata.resource_version
    return new.isdecimal() and old.isdecimal() and int(new) > int(old)


class HomeWatch:
    """The pods at home that have no node, of which those that are held are known whole enough. Use `reflector`."""

    def __init__(self, client: Client, changed: Changed, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        #: Jobs with pods that are being deleted: which, and their completion index.
        self._ending: dict[str, dict[Key, str]] = {}
        #: Pods that wait for such an end, by Job.
        self._behind: dict[str, set[Key]] = {}
        #: Pods that the watch shows no more, though nobody deleted them: they may have got a node.
        self.vanished: set[Key] = set()
        self._siblings = SiblingIndex()
        self.reflector = Reflector(
            client, DISPATCHED_PODS, fields="spec.nodeName=", consumers=[self._took], slim=slim_home
        )
        self.known = KnownPods(self.reflector.store, slim_home, clock)

    def get(self, key: Key) -> DispatchedPod | None:
        """A held pod."""
        pod = self.known.get(key)
        return pod if pod is not None and is_held(pod) else None

    def waits(self, key: Key, uid: str) -> bool:
        """Whether a pod was sent nowhere and has no node at home."""
        pod = self.known.get(key)
        return (
            pod is not None and pod.metadata.uid == uid and clusters.ANNOTATION_DISPATCH not in pod.metadata.annotations
        )

    def __iter__(self) -> Iterator[DispatchedPod]:
        return (pod for pod in self.reflector.store if is_held(pod))

    def predecessor(self, pod: DispatchedPod) -> str:
        """A pod of the same Job that is ending and not gone, for which this one may stand in; empty if there is none.

        A Job that replaces pods only once they have failed counts on this: servers call a deleted pod without a node
        failed at once, whatever its copy does.
        """
        job, index = job_of(pod)
        for key, other in self._ending.get(job, {}).items():
            if key != key_of(pod) and (other == index or not (other and index)):
                self._behind.setdefault(job, set()).add(key_of(pod))
                return key[1]
        return ""

    def siblings(self, key: Key) -> Collection[str]:
        """The identities of the clusters to which pods of the same gang or controller were sent."""
        pod = self.get(key)
        return () if pod is None else self._siblings.of(pod.metadata.uid, _group(pod))

    def _took(self, change: Change[DispatchedPod]) -> None:
        self.known.took(change)
        pod, key = change.object, key_of(change.object)
        self._siblings.put(pod.metadata.uid, _group(pod), "" if change.new is None else _cluster(pod))
        if not is_held(pod) and (change.old is None or not is_held(change.old)):
            return
        job, index = job_of(pod)
        if job:
            # Of one that was given up nothing runs any more.
            ending = change.new is not None and _is_deleted(pod) and not is_lost(pod)
            self._follow_job(job, key, index, ending=ending)
        if change.new is None and not _is_deleted(pod):
            self.vanished.add(key)
        self._changed(key, urgent=clusters.ANNOTATION_DISPATCH not in pod.metadata.annotations)

    def _follow_job(self, job: str, key: Key, index: str, *, ending: bool) -> None:
        if ending:
            self._ending.setdefault(job, {})[key] = index
        elif self._ending.get(job, {}).pop(key, None) is not None:
            if not self._ending[job]:
                del self._ending[job]
            for behind in self._behind.pop(job, ()):
                self._changed(behind)


def _group(pod: DispatchedPod) -> Hashable:
    meta = pod.metadata
    owners = [{"uid": owner.uid, "controller": owner.controller} for owner in meta.owner_references]
    return group_of(
        {
            "namespace": meta.namespace,
            "labels": meta.labels,
            "annotations": meta.annotations,
            "ownerReferences": owners,
        }
    )


def _cluster(pod: DispatchedPod) -> str:
    """The identity of the cluster where a pod is and stays."""
    try:
        home = read_home(pod)
    except CodecError:
        return ""
    sent = home.dispatch
    gone = sent is None or sent.leaving or sent.lost or home.deleting or home.over
    return "" if gone or sent is None else sent.cluster


def _is_deleted(pod: DispatchedPod) -> bool:
    return pod.metadata.deletion_timestamp is not None


class CopyWatch:
    """The copies of home's pods in one member. Use `reflector`."""

    def __init__(
        self, member: Member, home_cluster: str, changed: Changed, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.member = member
        self._home_cluster = home_cluster
        self._changed = changed
        self.reflector = Reflector(
            member.client,
            DISPATCHED_PODS,
            labels=f"{clusters.LABEL_ORIGIN}={home_cluster}",
            consumers=[self._took],
            slim=slim_copy,
        )
        self.known = KnownPods(self.reflector.store, slim_copy, clock)
        #: The failure of the watch after which the member has answered again.
        self._overcome: KubeError | None = None
        #: A call got no answer, and none was got since.
        self._silent = False

    @property
    def answers(self) -> bool:
        """Whether the member has been read, and answers."""
        error = self.reflector.last_error
        return self.reflector.synced.is_set() and not self._silent and (error is None or error is self._overcome)

    def got_no_answer(self) -> None:
        """Leave the member alone until it answers: others need not wait for it one after another."""
        self._silent = True

    async def ask(self) -> None:
        """Find out whether a member answers again: a watch without news cannot tell for a minute.

        If so, the watch is taken up on a new connection: after a cut of the network the old one hangs for about as
        long again.
        """
        error = self.reflector.last_error
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await self.member.client.version()
        except (KubeError, TimeoutError):
            return
        self._overcome, self._silent = error, False
        if self.reflector.synced.is_set():
            await self.reflector.stop()
            await self.reflector.__aenter__()

    def look(self, key: Key) -> DispatchedPod | Absent:
        """The copy of that name, as it is known."""
        if not self.answers:
            return Absent.UNKNOWN
        return self.known.get(key) or Absent.GONE

    def is_of(self, pod: DispatchedPod, uid: str) -> bool:
        """Whether a pod is the copy of the one with this UID; so it is taken to be where it cannot be read."""
        try:
            return read_copy(pod, self._home_cluster).origin == uid
        except CodecError:
            return True

    def is_of_another(self, pod: DispatchedPod, uid: str) -> bool:
        """Whether a pod is the copy of another pod at home than the one with this UID."""
        try:
            return read_copy(pod, self._home_cluster).origin not in ("", uid)
        except CodecError:
            return False

    def _took(self, change: Change[DispatchedPod]) -> None:
        self.known.took(change)
        self._changed(key_of(change.object))
