"""Reads what a card measures now. A reading it does not offer is None.

The two PCIe readings take the driver about 20 ms each, which is most of a sample's time.
"""

from __future__ import annotations

from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.nvml.library import reading
from shoal.gpu.protocol import Process, RemappedRows, Sample

_KILOBYTE: Final = 1000
#: Newest first: a driver has one of them.
_COMPUTE: Final = (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
_MPS: Final = (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2)


def read_sample(handle: Any, what: str) -> Sample:
    """All readings of a card."""

    def get(call: Any, *arguments: object) -> Any:
        return reading(what, call, handle, *arguments)

    memory = get(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2) or get(pynvml.nvmlDeviceGetMemoryInfo)
    load = get(pynvml.nvmlDeviceGetUtilizationRates)
    sent = get(pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = get(pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    encoder = get(pynvml.nvmlDeviceGetEncoderUtilization)
    decoder = get(pynvml.nvmlDeviceGetDecoderUtilization)
    ecc = pynvml.nvmlDeviceGetTotalEccErrors
    return Sample(
        memory_total_bytes=memory and memory.total,
        memory_used_bytes=memory and memory.used,
        memory_free_bytes=memory and memory.free,
        utilisation=load and load.gpu,
        memory_utilisation=load and load.memory,
        encoder_utilisation=encoder and encoder[0],
        decoder_utilisation=decoder and decoder[0],
        temperature_c=get(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        memory_temperature_c=_field(get(pynvml.nvmlDeviceGetFieldValues, [pynvml.NVML_FI_DEV_MEMORY_TEMP])),
        power_mw=get(pynvml.nvmlDeviceGetPowerUsage),
        energy_mj=get(pynvml.nvmlDeviceGetTotalEnergyConsumption),
        fan=get(pynvml.nvmlDeviceGetFanSpeed),
        sm_clock_mhz=get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=get(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        pcie_sent=None if sent is None else sent * _KILOBYTE,
        pcie_received=None if received is None else received * _KILOBYTE,
        pcie_replays=get(pynvml.nvmlDeviceGetPcieReplayCounter),
        ecc_corrected=get(ecc, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_uncorrected=get(ecc, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        remapped=_remapped(get(pynvml.nvmlDeviceGetRemappedRows)),
        processes=_processes(handle, what),
    )


def _field(values: Any) -> int | None:
    """A reading that NVML keeps among its numbered fields, each with a status of its own."""
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _remapped(rows: Any) -> RemappedRows | None:
    if rows is None:
        return None
    corrected, uncorrected, pending, failed = rows
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))


def _processes(handle: Any, what: str) -> tuple[Process, ...]:
    """By PID. A process the driver lists both ways is a client of MPS."""
    loads = _loads(handle, what)
    found: dict[int, Process] = {}
    for calls, mps in ((_COMPUTE, False), (_MPS, True)):
        listed = next((rows for call in calls if (rows := reading(what, call, handle)) is not None), ())
        for row in listed:
            found[row.pid] = Process(row.pid, row.usedGpuMemory, loads.get(row.pid), mps)
    return tuple(found[pid] for pid in sorted(found))


def _loads(handle: Any, what: str) -> dict[int, int]:
    """The newest utilisation the driver has kept of each process."""
    newest: dict[int, tuple[int, int]] = {}
    for row in reading(what, pynvml.nvmlDeviceGetProcessUtilization, handle, 0) or ():
        newest[row.pid] = max(newest.get(row.pid, (0, 0)), (row.timeStamp, row.smUtil))
    return {pid: load for pid, (_, load) in newest.items()}
