"""The verb bind: make the choice of kube-scheduler true, on the cards that were scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.kube.objects.pod import Pod
from shoal.model.allocation import Allocation
from shoal.model.errors import RequestError
from shoal.placement.errors import BookingError, PolicyError
from shoal.scheduler.binder import Binder, BindError
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender.memory.holds import Holds
from shoal.scheduler.extender.waiting import UNKNOWN
from shoal.scheduler.extender.wire import BindingArgs
from shoal.scheduler.metrics import Metrics
from shoal.scheduler.telling.words import node_refusal, shortage

#: Who asks, in the metrics.
EXTENDER: Final = "extender"


class Bind:
    """Binds pods to the node kube-scheduler names."""

    def __init__(
        self, books: Books, binder: Binder, holds: Holds, *, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._books = books
        self._binder = binder
        self._holds = holds
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, args: BindingArgs) -> str:
        """What went wrong, in words; nothing when the pod is bound."""
        started = self._clock()
        try:
            pod = self._pod(args)
            if pod.spec.node_name != args.node:
                await self._binder.bind(pod, self._decision(pod, args.node))
        except (BindError, BookingError, RequestError, PolicyError) as error:
            self._metrics.binds.inc(EXTENDER, "refused")
            return str(error)
        self._metrics.binds.inc(EXTENDER, "bound")
        self._metrics.bind_seconds.observe(self._clock() - started, EXTENDER)
        return ""

    def _pod(self, args: BindingArgs) -> Pod:
        pod = self._books.pod(args.uid)
        if pod is None or (pod.metadata.namespace, pod.metadata.name) != (args.namespace, args.name):
            raise BindError(UNKNOWN)
        if pod.spec.node_name and pod.spec.node_name != args.node:
            raise BindError(f"the pod is on {pod.spec.node_name} already")
        return pod

    def _decision(self, pod: Pod, node: str) -> Allocation:
        """The cards held for the pod, or such as fit now."""
        allocation = self._holds.take(pod.metadata.uid, node)
        if allocation is None:
            self._metrics.decisions.inc(EXTENDER, "at bind")
            allocation = self._books.place(pod, node=node)
        if allocation is None:
            raise BindError(self._refusal(pod, node))
        return allocation

    def _refusal(self, pod: Pod, node: str) -> str:
        engine, request = self._books.engine, self._books.request(pod)
        known = engine.ledger.node(node)
        detail = "" if known is None else node_refusal(engine, known, request)
        return f"{shortage(engine.class_of(request))}: {detail or node}"
