"""The verb offer: how many pods like this one fit now, how good a place there is, how long one would wait.

It runs on the ledger and the filters that decide on pods here, so that it says what would happen. Pods are booked one
after another to find out how many fit, and taken out again before anything else runs. Nobody is preempted for an offer,
and what was asked counts as no demand.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.model.contract.clusters import Offer, OfferRequest
from shoal.model.contract.groups import decode_group
from shoal.model.errors import CodecError, RequestError
from shoal.model.pod import check_cluster
from shoal.model.request import Request
from shoal.placement.columns import BoolArray
from shoal.placement.errors import PolicyError
from shoal.placement.ledger import Ledger
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.diagnosis import Diagnoses
from shoal.scheduler.errors import WireError
from shoal.scheduler.feasibility.feasibility import Verdict
from shoal.scheduler.offer import wire
from shoal.scheduler.offer.departures import Departures
from shoal.scheduler.offer.holds import key_of
from shoal.scheduler.queue.order import Standing, standing_of
from shoal.scheduler.state.requests import placement_key

#: Who asks, in the metrics.
BY: Final = "offer"
#: How long pods are counted for one offer; those that fit beyond it are not told.
COUNT_SECONDS: Final = 0.05
#: Containers with cards of a pod that an offer is made for: how many cards they may share takes long to find out.
MOST_CONTAINERS: Final = 8
#: Under this key pods are booked for which nothing is to be held.
_NOBODY: Final = ""


class KeepClear(Protocol):
    """The nodes allowed to a pod of a standing: not those being cleared for a more important one."""

    def __call__(self, allowed: BoolArray, standing: Standing) -> BoolArray: ...


class Offers:
    """Answers for one cluster. `cluster` is what it is called."""

    def __init__(
        self,
        context: SchedulingContext,
        *,
        keep_clear: KeepClear,
        departures: Departures,
        cluster: str,
        count_seconds: float = COUNT_SECONDS,
    ) -> None:
        self.holds = context.offer_holds
        self._state = context.state
        self._feasibility = context.feasibility
        self._metrics = context.metrics
        self._clock = context.clock
        self._keep_clear = keep_clear
        self._departures = departures
        self._diagnoses = Diagnoses(context.state)
        self._cluster = cluster
        self._count_seconds = count_seconds

    def answer(self, caller: str, body: bytes) -> bytes:
        """The answer to a request of this caller. Raises WireError."""
        started = self._clock()
        asked, pod = wire.read(body)
        try:
            offer = self.offer(caller, asked, pod)
        except RecursionError:
            raise WireError("the pod is nested too deeply: send a pod as the API server has it") from None
        self._metrics.decisions.inc(BY, "fits" if offer.fits else "none")
        self._metrics.decision_seconds.observe(self._clock() - started, BY)
        return wire.write(offer)

    def offer(self, caller: str, asked: OfferRequest, pod: Pod) -> Offer:
        """What this cluster could do for such pods."""
        self.holds.expire()
        before = self.holds.withdraw(caller, asked.origin) if asked.origin else None
        after: Allocation | None = None
        try:
            offer, after = self._offer(caller, asked, pod)
            return offer
        except (RequestError, PolicyError, CodecError) as error:
            return Offer(0, why=str(error))
        finally:
            if before is not None and (after is None or after.held() != before.held()):
                self._state.tell_freed()

    def _offer(self, caller: str, asked: OfferRequest, pod: Pod) -> tuple[Offer, Allocation | None]:
        """The offer, and what is held from now on."""
        one = wire.asked_pod(pod, key_of(caller, asked.origin or _NOBODY))
        check_cluster(one.metadata.annotations, self._cluster)
        decode_group(one.metadata.labels, one.metadata.annotations)
        state, request, standing = self._state, self._state.request(one), standing_of(one)
        if len(request.containers) > MOST_CONTAINERS:
            count = len(request.containers)
            raise RequestError(f"{count} containers ask for GPUs: offers are made for up to {MOST_CONTAINERS} of a pod")
        verdict = self._feasibility.verdict(one)
        among = self._keep_clear(verdict.allowed, standing)
        score = state.efficiency(request, among=among)
        holding = bool(asked.origin and asked.hold)
        # Nothing is booked for one pod alone: every class would have to look at its node again.
        booking = holding or asked.count > 1
        first = (state.reserve if booking else state.decide)(one, among=among, favour=verdict.favour)
        queue, load = state.engine.demand.waiting, mean_load(state.engine.ledger)
        if first is None:
            return self._refused(one, request, verdict, queue=queue, load=load), None
        if not booking:
            return Offer(1, score, queue=queue, load=load), None
        held = False
        try:
            fits = 1 + self._further(one, standing, asked.count - 1)
            if holding:
                held = self.holds.keep(caller, asked.origin, request, first, seconds=asked.hold)
        finally:
            if not held:
                state.unreserve(one.metadata.uid, quietly=True)
        return Offer(fits, score, queue=queue, load=load, held=held), first if held else None

    def _further(self, pod: Pod, standing: Standing, count: int) -> int:
        """How many more such pods fit beside those that are there, the first one included."""
        state, end = self._state, self._clock() + self._count_seconds
        booked: list[str] = []
        try:
            while len(booked) < count and self._clock() < end:
                more = wire.again(pod, f"{pod.metadata.uid}:{len(booked)}")
                verdict = self._feasibility.verdict(more)
                among = self._keep_clear(verdict.allowed, standing)
                if state.reserve(more, among=among, favour=verdict.favour) is None:
                    break
                booked.append(more.metadata.uid)
        finally:
            for uid in reversed(booked):
                state.unreserve(uid, quietly=True)
        return len(booked)

    def _refused(self, pod: Pod, request: Request, verdict: Verdict, *, queue: int, load: float | None) -> Offer:
        diagnosis = self._diagnoses.of(placement_key(pod), request, verdict)
        wait = self._departures.wait(queue) if diagnosis.may_help else None
        return Offer(0, queue=queue, wait=wait, load=load, why=diagnosis.message)


def mean_load(ledger: Ledger) -> float | None:
    """How busy the cards are that somebody measures, 0 to 1; None where nobody does."""
    if ledger.load is None:
        return None
    measured = ledger.load.utilisation[np.isfinite(ledger.load.utilisation)]
    return min(1.0, max(0.0, float(measured.mean()) / 100)) if len(measured) else None
