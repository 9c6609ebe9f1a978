"""DCGM's fields: how each is read from a snapshot. Pure; what a snapshot does not know has no reading.

Names, types and units are those of dcgm-exporter 4.5.3-4.8.2; the words are Shoal's. A field that a card tells per MIG
instance (memory) is not told for that card as a whole, so that a sum counts it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.gpu.protocol import Card, Driver, MigSample, NvlinkCounters, Profile, RemappedRows, Sample
from shoal.metrics.snapshot import CardSnapshot

#: The window of DCGM_EXP_*, as the collector keeps it.
WINDOW_MS: Final = 300_000
_MEBIBYTE: Final = 2**20
_KIBIBYTE: Final = 2**10
_MILLI: Final = 1000
_NO_XID: Final = "Unknown Error"

Number = int | float


class MetricKind(StrEnum):
    """The types a list of fields may name. `label`: a label of all other fields."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    LABEL = "label"


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of a card, or of one of its MIG instances."""

    value: Number
    instance: MigSample | None = None
    #: Labels that stand with the label fields, and labels that stand with those of the pod.
    labels: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DcgmField:
    """A field with its type and words, and how it is read."""

    name: str
    kind: MetricKind
    what: str
    read: Callable[[CardSnapshot], Iterator[Reading]]
    #: Written with six decimals, as DCGM's floating-point fields are.
    decimals: bool = False
    #: What a container uses of it, where a copy per container would repeat the card's number otherwise.
    per_container: str = ""
    #: Served without a list of one's own.
    served: bool = True


@dataclass(frozen=True, slots=True)
class LabelField:
    """A field that is a label of all others."""

    name: str
    what: str
    read: Callable[[Card, Driver | None], str]
    served: bool = False


def _one(value: Number | None) -> Iterator[Reading]:
    if value is not None:
        yield Reading(value)


def _of_sample(read: Callable[[Sample], Number | None]) -> Callable[[CardSnapshot], Iterator[Reading]]:
    return lambda card: _one(None if card.sample is None else read(card.sample))


def _of_profile(read: Callable[[Profile], float | None]) -> Callable[[CardSnapshot], Iterator[Reading]]:
    return _of_sample(lambda sample: None if sample.profile is None else read(sample.profile))


def _of_rows(read: Callable[[RemappedRows], int]) -> Callable[[CardSnapshot], Iterator[Reading]]:
    return _of_sample(lambda sample: None if sample.remapped is None else read(sample.remapped))


def _of_links(read: Callable[[NvlinkCounters], int | None]) -> Callable[[CardSnapshot], Iterator[Reading]]:
    return _of_sample(lambda sample: None if sample.nvlink is None else read(sample.nvlink))


def _violation(cause: str) -> Callable[[CardSnapshot], Iterator[Reading]]:
    return _of_sample(lambda sample: sample.violation_ns.get(cause))


def _memory(
    of_card: Callable[[CardSnapshot, Sample], int | None], of_instance: Callable[[MigSample], int | None]
) -> Callable[[CardSnapshot], Iterator[Reading]]:
    """MiB of the card, or of each of its MIG instances when it has any."""

    def read(card: CardSnapshot) -> Iterator[Reading]:
        if card.sample is None:
            return
        for instance in card.sample.mig:
            if (size := of_instance(instance)) is not None:
                yield Reading(size // _MEBIBYTE, instance)
        if not card.sample.mig and (size := of_card(card, card.sample)) is not None:
            yield Reading(size // _MEBIBYTE)

    return read


def _used(card: CardSnapshot, sample: Sample) -> int | None:
    """What containers and nobody use together, so that the parts add up to it."""
    return sample.memory_used_bytes if card.used_bytes is None else card.used_bytes


def _used_part(card: CardSnapshot) -> Iterator[Reading]:
    """Used of what can be used; DCGM leaves what is reserved out."""
    sample = card.sample
    if sample is None or sample.mig or sample.memory_free_bytes is None or (used := _used(card, sample)) is None:
        return
    if used + sample.memory_free_bytes:
        yield Reading(used / (used + sample.memory_free_bytes))


def _per_thousand(value: int | None) -> float | None:
    return None if value is None else value / _MILLI


def _both(links: NvlinkCounters) -> int | None:
    if links.sent_bytes is None or links.received_bytes is None:
        return None
    return (links.sent_bytes + links.received_bytes) // _KIBIBYTE


def _pcie_sent(sample: Sample) -> int | None:
    measured = None if sample.profile is None else sample.profile.pcie_sent
    return sample.pcie_sent if measured is None else round(measured)


def _pcie_received(sample: Sample) -> int | None:
    measured = None if sample.profile is None else sample.profile.pcie_received
    return sample.pcie_received if measured is None else round(measured)


#: What an XID error is called, where NVIDIA's list has a name that matters on servers.
XID_NAMES: Final[Mapping[int, str]] = {
    0: "No Error",
    8: "GPU stopped processing",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    43: "GPU stopped processing",
    44: "Graphics Engine fault during context switch",
    45: "Preemptive cleanup, due to previous errors",
    46: "GPU stopped processing",
    48: "Double Bit ECC Error",
    54: "Auxiliary power is not connected to the GPU board",
    56: "Display Engine error",
    57: "Error programming video memory interface",
    58: "Unstable video memory interface detected",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    68: "NVDEC0 Exception",
    69: "Graphics Engine class error",
    74: "NVLINK Error",
    78: "vGPU Start Error",
    79: "GPU has fallen off the bus",
    80: "Corrupted data sent to GPU",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    110: "Security Fault Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    121: "C2C Link Error",
    125: "Inforom FS Failure",
    136: "ALI Training Fail",
    137: "NVLink Privilege Error",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Failure",
    154: "GPU Recovery Action Changed",
    158: "GPU Fatal Timeout",
    167: "PCIE Fatal Timeout",
    171: "Uncorrectable DRAM Error",
    172: "Uncorrectable SRAM Error",
}


def _last_xid(card: CardSnapshot) -> Iterator[Reading]:
    if card.last_xid is not None:
        name = XID_NAMES.get(card.last_xid, _NO_XID)
        yield Reading(card.last_xid, attributes=(("err_code", str(card.last_xid)), ("err_msg", name)))


def _window(counts: Mapping[str, int], label: str) -> Iterator[Reading]:
    """Counts of a window, by label; 0 without the label when there is none, as dcgm-exporter writes it."""
    window = ("window_size_in_ms", str(WINDOW_MS))
    for name, count in sorted(counts.items()):
        yield Reading(count, labels=tuple(sorted(((label, name), window))))
    if not counts:
        yield Reading(0, labels=(window,))


def _recent_xids(card: CardSnapshot) -> Iterator[Reading]:
    return _window({str(xid): count for xid, count in card.recent_xids.items()}, "xid")


@dataclass(frozen=True, slots=True)
class _ClockEvent:
    name: str
    bit: int


#: NVML's reasons why clocks are held down, with DCGM's names and bits.
_CLOCK_EVENTS: Final[Mapping[str, _ClockEvent]] = {
    "gpu_idle": _ClockEvent("gpu_idle", 0x1),
    "applications_clocks_setting": _ClockEvent("clocks_setting", 0x2),
    "sw_power_cap": _ClockEvent("power_cap", 0x4),
    "hw_slowdown": _ClockEvent("hw_slowdown", 0x8),
    "sync_boost": _ClockEvent("sync_boost", 0x10),
    "sw_thermal_slowdown": _ClockEvent("sw_thermal", 0x20),
    "hw_thermal_slowdown": _ClockEvent("hw_thermal", 0x40),
    "hw_power_brake_slowdown": _ClockEvent("hw_power_brake", 0x80),
    "display_clock_setting": _ClockEvent("display_clocks", 0x100),
}


def _recent_clock_events(card: CardSnapshot) -> Iterator[Reading]:
    if card.sample is None or card.sample.clock_event_reasons is None:
        return iter(())
    named = {
        _CLOCK_EVENTS[reason].name: count
        for reason, count in card.recent_clock_events.items()
        if reason in _CLOCK_EVENTS
    }
    return _window(named, "clock_event")


def _clock_event_bits(sample: Sample) -> int | None:
    if sample.clock_event_reasons is None:
        return None
    return sum(_CLOCK_EVENTS[reason].bit for reason in sample.clock_event_reasons if reason in _CLOCK_EVENTS)


_G: Final = MetricKind.GAUGE
_C: Final = MetricKind.COUNTER

#: In the order in which they are written without a list of one's own.
FIELDS: Final[tuple[DcgmField, ...]] = (
    DcgmField(
        "DCGM_FI_DEV_SM_CLOCK", _G, "Clock of the multiprocessors, in MHz.", _of_sample(lambda s: s.sm_clock_mhz)
    ),
    DcgmField("DCGM_FI_DEV_MEM_CLOCK", _G, "Clock of the memory, in MHz.", _of_sample(lambda s: s.memory_clock_mhz)),
    DcgmField(
        "DCGM_FI_DEV_MEMORY_TEMP",
        _G,
        "Temperature of the memory, in degrees Celsius.",
        _of_sample(lambda s: s.memory_temperature_c),
    ),
    DcgmField(
        "DCGM_FI_DEV_GPU_TEMP",
        _G,
        "Temperature of the card, in degrees Celsius.",
        _of_sample(lambda s: s.temperature_c),
    ),
    DcgmField(
        "DCGM_FI_DEV_POWER_USAGE",
        _G,
        "Power the card draws, in watts.",
        _of_sample(lambda s: _per_thousand(s.power_mw)),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        _C,
        "Energy the card has used since the driver was loaded, in millijoules.",
        _of_sample(lambda s: s.energy_mj),
    ),
    DcgmField(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        _C,
        "Packets that were sent over PCIe once more.",
        _of_sample(lambda s: s.pcie_replays),
    ),
    DcgmField(
        "DCGM_FI_DEV_GPU_UTIL",
        _G,
        "Part of the time in which something ran on the card, in percent.",
        _of_sample(lambda s: s.utilisation),
        per_container="utilisation",
    ),
    DcgmField(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        _G,
        "Part of the time in which memory was read or written, in percent.",
        _of_sample(lambda s: s.memory_utilisation),
    ),
    DcgmField(
        "DCGM_FI_DEV_ENC_UTIL",
        _G,
        "Load of the video encoder, in percent.",
        _of_sample(lambda s: s.encoder_utilisation),
    ),
    DcgmField(
        "DCGM_FI_DEV_DEC_UTIL",
        _G,
        "Load of the video decoder, in percent.",
        _of_sample(lambda s: s.decoder_utilisation),
    ),
    DcgmField("DCGM_FI_DEV_XID_ERRORS", _G, "Number of the last XID error.", _last_xid),
    DcgmField(
        "DCGM_FI_DEV_POWER_VIOLATION", _C, "Time the clocks were held down for power, in ns.", _violation("power")
    ),
    DcgmField(
        "DCGM_FI_DEV_THERMAL_VIOLATION", _C, "Time the clocks were held down for heat, in ns.", _violation("thermal")
    ),
    DcgmField(
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        _C,
        "Time the clocks were held down to stay in step with other cards, in ns.",
        _violation("sync_boost"),
    ),
    DcgmField(
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        _C,
        "Time the clocks were held down for a limit of the board, in ns.",
        _violation("board_limit"),
    ),
    DcgmField(
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        _C,
        "Time the clocks were held down for want of load, in ns.",
        _violation("low_utilisation"),
    ),
    DcgmField(
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        _C,
        "Time the clocks were held down for reliability, in ns.",
        _violation("reliability"),
    ),
    DcgmField(
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        _C,
        "Samples of the window in which the clocks were held down, by reason.",
        _recent_clock_events,
    ),
    DcgmField("DCGM_EXP_XID_ERRORS_COUNT", _C, "XID errors of the window, by number.", _recent_xids),
    DcgmField(
        "DCGM_FI_DEV_FB_FREE",
        _G,
        "Memory that is free, in MiB.",
        _memory(lambda _, s: s.memory_free_bytes, lambda m: m.memory_free_bytes),
    ),
    DcgmField(
        "DCGM_FI_DEV_FB_USED",
        _G,
        "Memory that programs use, in MiB.",
        _memory(_used, lambda m: m.memory_used_bytes),
        per_container="memory",
    ),
    DcgmField(
        "DCGM_FI_DEV_FB_RESERVED",
        _G,
        "Memory that driver and firmware keep, in MiB.",
        _memory(lambda _, s: s.memory_reserved_bytes, lambda m: m.memory_reserved_bytes),
    ),
    DcgmField(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        _C,
        "Corrected memory errors since the driver was loaded.",
        _of_sample(lambda s: s.ecc_corrected),
    ),
    DcgmField(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        _C,
        "Uncorrectable memory errors since the driver was loaded.",
        _of_sample(lambda s: s.ecc_uncorrected),
    ),
    DcgmField(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        _C,
        "Corrected memory errors in the card's life.",
        _of_sample(lambda s: s.ecc_corrected_lifetime),
    ),
    DcgmField(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        _C,
        "Uncorrectable memory errors in the card's life.",
        _of_sample(lambda s: s.ecc_uncorrected_lifetime),
    ),
    DcgmField(
        "DCGM_FI_DEV_RETIRED_SBE",
        _C,
        "Pages taken out of use for corrected errors.",
        _of_sample(lambda s: s.retired_single_bit),
    ),
    DcgmField(
        "DCGM_FI_DEV_RETIRED_DBE",
        _C,
        "Pages taken out of use for uncorrectable errors.",
        _of_sample(lambda s: s.retired_double_bit),
    ),
    DcgmField(
        "DCGM_FI_DEV_RETIRED_PENDING",
        _C,
        "1 while pages wait for a reset to be taken out of use.",
        _of_sample(lambda s: None if s.retired_pending is None else int(s.retired_pending)),
    ),
    DcgmField(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        _C,
        "Checksum errors of NVLink's flow control.",
        _of_links(lambda n: n.crc_flit_errors),
    ),
    DcgmField(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        _C,
        "Checksum errors of NVLink's data.",
        _of_links(lambda n: n.crc_data_errors),
    ),
    DcgmField(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        _C,
        "Packets that were sent over NVLink once more.",
        _of_links(lambda n: n.replay_errors),
    ),
    DcgmField(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        _C,
        "Recoveries of NVLinks after errors.",
        _of_links(lambda n: n.recovery_errors),
    ),
    DcgmField(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", _C, "Data over all NVLinks in both directions, in KiB.", _of_links(_both)
    ),
    DcgmField(
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
        _G,
        "Licence of a virtual GPU; told by guests of a hypervisor only.",
        lambda _: iter(()),
    ),
    DcgmField(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        _C,
        "Rows of memory replaced for uncorrectable errors.",
        _of_rows(lambda r: r.uncorrected),
    ),
    DcgmField(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        _C,
        "Rows of memory replaced for corrected errors.",
        _of_rows(lambda r: r.corrected),
    ),
    DcgmField(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        _G,
        "1 when a row of memory could not be replaced.",
        _of_rows(lambda r: int(r.failed)),
    ),
    DcgmField(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        _G,
        "Part of the time in which the graphics engine was busy, 0 to 1.",
        _of_profile(lambda p: p.graphics_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_SM_ACTIVE",
        _G,
        "Part of the time in which multiprocessors had work, 0 to 1.",
        _of_profile(lambda p: p.sm_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_SM_OCCUPANCY",
        _G,
        "How full the multiprocessors were, 0 to 1.",
        _of_profile(lambda p: p.sm_occupancy),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        _G,
        "Part of the time in which tensor cores were busy, 0 to 1.",
        _of_profile(lambda p: p.tensor_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        _G,
        "Part of the time in which memory moved data, 0 to 1.",
        _of_profile(lambda p: p.dram_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        _G,
        "Part of the time in which 64-bit units were busy, 0 to 1.",
        _of_profile(lambda p: p.fp64_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        _G,
        "Part of the time in which 32-bit units were busy, 0 to 1.",
        _of_profile(lambda p: p.fp32_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        _G,
        "Part of the time in which 16-bit units were busy, 0 to 1.",
        _of_profile(lambda p: p.fp16_active),
        decimals=True,
    ),
    DcgmField(
        "DCGM_FI_PROF_PCIE_TX_BYTES", _G, "Data the card sends over PCIe, in bytes a second.", _of_sample(_pcie_sent)
    ),
    DcgmField(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        _G,
        "Data the card receives over PCIe, in bytes a second.",
        _of_sample(_pcie_received),
    ),
    # What a list may name besides; dcgm-exporter's own list does not.
    DcgmField(
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        _G,
        "Data the card sends over NVLink, in bytes a second.",
        _of_sample(
            lambda s: None if s.profile is None or s.profile.nvlink_sent is None else round(s.profile.nvlink_sent)
        ),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        _G,
        "Data the card receives over NVLink, in bytes a second.",
        _of_sample(
            lambda s: (
                None if s.profile is None or s.profile.nvlink_received is None else round(s.profile.nvlink_received)
            )
        ),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_FB_TOTAL",
        _G,
        "Memory of the card, in MiB.",
        _memory(lambda _, s: s.memory_total_bytes, lambda m: m.memory_total_bytes),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_FB_USED_PERCENT",
        _G,
        "Part of the memory that is used, 0 to 1, without what is reserved.",
        _used_part,
        decimals=True,
        served=False,
    ),
    DcgmField("DCGM_FI_DEV_FAN_SPEED", _G, "Speed of the fan, in percent.", _of_sample(lambda s: s.fan), served=False),
    DcgmField(
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        _G,
        "1 while a row of memory waits for a reset to be replaced.",
        _of_rows(lambda r: int(r.pending)),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        _G,
        "Why the clocks are held down now, as DCGM's bits.",
        _of_sample(_clock_event_bits),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        _G,
        "Why the clocks are held down now, as DCGM's bits (the older name).",
        _of_sample(_clock_event_bits),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        _G,
        "Power the card may draw, in watts.",
        lambda c: _one(_per_thousand(c.card.limits.power_mw)),
        decimals=True,
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_SLOWDOWN_TEMP",
        _G,
        "Temperature at which the card slows down, in degrees Celsius.",
        lambda c: _one(c.card.limits.slowdown_c),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_SHUTDOWN_TEMP",
        _G,
        "Temperature at which the card switches off, in degrees Celsius.",
        lambda c: _one(c.card.limits.shutdown_c),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_MAX_SM_CLOCK",
        _G,
        "Highest clock of the multiprocessors, in MHz.",
        lambda c: _one(c.card.limits.sm_clock_mhz),
        served=False,
    ),
    DcgmField(
        "DCGM_FI_DEV_MAX_MEM_CLOCK",
        _G,
        "Highest clock of the memory, in MHz.",
        lambda c: _one(c.card.limits.memory_clock_mhz),
        served=False,
    ),
)


def _cuda(driver: Driver | None) -> str:
    """As DCGM counts: 12.4 is 12040."""
    return "" if driver is None or driver.cuda is None else str(driver.cuda[0] * 1000 + driver.cuda[1] * 10)


LABEL_FIELDS: Final[tuple[LabelField, ...]] = (
    LabelField(
        "DCGM_FI_DRIVER_VERSION",
        "Version of the driver.",
        lambda _, driver: "" if driver is None else driver.version,
        served=True,
    ),
    LabelField(
        "DCGM_FI_CUDA_DRIVER_VERSION", "Version of CUDA that the driver serves.", lambda _, driver: _cuda(driver)
    ),
    LabelField("DCGM_FI_DEV_NAME", "Model of the card.", lambda card, _: card.model),
    LabelField("DCGM_FI_DEV_UUID", "UUID of the card.", lambda card, _: card.uuid),
    LabelField("DCGM_FI_DEV_PCI_BUSID", "Bus address of the card.", lambda card, _: card.pci),
)
BY_NAME: Final[Mapping[str, DcgmField]] = {field.name: field for field in FIELDS}
LABELS_BY_NAME: Final[Mapping[str, LabelField]] = {field.name: field for field in LABEL_FIELDS}
