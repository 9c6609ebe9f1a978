"""Pods with claims in the standalone loop: decide and book, write before the pod is bound, give back when it is not."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from shoal.kube.client import Client
from shoal.kube.errors import ApiError, KubeError
from shoal.kube.objects.claims import DeviceClass, ResourceClaim, ResourceSlice
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import dra
from shoal.model.contract.mechanisms import Mechanism
from shoal.model.errors import RequestError
from shoal.model.request import Request
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.errors import BookingError
from shoal.placement.ledger import Booking
from shoal.scheduler.claims.allocator import ClaimDecision, ClaimsAllocator, ClaimsPlan
from shoal.scheduler.claims.errors import NotReadyError
from shoal.scheduler.claims.names import (
    asks_by_name,
    claim_name,
    claim_of,
    names_of,
    results_of,
    status_of,
)
from shoal.scheduler.claims.writer import ClaimWriter
from shoal.scheduler.cluster_events import ClusterEvent
from shoal.scheduler.errors import ClaimError
from shoal.scheduler.feasibility.feasibility import Verdict
from shoal.scheduler.feasibility.filters import Rejection
from shoal.scheduler.state.claim_bookings import claim_key
from shoal.scheduler.state.cluster_state import ClusterState, of_length

log = logging.getLogger(__name__)

#: How long a claim is left alone that keeps its pod on a node where it cannot go.
_STRANDED_SECONDS: Final = 5.0
#: Under which kube-scheduler tells what claims refuse.
FILTER: Final = "DynamicResources"


class ClaimsPlacing:
    """Claims of pods that wait, from the watch to their allocation."""

    def __init__(
        self,
        client: Client | None,
        state: ClusterState,
        *,
        news: Callable[[ClusterEvent], None] = lambda news: None,
        may_write: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` is monotonic time, by which what namespaces spend on claims is limited; None for no such limit."""
        self.allocator = ClaimsAllocator(state, clock)
        self._state = state
        self._news = news
        self._classes: dict[str, DeviceClass] = {}
        #: None where nothing is ever written.
        self._writer = (
            None
            if client is None
            else ClaimWriter(
                client, seen=state.claims.on_claim, class_config=self._class_config, may_write=may_write, now=now
            )
        )
        self._plans: dict[str, ClaimsPlan] = {}
        self._giving_back: dict[str, asyncio.Task[None]] = {}
        #: By pod, the claim that was made of its names and is not settled yet.
        self._made: dict[str, ResourceClaim] = {}
        #: Pods in whose status such a claim was written and that are not bound yet: the watch may be behind.
        self._told: set[str] = set()
        state.tables.nodes.make_claims(True)
        state.demand_of = self.allocator.demand

    # The watch

    def on_claim(self, change: Change[ResourceClaim]) -> None:
        """A claim appeared, changed or went away."""
        self._state.claims.on_claim(change)

    def on_class(self, change: Change[DeviceClass]) -> None:
        """A device class appeared, changed or went away."""
        self.allocator.on_class(change)
        if change.new is None:
            self._classes.pop(change.object.metadata.name, None)
        else:
            self._classes[change.object.metadata.name] = change.new
        self._news(ClusterEvent.CLAIMS)

    def on_slice(self, change: Change[ResourceSlice]) -> None:
        """A slice appeared, changed or went away."""
        before = self.allocator.devices.version
        self.allocator.on_slice(change)
        if self.allocator.devices.version != before:
            self._news(ClusterEvent.CLAIMS)

    # Deciding

    def place(self, pod: Pod, *, among: BoolArray, favour: FloatArray | None) -> Allocation | None:
        """Decide and book; None when there is no place.

        Raises NotReadyError, RequestError, NamespaceCostError and PolicyError.
        """
        plan = self.allocator.decide(pod, among=among, favour=favour)
        if plan is None:
            return None
        bookings = tuple(
            Booking(claim_key(one.claim.metadata.uid), one.allocation(plan.node)) for one in plan.decisions
        )
        try:
            self._state.place_with_claims(pod, plan.node, bookings)
        except BookingError as error:
            log.warning("%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
            return None
        self._plans[pod.metadata.uid] = plan
        return self._shown(plan)

    def _shown(self, plan: ClaimsPlan) -> Allocation:
        """The decision for people: cards with their indices, by claim and request."""
        books = self._state.engine.ledger.node(plan.node)
        cards = {} if books is None else books.cards
        inventory = None if books is None else books.inventory
        indices = {} if inventory is None else {part.uuid: gpu.index for gpu, part in inventory.partitions()}
        parts = []
        for one in plan.decisions:
            for part in one.allocation(plan.node).containers:
                (card,) = part.cards
                known = cards.get(card.uuid)
                index = known.gpu.index if known is not None and known.gpu is not None else indices.get(card.uuid, 0)
                share = CardShare(card.uuid, index, card.share)
                parts.append(ContainerAllocation(f"{one.claim.metadata.name}/{part.name}", (share,)))
        return Allocation(plan.node, tuple(parts))

    def refusal(self, pod: Pod, verdict: Verdict) -> tuple[Request, Verdict]:
        """What to tell of a pod that fits nowhere: what it takes, and the nodes that its claims rule out."""
        need = self.allocator.last_need(pod)
        if need is None:
            return self._state.request(pod), self._pinned(pod, verdict)
        rows = len(verdict.allowed)
        nodes = of_length(need.nodes, rows)
        refused = verdict.allowed & ~nodes
        problem = self.allocator.problem(need)
        why = f"node(s) publish no devices of {dra.DRIVER} that the claims accept"
        rejection = Rejection(FILTER, f"{why} ({problem})" if problem else why, refused, resolvable=False)
        allowed = verdict.allowed & nodes
        if not need.servings[-1].partitions:
            return need.request, Verdict(allowed, verdict.favour, (*verdict.rejections, rejection))
        # Of what they hold the engine knows nothing: where it would take the pod, partitions are short.
        short = allowed & of_length(self._state.engine.fits(need.servings[-1].request), rows)
        taken = Rejection(FILTER, "node(s) have no MIG partitions free that the claims accept", short, resolvable=True)
        return need.request, Verdict(allowed & ~short, verdict.favour, (*verdict.rejections, rejection, taken))

    def _pinned(self, pod: Pod, verdict: Verdict) -> Verdict:
        """The pod's claims are allocated: it may go to their node alone."""
        allowed = verdict.allowed.copy()
        for claim in self.allocator.claims(pod):
            if claim.status.allocation is not None:
                allowed &= of_length(self.allocator.only(pod, claim), len(allowed))
        why = "node(s) are not the one on which the pod's claims are allocated"
        rejection = Rejection(FILTER, why, verdict.allowed & ~allowed, resolvable=False)
        return Verdict(allowed, verdict.favour, (*verdict.rejections, rejection))

    def plan(self, uid: str) -> ClaimsPlan | None:
        """What was decided for a pod and is not settled yet."""
        return self._plans.get(uid)

    def status(self, pod: Pod, decision: ClaimDecision, node: str) -> dict[str, Any]:
        """What is written for a decision."""
        return self._writing.status(pod, decision, node)

    # Writing

    async def write(self, pod: Pod) -> None:
        """Write what was decided for the pod's claims. Raises ClaimError; then nothing of it stays."""
        plan = self._plans.get(pod.metadata.uid)
        if plan is not None:
            await self._writing.write(pod, plan)

    def bound(self, pod: Pod) -> None:
        """The pod has its node."""
        self._plans.pop(pod.metadata.uid, None)
        self._made.pop(pod.metadata.uid, None)
        self._told.discard(pod.metadata.uid)
        self._writing.forget(pod.metadata.uid)
        self._state.claims.settled(pod.metadata.uid)

    async def give_back(self, pod: Pod) -> None:
        """The pod was not bound: what was allocated for it is free."""
        plan = self._plans.pop(pod.metadata.uid, None)
        if plan is not None:
            await self._writing.give_back(pod, plan)

    def forget(self, uid: str) -> None:
        """A decision that is not written after all."""
        self._plans.pop(uid, None)

    def release_stranded(self, pod: Pod) -> bool:
        """Give back allocated claims that nobody else uses and that keep the pod on a node where it cannot go.

        They are what a scheduler left that was killed before it bound the pod, or the pod's node has filled up since.
        """
        uid = pod.metadata.uid
        stranded = [
            claim
            for claim in self.allocator.claims(pod)
            if claim.status.allocation is not None and all(one.uid == uid for one in claim.status.reserved_for)
        ]
        if not stranded or uid in self._giving_back:
            return bool(stranded)
        task = asyncio.create_task(self._release(pod, stranded), name="give back claims")
        self._giving_back[uid] = task
        task.add_done_callback(lambda done: self._giving_back.pop(uid, None))
        return True

    async def _release(self, pod: Pod, claims: list[ResourceClaim]) -> None:
        # Whoever allocated them may be about to bind the pod.
        await asyncio.sleep(_STRANDED_SECONDS)
        for claim in claims:
            meta = claim.metadata
            now = self._state.claims.find(meta.namespace, meta.name)
            if now is None or now.metadata.resource_version != meta.resource_version:
                continue
            log.info("claim %s/%s is given back", meta.namespace, meta.name)
            await self._writing.release(pod, claim, deallocate=True)

    # Names that nodes serve by claims

    def check_nothing_left(self, pod: Pod) -> None:
        """NotReadyError while a claim is there that an earlier try made of the pod's names: it is given back first."""
        if not asks_by_name(pod):
            return
        uid = pod.metadata.uid
        left = self._state.claims.find(pod.metadata.namespace, claim_name(pod))
        if left is None or not left.is_made_for(uid):
            return
        if uid not in self._giving_back and self._writer is not None:
            task = asyncio.create_task(self._writing.remove(pod, left), name="give back a claim made of names")
            self._giving_back[uid] = task
            task.add_done_callback(lambda done: self._giving_back.pop(uid, None))
        raise NotReadyError(f"waits until claim {left.metadata.name} of an earlier try is given back")

    def by_claims(self, pod: Pod, node: str) -> bool:
        """Whether the node serves the pod's names by claims."""
        served = self._state.mechanisms(node)
        return bool(served) and any(served.get(name) is Mechanism.CLAIMS for name in names_of(pod))

    async def write_for_names(self, pod: Pod, placed: Allocation) -> None:
        """Make a claim of the pod's names, allocated as decided, and tell kubelet. Raises ClaimError.

        What is booked for the pod is booked for the claim from then on. Nothing of it stays when it fails.
        """
        request = self._state.request(pod)
        claim: ResourceClaim | None = None
        try:
            claim = await self._writing.make(pod, claim_of(pod, request))
            devices = self.allocator.devices.nodes.get(placed.node, ())
            decision = ClaimDecision(claim, results_of(pod, self.allocator.wish(claim), placed, devices))
            booking = Booking(claim_key(claim.metadata.uid), decision.allocation(placed.node))
            self._state.move_to_claims(pod, (booking,))
            await self._writing.allocate(pod, decision, placed.node)
            self._told.add(pod.metadata.uid)  # before it is sent: it may arrive without an answer
            await self._writing.tell_pod(pod, status_of(pod, claim.metadata.name, request))
            self._made[pod.metadata.uid] = claim
        except (KubeError, BookingError, RequestError) as error:
            await self._unmake(pod, claim)
            raise ClaimError(error.message if isinstance(error, ApiError) and error.message else str(error)) from error
        except ClaimError:
            await self._unmake(pod, claim)
            raise

    async def give_back_made(self, pod: Pod) -> None:
        """The pod was not bound: the claim that was made of its names goes."""
        await self._unmake(pod, self._made.pop(pod.metadata.uid, None))

    async def write_for_devices(self, pod: Pod) -> None:
        """The pod goes to a node that counts its names as devices: an earlier try may have said otherwise."""
        uid = pod.metadata.uid
        if pod.status.extended_resource_claim_status is None and uid not in self._told:
            return
        try:
            await self._writing.tell_pod(pod, None)
            self._told.discard(uid)
        except KubeError as error:
            raise ClaimError(str(error)) from error

    async def _unmake(self, pod: Pod, claim: ResourceClaim | None) -> None:
        self._writing.forget(pod.metadata.uid)
        if claim is not None:
            await self._writing.remove(pod, claim)

    @property
    def _writing(self) -> ClaimWriter:
        assert self._writer is not None
        return self._writer

    def _class_config(self, name: str) -> tuple[dict[str, Any], ...]:
        known = self._classes.get(name)
        return () if known is None else tuple(msgspec.to_builtins(one) for one in known.spec.config)
