"""Reads cards through NVML: what they are, how they are linked and cut, and what they measure now.

A reading that a card does not offer is None.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError
from shoal.gpu.nvml.library import ask, reading
from shoal.gpu.protocol import Card, CardLimits, PcieTraffic, Process, RemappedRows, Sample
from shoal.model.gpu import Link, MigInstance

#: A bit set of NUMA nodes: 16 × 64 of them.
_NUMA_WORDS: Final = 16
_MIG_IN_NAME: Final = " MIG "
#: What lists of UUIDs can carry, whoever reads them.
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}")
_MEBIBYTE: Final = 2**20
_GIBIBYTE: Final = 2**30
_KILOBYTE: Final = 1000
#: Newest first: a driver has one of them.
_COMPUTE: Final = (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
_MPS: Final = (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2)


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Where a card's active NVLinks end: how many on each other card, by bus address, and how many on a switch."""

    on_cards: Mapping[str, int]
    on_switch: int = 0


def read_card(handle: Any, index: int) -> tuple[Card, LinkEnds]:
    """A card without its links, and the ends of those."""
    what = f"card {index}"
    uuid = ask(what, pynvml.nvmlDeviceGetUUID, handle)
    if not _UUID.fullmatch(uuid):
        raise GpuError(f"{what} gives no usable UUID: reset the card or reboot the node")
    what = f"card {index} ({uuid})"
    total, reserved = _memory(what, handle)
    mig = reading(what, pynvml.nvmlDeviceGetMigMode, handle)
    ecc = reading(what, pynvml.nvmlDeviceGetEccMode, handle)
    card = Card(
        uuid=uuid,
        index=index,
        model=reading(what, pynvml.nvmlDeviceGetName, handle) or "",
        memory_bytes=total,
        reserved_bytes=reserved,
        minor=reading(what, pynvml.nvmlDeviceGetMinorNumber, handle),
        numa=_numa(what, handle),
        pci=_address(reading(what, pynvml.nvmlDeviceGetPciInfo_v3, handle)),
        compute_capability=reading(what, pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        cores=reading(what, pynvml.nvmlDeviceGetNumGpuCores, handle),
        bus_width_bits=reading(what, pynvml.nvmlDeviceGetMemoryBusWidth, handle),
        ecc=None if ecc is None else ecc[0] == pynvml.NVML_FEATURE_ENABLED,
        limits=_limits(what, handle),
        mig=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )
    if card.mig:
        card = replace(card, mig_instances=_instances(what, handle, total))
    return card, _ends(what, handle)


def _memory(what: str, handle: Any) -> tuple[int, int | None]:
    newer = reading(what, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if newer is not None:
        return newer.total, newer.reserved
    older = reading(what, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (0, None) if older is None else (older.total, None)


def _numa(what: str, handle: Any) -> int | None:
    # nvmlDeviceGetNumaNodeId is another thing: the node that a card's own memory makes on machines such as GH200.
    words = reading(what, pynvml.nvmlDeviceGetMemoryAffinity, handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    nodes = [64 * w + bit for w, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _limits(what: str, handle: Any) -> CardLimits:
    def degrees(threshold: int) -> int | None:
        value: int | None = reading(what, pynvml.nvmlDeviceGetTemperatureThreshold, handle, threshold)
        return value

    return CardLimits(
        power_mw=reading(what, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        sm_clock_mhz=reading(what, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=reading(what, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        slowdown_c=degrees(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_c=degrees(pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        max_c=degrees(pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
    )


def _instances(what: str, handle: Any, total_bytes: int) -> tuple[MigInstance, ...]:
    found = []
    for slot in range(reading(what, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = reading(what, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        uuid = None if part is None else reading(what, pynvml.nvmlDeviceGetUUID, part)
        attributes = None if part is None else reading(what, pynvml.nvmlDeviceGetAttributes_v2, part)
        if uuid is None or attributes is None or not _UUID.fullmatch(uuid):
            continue
        name = reading(what, pynvml.nvmlDeviceGetName, part) or ""
        profile = name.partition(_MIG_IN_NAME)[2] or _profile(attributes, total_bytes)
        found.append(MigInstance(uuid, profile, attributes.memorySizeMB))
    return tuple(found)


def _profile(attributes: Any, total_bytes: int) -> str:
    """`2g.10gb`: slices of the compute, and the memory in eighths of the card, as NVIDIA's tools count and round it."""
    slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    eighths = math.ceil(8 * attributes.memorySizeMB * _MEBIBYTE / total_bytes) if total_bytes else 0
    size = round(eighths / 8 * math.ceil(total_bytes / _GIBIBYTE))
    part = "" if compute == slices else f"{compute}c."
    return f"{part}{slices}g.{size}gb"


def _ends(what: str, handle: Any) -> LinkEnds:
    on_cards: Counter[str] = Counter()
    on_switch = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = reading(what, pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        if state != pynvml.NVML_FEATURE_ENABLED:
            continue
        kind = reading(what, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            on_switch += 1
        elif address := _address(reading(what, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)):
            on_cards[address] += 1
    return LinkEnds(on_cards, on_switch)


def _address(pci: Any) -> str:
    return "" if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def linked(cards: list[tuple[Card, LinkEnds]]) -> tuple[Card, ...]:
    """The cards with their links. Cards on a switch reach each other with all the lanes both have to it."""
    result = []
    for card, ends in cards:
        lanes = {
            peer.uuid: ends.on_cards.get(peer.pci, 0) + min(ends.on_switch, far.on_switch)
            for peer, far in cards
            if peer.uuid != card.uuid
        }
        links = tuple(Link(peer, count) for peer, count in lanes.items() if count)
        result.append(replace(card, links=links))
    return tuple(result)


def read_sample(handle: Any, what: str) -> Sample:
    """All readings of a card."""

    def get(call: Any, *arguments: object) -> Any:
        return reading(what, call, handle, *arguments)

    memory = get(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2) or get(pynvml.nvmlDeviceGetMemoryInfo)
    load = get(pynvml.nvmlDeviceGetUtilizationRates)
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
        pcie_replays=get(pynvml.nvmlDeviceGetPcieReplayCounter),
        ecc_corrected=get(ecc, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        ecc_uncorrected=get(ecc, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        remapped=_remapped(get(pynvml.nvmlDeviceGetRemappedRows)),
        processes=_processes(handle, what),
    )


def read_pcie(handle: Any, what: str) -> PcieTraffic:
    """What passes over a card's bus: two readings of about 20 ms each."""
    sent = reading(what, pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = reading(what, pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return PcieTraffic(
        sent=None if sent is None else sent * _KILOBYTE,
        received=None if received is None else received * _KILOBYTE,
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
