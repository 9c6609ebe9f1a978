"""What a collector knows of its node at one moment. Made once per interval and never changed; everybody who shows,
stores or sends numbers reads the last one, and nobody who asks makes the collector touch a card or the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.gpu.protocol import Card, Driver, Sample
from shoal.metrics.attribution import UseSource


@dataclass(frozen=True, slots=True, order=True)
class ContainerName:
    """A container as users know it. `container` is empty while the API server does not tell whose the ID is yet."""

    namespace: str
    pod: str
    container: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class ContainerSnapshot:
    """What a container asked for, may use and uses of one card. None is not known, or not limited, and never 0."""

    name: ContainerName
    #: Booked for it on this card; 0 for a container that uses a card nobody gave it. A whole card books all of it.
    requested_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    utilisation: int | None = None
    #: None: nothing of it runs on the card.
    source: UseSource | None = None
    #: Seconds since the collector's start in which it used more than was booked for it.
    overuse_seconds: float = 0.0
    #: The runtime's ID of it, without the runtime's name; empty while nothing of it runs on the card.
    container_id: str = ""
    #: The MIG instance that it has or uses; empty: the card itself, or which one is not known.
    mig_uuid: str = ""


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """A card, what it measures, and whose that is. Σ containers + unattributed = used, where all are known."""

    card: Card
    #: None: the card did not answer.
    sample: Sample | None = None
    used_bytes: int | None = None
    unattributed_bytes: int | None = None
    #: Those that asked for a part of the card, or use one.
    containers: tuple[ContainerSnapshot, ...] = ()
    #: XID errors by number, since the collector's start and within the last window (DCGM's: 5 minutes).
    xids: Mapping[int, int] = field(default_factory=dict)
    recent_xids: Mapping[int, int] = field(default_factory=dict)
    last_xid: int | None = None
    #: Samples of the last window in which the clocks were held down, by reason.
    recent_clock_events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The machine. CPU in thousandths of a core, of the last interval; the network's bytes are counted since boot."""

    cpu_total_milli: int | None = None
    cpu_used_milli: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    storage_total_bytes: int | None = None
    storage_used_bytes: int | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What a pod uses of the machine, cards apart."""

    namespace: str
    pod: str
    uid: str
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A node at one moment. `time` is in seconds since 1970, `monotonic` by the clock that nobody sets."""

    node: str
    time: float
    monotonic: float
    interval: float
    #: Counts up from 1.
    number: int
    driver: Driver | None = None
    cards: tuple[CardSnapshot, ...] = ()
    load: NodeLoad | None = None
    pods: tuple[PodLoad, ...] = ()
    #: Readings that failed since the collector's start, by what was asked.
    failures: Mapping[str, int] = field(default_factory=dict)


class LatestSnapshot:
    """The last snapshot, for everyone in this process. Who waits gets the newest, and may miss some in between."""

    def __init__(self) -> None:
        self.current: Snapshot | None = None
        self._changed = asyncio.Event()

    def put(self, snapshot: Snapshot) -> None:
        """Show a new snapshot to everyone who waits."""
        self.current = snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def after(self, number: int) -> Snapshot:
        """The newest snapshot with a higher number, as soon as there is one; 0 takes any."""
        while self.current is None or self.current.number <= number:
            await self._changed.wait()
        return self.current
