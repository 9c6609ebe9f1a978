"""A machine's driver with simulated cards: the protocol, and the handles by which a simulation moves them.

The same descriptions, seed and clock give the same cards and the same readings. Simulated programs are reported with
`add_process` and `remove_process`; faults come with `raise_xid`, `count_ecc`, `lose` and `restore`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.gpu.describe import CardDescription
from shoal.gpu.errors import LostCardError, NoCgroupError, NotSupportedError, UnknownCardError
from shoal.gpu.protocol import (
    CgroupMemory,
    ComputeMode,
    Driver,
    Event,
    EventKind,
    MemoryLimit,
    Sample,
    Survey,
    Unreadable,
    checked_cgroup,
    limits_memory,
)
from shoal.gpu.simulated.card import Program, SimulatedCard, made_uuid
from shoal.model.errors import shown

#: A driver that can limit the memory of cgroups.
NEWEST = Driver(version="615.71.05", cuda=(13, 4))
_XID_LOST = 79
#: Of a watch nobody waits on, the oldest events go.
_MAX_PENDING = 1024


class SimulatedNvml:
    """Simulated cards behind `shoal.gpu.protocol.Nvml`."""

    def __init__(
        self,
        descriptions: Iterable[CardDescription],
        *,
        clock: Callable[[], float],
        seed: str = "",
        driver: Driver = NEWEST,
        cgroup_exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._clock = clock
        self._driver = driver
        self._cgroup_exists = cgroup_exists
        self._changed = threading.Condition()
        self._watches: set[_SimulatedEvents] = set()
        described = sorted(descriptions, key=lambda description: description.index)
        uuid_of = {description.index: made_uuid("GPU", seed, description.index) for description in described}
        self._cards = {
            uuid_of[description.index]: SimulatedCard(description, seed=seed, now=clock(), uuid_of=uuid_of)
            for description in described
        }
        self._seen = {uuid for uuid, card in self._cards.items() if not card.lost}

    # The protocol

    def driver(self) -> Driver:
        """The driver's versions."""
        return self._driver

    def survey(self) -> Survey:
        """All cards; one that was lost from the start has never told its UUID."""
        with self._changed:
            return Survey(
                cards=tuple(
                    replace(c.card, lost=True) if c.lost else c.card for u, c in self._cards.items() if u in self._seen
                ),
                unreadable=tuple(
                    Unreadable(c.card.index, "the card is lost from the bus")
                    for u, c in self._cards.items()
                    if u not in self._seen
                ),
            )

    def sample(self, uuid: str) -> Sample:
        """What a card measures now."""
        with self._changed:
            return self._card(uuid).sample(self._clock())

    def watch(self) -> _SimulatedEvents:
        """The reports of all cards, from now on; a card described with an XID error begins with it."""
        with self._changed:
            watch = _SimulatedEvents(self._changed, self._watches)
            for uuid, card in self._cards.items():
                if card.description.xid is not None:
                    watch.pending.append(Event(EventKind.XID, uuid, card.description.xid))
            return watch

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Who may compute on the card."""
        with self._changed:
            return self._card(uuid).mode

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change who may compute on the card; programs that run go on."""
        with self._changed:
            self._card(uuid).mode = mode

    def cgroup_memory(self, uuid: str, cgroup: str) -> CgroupMemory:
        """A cgroup's limit and use of the card's memory."""
        with self._changed:
            return self._limitable(uuid, cgroup).cgroup_memory(cgroup)

    def set_memory_limit(self, uuid: str, cgroup: str, limit: MemoryLimit) -> None:
        """Limit a cgroup's use of the card's memory."""
        with self._changed:
            self._limitable(uuid, cgroup).set_limit(cgroup, limit)

    def close(self) -> None:
        """End all watches."""
        for watch in tuple(self._watches):
            watch.close()

    # The simulation's handles

    def add_process(
        self, uuid: str, pid: int, memory_bytes: int, utilisation: int, *, cgroup: str | None = None, mps: bool = False
    ) -> None:
        """Start a program on a card, or change what it uses. OutOfMemoryError when card or cgroup have not as much."""
        with self._changed:
            self._card(uuid).put(Program(pid, memory_bytes, utilisation, cgroup, mps), self._clock())

    def remove_process(self, uuid: str, pid: int) -> None:
        """End a program; one that does not run is no error."""
        with self._changed:
            self._known(uuid).end(pid, self._clock())

    def raise_xid(self, uuid: str, xid: int) -> None:
        """Have a card report an XID error."""
        with self._changed:
            self._known(uuid)
            self._report(Event(EventKind.XID, uuid, xid))

    def count_ecc(self, uuid: str, *, corrected: int = 0, uncorrected: int = 0) -> None:
        """Have a card find errors in its memory."""
        with self._changed:
            card = self._card(uuid)
            card.ecc_corrected += corrected
            card.ecc_uncorrected += uncorrected
            for kind, count in ((EventKind.ECC_CORRECTED, corrected), (EventKind.ECC_UNCORRECTED, uncorrected)):
                if count:
                    self._report(Event(kind, uuid))

    def lose(self, uuid: str) -> None:
        """Have a card fall off the bus, with its programs."""
        with self._changed:
            card = self._known(uuid)
            if not card.lost:
                card.end_all(self._clock())
                card.lost = True
                self._report(Event(EventKind.XID, uuid, _XID_LOST))
                self._report(Event(EventKind.LOST, uuid))

    def restore(self, uuid: str) -> None:
        """Have a lost card answer again."""
        with self._changed:
            card = self._known(uuid)
            if card.lost:
                card.lost = False
                self._seen.add(uuid)
                self._report(Event(EventKind.BACK, uuid))

    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of all cards by index, those never seen by a survey too."""
        return tuple(self._cards)

    def _report(self, event: Event) -> None:
        for watch in self._watches:
            watch.pending.append(event)
        self._changed.notify_all()

    def _known(self, uuid: str) -> SimulatedCard:
        card = self._cards.get(uuid)
        if card is None:
            raise UnknownCardError(f"no card has the UUID {shown(uuid)}: survey the cards again")
        return card

    def _card(self, uuid: str) -> SimulatedCard:
        card = self._known(uuid)
        if card.lost:
            raise LostCardError(f"card {card.card.index} ({uuid}) is lost from the bus: reset it or reboot the node")
        return card

    def _limitable(self, uuid: str, cgroup: str) -> SimulatedCard:
        card = self._card(uuid)
        if not limits_memory(self._driver, card.card):
            raise NotSupportedError(
                f"the memory of cgroups cannot be limited on card {card.card.index}: that needs driver R615 (CUDA 13.4)"
                " and MIG mode off"
            )
        if not self._cgroup_exists(checked_cgroup(cgroup)):
            raise NoCgroupError(f"there is no cgroup {shown(cgroup)}: give the full path of its directory")
        return card


class _SimulatedEvents:
    def __init__(self, changed: threading.Condition, watches: set[_SimulatedEvents]) -> None:
        self.pending: deque[Event] = deque(maxlen=_MAX_PENDING)
        self._changed = changed
        self._watches = watches
        self._closed = False
        watches.add(self)

    def wait(self, timeout: float) -> Event | None:
        """The next event; None when `timeout` seconds passed without one, or on `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self.pending or self._closed, timeout)
            return self.pending.popleft() if self.pending and not self._closed else None

    def close(self) -> None:
        """End the watch, and with it a wait of another thread."""
        with self._changed:
            self._closed = True
            self._watches.discard(self)
            self._changed.notify_all()
