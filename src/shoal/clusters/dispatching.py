"""Sees to one pod: looks at it and its copy, asks `dispatch` what comes next and does it, until nothing is to be done.

What is looked at may be old; what was read from the server, and in which order, is kept with it, since the decision
needs it. Pods are told apart by namespace and name here: a copy has both from home, and an earlier pod's copy stands in
the way of a later pod of that name.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from shoal.clusters import execute, mirror
from shoal.clusters.config import ClusterManagerConfig
from shoal.clusters.copies import (
    DispatchedPod,
    gates_of,
    is_held,
    mode_of,
    node_of,
    read_copy,
    read_home,
    sent_of,
    whole,
)
from shoal.clusters.dispatch import (
    Absent,
    CopyPod,
    DispatchCall,
    DispatchStep,
    DispatchView,
    HomePod,
    LastRead,
    Wish,
    collect,
    next_step,
)
from shoal.clusters.execute import CallAnswer, CallResult
from shoal.clusters.fences import Fences
from shoal.clusters.metrics import ManagerMetrics
from shoal.clusters.references import ReferenceCopies
from shoal.clusters.watches import CopyWatch, HomeWatch
from shoal.clusters.wishes import UNREADABLE, Chosen, Wishes
from shoal.clusters.work import WorkQueue
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.resources import PODS, Key
from shoal.model.backoff import Backoff
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import clusters, keti
from shoal.model.contract.clusters import CopyOrigin, LostMode, Sent
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)

#: Calls for one pod in a row; then others come first.
_MOST_STEPS: Final = 20
_REMEMBERED: Final = 20_000
_SOON: Final = 0.5
#: After calls that failed, and for pods that no cluster takes.
_FAILED: Final = Backoff(first=0.2, longest=30.0)
_NOWHERE: Final = Backoff(first=2.0, longest=60.0)
#: Steps that read or write the pod at home; all others its copy.
_AT_HOME: Final = frozenset(
    {
        DispatchCall.READ_HOME,
        DispatchCall.CLAIM,
        DispatchCall.OPEN_AT_HOME,
        DispatchCall.LEAVE,
        DispatchCall.STAY,
        DispatchCall.UNCLAIM,
        DispatchCall.GIVE_UP,
        DispatchCall.FINISH,
        DispatchCall.RELEASE_HOME,
    }
)

_READ_HOME: Final = DispatchStep(DispatchCall.READ_HOME)
#: Steps in the member that look at the whole pod. Refused, the cluster is ruled out: nothing of the copy ran.
_OF_WHOLE_PODS: Final = frozenset({DispatchCall.CREATE_COPY, DispatchCall.OPEN_COPY})

# Reasons of Events and conditions
_DISPATCHED: Final = mirror.REASON_DISPATCHED
_UNSCHEDULABLE: Final = "FailedScheduling"
_REFUSED: Final = "DispatchRefused"
_SILENT: Final = mirror.REASON_SILENT
_GATED: Final = "OtherGates"
_PREDECESSOR: Final = "PredecessorEnding"


@dataclass(slots=True)
class _Turn:
    """What is known of one pod while it is seen to."""

    key: Key
    home: DispatchedPod
    #: Identity of the cluster that home names, its watch if it is joined, and the copy there.
    place: str = ""
    watch: CopyWatch | None = None
    copy: DispatchedPod | Absent = Absent.UNKNOWN
    last: LastRead = LastRead.NEITHER

    @property
    def uid(self) -> str:
        """Of the pod at home."""
        return self.home.metadata.uid


class Dispatching:
    """What is done for pods. `watches` has the joined members but home, by identity."""

    def __init__(
        self,
        config: ClusterManagerConfig,
        client: Client,
        homes: HomeWatch,
        watches: Mapping[str, CopyWatch],
        *,
        home_cluster: str,
        wishes: Wishes,
        fences: Fences,
        copies: ReferenceCopies,
        queue: WorkQueue,
        recorder: Recorder,
        metrics: ManagerMetrics,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._config = config
        self._client = client
        self._homes = homes
        self._watches = watches
        self._home_cluster = home_cluster
        self._wishes = wishes
        self._fences = fences
        self._copies = copies
        self._queue = queue
        self._recorder = recorder
        self._metrics = metrics
        self._may_write = may_write
        self._clock = clock
        self._now = now
        #: Pods that are nowhere and wait; a cluster that comes wakes them.
        self.waiting: set[Key] = set()
        self._failures: dict[Key, int] = {}
        #: When a pod was first seen, and when its copy was found open without a node.
        self._seen: BoundedCache[str, float] = BoundedCache(_REMEMBERED)
        self._open_since: BoundedCache[tuple[str, int], float] = BoundedCache(_REMEMBERED)
        #: Before when the status of a pod is not written again.
        self._mirror_due: BoundedCache[str, float] = BoundedCache(_REMEMBERED)

    async def see_to(self, key: Key) -> None:
        """Do for the pod of that name, and for copies of that name, what can be done now."""
        home = self._homes.get(key) or await self._vanished(key)
        if home is None:
            self.waiting.discard(key)
            self._failures.pop(key, None)
        else:
            await self._dispatch(_Turn(key, home))
        for cluster, watch in list(self._watches.items()):
            copy = watch.look(key)
            if isinstance(copy, DispatchedPod):
                await self._collect(key, cluster, watch, copy)

    async def _vanished(self, key: Key) -> DispatchedPod | None:
        """A pod that left the watch without being deleted: somebody let it run at home, and it may still be kept."""
        if key not in self._homes.vanished:
            return None
        answer = await execute.read(self._client, *key)
        if answer.result is CallResult.SILENT:
            self._retry(key, answer.why)
            return None
        self._homes.vanished.discard(key)
        return answer.pod if isinstance(answer.pod, DispatchedPod) and is_held(answer.pod) else None

    # A pod at home

    async def _dispatch(self, turn: _Turn) -> None:
        self._seen.of(turn.uid, self._clock)
        for _ in range(_MOST_STEPS):
            try:
                home = read_home(turn.home)
                self._look_there(turn, home)
                copy = turn.copy if isinstance(turn.copy, Absent) else read_copy(turn.copy, self._home_cluster)
            except CodecError as error:
                self._tell(turn.home, "Warning", UNREADABLE, str(error))
                return
            wish, chosen = await self._wish(turn, home, copy)
            # To choose for it takes the whole pod, of which only a part may have been kept.
            view = DispatchView(home, copy, turn.last, silenced=self._is_silenced(turn))
            step = _READ_HOME if wish is None else next_step(view, wish)
            if step.call is DispatchCall.WAIT:
                await self._wait(turn, chosen)
                return
            if step.call is DispatchCall.MIRROR:
                await self._mirror(turn)
                return
            if not await self._take_step(turn, step, chosen):
                return
        self._queue.add(turn.key)

    def _look_there(self, turn: _Turn, home: HomePod) -> None:
        """Look at the copy where home says it is, if that has changed."""
        place = home.dispatch.cluster if home.dispatch is not None else ""
        if place == turn.place:
            return
        turn.place, turn.watch = place, self._watch_of(place)
        turn.copy = Absent.UNKNOWN if turn.watch is None else turn.watch.look(turn.key)
        silent = turn.watch is None or (turn.watch.reflector.synced.is_set() and not turn.watch.answers)
        if turn.copy is not Absent.UNKNOWN or silent:
            # A copy that is known from the watch may have been made after home was read.
            turn.last = LastRead.NEITHER

    def _is_silenced(self, turn: _Turn) -> bool:
        """Whether its cluster has been silent for so long that nothing under its fence runs there."""
        sent = sent_of(turn.home)
        left = None if sent is None else self._fences.seconds_left(turn.place, sent.fence)
        return left is not None and left <= 0

    def _watch_of(self, cluster: str) -> CopyWatch | None:
        named = (one for one in self._watches.values() if one.member.name == cluster)
        return self._watches.get(cluster) or next(named, None)

    async def _take_step(self, turn: _Turn, step: DispatchStep, chosen: Chosen | None) -> bool:
        """Do it, and take in what came of it; whether to go on."""
        if step.call in _OF_WHOLE_PODS and whole(turn.home) is None:
            step = _READ_HOME
        if not self._may_write():
            return False
        if step.call is DispatchCall.LEAVE and step.why and turn.watch is not None:
            # Else it would be chosen again at once.
            self._wishes.refused(turn.uid, turn.watch.member, step.why)
        at_home = step.call in _AT_HOME
        client = self._client if at_home or turn.watch is None else turn.watch.member.client
        if at_home:
            answer = await self._do_at_home(turn, step, chosen)
        elif turn.watch is None:
            answer = CallAnswer(CallResult.SILENT, why="the cluster is not joined, or does not answer")
        else:
            answer = await self._there(turn.watch, self._do_there(client, turn, step))
        self._metrics.steps.inc(step.call.value, answer.result.value)
        if answer.result is CallResult.REFUSED:
            return self._refused(turn, step, answer)
        done = step.call if answer.result is CallResult.DONE else None
        if answer.result is not CallResult.SILENT and answer.pod is Absent.UNKNOWN:
            # It is not as it was seen, or is on its way out: look again.
            looking = execute.read(client, *turn.key)
            answer = await (looking if at_home or turn.watch is None else self._there(turn.watch, looking))
        if answer.result is CallResult.SILENT:
            self._retry(turn.key, answer.why)
            return False
        self._failures.pop(turn.key, None)
        return self._take_home(turn, answer.pod, done) if at_home else self._take_copy(turn, answer.pod, done)

    async def _there(self, watch: CopyWatch, call: Coroutine[None, None, CallAnswer]) -> CallAnswer:
        """A call to a member, for which nobody waits long. What was sent may have been done."""
        answer = CallAnswer(CallResult.SILENT, why=f"no answer in {self._config.member_seconds:g} s")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.member_seconds):
                answer = await call
        if answer.result is CallResult.SILENT:
            watch.got_no_answer()
        else:
            self._fences.heard(watch.member)
        return answer

    async def _do_at_home(self, turn: _Turn, step: DispatchStep, chosen: Chosen | None) -> CallAnswer:
        client, home, sent = self._client, turn.home, sent_of(turn.home)
        match step.call:
            case DispatchCall.READ_HOME:
                return await execute.read(client, *turn.key)
            case DispatchCall.CLAIM:
                assert chosen is not None
                assert chosen.member is not None
                member, replaced = chosen.member, mode_of(home) is LostMode.REPLACE
                fence = await self._fences.fence_in(member) if replaced else 0
                claimed = Sent(attempt=step.attempt, cluster=member.name, uid=member.uid, fence=fence)
                return await execute.write_dispatch(client, home, claimed)
            case DispatchCall.LEAVE | DispatchCall.STAY:
                assert sent is not None
                leaving = msgspec.structs.replace(sent, leaving=step.call is DispatchCall.LEAVE)
                return await execute.write_dispatch(client, home, leaving)
            case DispatchCall.GIVE_UP:
                assert sent is not None
                log.warning("pod %s/%s: given up: cluster %s is lost", *turn.key, sent.cluster)
                return await execute.write_dispatch(client, home, msgspec.structs.replace(sent, lost=True))
            case DispatchCall.UNCLAIM:
                return await execute.write_dispatch(client, home, Sent(attempt=step.attempt))
            case DispatchCall.OPEN_AT_HOME:
                return await execute.open_at_home(client, home)
            case DispatchCall.RELEASE_HOME:
                return await execute.release_home(client, home)
            case DispatchCall.FINISH:
                return await self._finish(turn)
        raise AssertionError(step)

    async def _do_there(self, client: Client, turn: _Turn, step: DispatchStep) -> CallAnswer:
        copy = turn.copy
        match step.call:
            case DispatchCall.READ_COPY:
                return await execute.read(client, *turn.key)
            case DispatchCall.CREATE_COPY:
                sent = sent_of(turn.home)
                fence = 0 if sent is None else sent.fence
                origin = CopyOrigin(cluster=self._home_cluster, uid=turn.uid, attempt=step.attempt, fence=fence)
                return await self._create(turn, origin)
        assert isinstance(copy, DispatchedPod)
        if step.call is DispatchCall.OPEN_COPY:
            missing = await self._supply(turn, copy)
            return missing or await execute.open_copy(client, copy)
        return await _remove(client, copy, step.call)

    async def _create(self, turn: _Turn, origin: CopyOrigin) -> CallAnswer:
        """Create the dispatched pod, using what the member's namespace lets it use."""
        assert turn.watch is not None
        member = turn.watch.member
        try:
            terms = await self._copies.terms(member, turn.key[0])
        except KubeError as error:
            return CallAnswer(CallResult.SILENT, why=str(error))
        return await execute.create_copy(member.client, turn.home, origin, terms, pod_account=member.pod_account)

    async def _supply(self, turn: _Turn, copy: DispatchedPod) -> CallAnswer | None:
        """Have the ConfigMaps and Secrets there that a pod names, where they are copied; None if all is well."""
        pod = whole(turn.home)
        assert pod is not None, "the whole pod is read before"
        assert turn.watch is not None
        try:
            why = await self._copies.supply(turn.watch.member, pod, copy)
        except KubeError as error:
            return CallAnswer(CallResult.SILENT, why=str(error))
        return CallAnswer(CallResult.REFUSED, why=why) if why else None

    def _take_home(self, turn: _Turn, pod: DispatchedPod | Absent, done: DispatchCall | None) -> bool:
        # A pod that was kept by our finalizer alone is gone with it, though the server shows it once more.
        self._homes.known.answered(Absent.GONE if done is DispatchCall.RELEASE_HOME else pod, turn.key)
        if not isinstance(pod, DispatchedPod) or pod.metadata.uid != turn.uid:
            return False
        turn.home, turn.last = pod, LastRead.HOME
        if done in (DispatchCall.CLAIM, DispatchCall.OPEN_AT_HOME):
            self.waiting.discard(turn.key)
        if done is DispatchCall.OPEN_AT_HOME:
            self._tell(pod, "Normal", _DISPATCHED, "it runs in this cluster")
        return done not in (DispatchCall.OPEN_AT_HOME, DispatchCall.RELEASE_HOME)

    def _take_copy(self, turn: _Turn, pod: DispatchedPod | Absent, done: DispatchCall | None) -> bool:
        assert turn.watch is not None
        turn.copy, turn.last = pod, LastRead.COPY
        turn.watch.known.answered(pod, turn.key)
        if done is DispatchCall.OPEN_COPY:
            self._opened(turn, turn.watch.member.name)
        return True

    def _opened(self, turn: _Turn, cluster: str) -> None:
        meta = turn.home.metadata
        self._metrics.dispatches.inc(cluster)
        self._metrics.opened.observe(self._clock() - self._seen.of(turn.uid, self._clock))
        # In a moment it will have a node: that is written at once, and not twice.
        self._mirror_due.put(turn.uid, self._clock() + self._config.mirror_seconds)
        log.info("pod %s/%s: sent to cluster %s", meta.namespace, meta.name, cluster)
        message = f"sent to cluster {cluster}; kubectl logs here is empty: use `{_logs(turn.key)}`"
        self._tell(turn.home, "Normal", _DISPATCHED, message)

    def _refused(self, turn: _Turn, step: DispatchStep, answer: CallAnswer) -> bool:
        meta = turn.home.metadata
        where = "home" if step.call in _AT_HOME or turn.watch is None else f"cluster {turn.watch.member.name}"
        self._tell(turn.home, "Warning", _REFUSED, f"{step.call.value}: {where} refused: {answer.why}")
        if step.call in _OF_WHOLE_PODS and turn.watch is not None:
            self._wishes.refused(meta.uid, turn.watch.member, answer.why)
            return True  # and it is taken back, as nothing of it runs there
        self._retry(turn.key, answer.why)
        return False

    # Where to

    async def _wish(self, turn: _Turn, home: HomePod, copy: CopyPod | Absent) -> tuple[Wish | None, Chosen | None]:
        """What is wished for a pod, and what was chosen for one that is nowhere; no wish: read the whole pod first."""
        if home.dispatch is not None and home.dispatch.cluster:
            leave = await self._shall_leave(turn, home, copy)
            return None if leave is None else Wish(leave=leave), None
        if not home.held or home.deleting or home.over:
            return Wish(), None
        chosen = self._kept_back(turn)
        if chosen is None:
            pod = whole(turn.home)
            if pod is None:
                return None, None
            chosen = await self._wishes.choose(turn.key, pod)
        member = chosen.member
        return Wish() if member is None else Wish(member.uid, own=member.own), chosen

    def _kept_back(self, turn: _Turn) -> Chosen | None:
        """Why a pod goes nowhere yet, whatever the clusters offer."""
        others = [name for name in gates_of(turn.home) if name != clusters.GATE_HOME]
        if others:
            return Chosen(None, _GATED, f"it has other scheduling gates: {', '.join(others[:8])}")
        ahead = self._homes.predecessor(turn.home)
        if ahead:
            return Chosen(None, _PREDECESSOR, f"pod {ahead} of the same Job is not gone yet")
        for watch in self._watches.values():
            copy = watch.look(turn.key)
            if isinstance(copy, DispatchedPod) and watch.is_of_another(copy, turn.uid):
                why = f"the copy of an earlier pod of this name is not gone from cluster {watch.member.name}"
                return Chosen(None, _PREDECESSOR, why)
        return None

    async def _shall_leave(self, turn: _Turn, home: HomePod, copy: CopyPod | Absent) -> bool | None:
        """Whether a pod shall be taken back: its cluster refused it, or gave it no node and another would.

        None: that takes the whole pod.
        """
        if home.deleting or home.over or turn.watch is None:
            return False
        if self._wishes.is_refused(home.uid, turn.watch.member.uid):
            return True
        if not isinstance(copy, CopyPod) or copy.gated or copy.placed or copy.deleting or copy.over:
            return False
        if turn.home.metadata.annotations.get(keti.ANNOTATION_CLUSTER, "").strip():
            return False  # there is no other
        patience, opened = self._config.place_seconds, (home.uid, copy.attempt)
        left = self._open_since.of(opened, self._clock) + patience - self._clock()
        if left > 0:
            self._queue.add_after(turn.key, left)
            return False
        pod = whole(turn.home)
        if pod is None:
            return None
        chosen = await self._wishes.choose(turn.key, pod, without=turn.place)
        if chosen.member is None:
            self._open_since.put(opened, self._clock())
            self._queue.add_after(turn.key, patience)
            return False
        self._wishes.refused(home.uid, turn.watch.member, f"no node in {patience:g} s")
        return True

    async def _wait(self, turn: _Turn, chosen: Chosen | None) -> None:
        """Nothing can be done now: say why, where somebody would like to know."""
        if chosen is None:
            self.waiting.discard(turn.key)
            if turn.place and turn.copy is Absent.UNKNOWN:
                await self._tell_silence(turn)
            return
        self.waiting.add(turn.key)
        self._retry(turn.key, "", _NOWHERE)
        patch = mirror.waiting_patch(mirror.read_status(turn.home.status), chosen.reason, chosen.why, self._now())
        if not chosen.reason or patch is None or not self._may_write():
            return
        self._tell(turn.home, "Warning", chosen.reason, chosen.why)
        answer = await execute.write_status(self._client, turn.home, patch)
        self._homes.known.answered(answer.pod, turn.key)

    async def _tell_silence(self, turn: _Turn) -> None:
        """Its cluster does not answer: say what will happen, and see to it when it does."""
        sent = sent_of(turn.home)
        if sent is None or sent.lost:
            return
        left = self._fences.seconds_left(turn.place, sent.fence)
        if sent.fence:
            self._queue.add_after(turn.key, max(_SOON, self._config.sweep_seconds if left is None else left))
        silence = self._fences.silence(turn.place, sent.fence)
        words = f"cluster {sent.cluster} does not answer: nothing is assumed of it"
        if silence is not None:
            words = silence.words(sent.cluster)
        patch = mirror.silent_patch(mirror.read_status(turn.home.status), words, self._now())
        if patch is None or not self._may_write():
            return
        self._tell(turn.home, "Warning", _SILENT, words)
        answer = await execute.write_status(self._client, turn.home, patch)
        self._homes.known.answered(answer.pod, turn.key)

    # What home shows

    async def _mirror(self, turn: _Turn) -> None:
        assert turn.watch is not None
        assert isinstance(turn.copy, DispatchedPod)
        due = (self._mirror_due.get(turn.uid) or 0.0) - self._clock()
        if due > 0:
            self._queue.add_after(turn.key, due)
            return
        there, node = mirror.read_status(turn.copy.status), node_of(turn.copy)
        patch = mirror.status_patch(
            mirror.read_status(turn.home.status),
            there,
            cluster=turn.watch.member.name,
            node=node,
            logs=_logs(turn.key),
            now=self._now(),
        )
        if patch is None or not self._may_write():
            return
        self._mirror_due.put(turn.uid, self._clock() + self._config.mirror_seconds)
        answer = await execute.write_status(self._client, turn.home, patch)
        self._metrics.steps.inc(DispatchCall.MIRROR.value, answer.result.value)
        if answer.result is CallResult.DONE:
            self._metrics.mirrored.inc()
            self._homes.known.answered(answer.pod, turn.key)
            why = "" if node else mirror.unschedulable(there)
            if why and "conditions" in patch:
                message = f"in cluster {turn.watch.member.name}: {why}"
                self._tell(turn.home, "Warning", _UNSCHEDULABLE, message)
        elif answer.result is CallResult.CHANGED:
            # The watch may be behind what others have written.
            self._homes.known.answered((await execute.read(self._client, *turn.key)).pod, turn.key)
            self._queue.add(turn.key)
        else:
            self._retry(turn.key, answer.why)

    async def _finish(self, turn: _Turn) -> CallAnswer:
        sent, copy = sent_of(turn.home), turn.copy
        is_ours = isinstance(copy, DispatchedPod) and turn.watch is not None and turn.watch.is_of(copy, turn.uid)
        patch = mirror.final_patch(
            mirror.read_status(turn.home.status),
            mirror.read_status(copy.status) if isinstance(copy, DispatchedPod) and is_ours else None,
            cluster=sent.cluster if sent is not None else "",
            node=node_of(copy) if isinstance(copy, DispatchedPod) and is_ours else "",
            logs=_logs(turn.key),
            now=self._now(),
            lost=sent is not None and sent.lost,
        )
        return await execute.write_status(self._client, turn.home, patch)

    # A copy in a member

    async def _collect(self, key: Key, cluster: str, watch: CopyWatch, pod: DispatchedPod) -> None:
        """Remove a copy that no pod at home stands for."""
        last = LastRead.NEITHER
        try:
            copy = read_copy(pod, self._home_cluster)
            home = self._home_of(key, copy.origin)
            for _ in range(_MOST_STEPS):
                step = collect(copy, home, cluster, last=last)
                if not copy.origin or step.call is DispatchCall.WAIT or not self._may_write():
                    return
                if step.call is DispatchCall.READ_HOME:
                    if _belongs(home, copy, cluster):
                        return
                    answer = await execute.read(self._client, *key)
                    home, last = _home_with(answer, copy.origin), LastRead.HOME
                else:
                    answer = await self._there(watch, _remove(watch.member.client, pod, step.call))
                    self._metrics.steps.inc(step.call.value, answer.result.value)
                    if answer.pod is Absent.UNKNOWN and answer.result in (CallResult.DONE, CallResult.CHANGED):
                        answer = await self._there(watch, execute.read(watch.member.client, *key))
                    watch.known.answered(answer.pod, key)
                    if isinstance(answer.pod, DispatchedPod):
                        pod, copy, last = answer.pod, read_copy(answer.pod, self._home_cluster), LastRead.NEITHER
                if answer.result in (CallResult.SILENT, CallResult.REFUSED):
                    self._retry(key, answer.why)
                    return
                if answer.pod is Absent.GONE and step.call is not DispatchCall.READ_HOME:
                    return
        except CodecError as error:
            log.warning("cluster %s: pod %s/%s is left alone: %s", watch.member.name, *key, error)

    def _home_of(self, key: Key, uid: str) -> HomePod | Absent:
        pod = self._homes.get(key)
        if pod is not None and pod.metadata.uid == uid:
            return read_home(pod)
        return Absent.GONE if self._homes.reflector.synced.is_set() else Absent.UNKNOWN

    def _retry(self, key: Key, why: str, backoff: Backoff = _FAILED) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = backoff.after(failures)
        if why:
            log.warning("pod %s/%s: next try in %.1f s: %s", *key, pause, why)
        self._queue.add_after(key, pause)

    def _tell(self, about: DispatchedPod, kind: EventType, reason: str, message: str) -> None:
        self._recorder.record(reference_to(PODS, about), kind, reason, mirror.one_line(message))


def _logs(key: Key) -> str:
    return f"shoal logs {key[1]} -n {key[0]}"


def _belongs(home: HomePod | Absent, copy: CopyPod, cluster: str) -> bool:
    """Whether a copy is where the pod at home is known to be, so that nobody need ask."""
    sent = home.dispatch if isinstance(home, HomePod) and home.held else None
    return sent is not None and not sent.lost and sent.cluster == cluster and sent.attempt == copy.attempt


def _home_with(answer: CallAnswer, uid: str) -> HomePod | Absent:
    pod = answer.pod
    if isinstance(pod, DispatchedPod):
        return read_home(pod) if pod.metadata.uid == uid else Absent.GONE
    return pod


async def _remove(client: Client, copy: DispatchedPod, call: DispatchCall) -> CallAnswer:
    match call:
        case DispatchCall.DELETE_COPY | DispatchCall.END_COPY:
            return await execute.delete_copy(client, copy, any_version=call is DispatchCall.END_COPY)
        case DispatchCall.RELEASE_COPY:
            return await execute.release_copy(client, copy)
    raise AssertionError(call)
