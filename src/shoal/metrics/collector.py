"""One interval: the cards are read, what they use is divided among containers, and a snapshot is made of it.

The driver and `/proc` are asked in a thread; pods come from a watch and cost nothing. A driver or a card that does not
answer costs its own numbers: the others are shown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shoal.gpu import inventory
from shoal.gpu.errors import GpuError
from shoal.gpu.protocol import Card, Driver, Nvml, Process, Sample, Survey
from shoal.metrics.attribution import CardUse, attribute
from shoal.metrics.node_pods import KnownPod, NodeContainers
from shoal.metrics.processes import ContainerRef, ProcessOwners, owners_of
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, LatestSnapshot, Snapshot
from shoal.model.gpu import NodeGpus

log = logging.getLogger(__name__)

#: Opens the driver; NoDriverError while there is none.
OpenNvml = Callable[[], Nvml]

#: Each pause is by so much shorter at most: nodes do not read in step, and none is later than its interval.
_JITTER: Final = 0.1
#: The cards themselves are looked at again after so many intervals, or when one does not answer.
_SURVEY_EVERY: Final = 12


@dataclass(frozen=True, slots=True)
class CardReadings:
    """What was read in one interval, with the containers of the processes."""

    driver: Driver | None = None
    cards: tuple[tuple[Card, Sample | None], ...] = ()
    owners: Mapping[int, ContainerRef] = field(default_factory=dict)
    #: By card's UUID, what the driver has counted for containers' cgroups.
    accounts: Mapping[str, Mapping[ContainerRef, int]] = field(default_factory=dict)


class CardReader:
    """Asks the driver. Its methods block: call them in a thread, one at a time."""

    def __init__(self, open_driver: OpenNvml, owners: ProcessOwners) -> None:
        self._open = open_driver
        self._owners = owners
        self._nvml: Nvml | None = None
        self._driver: Driver | None = None
        self._survey = Survey()
        self._surveyed = 0
        #: Readings that failed, by what was asked.
        self.failures: Counter[str] = Counter()
        self._told = ""

    def read(self) -> CardReadings:
        """All cards now."""
        nvml = self._look()
        if nvml is None:
            return CardReadings()
        cards = tuple((card, self._sample(nvml, card)) for card in self._survey.cards)
        pids = {process.pid for _, sample in cards for process in processes_of(sample)}
        return CardReadings(self._driver, cards, owners_of(pids, self._owners))

    def _look(self) -> Nvml | None:
        """The driver, if it answers, with its cards looked at now and then."""
        try:
            if self._nvml is None:
                self._nvml = self._open()
                self._driver = self._nvml.driver()
                self._surveyed = 0
            if self._surveyed % _SURVEY_EVERY == 0:
                self._survey = self._nvml.survey()
            self._surveyed += 1
        except GpuError as error:
            self.failures["survey"] += 1
            if str(error) != self._told:
                self._told = str(error)
                log.warning("no cards are read: %s", error)
            self._surveyed = 0
            return None
        self._told = ""
        return self._nvml

    def _sample(self, nvml: Nvml, card: Card) -> Sample | None:
        if card.lost and self._surveyed % _SURVEY_EVERY:
            return None
        try:
            return nvml.sample(card.uuid)
        except GpuError as error:
            self.failures["sample"] += 1
            self._surveyed = 0
            log.info("card %d is not read: %s", card.index, error)
            return None


def processes_of(sample: Sample | None) -> tuple[Process, ...]:
    """All processes of a card, those in its MIG instances as these list them."""
    if sample is None or not sample.mig:
        return () if sample is None else sample.processes
    inside = tuple(process for instance in sample.mig for process in instance.processes)
    listed = {process.pid for process in inside}
    return (*inside, *(process for process in sample.processes if process.pid not in listed))


class Collector:
    """Makes a snapshot of one node in each interval. `run` until it is cancelled."""

    def __init__(
        self,
        node: str,
        reader: CardReader,
        pods: NodeContainers,
        latest: LatestSnapshot,
        *,
        interval: float,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._reader = reader
        self._pods = pods
        self._latest = latest
        self._interval = interval
        self._now = now
        self._monotonic = monotonic
        self._rng = random.Random()
        self._number = 0

    async def run(self) -> None:
        """Until cancelled. An interval begins when the one before is over, however long that took."""
        while True:
            started = self._monotonic()
            await self.collect()
            pause = self._interval * (1 - self._rng.uniform(0, _JITTER)) - (self._monotonic() - started)
            await asyncio.sleep(max(0.0, pause))

    async def collect(self) -> Snapshot:
        """One interval: read, attribute, show."""
        readings = await asyncio.to_thread(self._reader.read)
        survey = Survey(tuple(card for card, _ in readings.cards))
        if readings.cards:
            self._pods.move_to(NodeGpus(self._node, inventory.gpus(survey)))
        snapshot = self._snapshot(readings)
        self._latest.put(snapshot)
        return snapshot

    def _snapshot(self, readings: CardReadings) -> Snapshot:
        self._number += 1
        return Snapshot(
            self._node,
            self._now(),
            self._monotonic(),
            self._interval,
            self._number,
            readings.driver,
            tuple(self._card(card, sample, readings) for card, sample in readings.cards),
            failures=dict(self._reader.failures),
        )

    def _card(self, card: Card, sample: Sample | None, readings: CardReadings) -> CardSnapshot:
        used = None if sample is None else sample.memory_used_bytes
        if not self._pods.synced:  # nobody can say yet whose it is
            return CardSnapshot(card, sample, used)
        owners, found = self._known(readings.owners)
        accounts = readings.accounts.get(card.uuid, {})
        use = attribute(used, processes_of(sample), owners, accounts)
        return CardSnapshot(
            card, sample, use.used_bytes, use.unattributed_bytes, _containers(card, use, found, self._pods.pods())
        )

    def _known(
        self, owners: Mapping[int, ContainerRef]
    ) -> tuple[dict[int, ContainerRef], dict[ContainerRef, tuple[KnownPod, str]]]:
        """The owners that the API server shows, and their names."""
        refs = {ref: pod for ref in set(owners.values()) if (pod := self._pods.find(ref)) is not None}
        return {pid: ref for pid, ref in owners.items() if ref in refs}, refs


def _containers(
    card: Card, use: CardUse, found: Mapping[ContainerRef, tuple[KnownPod, str]], pods: Iterable[KnownPod]
) -> tuple[ContainerSnapshot, ...]:
    """Those that have a part of the card booked, or use one."""
    made: dict[ContainerName, ContainerSnapshot] = {}
    for one in use.containers:
        pod, name = found[one.container]
        requested, limit = _booked(pod, name, card)
        full = pod.container(name)
        before = made.get(full)
        memory = one.memory_bytes
        if before is not None:  # two runs of one container, or two whose names are not told yet
            memory = None if memory is None or before.used_bytes is None else memory + before.used_bytes
        made[full] = ContainerSnapshot(
            full,
            requested,
            limit,
            memory,
            one.utilisation if before is None else None,
            one.source,
            container_id=one.container.container_id,
        )
    for pod in pods:
        for name, uuid in () if pod.over else pod.booked:
            if uuid == card.uuid and pod.container(name) not in made:
                made[pod.container(name)] = ContainerSnapshot(pod.container(name), *_booked(pod, name, card))
    return tuple(made[name] for name in sorted(made))


def _booked(pod: KnownPod, container: str, card: Card) -> tuple[int | None, int | None]:
    """What is booked for a container on a card, and what limits it."""
    share = pod.booked.get((container, card.uuid))
    if share is None:
        return None if container in pod.unknown or not container else 0, None
    return card.memory_bytes if share.whole else share.requested_bytes, share.limit_bytes
