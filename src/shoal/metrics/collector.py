"""One interval: the cards are read, what they use is divided among containers, and a snapshot is made of it.

The driver and `/proc` are asked in a thread; pods come from a watch and cost nothing. A driver or a card that does not
answer costs its own numbers: the others are shown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.gpu import inventory
from shoal.gpu.errors import GpuError, NoCgroupError
from shoal.gpu.protocol import Card, CgroupMemory, Nvml, Process, Sample, Survey, limits_memory
from shoal.metrics.attribution import CardUse, attribute
from shoal.metrics.cgroups import ContainerFolders
from shoal.metrics.node_load import HostLoad
from shoal.metrics.node_pods import KnownPod, NodeContainers
from shoal.metrics.overuse import Overuse, OveruseWatch
from shoal.metrics.processes import ContainerRef, ProcessOwners, owners_of
from shoal.metrics.sampler import HUNG, PATIENCE, Sampled, SampledCard, Sampler
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, LatestSnapshot, PodLoad, Snapshot
from shoal.model.gpu import NodeGpus

log = logging.getLogger(__name__)

#: Opens the driver; NoDriverError while there is none.
OpenNvml = Callable[[], Nvml]

#: Each pause is by so much shorter at most: nodes do not read in step, and none is later than its interval.
_JITTER: Final = 0.1
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class CardReadings:
    """What was read in one interval, with the containers of the processes."""

    sampled: Sampled = field(default_factory=Sampled)
    owners: Mapping[int, ContainerRef] = field(default_factory=dict)
    #: By card's UUID, what the driver has counted for containers' cgroups.
    accounts: Mapping[str, Mapping[ContainerRef, CgroupMemory]] = field(default_factory=dict)
    #: Readings that failed since the start, by what was asked.
    failures: Mapping[str, int] = field(default_factory=dict)


class CardReader:
    """Asks the driver. `read` blocks: call it in a thread, one at a time."""

    def __init__(self, open_driver: OpenNvml, owners: ProcessOwners, folders: ContainerFolders) -> None:
        self._open = open_driver
        self._owners = owners
        self._folders = folders
        self._nvml: Nvml | None = None
        self._sampler: Sampler | None = None
        self._failures: Counter[str] = Counter()
        self._told = ""
        #: The accounts that are being asked for.
        self._asking: Future[dict[str, dict[ContainerRef, CgroupMemory]]] | None = None

    def read(self, booked: Mapping[str, Collection[ContainerRef]]) -> CardReadings:
        """All cards now. `booked` are, by UUID, the containers that have a part of a card."""
        try:
            if self._nvml is None or self._sampler is None:
                self._nvml = self._open()
                self._sampler = Sampler(self._nvml)
                self._told = ""
        except GpuError as error:
            self._failures["open"] += 1
            if str(error) != self._told:
                self._told = str(error)
                log.warning("no cards are read: %s", error)
            return CardReadings(failures=dict(self._failures))
        self._owners.begin()
        sampled = self._sampler.sample()
        processes = {one.card.uuid: processes_of(one.sample) for one in sampled.cards}
        owners = owners_of({process.pid for some in processes.values() for process in some}, self._owners)
        wanted = {
            one.card.uuid: {*booked.get(one.card.uuid, ()), *_owning(processes[one.card.uuid], owners)}
            for one in sampled.cards
            if one.sample is not None and sampled.driver is not None and limits_memory(sampled.driver, one.card)
        }
        accounts = self._accounts_in_time(self._nvml, wanted)
        return CardReadings(sampled, owners, accounts, self._failures + Counter(sampled.failures))

    def close(self) -> None:
        """End what listens to the cards."""
        if self._sampler is not None:
            self._sampler.close()

    def _accounts_in_time(
        self, nvml: Nvml, wanted: Mapping[str, Collection[ContainerRef]]
    ) -> dict[str, dict[ContainerRef, CgroupMemory]]:
        """What the driver has counted for cgroups. One that hangs costs this, and no more than this."""
        if not any(wanted.values()):
            return {}
        if self._asking is not None and not self._asking.done():
            self._failures[HUNG] += 1
            return {}
        asking = self._asking = Future()
        self._folders.begin()

        def ask() -> None:
            try:
                asking.set_result({uuid: self._accounts(nvml, uuid, some) for uuid, some in wanted.items()})
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is taken
                asking.set_exception(error)

        threading.Thread(target=ask, name="gpu-accounts", daemon=True).start()
        try:
            return asking.result(PATIENCE)
        except TimeoutError:
            self._failures[HUNG] += 1
            return {}

    def _accounts(self, nvml: Nvml, uuid: str, containers: Iterable[ContainerRef]) -> dict[ContainerRef, CgroupMemory]:
        found: dict[ContainerRef, CgroupMemory] = {}
        for container in containers:
            folder = self._folders.folder(container)
            if folder is None:
                continue
            try:
                found[container] = nvml.cgroup_memory(uuid, folder)
            except NoCgroupError:
                continue  # the container has ended meanwhile
            except GpuError as error:
                self._failures["cgroup_memory"] += 1
                log.debug("the driver tells no account of a cgroup: %s", error)
                break
        return found


def _owning(processes: Iterable[Process], owners: Mapping[int, ContainerRef]) -> set[ContainerRef]:
    return {owners[process.pid] for process in processes if process.pid in owners}


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
        grace: float,
        told: Callable[[KnownPod, Overuse, Card], None] = lambda pod, overuse, card: None,
        host: HostLoad | None = None,
        pod_loads: Callable[[], tuple[PodLoad, ...]] = tuple,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`told` is called when over-use has lasted for the `grace` time, once per episode.

        `host` is the machine's own load, `pod_loads` what was last told of its pods; without them nobody knows.
        """
        self._node = node
        self._told = told
        self._host = host
        self._pod_loads = pod_loads
        self._overuse = OveruseWatch(grace=grace, longest_gap=2 * interval)
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
        load = None if self._host is None else await asyncio.to_thread(self._host.read)
        # Pods that come while the cards are read were not asked about.
        synced = self._pods.synced
        readings = await asyncio.to_thread(self._reader.read, self._pods.on_cards())
        survey = Survey(tuple(one.card for one in readings.sampled.cards))
        if survey.cards:
            self._pods.move_to(NodeGpus(self._node, inventory.gpus(survey)))
        snapshot = replace(self._snapshot(readings, synced=synced), load=load, pods=self._pod_loads())
        self._latest.put(snapshot)
        return snapshot

    def _snapshot(self, readings: CardReadings, *, synced: bool) -> Snapshot:
        self._number += 1
        found = {ref: pod for ref in _refs(readings) if (pod := self._pods.find(ref)) is not None}
        now = self._monotonic()
        return Snapshot(
            self._node,
            self._now(),
            now,
            self._interval,
            self._number,
            readings.sampled.driver,
            tuple(
                self._attributed(one, readings, found, now) if synced else _shown(one) for one in readings.sampled.cards
            ),
            failures=readings.failures,
        )

    def _attributed(
        self, one: SampledCard, readings: CardReadings, found: Mapping[ContainerRef, NamedPod], now: float
    ) -> CardSnapshot:
        card, sample, shown = one.card, one.sample, _shown(one)
        # What the API server does not show is nobody's.
        owners = {pid: ref for pid, ref in readings.owners.items() if ref in found}
        accounts = {ref: account for ref, account in readings.accounts.get(card.uuid, {}).items() if ref in found}
        use = attribute(
            shown.used_bytes, processes_of(sample), owners, {ref: one.used_bytes for ref, one in accounts.items()}
        )
        if sample is not None and not sample.processes_known:
            # A process that was not listed may be anybody's.
            use = replace(use, unattributed_bytes=None)
        limits = {ref: one.limit.hard_bytes for ref, one in accounts.items()}
        containers = containers_on(
            card, use, found, limits, _instances(sample, owners), self._pods.booked_on(card.uuid)
        )
        return replace(
            shown,
            used_bytes=use.used_bytes,
            unattributed_bytes=use.unattributed_bytes,
            containers=tuple(self._followed(card, pod, one, now) for pod, one in containers),
        )

    def _followed(self, card: Card, pod: KnownPod, one: ContainerSnapshot, now: float) -> ContainerSnapshot:
        seconds, due = self._overuse.look(now, one.name, card.uuid, requested=one.requested_bytes, used=one.used_bytes)
        if due is not None:
            self._told(pod, due, card)
        return replace(one, overuse_seconds=seconds)


def _shown(one: SampledCard) -> CardSnapshot:
    """A card of which nobody can say yet whose its use is."""
    return CardSnapshot(
        one.card,
        one.sample,
        None if one.sample is None else one.sample.memory_used_bytes,
        xids=one.xids,
        recent_xids=one.recent_xids,
        last_xid=one.last_xid,
        recent_clock_events=one.recent_clock_events,
    )


#: A pod, and the name of one of its containers.
NamedPod = tuple[KnownPod, str]


def _refs(readings: CardReadings) -> set[ContainerRef]:
    return {*readings.owners.values(), *(ref for accounts in readings.accounts.values() for ref in accounts)}


def _instances(sample: Sample | None, owners: Mapping[int, ContainerRef]) -> dict[ContainerRef, str]:
    """The MIG instance that each container uses. One with several is left out."""
    used: dict[ContainerRef, set[str]] = {}
    for instance in () if sample is None else sample.mig:
        for process in instance.processes:
            if process.pid in owners:
                used.setdefault(owners[process.pid], set()).add(instance.uuid)
    return {ref: next(iter(some)) for ref, some in used.items() if len(some) == 1}


def containers_on(
    card: Card,
    use: CardUse,
    found: Mapping[ContainerRef, NamedPod],
    limits: Mapping[ContainerRef, int | None],
    instances: Mapping[ContainerRef, str],
    booked: Iterable[NamedPod],
) -> list[tuple[KnownPod, ContainerSnapshot]]:
    """Those that use a part of the card, or have one booked, by name. `limits` are those the driver has told."""
    made: dict[ContainerName, tuple[KnownPod, ContainerSnapshot]] = {}
    for one in use.containers:
        pod, container = found[one.container]
        name = _name(pod, container)
        requested, limit = share_of(pod, container, card)
        fresh = ContainerSnapshot(
            name,
            requested,
            limits.get(one.container, limit),
            one.memory_bytes,
            one.utilisation,
            one.source,
            mig_uuid=instances.get(one.container, ""),
            container_id=one.container.container_id,
        )
        # Two runs of a container, or two of which the API server does not tell the names yet.
        made[name] = (pod, _joined(made[name][1], fresh) if name in made else fresh)
    for pod, container in booked:
        name = _name(pod, container)
        if name not in made:
            made[name] = (pod, ContainerSnapshot(name, *share_of(pod, container, card)))
    return [made[name] for name in sorted(made)]


def _name(pod: KnownPod, container: str) -> ContainerName:
    return ContainerName(pod.namespace, pod.name, container, pod.uid)


def _joined(one: ContainerSnapshot, other: ContainerSnapshot) -> ContainerSnapshot:
    used = None if one.used_bytes is None or other.used_bytes is None else one.used_bytes + other.used_bytes
    load = None if one.utilisation is None or other.utilisation is None else one.utilisation + other.utilisation
    return replace(
        one,
        used_bytes=used,
        utilisation=load if load is None or load <= _PERCENT else None,
        mig_uuid=one.mig_uuid if one.mig_uuid == other.mig_uuid else "",
    )


def share_of(pod: KnownPod, container: str, card: Card) -> tuple[int | None, int | None]:
    """What is booked for a container on a card, and what limits it; None where that is not known."""
    share = pod.booked.get((container, card.uuid))
    if share is None:
        return None if container in pod.unknown or not container else 0, None
    return card.memory_bytes or None if share.whole else share.requested_bytes, share.limit_bytes
