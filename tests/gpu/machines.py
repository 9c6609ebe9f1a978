"""A machine with cards that can be moved, the same on both backends: simulated, and NVML on the stand-in library.

On the second one a simulation behind the scenes is the truth; what it says is written to the library's file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from shoal.gpu.describe import parse_cards
from shoal.gpu.nvml import open_nvml
from shoal.gpu.protocol import Driver, Nvml, Sample
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from tests.testbed.nvml.shim import Shim, describe

#: The driver's clock begins here: it is another one than that of who asks.
EPOCH = 1_000_000_000


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine(Protocol):
    """What a test does to a machine."""

    clock: Clock

    @property
    def nvml(self) -> Nvml:
        """The backend."""

    def change(self, change: Callable[[SimulatedNvml], Any]) -> None:
        """Do something to the cards."""

    def close(self) -> None:
        """Let the driver go."""


class SimulatedMachine:
    """The simulated backend itself."""

    def __init__(self, cards: object, driver: Driver = NEWEST) -> None:
        self.clock = Clock()
        self.nvml = SimulatedNvml(
            parse_cards(cards), clock=self.clock, driver=driver, cgroup_exists=lambda path: Path(path).is_dir()
        )

    def change(self, change: Callable[[SimulatedNvml], Any]) -> None:
        change(self.nvml)

    def close(self) -> None:
        self.nvml.close()


class ShimMachine:
    """NVML, and a library that tells it what a simulation says."""

    def __init__(self, shim: Shim, cards: object, driver: Driver = NEWEST) -> None:
        self.clock = Clock()
        self.shim = shim
        self.descriptions = {description.index: description for description in parse_cards(cards)}
        self.truth = SimulatedNvml(self.descriptions.values(), clock=self.clock, driver=driver)
        self._reports = self.truth.watch()
        self._events: list[tuple[int, str, int]] = []
        self.write()
        self.nvml = open_nvml(shim.library, clock=self.clock)

    def write(self, errors: tuple[tuple[str, int], ...] = (), hangs: tuple[tuple[int, str], ...] = ()) -> None:
        """Tell the library how things stand. `hangs` are calls that do not return, by the card's index."""
        index_of = {uuid: index for index, uuid in zip(self.descriptions, self.truth.uuids(), strict=True)}
        while (event := self._reports.wait(0)) is not None:
            if event.uuid is not None and event.kind.value not in ("lost", "back"):
                self._events.append((index_of[event.uuid], event.kind.value, event.xid or 0))
        self.shim.write(
            describe(
                self.truth.driver(),
                self._cards(),
                events=self._events,
                errors=errors,
                hangs=hangs,
                time=EPOCH + self.clock.now,
            )
        )

    def _cards(self) -> list[Any]:
        """All cards: one that is lost has no sample. The simulation lends its lost ones the face they had."""
        whole = SimulatedNvml(
            (replace(description, lost=False) for description in self.descriptions.values()), clock=self.clock
        )
        lost = {card.uuid for card in self.truth.survey().cards if card.lost}
        unseen = {unreadable.index for unreadable in self.truth.survey().unreadable}
        return [
            (
                card,
                None if card.uuid in lost or card.index in unseen else self._sample(card.uuid),
                self.descriptions[card.index],
            )
            for card in whole.survey().cards
        ]

    def _sample(self, uuid: str) -> Sample:
        traffic = self.truth.pcie_traffic(uuid)
        return replace(self.truth.sample(uuid), pcie_sent=traffic.sent, pcie_received=traffic.received)

    def change(self, change: Callable[[SimulatedNvml], Any]) -> None:
        change(self.truth)
        self.write()

    def close(self) -> None:
        self.nvml.close()
