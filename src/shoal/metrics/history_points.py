"""What of a snapshot is kept on disk, and the task that writes it there.

Of a card: used, unattributed, utilisation, temperature, power. Of a container on a card: used and utilisation. Of the
node: CPU and memory. What is not known has no point.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from shoal.metrics.history import HistoryWriter, Series
from shoal.metrics.snapshot import CardSnapshot, LatestSnapshot, Snapshot

log = logging.getLogger(__name__)

USED: Final = "used_bytes"
UNATTRIBUTED: Final = "unattributed_bytes"
UTILISATION: Final = "utilisation_percent"
TEMPERATURE: Final = "temperature_celsius"
POWER: Final = "power_watts"
#: Of the node, without a card.
CPU: Final = "cpu_used_milli"
MEMORY: Final = "memory_used_bytes"
#: All names of series; `used_bytes` and `utilisation_percent` are those of cards and of containers.
NAMES: Final = (USED, UNATTRIBUTED, UTILISATION, TEMPERATURE, POWER, CPU, MEMORY)


def points(snapshot: Snapshot) -> dict[Series, float]:
    """The values of a snapshot that are kept."""
    values: dict[Series, float] = {}
    for card in snapshot.cards:
        values |= _of_card(card) | _of_containers(card)
    load = snapshot.load
    if load is not None:
        node = {CPU: load.cpu_used_milli, MEMORY: load.memory_used_bytes}
        values |= {Series(name): float(value) for name, value in node.items() if value is not None}
    return values


def _of_card(card: CardSnapshot) -> dict[Series, float]:
    sample = card.sample
    found: dict[str, float | None] = {USED: card.used_bytes, UNATTRIBUTED: card.unattributed_bytes}
    if sample is not None:
        found[UTILISATION] = sample.utilisation
        found[TEMPERATURE] = sample.temperature_c
        found[POWER] = None if sample.power_mw is None else sample.power_mw / 1000
    return {Series(name, card.card.uuid): float(value) for name, value in found.items() if value is not None}


def _of_containers(card: CardSnapshot) -> dict[Series, float]:
    """One that uses several MIG instances of a card stands there several times: together, if all are known."""
    found: dict[Series, list[int | None]] = {}
    for container in card.containers:
        name = container.name
        for series, value in ((USED, container.used_bytes), (UTILISATION, container.utilisation)):
            key = Series(series, card.card.uuid, name.namespace, name.pod, name.container)
            found.setdefault(key, []).append(value)
    known = {series: [part for part in parts if part is not None] for series, parts in found.items()}
    return {series: float(sum(known[series])) for series, parts in found.items() if len(known[series]) == len(parts)}


class HistoryKeeper:
    """Writes snapshots to the ring in a folder. A disk that takes nothing costs history and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Snapshots that the disk did not take since it last took one.
        self.lost = 0

    async def run(self, latest: LatestSnapshot) -> None:
        """Keep each snapshot until cancelled. One that comes while the disk is busy is passed over for a newer one."""
        writer = HistoryWriter(self._folder)
        number = 0
        try:
            while True:
                snapshot = await latest.after(number)
                number = snapshot.number
                await self._keep(writer, snapshot)
        finally:
            writer.close()

    async def _keep(self, writer: HistoryWriter, snapshot: Snapshot) -> None:
        """Write in a thread, since a disk may block; whoever cancels waits for the end of the write."""
        writing = asyncio.ensure_future(asyncio.to_thread(writer.write, snapshot.time, points(snapshot)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            if not writing.cancelled():
                writing.exception()  # looked at: nobody is left to tell
            raise
        except OSError as error:
            if not self.lost:
                log.warning("history in %s is not kept: %s: make room on the disk", self._folder, error.strerror)
            self.lost += 1
            return
        if self.lost:
            log.warning("history in %s is kept again: %d samples are missing", self._folder, self.lost)
            self.lost = 0
