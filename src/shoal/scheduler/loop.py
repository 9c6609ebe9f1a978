"""The standalone scheduler: takes pods off the queue one by one, decides, and has the decisions written.

A decision takes well under a millisecond and happens on the event loop; Bindings are on their way side by side, up to a
bound. A pod that fits nowhere is diagnosed once per class and state of the cluster, may clear a node of less important
pods, and is parked until something happens that could help. Pods of a gang are decided together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Sequence
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.model.allocation import Allocation
from shoal.model.contract.groups import PodGroup, decode_group
from shoal.model.errors import CodecError, RequestError
from shoal.model.pod import check_cluster
from shoal.placement.errors import PolicyError
from shoal.scheduler.claims.errors import NamespaceCostError, NotReadyError, OwnClaimError
from shoal.scheduler.claims.names import changing
from shoal.scheduler.claims.placing import ClaimsPlacing
from shoal.scheduler.claims.wishes import waits_for_claims
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.diagnosis import Diagnoses, Diagnosis
from shoal.scheduler.errors import BindError, ClaimError
from shoal.scheduler.feasibility.feasibility import Verdict
from shoal.scheduler.holds import fits_but_for
from shoal.scheduler.preemption import Clearing
from shoal.scheduler.queue.gangs import Gang, Gangs
from shoal.scheduler.queue.order import standing_of
from shoal.scheduler.queue.queue import QueuedPod, SchedulingQueue
from shoal.scheduler.state.requests import placement_key
from shoal.scheduler.volume_claims import VolumeClaims

log = logging.getLogger(__name__)

#: Who decides, in the metrics.
BY: Final = "loop"
#: Decisions between two looks at the network.
_TURNS: Final = 8
#: Seconds of a decision after which health ports, signals and the watch have their turn at once.
_LONG: Final = 0.005
_REASON_ERROR: Final = "SchedulerError"
_CLAIMS_OFF: Final = (
    "has claims of devices, which this scheduler does not allocate: set claims: true in its settings, or schedule the "
    "pod with the stock scheduler"
)
_HELD: Final = "Cards that fit are held for some seconds for a pod of another cluster."

#: A member of a gang, and where it could go.
_Placed = tuple[QueuedPod, Pod, Allocation]


class Loop:
    """Pods that name this scheduler, from the queue to their nodes. `cluster` is what this cluster is called."""

    def __init__(
        self,
        context: SchedulingContext,
        *,
        claims: VolumeClaims,
        device_claims: ClaimsPlacing | None = None,
        clearing: Clearing,
        names: Collection[str],
        cluster: str,
        binds: int,
    ) -> None:
        self.queue = SchedulingQueue()
        self.gangs = Gangs()
        self._state = context.state
        self._feasibility = context.feasibility
        self._binder = context.binder
        self._reporter = context.reporter
        self._metrics = context.metrics
        self._clock = context.clock
        self._offer_holds = context.offer_holds
        self._claims = claims
        #: None where claims of devices are not served; then why, for the pods that have some.
        self.device_claims = device_claims
        self.no_claims = _CLAIMS_OFF
        self._clearing = clearing
        self._names = frozenset(names)
        self._cluster = cluster
        self._binds = binds
        self._news = ClusterEvent(0)
        self._stir = asyncio.Event()
        self._binding: set[asyncio.Task[None]] = set()
        self._landed = asyncio.Event()
        self._diagnoses = Diagnoses(context.state)

    # What the watch brings

    def on_pod(self, change: Change[Pod]) -> None:
        """Keep the queue: pods of this scheduler that wait for a node."""
        pod = change.object
        uid = pod.metadata.uid
        gone = change.kind is ChangeType.DELETED or pod.status.phase == "Failed"
        group = None if gone else _group(pod)
        now = self._clock()
        if gone or not self._is_ours(pod):
            if uid in self.queue:
                self.queue.remove(uid)
                self._reporter.forget(uid)
            self._clearing.forget(uid)
            if group is not None and pod.spec.node_name:
                self.gangs.bound(uid, pod.metadata.namespace, group, now)
            else:
                self.gangs.remove(uid, now)
            return
        self._join(pod, group, now)
        self.queue.add(self._waiting(pod, group), now)
        if not pod.spec.scheduling_gates:
            # A request that cannot be read is reported when the pod is tried.
            with contextlib.suppress(RequestError):
                self._state.wait(pod)
        self._stir.set()

    def _join(self, pod: Pod, group: PodGroup | None, now: float) -> None:
        """Count the pod in its gang: as one with a place while its Binding is on the way."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if group is None or pod.spec.scheduling_gates:
            self.gangs.remove(uid, now)
            return
        before = self.gangs.standing(uid)
        if self._state.engine.ledger.booking(uid) is not None:
            self.gangs.bound(uid, namespace, group, now)
        else:
            self.gangs.wait(uid, namespace, group, now)
        if self.gangs.standing(uid) != before:
            self.on_news(ClusterEvent.GANG)

    def on_news(self, news: ClusterEvent) -> None:
        """Something happened that may let parked pods fit."""
        self._news |= news
        self._stir.set()

    def _is_ours(self, pod: Pod) -> bool:
        return (
            pod.spec.scheduler_name in self._names
            and not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase in ("", "Pending")
        )

    def _waiting(self, pod: Pod, group: PodGroup | None) -> QueuedPod:
        meta, standing = pod.metadata, standing_of(pod)
        return QueuedPod(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            priority=standing.priority,
            urgency=standing.urgency,
            template=_template(pod),
            gang=None if group is None else (meta.namespace, group.name),
            gated=bool(pod.spec.scheduling_gates),
        )

    # The loop

    async def run(self) -> None:
        """Schedule until cancelled."""
        try:
            await self._run()
        finally:
            for task in self._binding:
                task.cancel()
            await asyncio.gather(*self._binding, return_exceptions=True)

    async def _run(self) -> None:
        turns = 0
        while True:
            now = self._clock()
            if self._news:
                news, self._news = self._news, ClusterEvent(0)
                self.queue.wake(news, now)
            for late in self.gangs.late(now):
                self._tell_all(late.pods, late.message)
            waiting = self.queue.pop(now)
            if waiting is None:
                await self._rest(now)
                continue
            self._try(waiting)
            took = self._clock() - now
            self._metrics.decision_seconds.observe(took, BY)
            turns += 1
            if len(self._binding) >= self._binds:
                self._landed.clear()
                await self._landed.wait()
            elif turns % _TURNS == 0 or took > _LONG:
                await asyncio.sleep(0)

    async def _rest(self, now: float) -> None:
        """Wait until something happens or a back-off ends."""
        for place, count in self.queue.counts().items():
            self._metrics.queue.set(count, place.value)
        self._stir.clear()
        if self._news:
            return
        due = min((time for time in (self.queue.next_time(), self.gangs.next_time()) if time is not None), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self._stir.wait()
        except TimeoutError:
            return

    # One try

    def _try(self, waiting: QueuedPod) -> None:
        pod = self._state.pod(waiting.uid)
        if pod is None or self._has_place(waiting.uid):
            self.queue.remove(waiting.uid)
            return
        try:
            check_cluster(pod.metadata.annotations, self._cluster)
            decode_group(pod.metadata.labels, pod.metadata.annotations)
            gang = self.gangs.of(waiting.uid)
            if gang is None or gang.stands:
                self._try_alone(waiting, pod)
            elif gang.missing:
                self._park_until_complete(waiting, pod, gang)
            else:
                self._try_gang(waiting, gang)
        except (RequestError, PolicyError, CodecError) as error:
            self._refuse(waiting, pod, str(error), alone=isinstance(error, OwnClaimError))
        except NotReadyError as error:
            self._wait_for_claims(waiting, pod, str(error))
        except NamespaceCostError as error:
            # Time helps here, and nothing else has to happen.
            self._metrics.decisions.inc(BY, "deferred")
            self._reporter.waiting(pod, str(error), once=True)
            self.queue.retry(waiting.uid, self._clock())
        except Exception:
            # One odd pod must not end the scheduling of all others.
            log.exception("%s/%s: deciding failed", waiting.namespace, waiting.name)
            self._metrics.decisions.inc(BY, "error")
            self._state.cancel(waiting.uid)
            self.queue.retry(waiting.uid, self._clock())

    def _has_place(self, uid: str) -> bool:
        """Whether the pod has a booking: the watch may still show moments before its Binding, as if it waited."""
        return self._state.engine.ledger.booking(uid) is not None

    def _refuse(self, waiting: QueuedPod, pod: Pod, why: str, *, alone: bool) -> None:
        """Park a pod whose request cannot be met as written, and say why."""
        self._metrics.decisions.inc(BY, "bad request")
        self._reporter.waiting(pod, why)
        helps = ClusterEvent.POD_CHANGED | ClusterEvent.POLICY
        if pod.spec.resource_claims:
            helps |= ClusterEvent.CLAIMS
        self.queue.park(waiting.uid, helps, self._clock(), alone=alone)

    def _wait_for_claims(self, waiting: QueuedPod, pod: Pod, why: str) -> None:
        """Try the pod again after a moment, in which its claims usually come; then park it, and say why."""
        if waiting.attempts == 1:
            self.queue.retry(waiting.uid, self._clock())
            return
        log.info("%s/%s: %s", waiting.namespace, waiting.name, why)
        self._reporter.waiting(pod, why)
        self.queue.park(waiting.uid, ClusterEvent.POD_CHANGED | ClusterEvent.CLAIMS, self._clock(), alone=True)

    def _try_alone(self, waiting: QueuedPod, pod: Pod) -> None:
        verdict, allocation = self._place(waiting, pod)
        if allocation is None:
            self._park(waiting, pod, verdict)
        else:
            self._start_binding(waiting, pod, allocation)

    def _place(self, waiting: QueuedPod, pod: Pod) -> tuple[Verdict, Allocation | None]:
        if pod.spec.resource_claims:
            return self._place_with_claims(waiting, pod)
        if self.device_claims is not None:
            self.device_claims.check_nothing_left(pod)
        held = self._offer_holds.take(pod)
        verdict = self._feasibility.verdict(pod)
        if held is not None and self._offer_holds.give(pod, held, verdict.allowed):
            return verdict, held
        among = self._clearing.keep_clear(verdict.allowed, waiting.standing)
        return verdict, self._state.place(pod, among=among, favour=verdict.favour)

    def _place_with_claims(self, waiting: QueuedPod, pod: Pod) -> tuple[Verdict, Allocation | None]:
        if self.device_claims is None:
            raise RequestError(self.no_claims)
        self.device_claims.allocator.costs.check(pod.metadata.namespace)
        verdict = self._feasibility.verdict(pod)
        among = self._clearing.keep_clear(verdict.allowed, waiting.standing)
        return verdict, self.device_claims.place(pod, among=among, favour=verdict.favour)

    def _start_binding(self, waiting: QueuedPod, pod: Pod, allocation: Allocation) -> None:
        self._metrics.decisions.inc(BY, "placed")
        self.queue.placed(waiting.uid)
        self._join(pod, _group(pod), self._clock())
        self._clearing.forget(waiting.uid)
        task = asyncio.create_task(self._bind(waiting, pod, allocation))
        self._binding.add(task)
        task.add_done_callback(self._land)

    def _land(self, task: asyncio.Task[None]) -> None:
        self._binding.discard(task)
        self._landed.set()

    async def _bind(self, waiting: QueuedPod, pod: Pod, allocation: Allocation) -> None:
        started = self._clock()
        try:
            if decisions := self._claims.decisions(pod, allocation.node):
                await self._claims.make_ready(decisions)
            if why := changing(self._state.mechanisms(allocation.node), pod):
                raise ClaimError(why)
            if pod.spec.resource_claims and self.device_claims is not None:
                await self._bind_with_claims(self.device_claims, pod, allocation)
            elif self.device_claims is not None and self.device_claims.by_claims(pod, allocation.node):
                await self._bind_by_claims(self.device_claims, pod, allocation)
            else:
                if self.device_claims is not None:
                    await self.device_claims.write_for_devices(pod)
                await self._binder.bind(pod, allocation)
        except (BindError, ClaimError) as error:
            self._state.cancel(waiting.uid)
            self._metrics.binds.inc(BY, "refused")
            self._reporter.waiting(pod, f"binding to {allocation.node} failed: {error}", reason=_REASON_ERROR)
            self._join(pod, _group(pod), self._clock())
            self.queue.retry(waiting.uid, self._clock())
            self._stir.set()
            return
        self._metrics.binds.inc(BY, "bound")
        self._metrics.bind_seconds.observe(self._clock() - started, BY)
        self.queue.remove(waiting.uid)
        self._reporter.scheduled(pod, allocation)
        log.info("%s/%s: bound to %s", waiting.namespace, waiting.name, allocation.node)

    async def _bind_with_claims(self, claims: ClaimsPlacing, pod: Pod, allocation: Allocation) -> None:
        """Allocate the pod's claims and bind it; the claims are the record of its cards. Both or nothing."""
        async with _or_given_back(pod, claims.give_back):
            await claims.write(pod)
            await self._binder.bind(pod, Allocation(allocation.node, ()))
        claims.bound(pod)

    async def _bind_by_claims(self, claims: ClaimsPlacing, pod: Pod, allocation: Allocation) -> None:
        """Make a claim of the pod's names and bind it; the claim is the record of its cards. Both or nothing."""
        async with _or_given_back(pod, claims.give_back_made):
            await claims.write_for_names(pod, allocation)
            if not claims.by_claims(pod, allocation.node):  # the writes may have taken long
                raise ClaimError("the node serves its names by claims no more")
            await self._binder.bind(pod, Allocation(allocation.node, ()))
        claims.bound(pod)

    # Gangs

    def _park_until_complete(self, waiting: QueuedPod, pod: Pod, gang: Gang) -> None:
        there = len(gang.waiting) + len(gang.bound)
        self._reporter.waiting(pod, f"pod group {gang.key[1]}: {there} of {gang.minimum} pods are there")
        self.queue.park(waiting.uid, ClusterEvent.GANG, self._clock())

    def _try_gang(self, waiting: QueuedPod, gang: Gang) -> None:
        """Place all members that the gang needs at once, or none."""
        together = dict.fromkeys(gang.together)
        members = [waiting, *self.queue.take((uid for uid in together if uid != waiting.uid), self._clock())]
        placed: list[_Placed] = []
        try:
            parked = self._place_members(gang, [one for one in members if one.uid in together], members, placed)
        except Exception:
            self._undo(placed)
            self._retry(members)
            raise
        if parked or len(placed) < len(together):
            self._undo(placed)
            if not parked:  # a member is gone, and the gang does not know yet
                self._retry(members)
            return
        for member, pod, allocation in placed:
            self._start_binding(member, pod, allocation)
        for member in members:
            if member.uid not in together:
                self.queue.park(member.uid, ClusterEvent.GANG | ClusterEvent.PODS, self._clock())

    def _place_members(
        self, gang: Gang, together: Sequence[QueuedPod], members: Sequence[QueuedPod], placed: list[_Placed]
    ) -> bool:
        """Place one after another into `placed`. True when one has no place: all members are parked with its reasons.

        A member beyond those that go together comes when the group stands.
        """
        for member in together:
            pod = self._state.pod(member.uid)
            if pod is None:
                continue
            try:
                verdict, allocation = self._place(member, pod)
            except (RequestError, PolicyError, NotReadyError) as error:
                helps = ClusterEvent.POD_CHANGED | ClusterEvent.CLAIMS
                self._park_gang(members, f"pod group {gang.key[1]}: {member.name}: {error}", helps)
                return True
            if allocation is None:
                diagnosis = self._diagnosis(member, pod, verdict)
                text = f"pod group {gang.key[1]}: {len(placed)} of {gang.minimum - len(gang.bound)} pods fit at once. "
                self._park_gang(members, text + diagnosis.message, diagnosis.helps)
                return True
            placed.append((member, pod, allocation))
        return False

    def _retry(self, members: Sequence[QueuedPod]) -> None:
        for member in members:
            self.queue.retry(member.uid, self._clock())

    def _undo(self, placed: Sequence[_Placed]) -> None:
        for member, _, _ in placed:
            self._state.cancel(member.uid, quietly=True)
            if self.device_claims is not None:
                self.device_claims.forget(member.uid)

    def _park_gang(self, members: Sequence[QueuedPod], message: str, helps: ClusterEvent) -> None:
        self._metrics.decisions.inc(BY, "unschedulable")
        self._tell_all([member.uid for member in members], message)
        for member in members:
            self.queue.park(member.uid, helps | ClusterEvent.GANG, self._clock())

    def _tell_all(self, uids: Sequence[str], message: str) -> None:
        for uid in uids:
            pod = self._state.pod(uid)
            if pod is not None:
                self._reporter.waiting(pod, message)

    # When nothing fits

    def _park(self, waiting: QueuedPod, pod: Pod, verdict: Verdict) -> None:
        self._metrics.decisions.inc(BY, "unschedulable")
        if pod.spec.resource_claims and self.device_claims is not None:
            self._park_with_claims(self.device_claims, waiting, pod, verdict)
            return
        diagnosis = self._diagnosis(waiting, pod, verdict)
        if self._waits_for_holds(pod, diagnosis):
            self._reporter.waiting(pod, f"{diagnosis.message} {_HELD}")
            self.queue.park(waiting.uid, diagnosis.helps, self._clock())
            return
        clearing = self._clearing.clear(pod, waiting.standing, diagnosis.candidates)
        message = diagnosis.message if clearing is None else f"{diagnosis.message} {clearing.words}"
        self._reporter.waiting(pod, message, nominated=None if clearing is None else clearing.node)
        self.queue.park(waiting.uid, diagnosis.helps, self._clock())

    def _park_with_claims(self, claims: ClaimsPlacing, waiting: QueuedPod, pod: Pod, verdict: Verdict) -> None:
        """What others keep from the pod may come free: its own claims that are allocated elsewhere, else other pods."""
        diagnosis = self._diagnosis(waiting, pod, verdict)
        clearing = None
        if not claims.release_stranded(pod):
            candidates = verdict.allowed.copy()
            for refused in verdict.rejections:
                if refused.resolvable:
                    candidates |= refused.rows
            clearing = self._clearing.clear(pod, waiting.standing, candidates, claims.allocator.fits_without(pod))
        message = diagnosis.message if clearing is None else f"{diagnosis.message} {clearing.words}"
        self._reporter.waiting(pod, message, nominated=None if clearing is None else clearing.node)
        self.queue.park(waiting.uid, diagnosis.helps | ClusterEvent.CLAIMS, self._clock())

    def _waits_for_holds(self, pod: Pod, diagnosis: Diagnosis) -> bool:
        """Whether the pod would fit but for cards held for offers, which come free by themselves."""
        if not len(self._offer_holds):
            return False

        def may_run(row: int, gone: frozenset[str]) -> bool:
            return self._feasibility.fits_without(pod, row, gone)

        request = self._state.request(pod)
        return fits_but_for(self._state, request, diagnosis.candidates, self._offer_holds.keys(), may_run=may_run)

    def _diagnosis(self, waiting: QueuedPod, pod: Pod, verdict: Verdict) -> Diagnosis:
        if pod.spec.resource_claims and self.device_claims is not None:
            request, verdict = self.device_claims.refusal(pod, verdict)
            return self._diagnoses.of((waiting.template, request), request, verdict)
        return self._diagnoses.of(waiting.template, self._state.request(pod), verdict)


@contextlib.asynccontextmanager
async def _or_given_back(pod: Pod, give_back: Callable[[Pod], Awaitable[None]]) -> AsyncIterator[None]:
    """What is written for the pod stays, or is given back. Raises BindError and ClaimError."""
    try:
        yield
    except (BindError, ClaimError):
        await give_back(pod)
        raise
    except Exception as error:
        # Unforeseen: neither claims nor cards must stay taken for ever.
        log.exception("allocating claims of %s/%s failed", pod.metadata.namespace, pod.metadata.name)
        await give_back(pod)
        raise ClaimError(f"allocating its claims failed: {error}") from error


def _template(pod: Pod) -> Hashable:
    """The same for pods that fit in the same places.

    Claims of a template are alike once they are made, which thereby changes the pod; a claim with a name has its node.
    """
    claims = pod.spec.resource_claims
    if not claims:
        return placement_key(pod)
    generated = all(claim.resource_claim_name is None for claim in claims)
    return placement_key(pod), claims if generated and not waits_for_claims(pod) else pod.metadata.uid


def _group(pod: Pod) -> PodGroup | None:
    """The pod's group; None also when what it says cannot be read, which is reported when the pod is tried."""
    try:
        return decode_group(pod.metadata.labels, pod.metadata.annotations) if pod.metadata.labels else None
    except CodecError:
        return None
