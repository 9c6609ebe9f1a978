"""One simulated card: its fixed part, its processes, its memory and who may use it.

Not safe to use from several threads by itself: `SimulatedNvml` holds the lock.
"""

from __future__ import annotations

import random
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.gpu.describe import CardDescription
from shoal.gpu.errors import GpuError, OutOfMemoryError
from shoal.gpu.models import CardModel
from shoal.gpu.protocol import Card, CgroupMemory, ComputeMode, Limits, MemoryLimit, Process, RemappedRows, Sample
from shoal.gpu.simulated import physics
from shoal.model.errors import shown
from shoal.model.gpu import Link, MigInstance

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Program:
    """A program that computes on a card, as it is reported by whoever simulates it."""

    pid: int
    memory_bytes: int
    utilisation: int
    cgroup: str | None = None
    mps: bool = False


def made_uuid(prefix: str, *seed: object) -> str:
    """A UUID that the same seed always gives."""
    number = random.Random("/".join(map(str, seed))).getrandbits(128)
    return f"{prefix}-{uuids.UUID(int=number, version=4)}"


class SimulatedCard:
    """A card of `SimulatedNvml`, which calls it and keeps the time."""

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
        """The readings at this moment."""
        model = self.description.model
        heat = physics.moved(self._heat, model, now)
        total, used = self.card.memory_bytes, self.used_bytes

        def noisy(value: float, what: str) -> float:
            return physics.noisy(value, seed=self._seed, at=now, what=what)

        return Sample(
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=total - used - (self.card.reserved_bytes or 0),
            utilisation=round(100 * heat.load),
            memory_utilisation=round(60 * heat.load),
            encoder_utilisation=0,
            decoder_utilisation=0,
            temperature_c=round(heat.temperature_c),
            memory_temperature_c=physics.memory_temperature(model, heat.temperature_c),
            power_mw=min(model.power_w * 1000, round(noisy(physics.power_w(model, heat.load), "power") * 1000)),
            energy_mj=round(heat.energy_j * 1000),
            fan=physics.fan_percent(model, heat.temperature_c),
            sm_clock_mhz=physics.clock_mhz(model.sm_clock_mhz, heat.load),
            memory_clock_mhz=physics.clock_mhz(model.memory_clock_mhz, heat.load),
            pcie_sent=1000 * round(noisy(physics.PCIE_SENT * heat.load, "sent") / 1000),
            pcie_received=1000 * round(noisy(physics.PCIE_RECEIVED * heat.load, "received") / 1000),
            pcie_replays=0,
            ecc_corrected=self.ecc_corrected if model.ecc else None,
            ecc_uncorrected=self.ecc_uncorrected if model.ecc else None,
            remapped=RemappedRows(0, 0, False, False) if _remaps(model) else None,
            processes=tuple(
                Process(p.pid, p.memory_bytes, p.utilisation, p.mps)
                for p in sorted(self._programs.values(), key=lambda p: p.pid)
            ),
        )


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
        limits=Limits(
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
    )
