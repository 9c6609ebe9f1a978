"""Questions that take the API server, a dry run or collectors to answer: why, the past, the set-up, the clusters.

Each is asked once for all who want to know the same, remembered for some seconds, and bounded in number at once; what
takes the processor runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from shoal.analysis.collectors import Collectors
from shoal.analysis.doctor.setup import SetUp, read_set_up
from shoal.analysis.dry_run import DryRun
from shoal.analysis.errors import NotMeasuredError
from shoal.analysis.joined_clusters import ToldReading, read_told
from shoal.analysis.node_fit import CLEARED, NodeAnswer
from shoal.analysis.past import Past, PastQuestion, PrometheusPast, from_collectors
from shoal.analysis.snapshot import ClusterSnapshot, read_snapshot
from shoal.analysis.unschedulable import NodeVictims, Unschedulable
from shoal.analysis.why import PodExplanation, explain_pod
from shoal.dashboard.answers import Refusal
from shoal.dashboard.views import ViewClass
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract.gpushare import MemoryUnit
from shoal.placement.errors import PolicyError
from shoal.scheduler.errors import LoadSourceError

T = TypeVar("T")

_WHY_SECONDS: Final = 10.0
_PAST_SECONDS: Final = 5.0
_SET_UP_SECONDS: Final = 15.0
_CLUSTERS_SECONDS: Final = 10.0
#: Different questions that wait at once.
_WAITING: Final = 32
_REMEMBERED: Final = 256
_DEADLINE: Final = 60.0
#: In place of a pod that the viewer may not read.
UNNAMED: Final = "(a pod of another namespace)"


class Questions:
    """Asks and remembers. Close it in the end."""

    def __init__(
        self,
        client: Client,
        collectors: Collectors | None,
        *,
        unit: MemoryUnit | None = None,
        prometheus: PrometheusPast | None = None,
        manager_namespace: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._collectors = collectors
        self._unit = unit
        self._prometheus = prometheus
        self._manager_namespace = manager_namespace
        self._clock = clock
        self._asked: dict[Hashable, asyncio.Task[Any]] = {}
        self._known: BoundedCache[Hashable, tuple[float, Any]] = BoundedCache(_REMEMBERED)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dry-run")

    async def close(self) -> None:
        """End what is being asked."""
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def why(self, namespace: str, name: str, *, details: int) -> PodExplanation:
        """Why a pod waits or is where it is, as one who sees all is told. Raises Refusal."""

        async def ask() -> PodExplanation:
            snapshot = await self._once("snapshot", _WHY_SECONDS, self._snapshot)
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, _explained, snapshot, namespace, name, details
            )

        return await self._once(("why", namespace, name, details), _WHY_SECONDS, ask)

    async def past(self, question: PastQuestion) -> Past:
        """The past of cards. From Prometheus where there is one that answers. Raises Refusal."""
        cards = tuple(sorted(question.cards))
        asked = (question.series, question.last, question.step, question.namespace, question.pod)
        about = ("past", question.node, cards, asked)
        return await self._once(about, _PAST_SECONDS, lambda: self._past(question))

    async def set_up(self) -> SetUp:
        """How the operator sees its nodes. Raises Refusal."""
        return await self._once("set-up", _SET_UP_SECONDS, lambda: read_set_up(self._client))

    async def clusters(self) -> ToldReading:
        """The joined clusters as their manager tells of them, or why nothing is known. Raises Refusal."""
        return await self._once("clusters", _CLUSTERS_SECONDS, lambda: read_told(self._client, self._manager_namespace))

    @property
    def known_clusters(self) -> int | None:
        """How many clusters are joined, as was last seen; None where nothing is known of them."""
        known = self._known.get("clusters")
        told = None if known is None else known[1].told
        return None if told is None else len(told.clusters)

    async def _snapshot(self) -> ClusterSnapshot:
        return await read_snapshot(self._client, unit=self._unit)

    async def _past(self, question: PastQuestion) -> Past:
        found = await self._prometheus_past(question)
        if found is not None and found.known:
            return found
        if self._collectors is None:
            if found is not None:
                return found
            words = "no collectors are asked here"
            raise Refusal(503, words if self._prometheus is None else f"Prometheus does not tell it, and {words}")
        try:
            return await from_collectors(self._collectors, question)
        except NotMeasuredError as error:
            if found is not None:
                return found
            raise Refusal(503, str(error), code="not-measured") from None

    async def _prometheus_past(self, question: PastQuestion) -> Past | None:
        """What Prometheus says, which may be that it knows nothing; None when it does not answer."""
        if self._prometheus is None:
            return None
        try:
            return await self._prometheus.ask(question)
        except (LoadSourceError, OSError):
            return None

    async def _once(self, key: Hashable, seconds: float, ask: Callable[[], Coroutine[None, None, T]]) -> T:
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            answer: T = known[1]
            return answer
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= _WAITING:
                raise Refusal(503, "too many questions are being answered: try again in some seconds")
            task = self._asked[key] = asyncio.create_task(self._ask(key, seconds, ask))
            task.add_done_callback(lambda done: self._answered(key, done))
        try:
            found: T = await asyncio.shield(task)
        except TimeoutError:
            raise Refusal(503, f"there was no answer within {_DEADLINE:g} s: try again") from None
        except KubeError:
            raise Refusal(503, "the API server does not answer this now: try again") from None
        return found

    def _answered(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # looked at: those who asked may have left

    async def _ask(self, key: Hashable, seconds: float, ask: Callable[[], Coroutine[None, None, T]]) -> T:
        async with asyncio.timeout(_DEADLINE):
            answer = await ask()
        self._known.put(key, (self._clock() + seconds, answer))
        return answer


def _explained(snapshot: ClusterSnapshot, namespace: str, name: str, details: int) -> PodExplanation:
    """Raises Refusal."""
    found = [pod for pod in snapshot.pods if (pod.metadata.namespace, pod.metadata.name) == (namespace, name)]
    if not found:
        raise Refusal(404, "there is no such pod, or you may not read it")
    try:
        return explain_pod(DryRun(snapshot), found[0], details=details)
    except PolicyError as error:
        raise Refusal(503, f"the scheduler's policy cannot be tried: {error}") from None


def shown(found: PodExplanation, view: ViewClass) -> PodExplanation:
    """An explanation as a viewer may see it: without names of pods they may not read, or of nodes."""
    unplaced = None if found.unplaced is None else _shown_unplaced(found.unplaced, view)
    found = msgspec.structs.replace(found, nodes=_shown_nodes(found.nodes, view), unplaced=unplaced)
    if view.namespaces is not None and "/" in found.policy_from:
        found = msgspec.structs.replace(found, policy_from=f"the newest decision, of {UNNAMED[1:-1]}")
    if view.nodes:
        return found
    return msgspec.structs.replace(found, live_load="", would_go=None)


def _shown_unplaced(unplaced: Unschedulable, view: ViewClass) -> Unschedulable:
    return msgspec.structs.replace(
        unplaced,
        nodes=_shown_nodes(unplaced.nodes, view),
        preempts=_shown_victims(unplaced.preempts, view),
        clearing=_shown_victims(unplaced.clearing, view),
    )


def _shown_victims(victims: NodeVictims | None, view: ViewClass) -> NodeVictims | None:
    if victims is None:
        return None
    pods = tuple(pod if view.shows(pod.partition("/")[0]) else UNNAMED for pod in victims.pods)
    return msgspec.structs.replace(victims, node=victims.node if view.nodes else "", pods=pods)


def _shown_nodes(nodes: tuple[NodeAnswer, ...], view: ViewClass) -> tuple[NodeAnswer, ...]:
    if not view.nodes:
        return ()
    return tuple(
        msgspec.structs.replace(node, why="is being cleared for another pod")
        if node.refused_by == CLEARED and view.namespaces is not None
        else node
        for node in nodes
    )
