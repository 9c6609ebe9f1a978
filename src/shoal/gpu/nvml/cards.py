"""Reads cards through NVML: what they are, how they are linked and cut.

A reading that a card does not offer is None.
"""

from __future__ import annotations

import ctypes
import math
import re
import uuid as uuids
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from shoal.gpu.errors import GpuError
from shoal.gpu.nvml.library import Readings, ask, reading
from shoal.gpu.protocol import Card, CardLimits, Fabric, MigAttributes
from shoal.model.gpu import Link, MigInstance

#: A bit set of NUMA nodes: 16 × 64 of them.
_NUMA_WORDS: Final = 16
_MIG_IN_NAME: Final = " MIG "
#: What lists of UUIDs can carry, whoever reads them.
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}")
_MEBIBYTE: Final = 2**20
_GIBIBYTE: Final = 2**30


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
        fabric=_fabric(what, handle),
    )
    if card.mig:
        parts = list(mig_parts(Readings(what), handle, total))
        card = replace(
            card,
            mig_instances=tuple(instance for _, instance in parts),
            mig_attributes=tuple(_attributes(what, part) for part, _ in parts),
        )
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


def mig_parts(readings: Readings, handle: Any, total_bytes: int) -> Iterator[tuple[Any, MigInstance]]:
    """The MIG instances of a card, each with its handle. A place without one is no failure."""
    for slot in range(readings.get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = readings.get(
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot, nothing={pynvml.NVML_ERROR_NOT_FOUND: None}
        )
        uuid = None if part is None else readings.get(pynvml.nvmlDeviceGetUUID, part)
        attributes = None if part is None else readings.get(pynvml.nvmlDeviceGetAttributes_v2, part)
        if uuid is None or attributes is None or not _UUID.fullmatch(uuid):
            continue
        name = readings.get(pynvml.nvmlDeviceGetName, part) or ""
        profile = name.partition(_MIG_IN_NAME)[2] or _profile(attributes, total_bytes)
        yield part, MigInstance(uuid, profile, attributes.memorySizeMB)


def _profile(attributes: Any, total_bytes: int) -> str:
    """`2g.10gb`: slices of the compute, and the memory in eighths of the card, as NVIDIA's tools count and round it."""
    slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    eighths = math.ceil(8 * attributes.memorySizeMB * _MEBIBYTE / total_bytes) if total_bytes else 0
    size = round(eighths / 8 * math.ceil(total_bytes / _GIBIBYTE))
    part = "" if compute == slices else f"{compute}c."
    return f"{part}{slices}g.{size}gb"


def _attributes(what: str, part: Any) -> MigAttributes:
    found = reading(what, pynvml.nvmlDeviceGetAttributes_v2, part)
    if found is None:
        return MigAttributes()
    return MigAttributes(
        multiprocessors=found.multiprocessorCount,
        gpu_slices=found.gpuInstanceSliceCount,
        compute_slices=found.computeInstanceSliceCount,
        copy_engines=found.sharedCopyEngineCount,
        decoders=found.sharedDecoderCount,
        encoders=found.sharedEncoderCount,
        jpeg=found.sharedJpegCount,
        ofa=found.sharedOfaCount,
    )


def _fabric(what: str, handle: Any) -> Fabric | None:
    """The fabric of a card that has joined one: until then, and when that failed, it has none."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if reading(what, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        if reading(what, pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info)) is None:
            return None
    cluster = bytes(info.clusterUuid)
    joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS
    return Fabric(str(uuids.UUID(bytes=cluster)), info.cliqueId) if joined and any(cluster) else None


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
