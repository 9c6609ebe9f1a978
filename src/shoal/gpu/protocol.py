"""What Shoal asks of a GPU driver, in its own words. `nvml` asks the real one, `simulated` makes the answers up.

Calls are synchronous and may block for milliseconds; an async caller runs them in a thread. Memory is in bytes as the
driver counts it. A reading the card does not offer is None; errors are those of `shoal.gpu.errors`. A backend may be
used from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from shoal.gpu.errors import GpuError, NoCgroupError
from shoal.model.contract import nvidia
from shoal.model.errors import shown
from shoal.model.gpu import Link, MigInstance

#: MPS serves this many clients before Volta, and cannot limit them.
OLD_MPS_CLIENTS: Final = 16
VOLTA: Final = (7, 0)
#: The driver's number for no limit at all.
NO_LIMIT: Final = 2**64 - 1
_OLDEST_MPS: Final = (3, 5)
#: CUDA of the first driver, R615, that limits the memory of cgroups.
LIMITING_CUDA: Final = (13, 4)
#: Why clocks are held down, in nvidia-smi's words and the order of the driver's bits. An idle card has a reason too.
CLOCK_EVENT_REASONS: Final = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)


class ComputeMode(StrEnum):
    """Who may compute on a card."""

    DEFAULT = "default"
    PROHIBITED = "prohibited"
    #: One process; with MPS that is the server, and all others are its clients.
    EXCLUSIVE_PROCESS = "exclusive-process"


class EventKind(StrEnum):
    """What a card reports by itself."""

    XID = "xid"
    ECC_CORRECTED = "ecc-corrected"
    ECC_UNCORRECTED = "ecc-uncorrected"
    #: The card does not answer any more.
    LOST = "lost"
    #: A lost card answers again.
    BACK = "back"


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's versions; CUDA's is the newest the driver serves."""

    version: str
    cuda: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class CardLimits:
    """What a card can reach: the fixed numbers of its kind."""

    power_mw: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    #: Degrees at which the card slows down, switches off, and which it should not pass for long.
    slowdown_c: int | None = None
    shutdown_c: int | None = None
    max_c: int | None = None


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What a MIG partition is made of: slices, multiprocessors, and engines that it shares within its slices."""

    multiprocessors: int = 0
    gpu_slices: int = 0
    compute_slices: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink fabric that a card has joined, and the clique of cards in it that reach each other."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class Card:
    """A card, and what about it does not change from second to second."""

    uuid: str
    index: int
    model: str
    #: 0 when the driver does not tell, as on machines whose card has no memory of its own.
    memory_bytes: int
    #: What driver and firmware keep of the memory; None when the driver does not tell it apart.
    reserved_bytes: int | None = None
    #: The N of /dev/nvidiaN. It may differ from the index.
    minor: int | None = None
    #: The node of the machine's memory that the card is nearest to; None when there is no single one.
    numa: int | None = None
    #: Bus address, `0000:3b:00.0`.
    pci: str = ""
    compute_capability: tuple[int, int] | None = None
    cores: int | None = None
    bus_width_bits: int | None = None
    ecc: bool | None = None
    limits: CardLimits = CardLimits()
    links: tuple[Link, ...] = ()
    #: None: the card knows no MIG.
    mig: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    #: Of each instance, in their order.
    mig_attributes: tuple[MigAttributes, ...] = ()
    #: None: on no fabric.
    fabric: Fabric | None = None
    #: The card has been there and does not answer now; all the rest is as last seen.
    lost: bool = False

    @property
    def family(self) -> str:
        """NVIDIA's name of the architecture, as feature discovery writes it."""
        return nvidia.family(self.compute_capability)

    @property
    def max_mps_clients(self) -> int:
        """How many MPS clients the card can serve at most. None in MIG mode: its partitions would have the servers."""
        if self.mig or self.compute_capability is None or self.compute_capability < _OLDEST_MPS:
            return 0
        return nvidia.MAX_MPS_CLIENTS if self.compute_capability >= VOLTA else OLD_MPS_CLIENTS


def limits_memory(driver: Driver, card: Card) -> bool:
    """Whether the driver can limit the memory that cgroups use of the card. The node needs cgroup v2 besides."""
    return driver.cuda is not None and driver.cuda >= LIMITING_CUDA and not card.mig


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A card that the driver counts but that never told its UUID: nothing can be placed on it."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """All cards of a machine at one moment, by index."""

    cards: tuple[Card, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """A program that computes on a card, by its PID as the driver's own PID namespace counts."""

    pid: int
    memory_bytes: int | None = None
    utilisation: int | None = None
    #: It computes through an MPS server.
    mps: bool = False


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of memory that the card replaced by spare ones. A failed or pending change asks for a reset."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class NvlinkCounters:
    """All links of a card together, since the driver was loaded."""

    sent_bytes: int | None = None
    received_bytes: int | None = None
    crc_flit_errors: int | None = None
    crc_data_errors: int | None = None
    replay_errors: int | None = None
    recovery_errors: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """How busy the parts of a card were since the sample before, from 0 to 1 (NVML's GPM: Hopper and newer)."""

    graphics_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    #: Bytes a second.
    pcie_sent: float | None = None
    pcie_received: float | None = None
    nvlink_sent: float | None = None
    nvlink_received: float | None = None


@dataclass(frozen=True, slots=True)
class MigSample:
    """What one MIG instance measures. Utilisation of an instance is not known."""

    uuid: str
    profile: str
    gpu_instance: int
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    processes: tuple[Process, ...] = ()
    processes_known: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """What a card measures now. Utilisation, fan: percent. Counters grow until the driver is loaded anew."""

    memory_total_bytes: int | None = None
    #: Without what driver and firmware keep, where the driver tells it apart.
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilisation: int | None = None
    memory_utilisation: int | None = None
    encoder_utilisation: int | None = None
    decoder_utilisation: int | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    fan: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    #: Why the clocks are held down now, of `CLOCK_EVENT_REASONS`; empty: they are not.
    clock_event_reasons: frozenset[str] | None = None
    #: Nanoseconds the clocks were held down, by cause: power, thermal, sync_boost, board_limit, low_utilisation,
    #: reliability. Causes the card does not tell are left out.
    violation_ns: Mapping[str, int] = field(default_factory=dict)
    #: Bytes a second, seen from the card. Slow to read: `Nvml.pcie_traffic` asks for them.
    pcie_sent: int | None = None
    pcie_received: int | None = None
    pcie_replays: int | None = None
    nvlink: NvlinkCounters | None = None
    #: Errors of the memory since the driver was loaded, and over the card's life.
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected_lifetime: int | None = None
    ecc_uncorrected_lifetime: int | None = None
    #: Pages taken out of use, on cards before Ampere.
    retired_single_bit: int | None = None
    retired_double_bit: int | None = None
    retired_pending: bool | None = None
    remapped: RemappedRows | None = None
    profile: Profile | None = None
    mig: tuple[MigSample, ...] = ()
    processes: tuple[Process, ...] = ()
    #: False: the driver did not list all processes, so that memory in nobody's name may well be somebody's.
    processes_known: bool = True
    #: The driver's calls that failed, each of which cost its own reading. What a card does not offer is no failure.
    failed_calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PcieTraffic:
    """Bytes a second on the bus, seen from the card."""

    sent: int | None = None
    received: int | None = None
    failed_calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CardEvent:
    """Something a card reported. An event that names no card concerns every one."""

    kind: EventKind
    uuid: str | None
    #: The number of an XID error, which NVIDIA's documentation explains.
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The device memory a cgroup may use of one card: a hard wall, and a soft one under which it is safe."""

    #: None: no wall.
    hard_bytes: int | None = None
    soft_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse what no driver can take."""
        hard = NO_LIMIT if self.hard_bytes is None else self.hard_bytes
        if not 0 <= self.soft_bytes <= hard or not (self.hard_bytes is None or hard < NO_LIMIT):
            raise GpuError(f"{self} cannot be: the soft limit is from 0 to the hard one, both in bytes")


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """A cgroup's limit on one card, and what it uses of it now."""

    limit: MemoryLimit
    used_bytes: int


def checked_cgroup(cgroup: str) -> str:
    """The path of a cgroup's directory, if it can be one."""
    if not cgroup.startswith("/") or "\0" in cgroup:
        raise NoCgroupError(f"{shown(cgroup)} is not the full path of a cgroup's directory: begin with /sys/fs/cgroup")
    return cgroup


class CardEvents(Protocol):
    """What cards report, in order, from the moment of `Nvml.watch` on."""

    def wait(self, timeout: float) -> CardEvent | None:
        """The next event; None when `timeout` seconds passed without one, or on `close`. Blocks: call it in a thread.

        One thread at a time.
        """

    def close(self) -> None:
        """End the watch, and with it a wait of another thread."""


class Nvml(Protocol):
    """A machine's GPU driver."""

    def driver(self) -> Driver:
        """The driver's versions."""

    def survey(self) -> Survey:
        """All cards. A card that was there before and is lost now is still listed, as lost."""

    def sample(self, uuid: str) -> Sample:
        """What a card measures now, all but `pcie_traffic`."""

    def pcie_traffic(self, uuid: str) -> PcieTraffic:
        """What passes over a card's bus. The driver measures for about 20 ms in each direction."""

    def watch(self, *, signs_of_life: bool = True) -> CardEvents:
        """The reports of all cards, from now on.

        Without `signs_of_life` cards are not asked whether they still answer while nothing happens: for a caller who
        asks them anyway. Then LOST and BACK may not be told.
        """

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Who may compute on the card."""

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may compute on the card. Needs root; holds until the driver is unloaded."""

    def cgroup_memory(self, uuid: str, cgroup: str) -> CgroupMemory:
        """A cgroup's limit and use of the card's memory. `cgroup` is the full path of its directory."""

    def set_memory_limit(self, uuid: str, cgroup: str, limit: MemoryLimit) -> None:
        """Limit a cgroup's use of the card's memory; `MemoryLimit()` takes every limit away. Needs root.

        A soft limit must be taken away before its cgroup goes, or it stays on the cgroups above.
        """

    def close(self) -> None:
        """Let the driver go."""
