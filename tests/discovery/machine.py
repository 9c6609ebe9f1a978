"""A machine for a worker: a folder that looks like /sys, and simulated cards."""

from __future__ import annotations

import shutil
from pathlib import Path

from shoal.gpu.describe import parse_cards
from shoal.gpu.errors import NoDriverError
from shoal.gpu.protocol import Driver
from shoal.gpu.simulated import NEWEST, SimulatedNvml

NVIDIA, INTEL = "0x10de", "0x8086"


class FakeSys:
    """A folder with what discovery reads of /sys."""

    def __init__(self, root: Path, product: str = "PowerEdge R750xa") -> None:
        self.root = root
        self.devices = root / "bus/pci/devices"
        self.devices.mkdir(parents=True)
        firmware = root / "class/dmi/id"
        firmware.mkdir(parents=True)
        (firmware / "product_name").write_text(product + "\n")
        self.add("0000:00:1f.0", vendor=INTEL, pci_class="0x060100")

    def add(self, address: str, vendor: str = NVIDIA, pci_class: str = "0x030200", config: bytes = bytes(64)) -> None:
        """Put a device on the bus."""
        folder = self.devices / address
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(pci_class + "\n")
        (folder / "config").write_bytes(config)

    def remove(self, address: str) -> None:
        """Take a device off the bus."""
        shutil.rmtree(self.devices / address)


class Hardware:
    """Cards that a test can change, seen on the bus and through the driver."""

    def __init__(self, root: Path, cards: object = "2xT4", driver: Driver = NEWEST) -> None:
        self.sys = FakeSys(root)
        self.nvml: SimulatedNvml | None = None
        self.opened = 0
        self._addresses: list[str] = []
        self.have(cards, driver)

    def have(self, cards: object, driver: Driver = NEWEST) -> None:
        """Have other cards."""
        for address in self._addresses:
            self.sys.remove(address)
        self.nvml = SimulatedNvml(parse_cards(cards), clock=lambda: 0.0, driver=driver)
        self._addresses = [card.pci for card in self.nvml.survey().cards]
        for address in self._addresses:
            self.sys.add(address)

    def unload(self) -> None:
        """Have no driver; the cards stay on the bus."""
        self.nvml = None

    def remove_cards(self) -> None:
        """Have no card any more."""
        for address in self._addresses:
            self.sys.remove(address)
        self._addresses = []
        self.nvml = None

    def open(self) -> SimulatedNvml:
        """What a worker opens."""
        self.opened += 1
        if self.nvml is None:
            raise NoDriverError("NVIDIA's driver is not loaded: load the kernel module nvidia")
        return self.nvml
