"""The extender's verbs, bytes in and bytes out: what a request says, what the scheduler answers. No HTTP here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.model.errors import RequestError
from shoal.placement.columns import BoolArray, FloatArray
from shoal.placement.errors import BookingError, PolicyError
from shoal.scheduler.binder import Binder
from shoal.scheduler.claims.names import names_of
from shoal.scheduler.context import SchedulingContext
from shoal.scheduler.diagnosis import node_refusal, shortage
from shoal.scheduler.errors import UNKNOWN_POD, BindError, UnknownPodError, WireError
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.filtering import OFFER_ALL, FilterVerb, OfferRule, rows_of
from shoal.scheduler.extender.holds import HOLD_SECONDS, Holds
from shoal.scheduler.extender.pod_lookup import PodLookup
from shoal.scheduler.extender.refused import RefusedPods, WatchLag
from shoal.scheduler.extender.wire import (
    MAX_SCORE,
    MIN_SCORE,
    BindingArgs,
    ExtenderArgs,
    Filtered,
    PreemptionArgs,
    Victims,
)
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.preemption import PodOnNode, PreemptionPlan
from shoal.scheduler.state.cluster_state import ClusterState

log = logging.getLogger(__name__)

#: The best score of a node that is not the best, and the worst of one that fits.
SECOND: Final = MAX_SCORE - 2
LAST: Final = MIN_SCORE + 1

#: Who asks, in the metrics.
EXTENDER: Final = "extender"
#: Who would have to go from one of the nodes so that the pod fits there.
Planning = Callable[[Pod, Iterable[str]], PreemptionPlan | None]
_FITTING: Final = "fits"
_REFUSED: Final = "refused"
_ERROR: Final = "error"


class PrioritizeVerb:
    """The verb prioritize: how good each node is for the pod, from 0 to 10; holds the cards of the best one.

    The order of the engine's worths is kept as well as eleven numbers can. The node that the engine would take gets 10,
    all others at most 8, so that small differences in kube-scheduler's own scores do not turn the choice.
    """

    def __init__(self, state: ClusterState, holds: Holds) -> None:
        self._state = state
        self._holds = holds

    def __call__(self, pod: Pod, args: ExtenderArgs) -> Sequence[int]:
        """A score for each of the nodes, in their order. A pod without a request that can be met gets none."""
        none = [MIN_SCORE] * len(args.names)
        ledger = self._state.engine.ledger
        try:
            request = self._state.request(pod)
            if not request.containers:
                return none
            self._holds.release(pod.metadata.uid)
            if ledger.booking(pod.metadata.uid) is not None:
                return none
            # The row after the last stands for unknown nodes.
            worths = np.append(self._state.engine.worths(request), 0.0)
            fits = np.append(self._state.engine.fits(request), False)
            rows = rows_of(self._state, args.names)
            among = np.zeros(len(worths), np.bool_)
            among[rows] = True
            best = self._holds.place(pod, among=among[:-1])
        except (RequestError, PolicyError):
            return none
        return scores(worths[rows], fits[rows], None if best is None else args.names.index(best.node))


def scores(worths: FloatArray, fits: BoolArray, best: int | None) -> list[int]:
    """Worths as scores: the best node stands out, the others keep their order, those that do not fit get nothing.

    Of the others, the worst that fits gets 1 and the best 8 unless all are equal: then all get 8.
    """
    result = np.full(len(worths), MIN_SCORE, np.int64)
    others = fits.copy()
    if best is not None:
        others[best] = False
        result[best] = MAX_SCORE
    if others.any():
        _, ranks = np.unique(worths[others], return_inverse=True)
        top = int(ranks.max())
        result[others] = SECOND if top == 0 else LAST + ranks * (SECOND - LAST) // top
    scored: list[int] = result.tolist()
    return scored


class BindVerb:
    """The verb bind: makes the choice of kube-scheduler true, on the cards that were scored."""

    def __init__(
        self, state: ClusterState, binder: Binder, holds: Holds, *, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._binder = binder
        self._holds = holds
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, args: BindingArgs) -> str:
        """Bind the pod: what went wrong, in words; empty when the pod is bound."""
        started = self._clock()
        try:
            pod = self._pod(args)
            if pod.spec.node_name != args.node:
                if not_devices := names_of(pod) & self._state.mechanisms(args.node).keys():
                    raise BindError(f"{args.node} does not serve {', '.join(sorted(not_devices))} by devices")
                await self._binder.bind(pod, self._decision(pod, args.node))
        except (BindError, BookingError, RequestError, PolicyError) as error:
            self._metrics.binds.inc(EXTENDER, "refused")
            return str(error)
        self._metrics.binds.inc(EXTENDER, "bound")
        self._metrics.bind_seconds.observe(self._clock() - started, EXTENDER)
        return ""

    def _pod(self, args: BindingArgs) -> Pod:
        pod = self._state.pod(args.uid)
        if pod is None or (pod.metadata.namespace, pod.metadata.name) != (args.namespace, args.name):
            raise BindError(UNKNOWN_POD)
        if pod.spec.node_name and pod.spec.node_name != args.node:
            raise BindError(f"the pod is on {pod.spec.node_name} already")
        return pod

    def _decision(self, pod: Pod, node: str) -> Allocation:
        """The cards held for the pod, or such as fit now."""
        allocation = self._holds.take(pod.metadata.uid, node)
        if allocation is None:
            self._metrics.decisions.inc(EXTENDER, "at bind")
            allocation = self._state.place(pod, node=node)
        if allocation is None:
            raise BindError(self._refusal(pod, node))
        return allocation

    def _refusal(self, pod: Pod, node: str) -> str:
        engine, request = self._state.engine, self._state.request(pod)
        known = engine.ledger.node(node)
        detail = "" if known is None else node_refusal(engine, known, request)
        return f"{shortage(engine.class_of(request))}: {detail or node}"


class PreemptVerb:
    """The verb preempt: who must give way, knowing cards.

    kube-scheduler has chosen victims by node totals; they may free the wrong cards. So on each of its nodes they are
    chosen anew, by its own rules and as few as it takes. A node where nobody's leaving helps is left out. Nodes that
    kube-scheduler did not offer are not added: it offers only such as its own filters refused. Nobody gives way while
    the ledger lags behind kube-scheduler's count.
    """

    def __init__(self, state: ClusterState, *, plan: Planning, lag: WatchLag) -> None:
        self._state = state
        self._plan = plan
        self._lag = lag

    def __call__(self, pod: Pod, args: PreemptionArgs) -> Mapping[str, Victims]:
        """The nodes that remain, each with the pods that must go."""
        try:
            request = self._state.request(pod)
            if not request.containers:
                return args.victims
            if pod.spec.node_name:
                return {}  # it needs no room any more
            offered = [row for node in args.victims if (row := self._state.row(node)) is not None]
            if self._lag.is_likely(pod, offered):
                log.info("%s/%s: nobody gives way yet", pod.metadata.namespace, pod.metadata.name)
                return {}
            plans = {node: self._plan(pod, [node]) for node in args.victims}
        except (RequestError, PolicyError):
            return {}
        return {
            node: Victims(tuple(victim.uid for victim in plan.victims), plan.violations)
            for node, plan in plans.items()
            if plan is not None and self._is_there(node, plan.victims)
        }

    def _is_there(self, node: str, victims: Iterable[PodOnNode]) -> bool:
        """Whether there are victims and all are bound to the node; kube-scheduler takes anything else for an error."""
        pods = [self._state.pod(victim.uid) for victim in victims]
        return bool(pods) and all(pod is not None and pod.spec.node_name == node for pod in pods)


class Verb(Protocol):
    """A verb on the pod as the watch has shown it. `newest`: UnknownPodError if the caller has a newer version."""

    def __call__(self, body: bytes, *, newest: bool = False) -> bytes: ...


class Verbs:
    """Answers kube-scheduler from the state of the cluster. `try_again` makes kube-scheduler try a pod once more."""

    def __init__(
        self,
        context: SchedulingContext,
        *,
        plan: Planning,
        try_again: Callable[[Pod], None],
        offer_all_up_to: int = OFFER_ALL,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        state, metrics, clock = context.state, context.metrics, context.clock
        offer = OfferRule(context.feasibility.prefers, all_up_to=offer_all_up_to)
        self.pods = PodLookup(state)
        self.holds = Holds(state, clock=clock, metrics=metrics, seconds=hold_seconds)
        self._metrics = metrics
        self._clock = clock
        self._refused = RefusedPods(state)
        self._try_again = try_again
        self._filter = FilterVerb(
            state, self.holds, self._refused, offer_holds=context.offer_holds, metrics=metrics, offer=offer
        )
        self._prioritize = PrioritizeVerb(state, self.holds)
        self._preempt = PreemptVerb(
            state, plan=plan, lag=WatchLag(self._refused, short=context.feasibility.short, clock=clock)
        )
        self._bind = BindVerb(state, context.binder, self.holds, metrics=metrics, clock=clock)

    def tend(self) -> None:
        """End holds that are over, and have pods tried again that fit by now; called from time to time."""
        self.holds.expire()
        for pod in self._refused.fitting():
            log.info("%s/%s: fits by now", pod.metadata.namespace, pod.metadata.name)
            self._try_again(pod)

    async def on_newest(self, verb: Verb, body: bytes) -> bytes:
        """The verb's answer on the newest version of the pod, for which the watch is waited a moment.

        Raises WireError and UnknownPodError.
        """
        try:
            return verb(body, newest=True)
        except UnknownPodError as unknown:
            await self.pods.until_shown(unknown.asked)
        return verb(body)

    def filter(self, body: bytes, *, newest: bool = False) -> bytes:
        """Which nodes can take the pod. A request that cannot be read is answered with an error in words.

        Raises UnknownPodError.
        """
        self.holds.expire()
        started = self._clock()
        try:
            args = wire.read_args(body)
        except WireError as error:
            self._metrics.decisions.inc(EXTENDER, _ERROR)
            return wire.filter_answer(Filtered(error=str(error)))
        pod = self.pods.pod(args.pod, newest=newest)
        filtered = self._filter(pod, args)
        answer = wire.filter_answer(filtered, args)
        outcome = _ERROR if filtered.error else _FITTING if any(filtered.passed) else _REFUSED
        self._metrics.decisions.inc(EXTENDER, outcome)
        self._metrics.decision_seconds.observe(self._clock() - started, EXTENDER)
        if outcome != _FITTING:
            meta = pod.metadata
            why = filtered.error or next(iter((*filtered.failed.values(), *filtered.unresolvable.values())), "no nodes")
            log.info("%s/%s: none of %d nodes: %s", meta.namespace, meta.name, len(args.names), why)
        return answer

    def prioritize(self, body: bytes, *, newest: bool = False) -> bytes:
        """How good each node is. Raises WireError and UnknownPodError."""
        self.holds.expire()
        args = wire.read_args(body)
        pod = self.pods.pod(args.pod, newest=newest)
        return wire.prioritize_answer(args.names, self._prioritize(pod, args))

    def preempt(self, body: bytes, *, newest: bool = False) -> bytes:
        """The nodes on which these pods must give way. Raises WireError and UnknownPodError."""
        self.holds.expire()
        args = wire.read_preemption(body)
        return wire.preempt_answer(self._preempt(self.pods.pod(args.pod, newest=newest), args))

    async def bind(self, body: bytes) -> bytes:
        """Bind the pod; what went wrong is in the answer."""
        self.holds.expire()
        try:
            args = wire.read_binding(body)
        except WireError as error:
            return wire.bind_answer(str(error))
        problem = await self._bind(args)
        if problem:
            log.warning("%s/%s: not bound to %s: %s", args.namespace, args.name, args.node, problem)
        else:
            log.info("%s/%s: bound to %s", args.namespace, args.name, args.node)
        return wire.bind_answer(problem)
