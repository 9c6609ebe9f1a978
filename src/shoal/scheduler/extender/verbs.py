"""The extender's verbs, bytes in and bytes out: what a request says, what the scheduler answers. No HTTP here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from shoal.kube.objects.pod import Pod
from shoal.placement.columns import BoolArray
from shoal.scheduler.binder import Binder
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender import wire
from shoal.scheduler.extender.binding import EXTENDER, Bind
from shoal.scheduler.extender.filtering import Filter, Offer
from shoal.scheduler.extender.memory.holds import SECONDS, Holds
from shoal.scheduler.extender.memory.lag import Lag
from shoal.scheduler.extender.memory.refused import Refused
from shoal.scheduler.extender.preempting import Planning, Preempt
from shoal.scheduler.extender.scoring import Prioritize
from shoal.scheduler.extender.waiting import UnknownPodError, Waiting
from shoal.scheduler.extender.wire import Filtered, WireError
from shoal.scheduler.metrics import Metrics

log = logging.getLogger(__name__)

_FITTING: Final = "fits"
_REFUSED: Final = "refused"
_ERROR: Final = "error"


class Verb(Protocol):
    """A verb on the pod as the watch has shown it; `newest`: unless the caller has a newer one."""

    def __call__(self, body: bytes, *, newest: bool = False) -> bytes: ...


class Verbs:
    """Answers kube-scheduler on the scheduler's books. `try_again` has it ask for a pod once more."""

    def __init__(
        self,
        books: Books,
        binder: Binder,
        *,
        plan: Planning,
        short: Callable[[Pod], BoolArray],
        metrics: Metrics,
        clock: Callable[[], float],
        offer: Offer,
        try_again: Callable[[Pod], None],
        hold_seconds: float = SECONDS,
    ) -> None:
        self.waiting = Waiting(books)
        self.holds = Holds(books, clock=clock, metrics=metrics, seconds=hold_seconds)
        self._metrics = metrics
        self._clock = clock
        self._refused = Refused(books)
        self._try_again = try_again
        self._filter = Filter(books, self.holds, self._refused, metrics=metrics, offer=offer)
        self._prioritize = Prioritize(books, self.holds)
        self._preempt = Preempt(books, plan=plan, lag=Lag(self._refused, short=short, clock=clock))
        self._bind = Bind(books, binder, self.holds, metrics=metrics, clock=clock)

    def tend(self) -> None:
        """End holds that are over, and have pods tried again that fit by now; called from time to time."""
        self.holds.expire()
        for pod in self._refused.fitting():
            log.info("%s/%s: fits by now", pod.metadata.namespace, pod.metadata.name)
            self._try_again(pod)

    async def on_newest(self, verb: Verb, body: bytes) -> bytes:
        """The verb's answer. When the watch does not show its pod as it is now, it gets a moment for that.

        Raises WireError and UnknownPodError.
        """
        try:
            return verb(body, newest=True)
        except UnknownPodError as unknown:
            await self.waiting.until_shown(unknown.asked)
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
        pod = self.waiting.pod(args.pod, newest=newest)
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
        pod = self.waiting.pod(args.pod, newest=newest)
        return wire.prioritize_answer(args.names, self._prioritize(pod, args))

    def preempt(self, body: bytes, *, newest: bool = False) -> bytes:
        """The nodes on which these pods must give way. Raises WireError and UnknownPodError."""
        self.holds.expire()
        args = wire.read_preemption(body)
        return wire.preempt_answer(self._preempt(self.waiting.pod(args.pod, newest=newest), args))

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
