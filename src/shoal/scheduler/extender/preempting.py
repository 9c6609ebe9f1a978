"""The verb preempt: who must give way, knowing cards.

kube-scheduler has chosen victims by node totals; they may free the wrong cards. So on each of its nodes they are chosen
anew, by its own rules and as few as it takes, with cards known. A node where nobody's leaving helps is left out. Nodes
that kube-scheduler did not offer are not added: it offers only such as its own filters refused. Nobody gives way while
the books lag behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from shoal.kube.objects.pod import Pod
from shoal.model.errors import RequestError
from shoal.placement.errors import PolicyError
from shoal.scheduler.books.books import Books
from shoal.scheduler.extender.memory.lag import Lag
from shoal.scheduler.extender.wire import PreemptionArgs, Victims
from shoal.scheduler.preemption.search import OnNode, Plan

log = logging.getLogger(__name__)

#: Who would have to go from one of the nodes so that the pod fits there.
Planning = Callable[[Pod, Iterable[str]], Plan | None]


class Preempt:
    """Chooses victims on the nodes that kube-scheduler offers."""

    def __init__(self, books: Books, *, plan: Planning, lag: Lag) -> None:
        self._books = books
        self._plan = plan
        self._lag = lag

    def __call__(self, pod: Pod, args: PreemptionArgs) -> Mapping[str, Victims]:
        """The nodes that remain, each with the pods that must go."""
        try:
            request = self._books.request(pod)
            if not request.containers:
                return args.victims
            if pod.spec.node_name:
                return {}  # it needs no room any more
            offered = [row for node in args.victims if (row := self._books.row(node)) is not None]
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

    def _is_there(self, node: str, victims: Iterable[OnNode]) -> bool:
        """kube-scheduler takes an answer with no victim, or one that is not bound to the node, for an error."""
        pods = [self._books.pod(victim.uid) for victim in victims]
        return bool(pods) and all(pod is not None and pod.spec.node_name == node for pod in pods)
