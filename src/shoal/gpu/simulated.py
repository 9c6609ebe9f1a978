"""Simulated cards behind the driver's protocol, and the handles by which a simulation moves them.

The same descriptions, seed and clock give the same cards and the same readings. Simulated programs are reported with
`add_process` and `remove_process`; faults come with `raise_xid`, `count_ecc`, `lose` and `restore`.
"""

from __future__ import annotations

import random
import threading
import uuid as uuids
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from shoal.gpu import physics
from shoal.gpu.describe import CardDescription
from shoal.gpu.errors import (
    GpuError,
    LostCardError,
    NoCgroupError,
    NotSupportedError,
    OutOfMemoryError,
    UnknownCardError,
)
from shoal.gpu.models import CardModel
from shoal.gpu.protocol import (
    Card,
    CardEvent,
    CardLimits,
    CgroupMemory,
    ComputeMode,
    Driver,
    EventKind,
    MemoryLimit,
    MigAttributes,
    MigSample,
    NvlinkCounters,
    PcieTraffic,
    Process,
    RemappedRows,
    Sample,
    Survey,
    Unreadable,
    checked_cgroup,
    limits_memory,
)
from shoal.model.errors import shown
from shoal.model.gpu import Link, MigInstance

#: A driver that can limit the memory of cgroups.
NEWEST = Driver(version="615.71.05", cuda=(13, 4))
_XID_LOST = 79
#: Of a watch nobody waits on, the oldest events go.
_MAX_PENDING = 1024
MIB = 2**20
#: Causes for which these cards never hold their clocks down.
_NEVER_VIOLATED = ("thermal", "sync_boost", "board_limit", "low_utilisation", "reliability")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that computes on a card, as it is reported by whoever simulates it."""

    pid: int
    memory_bytes: int
    utilisation: int
    cgroup: str | None = None
    mps: bool = False
    #: The UUID of the MIG instance it runs on; None: nobody said on which.
    instance: str | None = None


def made_uuid(prefix: str, *seed: object) -> str:
    """A UUID that the same seed always gives."""
    number = random.Random("/".join(map(str, seed))).getrandbits(128)
    return f"{prefix}-{uuids.UUID(int=number, version=4)}"


class SimulatedCard:
    """A card of `SimulatedNvml`, which calls it, holds the lock and keeps the time."""

    def __init__(self, description: CardDescription, *, seed: str, now: float, uuid_of: Mapping[int, str]) -> None:
        self.description = description
        self.card = _fixed(description, seed, uuid_of)
        self.lost = description.lost
        self.mode = ComputeMode.DEFAULT
        self.ecc_corrected = self.ecc_uncorrected = 0
        self._seed = f"{seed}/{self.card.uuid}"
        self._heat = physics.cold(now, description.model)
        self._programs: dict[int, Program] = {}
        self._limits: dict[str, MemoryLimit] = {}

    @property
    def used_bytes(self) -> int:
        """What the programs hold."""
        return sum(program.memory_bytes for program in self._programs.values())

    def put(self, program: Program, now: float) -> None:
        """Start a program, or change one that runs; a card that cannot take it stays as it was."""
        self._admit(program)
        before = self._programs.get(program.pid)
        self._fit(program, before.memory_bytes if before and before.cgroup == program.cgroup else 0)
        self._programs[program.pid] = program
        self._follow_load(now)

    def end(self, pid: int, now: float) -> None:
        """End a program; one that does not run is no error."""
        if self._programs.pop(pid, None) is not None:
            self._follow_load(now)

    def end_all(self, now: float) -> None:
        """End every program, as a reset does."""
        self._programs.clear()
        self._follow_load(now)

    def _admit(self, program: Program) -> None:
        if program.memory_bytes < 0 or not 0 <= program.utilisation <= 100 or program.pid <= 0:
            raise GpuError(
                f"{shown(program.pid)} cannot run with {shown(program.memory_bytes)} bytes at "
                f"{shown(program.utilisation)} %: a PID is positive, memory not negative, utilisation from 0 to 100"
            )
        others = [other for other in self._programs.values() if other.pid != program.pid]
        exclusive = self.mode is ComputeMode.EXCLUSIVE_PROCESS and any(not (p.mps and program.mps) for p in others)
        if self.mode is ComputeMode.PROHIBITED or exclusive:
            raise GpuError(f"{self.card.uuid} is in compute mode {self.mode}: process {program.pid} may not use it")

    def _fit(self, program: Program, returned: int) -> None:
        before = self._programs.get(program.pid)
        others = self.used_bytes - (before.memory_bytes if before else 0)
        room = self.card.memory_bytes - (self.card.reserved_bytes or 0) - others
        if program.memory_bytes > room:
            raise OutOfMemoryError(
                f"process {program.pid} asks for {program.memory_bytes} bytes of {self.card.uuid}, {room} are free"
            )
        if program.instance is not None:
            self._fit_instance(program)
        if program.cgroup is None:
            return
        hard = self._limits.get(program.cgroup, MemoryLimit()).hard_bytes
        used = self.cgroup_memory(program.cgroup).used_bytes - returned
        if hard is not None and used + program.memory_bytes > hard:
            raise OutOfMemoryError(
                f"process {program.pid} asks for {program.memory_bytes} bytes of {self.card.uuid}, its cgroup "
                f"{shown(program.cgroup)} has {max(0, hard - used)} left of its limit of {hard}"
            )

    def _follow_load(self, now: float) -> None:
        load = sum(program.utilisation for program in self._programs.values()) / 100
        self._heat = physics.loaded(self._heat, self.description.model, now, load)

    def set_limit(self, cgroup: str, limit: MemoryLimit) -> None:
        """Limit a cgroup. What it holds already stays, as with the real driver."""
        if limit == MemoryLimit():
            self._limits.pop(cgroup, None)
        else:
            self._limits[cgroup] = limit

    def cgroup_memory(self, cgroup: str) -> CgroupMemory:
        """A cgroup's limit and what its programs hold."""
        used = sum(program.memory_bytes for program in self._programs.values() if program.cgroup == cgroup)
        return CgroupMemory(self._limits.get(cgroup, MemoryLimit()), used)

    def sample(self, now: float) -> Sample:
        """The readings at this moment. In MIG mode nobody knows the load of the whole card, or of a program."""
        model, mig = self.description.model, bool(self.card.mig)
        heat = physics.moved(self._heat, model, now)
        total, used = self.card.memory_bytes, self.used_bytes
        drawn = self._noisy(physics.power_w(model, heat.load), "power", now)
        retires = model.ecc and not _remaps(model)
        programs = sorted(self._programs.values(), key=lambda program: program.pid)
        return Sample(
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=total - used - (self.card.reserved_bytes or 0),
            memory_reserved_bytes=self.card.reserved_bytes,
            utilisation=None if mig else round(100 * heat.load),
            memory_utilisation=None if mig else round(60 * heat.load),
            encoder_utilisation=None if mig else 0,
            decoder_utilisation=None if mig else 0,
            temperature_c=round(heat.temperature_c),
            memory_temperature_c=physics.memory_temperature(model, heat.temperature_c),
            power_mw=min(model.power_w * 1000, round(1000 * drawn)),
            energy_mj=round(heat.energy_j * 1000),
            fan=physics.fan_percent(model, heat.temperature_c),
            sm_clock_mhz=physics.clock_mhz(model.sm_clock_mhz, heat.load),
            memory_clock_mhz=physics.clock_mhz(model.memory_clock_mhz, heat.load),
            clock_event_reasons=physics.clock_event_reasons(heat.load),
            violation_ns={**dict.fromkeys(_NEVER_VIOLATED, 0), "power": round(10**9 * heat.capped_s)},
            pcie_replays=0,
            nvlink=self._nvlink(heat),
            ecc_corrected=self.ecc_corrected if model.ecc else None,
            ecc_uncorrected=self.ecc_uncorrected if model.ecc else None,
            ecc_corrected_lifetime=self.ecc_corrected if model.ecc else None,
            ecc_uncorrected_lifetime=self.ecc_uncorrected if model.ecc else None,
            retired_single_bit=0 if retires else None,
            retired_double_bit=0 if retires else None,
            retired_pending=False if retires else None,
            remapped=RemappedRows(0, 0, False, False) if _remaps(model) else None,
            profile=physics.profile(heat.load, linked=bool(self.card.links)) if _profiles(model) and not mig else None,
            mig=tuple(
                self._mig_sample(number, part, programs) for number, part in enumerate(self.card.mig_instances, start=1)
            ),
            processes=tuple(_process(program, mig=mig) for program in programs),
        )

    def _nvlink(self, heat: physics.Heat) -> NvlinkCounters | None:
        if not self.card.links:
            return None
        passed = 1024 * round(physics.NVLINK * heat.busy_s / 1024)
        return NvlinkCounters(passed, passed, 0, 0, 0, 0)

    def _mig_sample(self, number: int, part: MigInstance, programs: Iterable[Program]) -> MigSample:
        mine = [program for program in programs if program.instance == part.uuid]
        total, used = part.memory_mib * MIB, sum(program.memory_bytes for program in mine)
        return MigSample(
            uuid=part.uuid,
            profile=part.profile,
            gpu_instance=number,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=total - used,
            memory_reserved_bytes=0,
            processes=tuple(_process(program, mig=True) for program in mine),
        )

    def _fit_instance(self, program: Program) -> None:
        size = next(part.memory_mib for part in self.card.mig_instances if part.uuid == program.instance) * MIB
        others = (p for p in self._programs.values() if p.instance == program.instance and p.pid != program.pid)
        room = size - sum(other.memory_bytes for other in others)
        if program.memory_bytes > room:
            raise OutOfMemoryError(
                f"process {program.pid} asks for {program.memory_bytes} bytes of {program.instance}, {room} are free"
            )

    def pcie_traffic(self, now: float) -> PcieTraffic:
        """What passes over the bus, in whole kilobytes a second as the driver counts."""
        load = physics.moved(self._heat, self.description.model, now).load
        return PcieTraffic(
            sent=1000 * round(self._noisy(physics.PCIE_SENT * load, "sent", now) / 1000),
            received=1000 * round(self._noisy(physics.PCIE_RECEIVED * load, "received", now) / 1000),
        )

    def _noisy(self, value: float, what: str, now: float) -> float:
        return physics.noisy(value, seed=self._seed, at=now, what=what)


def _process(program: Program, *, mig: bool) -> Process:
    return Process(program.pid, program.memory_bytes, None if mig else program.utilisation, program.mps)


def _profiles(model: CardModel) -> bool:
    """Hopper and newer count how busy their parts are."""
    return model.compute_capability >= (9, 0)


def _remaps(model: CardModel) -> bool:
    return model.ecc and model.compute_capability >= (8, 0)


def _fixed(description: CardDescription, seed: str, uuid_of: Mapping[int, str]) -> Card:
    model = description.model
    mine = uuid_of[description.index]
    return Card(
        uuid=mine,
        index=description.index,
        model=model.product,
        memory_bytes=description.memory_mib * MIB,
        reserved_bytes=model.reserved_mib * MIB,
        minor=description.index,
        numa=description.numa,
        pci=f"{description.index // 255:04x}:{description.index % 255 + 1:02x}:00.0",
        compute_capability=model.compute_capability,
        cores=model.cores,
        bus_width_bits=model.bus_width_bits,
        ecc=True if model.ecc else None,
        limits=CardLimits(
            power_mw=model.power_w * 1000,
            sm_clock_mhz=model.sm_clock_mhz,
            memory_clock_mhz=model.memory_clock_mhz,
            slowdown_c=model.slowdown_c,
            shutdown_c=model.shutdown_c,
            max_c=model.max_c,
        ),
        links=tuple(Link(uuid_of[peer], lanes) for peer, lanes in description.links),
        mig=None if not model.mig_slices else description.mig is not None,
        mig_instances=tuple(
            MigInstance(made_uuid("MIG", seed, mine, number), partition.profile, partition.memory_mib)
            for number, partition in enumerate(description.mig or ())
        ),
        mig_attributes=tuple(_attributes(partition.profile) for partition in description.mig or ()),
    )


def _attributes(profile: str) -> MigAttributes:
    """Of round numbers: each slice has 14 multiprocessors and a copy engine."""
    slices = int(profile.partition("g")[0])
    return MigAttributes(multiprocessors=14 * slices, gpu_slices=slices, compute_slices=slices, copy_engines=slices)


class SimulatedNvml:
    """Simulated cards behind `shoal.gpu.protocol.Nvml`."""

    def __init__(
        self,
        descriptions: Iterable[CardDescription],
        *,
        clock: Callable[[], float],
        seed: str = "",
        driver: Driver = NEWEST,
        cgroup_exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._clock = clock
        self._driver = driver
        self._cgroup_exists = cgroup_exists
        self._changed = threading.Condition()
        self._watches: set[_SimulatedEvents] = set()
        described = sorted(descriptions, key=lambda description: description.index)
        uuid_of = {description.index: made_uuid("GPU", seed, description.index) for description in described}
        self._cards = {
            uuid_of[description.index]: SimulatedCard(description, seed=seed, now=clock(), uuid_of=uuid_of)
            for description in described
        }
        self._instances = {part.uuid: uuid for uuid, card in self._cards.items() for part in card.card.mig_instances}
        self._seen = {uuid for uuid, card in self._cards.items() if not card.lost}

    # The protocol

    def driver(self) -> Driver:
        """The driver's versions."""
        return self._driver

    def survey(self) -> Survey:
        """All cards; one that was lost from the start has never told its UUID."""
        with self._changed:
            return Survey(
                cards=tuple(
                    replace(c.card, lost=True) if c.lost else c.card for u, c in self._cards.items() if u in self._seen
                ),
                unreadable=tuple(
                    Unreadable(c.card.index, "the card is lost from the bus")
                    for u, c in self._cards.items()
                    if u not in self._seen
                ),
            )

    def sample(self, uuid: str) -> Sample:
        """What a card measures now."""
        with self._changed:
            return self._card(uuid).sample(self._clock())

    def pcie_traffic(self, uuid: str) -> PcieTraffic:
        """What passes over a card's bus."""
        with self._changed:
            return self._card(uuid).pcie_traffic(self._clock())

    def watch(self, *, signs_of_life: bool = True) -> _SimulatedEvents:
        """The reports of all cards, from now on; a card described with an XID error begins with it."""
        with self._changed:
            watch = _SimulatedEvents(self._changed, self._watches)
            for uuid, card in self._cards.items():
                if card.description.xid is not None:
                    watch.pending.append(CardEvent(EventKind.XID, uuid, card.description.xid))
            return watch

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Who may compute on the card."""
        with self._changed:
            return self._card(uuid).mode

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may compute on the card; programs that run go on."""
        with self._changed:
            self._card(uuid).mode = mode

    def cgroup_memory(self, uuid: str, cgroup: str) -> CgroupMemory:
        """A cgroup's limit and use of the card's memory."""
        with self._changed:
            return self._limitable(uuid, cgroup).cgroup_memory(cgroup)

    def set_memory_limit(self, uuid: str, cgroup: str, limit: MemoryLimit) -> None:
        """Limit a cgroup's use of the card's memory."""
        with self._changed:
            self._limitable(uuid, cgroup).set_limit(cgroup, limit)

    def close(self) -> None:
        """End all watches."""
        for watch in tuple(self._watches):
            watch.close()

    # The simulation's handles

    def add_process(
        self, uuid: str, pid: int, memory_bytes: int, utilisation: int, *, cgroup: str | None = None, mps: bool = False
    ) -> None:
        """Start a program on a card or MIG instance, or change what it uses.

        OutOfMemoryError when card, instance or cgroup have not as much.
        """
        with self._changed:
            card, instance = self._place(uuid)
            card.put(Program(pid, memory_bytes, utilisation, cgroup, mps, instance), self._clock())

    def remove_process(self, uuid: str, pid: int) -> None:
        """End a program; one that does not run is no error."""
        with self._changed:
            self._known(self._instances.get(uuid, uuid)).end(pid, self._clock())

    def raise_xid(self, uuid: str, xid: int) -> None:
        """Have a card report an XID error."""
        with self._changed:
            self._known(uuid)
            self._report(CardEvent(EventKind.XID, uuid, xid))

    def count_ecc(self, uuid: str, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """Have a card find errors in its memory."""
        with self._changed:
            card = self._card(uuid)
            card.ecc_corrected += corrected
            card.ecc_uncorrected += uncorrected
            for kind, count in ((EventKind.ECC_CORRECTED, corrected), (EventKind.ECC_UNCORRECTED, uncorrected)):
                if count:
                    self._report(CardEvent(kind, uuid))

    def lose(self, uuid: str) -> None:
        """Have a card fall off the bus, with its programs."""
        with self._changed:
            card = self._known(uuid)
            if not card.lost:
                card.end_all(self._clock())
                card.lost = True
                self._report(CardEvent(EventKind.XID, uuid, _XID_LOST))
                self._report(CardEvent(EventKind.LOST, uuid))

    def restore(self, uuid: str) -> None:
        """Have a lost card answer again."""
        with self._changed:
            card = self._known(uuid)
            if card.lost:
                card.lost = False
                self._seen.add(uuid)
                self._report(CardEvent(EventKind.BACK, uuid))

    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of all cards by index, those never seen by a survey too."""
        return tuple(self._cards)

    def _report(self, event: CardEvent) -> None:
        for watch in self._watches:
            watch.pending.append(event)
        self._changed.notify_all()

    def _place(self, uuid: str) -> tuple[SimulatedCard, str | None]:
        """A card by its own UUID, or by that of one of its MIG instances."""
        card = self._instances.get(uuid)
        return (self._card(uuid), None) if card is None else (self._card(card), uuid)

    def _known(self, uuid: str) -> SimulatedCard:
        card = self._cards.get(uuid)
        if card is None:
            raise UnknownCardError(f"no card has the UUID {shown(uuid)}: survey the cards again")
        return card

    def _card(self, uuid: str) -> SimulatedCard:
        card = self._known(uuid)
        if card.lost:
            raise LostCardError(f"card {card.card.index} ({uuid}) is lost from the bus: reset it or reboot the node")
        return card

    def _limitable(self, uuid: str, cgroup: str) -> SimulatedCard:
        card = self._card(uuid)
        if not limits_memory(self._driver, card.card):
            raise NotSupportedError(
                f"the memory of cgroups cannot be limited on card {card.card.index}: that needs driver R615 (CUDA 13.4)"
                " and MIG mode off"
            )
        if not self._cgroup_exists(checked_cgroup(cgroup)):
            raise NoCgroupError(f"there is no cgroup {shown(cgroup)}: give the full path of its directory")
        return card


class _SimulatedEvents:
    def __init__(self, changed: threading.Condition, watches: set[_SimulatedEvents]) -> None:
        self.pending: deque[CardEvent] = deque(maxlen=_MAX_PENDING)
        self._changed = changed
        self._watches = watches
        self._closed = False
        watches.add(self)

    def wait(self, timeout: float) -> CardEvent | None:
        """The next event; None when `timeout` seconds passed without one, or on `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self.pending or self._closed, timeout)
            return self.pending.popleft() if self.pending and not self._closed else None

    def close(self) -> None:
        """End the watch, and with it a wait of another thread."""
        with self._changed:
            self._closed = True
            self._watches.discard(self)
            self._changed.notify_all()
