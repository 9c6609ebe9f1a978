"""Reads what a card measures now through NVML.

A reading that a card does not offer is None; so is one whose call failed, and then the call's name is told. Two answers
cover the time since the question before: which processes computed, and how busy the parts of the card were (GPM). Where
they begin is remembered from sample to sample; somebody else who samples the same card within a second does not move
it, so that two readers do not take each other's answers.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError
from shoal.gpu.nvml.cards import mig_parts
from shoal.gpu.nvml.library import Readings, ask
from shoal.gpu.protocol import (
    CLOCK_EVENT_REASONS,
    MigSample,
    NvlinkCounters,
    PcieTraffic,
    Process,
    Profile,
    RemappedRows,
    Sample,
)

_KILOBYTE: Final = 1000
_KIBIBYTE: Final = 2**10
_MEBIBYTE: Final = 2**20
_PERCENT: Final = 100
#: Seconds within which a second reader is given what covers the same time.
STEP: Final = 1.0
#: Newest first: a driver has one of them.
_COMPUTE: Final = (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
_MPS: Final = (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2)
_CLOCK_EVENTS: Final = (
    pynvml.nvmlDeviceGetCurrentClocksEventReasons,
    pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
)
_VIOLATIONS: Final = {
    "power": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "thermal": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "sync_boost": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "board_limit": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    "low_utilisation": pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
    "reliability": pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
}
#: The number that asks for all links together.
_ALL_LINKS: Final = 2**32 - 1
_FIELDS: Final = (
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
    pynvml.NVML_FI_DEV_RETIRED_SBE,
    pynvml.NVML_FI_DEV_RETIRED_DBE,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    *_VIOLATIONS.values(),
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
)
_VALUES: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
#: A field that is not known to the driver, or not to the card.
_NO_FIELD: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_DEPRECATED,
}
#: GPM's numbers of `Profile`'s parts of time, and of its traffic.
_SHARES: Final = {
    "graphics_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "fp64_active": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "fp32_active": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16_active": pynvml.NVML_GPM_METRIC_FP16_UTIL,
}
_RATES: Final = {
    "pcie_sent": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "pcie_received": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "nvlink_sent": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    "nvlink_received": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
}
_METRICS: Final = {**_SHARES, **_RATES}


def read_pcie(handle: Any, what: str) -> PcieTraffic:
    """What passes over a card's bus: two readings of about 20 ms each."""
    readings = Readings(what)
    sent = readings.get(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = readings.get(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return PcieTraffic(_times(sent, _KILOBYTE), _times(received, _KILOBYTE), tuple(readings.failed))


class CardMeter:
    """Reads one card, and remembers what its answers begin with."""

    def __init__(self, uuid: str, clock: Callable[[], float]) -> None:
        self._uuid = uuid
        self._loads = _Loads(clock)
        self._gpm = _Gpm(clock)
        self._lock = threading.Lock()

    def read(self, handle: Any) -> Sample:
        """All readings of the card. LostCardError when it does not answer any more."""
        readings = Readings(self._uuid)

        def get(call: Any, *arguments: object) -> Any:
            return readings.get(call, handle, *arguments)

        memory = _Memory.of(readings, handle)
        load = get(pynvml.nvmlDeviceGetUtilizationRates)
        encoder = get(pynvml.nvmlDeviceGetEncoderUtilization)
        decoder = get(pynvml.nvmlDeviceGetDecoderUtilization)
        mode = get(pynvml.nvmlDeviceGetMigMode)
        mig = mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        fields = _fields(readings, handle)
        processes, known = _listed(readings, handle)
        with self._lock:
            # In MIG mode neither is known of the card as a whole.
            loads = None if mig else self._loads.read(readings, handle, busy=bool(load and load.gpu))
            profile = None if mig else self._gpm.read(readings, handle)
        return Sample(
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_free_bytes=memory.free,
            memory_reserved_bytes=memory.reserved,
            utilisation=load and load.gpu,
            memory_utilisation=load and load.memory,
            encoder_utilisation=encoder and encoder[0],
            decoder_utilisation=decoder and decoder[0],
            temperature_c=get(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            memory_temperature_c=fields.get(pynvml.NVML_FI_DEV_MEMORY_TEMP),
            power_mw=get(pynvml.nvmlDeviceGetPowerUsage),
            energy_mj=fields.get(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION),
            fan=get(pynvml.nvmlDeviceGetFanSpeed),
            sm_clock_mhz=get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            clock_event_reasons=_reasons(readings.newest(_CLOCK_EVENTS, handle)),
            violation_ns={cause: fields[number] for cause, number in _VIOLATIONS.items() if number in fields},
            pcie_replays=get(pynvml.nvmlDeviceGetPcieReplayCounter),
            nvlink=_nvlink(fields),
            ecc_corrected=fields.get(pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
            ecc_uncorrected=fields.get(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
            ecc_corrected_lifetime=fields.get(pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
            ecc_uncorrected_lifetime=fields.get(pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
            retired_single_bit=fields.get(pynvml.NVML_FI_DEV_RETIRED_SBE),
            retired_double_bit=fields.get(pynvml.NVML_FI_DEV_RETIRED_DBE),
            retired_pending=_flag(fields.get(pynvml.NVML_FI_DEV_RETIRED_PENDING)),
            remapped=_remapped(get(pynvml.nvmlDeviceGetRemappedRows)),
            profile=profile,
            mig=_mig(readings, handle, memory.total or 0) if mig else (),
            processes=_loaded(processes, loads),
            processes_known=known,
            failed_calls=tuple(readings.failed),
        )

    def forget(self) -> None:
        """Begin anew, as with a card that was away: its counters cannot be compared with those from before."""
        with self._lock:
            self._loads.forget()
            self._gpm.forget()

    def close(self) -> None:
        """Give back what the driver keeps for this card, unless somebody is being kept waiting by it."""
        if self._lock.acquire(timeout=STEP):
            self._gpm.close()
            self._lock.release()


class _Memory(NamedTuple):
    total: int | None = None
    used: int | None = None
    free: int | None = None
    reserved: int | None = None

    @classmethod
    def of(cls, readings: Readings, handle: Any) -> _Memory:
        """Older drivers count what they keep themselves as used. One that could tell and failed is not asked so."""
        before = len(readings.failed)
        newer = readings.get(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        if newer is not None:
            return cls(newer.total, newer.used, newer.free, newer.reserved)
        older = None if len(readings.failed) > before else readings.get(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return cls() if older is None else cls(older.total, older.used, older.free)


def _fields(readings: Readings, handle: Any) -> dict[int, int]:
    """The readings that NVML keeps under numbers, each with a status of its own."""
    found: dict[int, int] = {}
    for value in readings.get(pynvml.nvmlDeviceGetFieldValues, handle, _FIELDS) or ():
        name = _VALUES.get(value.valueType)
        if value.nvmlReturn == pynvml.NVML_SUCCESS and name is not None:
            with contextlib.suppress(ValueError, OverflowError):  # a floating number may be none
                found[value.fieldId] = int(getattr(value.value, name))
        elif value.nvmlReturn not in _NO_FIELD:
            readings.failed.append(pynvml.nvmlDeviceGetFieldValues.__name__)
    return found


def _reasons(bits: int | None) -> frozenset[str] | None:
    if bits is None:
        return None
    return frozenset(name for place, name in enumerate(CLOCK_EVENT_REASONS) if bits >> place & 1)


def _nvlink(fields: Mapping[int, int]) -> NvlinkCounters | None:
    counters = NvlinkCounters(
        sent_bytes=_times(fields.get(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX), _KIBIBYTE),
        received_bytes=_times(fields.get(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX), _KIBIBYTE),
        crc_flit_errors=fields.get(pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
        crc_data_errors=fields.get(pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
        replay_errors=fields.get(pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
        recovery_errors=fields.get(pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
    )
    return None if counters == NvlinkCounters() else counters


def _remapped(rows: Any) -> RemappedRows | None:
    if rows is None:
        return None
    corrected, uncorrected, pending, failed = rows
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))


def _times(number: int | None, factor: int) -> int | None:
    return None if number is None else number * factor


def _flag(number: int | None) -> bool | None:
    return None if number is None else bool(number)


# MIG


def _mig(readings: Readings, handle: Any, total_bytes: int) -> tuple[MigSample, ...]:
    found = []
    for part, instance in mig_parts(readings, handle, total_bytes):
        number = readings.get(pynvml.nvmlDeviceGetGpuInstanceId, part)
        if number is None:
            continue
        memory = _Memory.of(readings, part)
        processes, known = _listed(readings, part)
        found.append(
            MigSample(
                uuid=instance.uuid,
                profile=instance.profile,
                gpu_instance=number,
                memory_total_bytes=memory.total,
                memory_used_bytes=memory.used,
                memory_free_bytes=memory.free,
                memory_reserved_bytes=memory.reserved,
                processes=processes,
                processes_known=known,
            )
        )
    return tuple(found)


# Processes


def _listed(readings: Readings, handle: Any) -> tuple[tuple[Process, ...], bool]:
    """The processes by PID, and whether these are all. A process the driver lists both ways is a client of MPS."""
    before = len(readings.failed)
    compute = readings.newest(_COMPUTE, handle)
    clients = readings.newest(_MPS, handle)
    found = {row.pid: Process(row.pid, row.usedGpuMemory) for row in compute or ()}
    found |= {row.pid: Process(row.pid, row.usedGpuMemory, mps=True) for row in clients or ()}
    known = compute is not None and len(readings.failed) == before
    return tuple(found[pid] for pid in sorted(found)), known


def _loaded(processes: tuple[Process, ...], loads: Mapping[int, int | None] | None) -> tuple[Process, ...]:
    """The processes with their loads. The driver lists those that computed: one it leaves out did not.

    A client of MPS computes in the server's name, so that nothing is known of one that is left out.
    """
    if loads is None:
        return processes
    return tuple(
        Process(each.pid, each.memory_bytes, loads.get(each.pid, None if each.mps else 0), each.mps)
        for each in processes
    )


class LoadRow(NamedTuple):
    """A process that computed before a moment (in microseconds of the driver's clock), with its percentage."""

    pid: int
    time: int
    load: int


def newest_loads(rows: Iterable[LoadRow], since: int) -> dict[int, int | None]:
    """The last load of each process after a moment. More than the whole card is no reading."""
    newest: dict[int, LoadRow] = {}
    for row in rows:
        if row.time > since and (row.pid not in newest or row.time >= newest[row.pid].time):
            newest[row.pid] = row
    return {pid: row.load if row.load <= _PERCENT else None for pid, row in newest.items()}


class _Loads:
    """What processes computed since the sample before, by the driver's own clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        #: The driver's time from which on is asked, and the newest it has told. None: not known yet.
        self._since: int | None = None
        self._newest: int | None = None
        self._moved = -math.inf

    def read(self, readings: Readings, handle: Any, *, busy: bool) -> dict[int, int | None] | None:
        """The load of each process that computed; None when it is not known, as on the first call.

        Asked since ever, the driver tells each process's last load whenever that was. So the first answer only tells
        what time it is.
        """
        now = self._clock()
        if not 0 <= now - self._moved < STEP:
            self._since, self._moved = self._newest, now
        rows = self._rows(readings, handle, self._since or 0)
        if rows is None:
            return None
        if self._since is None:
            self._newest = max((row.time for row in rows), default=0)
            return None
        loads = newest_loads(rows, self._since)
        if busy and not loads and self._since and self._went_back(readings, handle):
            return None
        self._newest = max((row.time for row in rows), default=0)
        self._newest = max(self._newest, self._since)
        return loads

    def _went_back(self, readings: Readings, handle: Any) -> bool:
        """Whether the driver's clock was set back, so that what it tells is older than what is asked for."""
        rows = self._rows(readings, handle, 0)
        newest = max((row.time for row in rows or ()), default=None)
        if newest is None or self._since is None or newest >= self._since:
            return False
        self._since = self._newest = newest
        return True

    def _rows(self, readings: Readings, handle: Any, since: int) -> list[LoadRow] | None:
        # Nothing to tell is NOT_FOUND, or by nvidia-ml-py an error of the number of success.
        rows = readings.get(
            pynvml.nvmlDeviceGetProcessUtilization,
            handle,
            since,
            nothing={pynvml.NVML_ERROR_NOT_FOUND: [], pynvml.NVML_SUCCESS: []},
        )
        return None if rows is None else [LoadRow(row.pid, row.timeStamp, row.smUtil) for row in rows]


# GPM


class _Gpm:
    """How busy the parts of a card were between two samples of its counters (Hopper and newer)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offered: bool | None = None
        self._samples: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Begin anew: the next sample of the counters is the first one."""
        self._taken = -math.inf
        self._begun = False
        self._last: Profile | None = None

    def close(self) -> None:
        for sample in self._samples:
            with contextlib.suppress(GpuError):
                ask("the driver", pynvml.nvmlGpmSampleFree, sample)
        self._samples = []
        self.forget()

    def read(self, readings: Readings, handle: Any) -> Profile | None:
        """Since the call before; None on the first one, and where the card has no such counters."""
        if not self._is_offered(readings, handle):
            return None
        now = self._clock()
        if 0 <= now - self._taken < STEP:
            return self._last
        while len(self._samples) < 2:
            sample = readings.get(pynvml.nvmlGpmSampleAlloc)
            if sample is None:
                return None
            self._samples.append(sample)
        before, after = self._samples
        if readings.get(pynvml.nvmlGpmSampleGet, handle, after) is None:
            self.forget()
            return None
        self._samples = [after, before]
        self._taken = now
        self._last = _profile(readings, before, after) if self._begun else None
        self._begun = True
        return self._last

    def _is_offered(self, readings: Readings, handle: Any) -> bool:
        if self._offered is None:
            before = len(readings.failed)
            support = readings.get(pynvml.nvmlGpmQueryDeviceSupport, handle)
            if len(readings.failed) == before:
                self._offered = support is not None and bool(support.isSupportedDevice)
        return bool(self._offered)


def _profile(readings: Readings, before: Any, after: Any) -> Profile | None:
    question = pynvml.c_nvmlGpmMetricsGet_t(
        version=pynvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(_METRICS), sample1=before, sample2=after
    )
    for place, number in enumerate(_METRICS.values()):
        question.metrics[place].metricId = number
    if readings.get(pynvml.nvmlGpmMetricsGet, question) is None:
        return None
    found: dict[str, float | None] = {}
    for place, name in enumerate(_METRICS):
        metric = question.metrics[place]
        value = float(metric.value) if metric.nvmlReturn == pynvml.NVML_SUCCESS else math.nan
        if name in _SHARES:
            found[name] = value / _PERCENT if 0 <= value <= _PERCENT else None
        else:
            found[name] = value * _MEBIBYTE if 0 <= value < math.inf else None
    return Profile(**found)
