"""Snapshots as a collector makes them, every reading told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from shoal.gpu.protocol import Card, CardLimits, Driver, NvlinkCounters, Profile, RemappedRows, Sample
from shoal.metrics.attribution import UseSource
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, Snapshot

GIB = 2**30
MIB = 2**20


def sample_of(index: int, used: int) -> Sample:
    """All that a card can tell, a bit different on each card."""
    return Sample(
        memory_total_bytes=80 * GIB,
        memory_used_bytes=used,
        memory_free_bytes=79 * GIB - used,
        memory_reserved_bytes=GIB,
        utilisation=50 + index,
        memory_utilisation=20 + index,
        encoder_utilisation=1,
        decoder_utilisation=2,
        temperature_c=60 + index,
        memory_temperature_c=70 + index,
        power_mw=100_000 + index * 1_500,
        energy_mj=1_000_000 + index,
        fan=30,
        sm_clock_mhz=1_410 + index,
        memory_clock_mhz=1_593,
        clock_event_reasons=frozenset({"sw_power_cap", "hw_slowdown"}),
        violation_ns={
            "power": 10,
            "thermal": 20,
            "sync_boost": 30,
            "board_limit": 40,
            "low_utilisation": 50,
            "reliability": 60,
        },
        pcie_sent=3_000,
        pcie_received=4_000,
        pcie_replays=5,
        nvlink=NvlinkCounters(2_048, 4_096, 1, 2, 3, 4),
        ecc_corrected=7,
        ecc_uncorrected=0,
        ecc_corrected_lifetime=70,
        ecc_uncorrected_lifetime=1,
        retired_single_bit=8,
        retired_double_bit=9,
        retired_pending=True,
        remapped=RemappedRows(corrected=1, uncorrected=2, pending=False, failed=False),
        profile=Profile(0.5, 0.4, 0.3, 0.25, 0.2, 0.1, 0.15, 0.05, 1_000.4, 2_000.6, 10.0, 20.0),
    )


def card_of(index: int) -> Card:
    """A card of a server."""
    return Card(
        uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
        index=index,
        model="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * GIB,
        reserved_bytes=GIB,
        minor=index,
        pci=f"0000:{0x3B + index:02x}:00.0",
        limits=CardLimits(400_000, 1_410, 1_593, 90, 95, 85),
    )


def container_of(number: int, used: int, *, requested: int = 4 * GIB) -> ContainerSnapshot:
    """A container that uses a part of a card."""
    return ContainerSnapshot(
        ContainerName("team-a", f"train-{number}", "main", f"uid-{number}"),
        requested_bytes=requested,
        limit_bytes=requested,
        used_bytes=used,
        utilisation=number % 100,
        source=UseSource.PROCESS,
        overuse_seconds=12.5 if used > requested else 0.0,
    )


def card_snapshot(
    index: int, containers: Sequence[ContainerSnapshot] = (), *, unattributed: int = 0, sampled: bool = True
) -> CardSnapshot:
    """A card with what its containers use of it."""
    used = sum(container.used_bytes or 0 for container in containers) + unattributed
    return CardSnapshot(
        card_of(index),
        sample_of(index, used) if sampled else None,
        used if sampled else None,
        unattributed if sampled else None,
        tuple(containers),
        xids={31: 2, 79: 1},
        recent_xids={31: 2},
        last_xid=31,
        recent_clock_events={"sw_power_cap": 3, "sw_thermal_slowdown": 1},
    )


def snapshot_of(
    cards: Sequence[CardSnapshot], *, number: int = 1, interval: float = 5.0, monotonic: float | None = None
) -> Snapshot:
    """A node with these cards."""
    return Snapshot(
        node="gpu-1",
        time=1_700_000_000.0,
        monotonic=time.monotonic() if monotonic is None else monotonic,
        interval=interval,
        number=number,
        driver=Driver("550.54.15", (12, 4)),
        cards=tuple(cards),
        failures={"nvmlDeviceGetFanSpeed": 3},
    )


def busy_node(cards: int = 8, containers: int = 200) -> Snapshot:
    """A node whose cards are shared evenly by containers."""
    each = containers // cards
    return snapshot_of(
        [
            card_snapshot(
                index,
                [container_of(index * each + number, GIB + number * MIB) for number in range(each)],
                unattributed=MIB,
            )
            for index in range(cards)
        ]
    )


def renamed(of: ContainerSnapshot, /, **names: str) -> ContainerSnapshot:
    """The container under other names."""
    return replace(of, name=replace(of.name, **names))
