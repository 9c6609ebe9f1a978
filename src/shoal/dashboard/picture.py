"""One picture of the cluster for all viewers: watches of nodes, pods, claims and Events, and what collectors read.

A picture is made at most once a second, when something has changed, and has a number. What did not change is the same
object in the next one, so that whoever follows looks only at what did. Whether the API server still answers is asked in
between: a picture that may be old says since when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, TypeVar

from shoal.analysis.collectors import Measured
from shoal.analysis.errors import NotMeasuredError
from shoal.analysis.inspect.claims import ClaimsWatch
from shoal.analysis.inspect.objects import NODES, PODS, PartialNode, PartialPod
from shoal.analysis.inspect.read import NOT_FINISHED
from shoal.analysis.inspect.reader import UseReader, slim_pod
from shoal.analysis.inspect.use import ClusterUse, NodeUse, PodUse
from shoal.analysis.inspect.used import UsedNode, used_node
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.reflector import Reflector
from shoal.metrics.history_wire import NodeReading
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract.gpushare import MemoryUnit

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Asks the collectors of some nodes. Raises NotMeasuredError and KubeError.
Measure = Callable[[Collection[str]], Awaitable[Measured]]

#: Seconds between two pictures at least, and for how long changes that come together are waited for.
_BETWEEN: Final = 1.0
_TOGETHER: Final = 0.05
#: How often the API server is asked whether it is there, and how long it may take.
_PROBE: Final = 5.0
#: While nobody looks, collectors are asked this often; nobody has looked when there was no call for so long.
_UNSEEN_MEASURE: Final = 60.0
_UNSEEN: Final = 60.0
#: After a round to the collectors, so many times the processor's time that it took pass: they get a tenth of a core.
#: A collector takes 3 ms, most of it for TLS.
_MEASURE_SHARE: Final = 9
#: Lists of views that are kept made: those of 8,000 cards take 6 MB. Smaller answers.
_PREPARED: Final = 4
_PREPARED_WHOLE: Final = 64
#: Names that are remembered beyond those that are there.
_MOST_NAMESPACES: Final = 1000


class MeasuredState(IntEnum):
    """What is known of the use of a node."""

    MISSING = 0
    FRESH = 1
    STALE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """What a node's collector said last; `at` is when it measured, in seconds since 1970 by this clock."""

    state: MeasuredState
    reading: NodeReading | None = None
    at: float | None = None
    why: str = ""


NOT_ASKED: Final = Measurement(MeasuredState.MISSING, why="collectors have not been asked yet")


@dataclass(frozen=True, slots=True, eq=False)
class NodePicture:
    """One node. The same object as long as nothing about it changes."""

    use: NodeUse
    used: UsedNode
    measurement: Measurement
    #: Namespace and name of pods that use a card without having any of it.
    uninvited: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return self.use.node.name


class PreparedAnswers:
    """What answers are made of, kept while the nodes it was made of stay the same; of the views asked for last."""

    def __init__(self) -> None:
        self._of_nodes: BoundedCache[Hashable, dict[str, tuple[NodePicture, Any]]] = BoundedCache(_PREPARED)
        self._whole: BoundedCache[Hashable, tuple[int, Any]] = BoundedCache(_PREPARED_WHOLE)

    def of_nodes(self, key: Hashable, nodes: Iterable[NodePicture], make: Callable[[NodePicture], T]) -> list[T]:
        """What is made of each node; made anew of those that have changed."""
        before, made = self._of_nodes.get(key) or {}, {}
        for node in nodes:
            known = before.get(node.name)
            made[node.name] = known if known is not None and known[0] is node else (node, make(node))
        self._of_nodes.put(key, made)
        return [answer for _, answer in made.values()]

    def whole(self, key: Hashable, number: int, make: Callable[[], T]) -> T:
        """What is made of the picture of this number."""
        known = self._whole.get(key)
        if known is None or known[0] != number:
            known = (number, make())
            self._whole.put(key, known)
        answer: T = known[1]
        return answer


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The cluster at one moment."""

    number: int
    #: Seconds since 1970.
    time: float
    cluster: ClusterUse = field(default_factory=lambda: ClusterUse(()))
    nodes: Mapping[str, NodePicture] = field(default_factory=dict)
    #: Since when the API server has not been heard, in seconds since 1970, and what it is; None while it is.
    old_since: float | None = None
    trouble: str = ""
    #: Why nothing is measured anywhere; empty when something is.
    unmeasured: str = ""
    #: Handed on from one picture to the next.
    prepared: PreparedAnswers = field(default_factory=PreparedAnswers)

    def pods(self) -> list[PodUse]:
        """All pods that hold cards or wait for them."""
        found = [pod for node in self.cluster.nodes for pod in (*node.pods, *node.pending)]
        return [*found, *self.cluster.waiting, *self.cluster.elsewhere]


class LivePicture:
    """Keeps the picture. Run `run()`; `on_change` is told of each new one."""

    def __init__(
        self,
        client: Client,
        measure: Measure | None,
        *,
        unit: MemoryUnit | None = None,
        measure_seconds: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._measure = measure
        self._measure_seconds = measure_seconds
        self._clock = clock
        self._reader = UseReader(unit)
        self._dirty = asyncio.Event()
        self._looked = asyncio.Event()
        self._seen = float("-inf")
        self._heard: float | None = None
        self._silent = ""
        self._measurements: dict[str, Measurement] = {}
        self._unmeasured = "" if measure is not None else "no collectors are asked"
        #: Namespaces that have or had something to show, so that what viewers see does not change by every pod.
        self.namespaces: dict[str, None] = {}
        #: How many have been new so far: when it grows, viewers may see more than before.
        self.namespaces_seen = 0
        self._consumers: list[Callable[[Picture, Picture], None]] = []
        self._nodes: Reflector[PartialNode] = Reflector(client, NODES, consumers=[self._changed])
        self._pods: Reflector[PartialPod] = Reflector(
            client, PODS, fields=NOT_FINISHED, consumers=[self._changed], slim=slim_pod
        )
        self._claims = ClaimsWatch(client, self._changed)
        # Numbers of an earlier process are all lower: there is at most one a second.
        self.current = Picture(int(clock()) * 1000, clock(), trouble="nothing has been read yet")

    def on_change(self, consumer: Callable[[Picture, Picture], None]) -> None:
        """Have this called with each picture and the one before it."""
        self._consumers.append(consumer)

    def looked(self) -> None:
        """Somebody looks: what is used is worth asking for."""
        if self._clock() - self._seen > _UNSEEN:
            self._looked.set()
        self._seen = self._clock()

    @property
    def seen(self) -> bool:
        """Whether somebody looked lately."""
        return self._clock() - self._seen <= _UNSEEN

    @property
    def waiting_for(self) -> str:
        """What keeps it from showing anything; empty when nothing does."""
        if self._nodes.synced.is_set() and self._pods.synced.is_set():
            return ""
        return f"nodes and pods have not been read yet: {self._trouble() or 'the API server is asked'}"

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with self._nodes, self._pods, self._claims, asyncio.TaskGroup() as group:
            group.create_task(self._probe(), name="probe of the API server")
            if self._measure is not None:
                group.create_task(self._measure_all(self._measure), name="readings")
            await self._nodes.wait_synced()
            await self._pods.wait_synced()
            await self._publish_all()

    def _changed(self, _: object) -> None:
        self._dirty.set()

    async def _publish_all(self) -> None:
        self._dirty.set()
        while True:
            await self._dirty.wait()
            await asyncio.sleep(_TOGETHER)
            self._dirty.clear()
            self._publish()
            await asyncio.sleep(_BETWEEN - _TOGETHER)

    def _publish(self) -> None:
        if self._reader.holds_claims(self._nodes.store):
            self._claims.need()
        before = self.current
        cluster = self._reader.of(self._nodes.store, self._pods.store, self._claims.store, problem=self._claims.trouble)
        trouble = self._trouble()
        self.current = Picture(
            before.number + 1,
            self._clock(),
            cluster,
            {use.node.name: self._node(use, before.nodes.get(use.node.name)) for use in cluster.nodes},
            old_since=(self._heard or before.time) if trouble else None,
            trouble=trouble,
            unmeasured=self._unmeasured,
            prepared=before.prepared,
        )
        self._note_namespaces()
        for consumer in self._consumers:
            consumer(self.current, before)

    def _note_namespaces(self) -> None:
        there = {pod.namespace for pod in self.current.pods()}
        for namespace in there - self.namespaces.keys():
            self.namespaces[namespace] = None
            self.namespaces_seen += 1
        if len(self.namespaces) > _MOST_NAMESPACES:
            self.namespaces = dict.fromkeys(sorted(there))

    def _node(self, use: NodeUse, before: NodePicture | None) -> NodePicture:
        measurement = self._measurements.get(use.node.name, NOT_ASKED)
        if before is not None and before.use is use and before.measurement is measurement:
            return before
        used = used_node(use, measurement.reading, measurement.why)
        every = (pod for card in used.cards for pod in card.pods if not pod.requested_mib)
        uninvited = dict.fromkeys((pod.namespace, pod.name) for pod in every)
        return NodePicture(use, used, measurement, tuple(uninvited))

    def _trouble(self) -> str:
        error = self._nodes.last_error or self._pods.last_error
        return str(error) if error is not None else self._silent

    async def _probe(self) -> None:
        shown = ""
        while True:
            try:
                async with asyncio.timeout(_PROBE):
                    await self._client.version()
                self._silent = ""
                if not self._trouble():
                    self._heard = self._clock()
            except TimeoutError:
                self._silent = f"the API server does not answer within {_PROBE:g} s"
            except KubeError as error:
                self._silent = str(error)
            if bool(shown) != bool(self._trouble()):
                shown = self._trouble()
                self._dirty.set()
            await asyncio.sleep(_PROBE)

    async def _measure_all(self, measure: Measure) -> None:
        """Ask the collectors again and again: often while somebody looks, and seldom while nobody does.

        Those that did not answer are asked beside the others, who need not wait for them.
        """
        silent: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            while True:
                began = time.thread_time()
                names = list(self.current.nodes)
                quiet = [name for name in names if self._is_silent(name)]
                if quiet and (silent is None or silent.done()):
                    silent = group.create_task(self._measure_once(measure, quiet), name="readings of silent nodes")
                if others := [name for name in names if not self._is_silent(name)]:
                    await self._measure_once(measure, others)
                took = time.thread_time() - began
                pause = max(self._measure_seconds if self.seen else _UNSEEN_MEASURE, _MEASURE_SHARE * took)
                self._looked.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause if names else _BETWEEN):
                        await self._looked.wait()

    def _is_silent(self, name: str) -> bool:
        known = self._measurements.get(name)
        return known is not None and known.state is not MeasuredState.FRESH

    async def _measure_once(self, measure: Measure, names: Collection[str]) -> None:
        why = ""
        try:
            measured = await measure(names)
        except (NotMeasuredError, KubeError) as error:
            why = str(error)
            measured = Measured({}, dict.fromkeys(names, why))
        now = self._clock()
        fresh = {name: self._measurement(name, measured, now) for name in names}
        there = self.current.nodes
        known = {name: one for name, one in self._measurements.items() if name in there}
        after = {**known, **fresh}
        some = any(one.state is MeasuredState.FRESH for one in after.values())
        if after != self._measurements or (self._unmeasured and some):
            self._measurements = after
            self._unmeasured = "" if some else why
            self._dirty.set()

    def _measurement(self, name: str, measured: Measured, now: float) -> Measurement:
        reading, before = measured.nodes.get(name), self._measurements.get(name)
        if reading is not None:
            return Measurement(MeasuredState.FRESH, reading, now - max(0.0, reading.age_seconds))
        why = measured.silent.get(name, "it was not asked")
        if before is None or before.reading is None:
            return before if before is not None and before.why == why else Measurement(MeasuredState.MISSING, why=why)
        if before.state is MeasuredState.STALE and before.why == why:
            return before
        return Measurement(MeasuredState.STALE, before.reading, before.at, why)
