"""What a worker reads of its machine: the bus and the firmware in /sys, and the cards through NVIDIA's driver.

The driver is opened for the reading and let go again, so that it can be replaced while a worker runs. A part that
cannot be read whole is not told at all: UnknownFactsError, and the last that was known of it stays.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shoal.discovery.errors import UnknownFactsError
from shoal.discovery.labels import PCI_CLASSES
from shoal.gpu.errors import GpuError
from shoal.gpu.protocol import Card, Driver, MigAttributes, Nvml, Survey
from shoal.model.contract import nvidia
from shoal.model.contract.discovery import (
    MAX_KINDS,
    MAX_PROFILES,
    CardFacts,
    GpuFacts,
    PartitionFacts,
    SharingFacts,
    VgpuFacts,
)
from shoal.model.contract.plugin_config import NvidiaConfig
from shoal.model.errors import shown
from shoal.model.gpu import MigInstance

log = logging.getLogger(__name__)

OpenNvml = Callable[[], Nvml]

_MOST_TEXT: Final = 255
_MOST_MIB: Final = 2**31
_MOST: Final = 2**20
_DRIVER: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,2}").fullmatch
_PROFILE: Final = re.compile(r"([1-9]c\.)?[1-9]g\.[0-9]{1,5}gb([.-][a-z]{1,8}){0,2}").fullmatch
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]").fullmatch
_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?").fullmatch
#: The kernel shows that much of a device's configuration to root alone.
_WHOLE_CONFIGURATION: Final = 256


@dataclass(frozen=True, slots=True)
class PciCard:
    """A card of NVIDIA's on the bus."""

    address: str
    #: Four digits: `0302` is a card for computing, `0300` one with a screen.
    pci_class: str
    configuration: bytes = b""


def read_bus(sys_root: Path) -> tuple[PciCard, ...]:
    """NVIDIA's cards on the bus, by address. UnknownFactsError if the bus cannot be read."""
    folder = sys_root / "bus/pci/devices"
    try:
        devices = sorted(folder.iterdir())
    except FileNotFoundError:
        if not (sys_root / "bus").is_dir():
            raise UnknownFactsError(f"{sys_root} is no view of the kernel's /sys: mount it there") from None
        return ()  # a machine without such a bus
    except OSError as error:
        raise UnknownFactsError(f"{folder} cannot be read: {error.strerror}") from error
    found = []
    for device in devices:
        if _read(device / "vendor", 16).removeprefix("0x") != nvidia.PCI_VENDOR:
            continue
        pci_class = _read(device / "class", 16).removeprefix("0x")[:4]
        if pci_class in PCI_CLASSES and _ADDRESS(device.name):
            found.append(PciCard(device.name, pci_class, _configuration(device / "config")))
    return tuple(found)


def _read(path: Path, most: int = _MOST_TEXT) -> str:
    """A line of /sys. A device that goes while it is looked at is none."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _configuration(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_WHOLE_CONFIGURATION)
    except OSError:
        return b""


def machine_name(sys_root: Path) -> str:
    """What the firmware calls the machine; empty where it has no name."""
    text = _read(sys_root / "class/dmi/id/product_name")
    return "".join(letter for letter in text if letter.isprintable())


def vgpus(bus: Iterable[PciCard]) -> tuple[VgpuFacts, ...] | None:
    """The virtual GPUs among the cards; None if this process may not read enough of the bus to tell."""
    found = []
    for card in bus:
        if len(card.configuration) < _WHOLE_CONFIGURATION:
            return None
        record = _vendor_record(card.configuration)
        if record is not None and record[3:5] == b"VF":
            found.append(_vgpu(record))
    return tuple(found[:MAX_KINDS])


def _vendor_record(configuration: bytes) -> bytes | None:
    """The vendor's own capability, if the list of capabilities has one."""
    if not configuration[6] & 0x10:
        return None
    place, seen = configuration[0x34] & 0xFC, set[int]()
    while place and place not in seen and place + 3 <= len(configuration):
        seen.add(place)
        if configuration[place] == 0x09:
            return configuration[place : place + configuration[place + 2]]
        place = configuration[place + 1] & 0xFC
    return None


def _vgpu(record: bytes) -> VgpuFacts:
    """Records of kind and length follow each other; the one of kind 0 has the driver's version and branch."""
    place = 5
    while place + 1 < len(record) and record[place] != 0 and record[place + 1] > 0:
        place += record[place + 1]
    if place + 22 > len(record) or record[place] != 0:
        return VgpuFacts()
    version, branch = (_word(record[start : start + 10]) for start in (place + 2, place + 12))
    return VgpuFacts(host_version=version, host_branch=branch)


def _word(field: bytes) -> str:
    text = field.strip(b"\0").decode("ascii", "replace")
    return text if _WORD(text) else ""


def read_gpus(
    open_nvml: OpenNvml, bus: Iterable[PciCard], config: NvidiaConfig | None, *, machine: str, since: int
) -> GpuFacts:
    """What the driver tells of the cards. UnknownFactsError if that is not the whole of it."""
    if config is None:
        raise UnknownFactsError("the configuration of NVIDIA's device plugin is not known yet")
    bus = tuple(bus)
    try:
        nvml = open_nvml()
        try:
            driver, survey = nvml.driver(), nvml.survey()
        finally:
            nvml.close()
    except GpuError as error:
        raise UnknownFactsError(str(error)) from error
    return facts_of(driver, survey, bus, config, machine=machine, since=since)


def facts_of(
    driver: Driver, survey: Survey, bus: Iterable[PciCard], config: NvidiaConfig, *, machine: str, since: int
) -> GpuFacts:
    """What was read, as facts."""
    if not _DRIVER(driver.version) or driver.cuda is None:
        raise UnknownFactsError(f"the driver calls itself {shown(driver.version)}, with CUDA {driver.cuda}")
    if survey.unreadable:
        raise UnknownFactsError(f"card {survey.unreadable[0].index} cannot be read: {survey.unreadable[0].reason}")
    if not survey.cards:
        raise UnknownFactsError("the driver knows no card")
    bus = tuple(bus)
    classes = {card.address: card.pci_class for card in bus}
    alike = Counter(_card(card, classes) for card in survey.cards)
    cards = sorted((replace(card, count=count) for card, count in alike.items()), key=_order)
    if len(cards) > MAX_KINDS:
        log.warning("the node has %d kinds of cards, of which %d are told", len(cards), MAX_KINDS)
    return GpuFacts(
        since=since,
        driver=driver.version,
        cuda=driver.cuda,
        machine=machine[:_MOST_TEXT],
        cards=tuple(cards[:MAX_KINDS]),
        mig_strategy=config.mig_strategy,  # type: ignore[arg-type]  # one of the three, as the file was checked
        sharing=_sharing(config),
        vgpus=vgpus(bus),
    )


def _order(card: CardFacts) -> tuple[str, int, bool, str, str]:
    return card.model, card.memory, bool(card.mig), card.pci, repr(card)


def _card(card: Card, classes: Mapping[str, str]) -> CardFacts:
    model = "".join(letter for letter in card.model if letter.isprintable())[:_MOST_TEXT]
    if not model or card.compute_capability is None:
        raise UnknownFactsError(f"card {card.index} tells no name or no compute capability")
    memory = card.memory_bytes // 2**20
    fabric = "" if card.fabric is None else f"{card.fabric.cluster}.{card.fabric.clique}"
    return CardFacts(
        model=model,
        memory=memory if memory <= _MOST_MIB else 0,
        capability=card.compute_capability,
        mig=card.mig,
        pci=classes.get(card.pci.lower(), ""),
        fabric=fabric,
        partitions=_partitions(card) if card.mig else (),
    )


def _partitions(card: Card) -> tuple[PartitionFacts, ...]:
    attributes = card.mig_attributes or (MigAttributes(),) * len(card.mig_instances)
    alike = Counter(_partition(part, made) for part, made in zip(card.mig_instances, attributes, strict=True))
    if len(alike) > MAX_PROFILES:
        raise UnknownFactsError(f"card {card.index} has {len(alike)} kinds of MIG partitions")
    found = [replace(part, count=count) for part, count in alike.items()]
    return tuple(sorted(found, key=lambda part: (part.profile, repr(part))))


def _partition(part: MigInstance, made: MigAttributes) -> PartitionFacts:
    profile = part.profile.replace("+", ".")
    if not _PROFILE(profile):
        raise UnknownFactsError(f"MIG profile {shown(part.profile)} cannot be read")
    return PartitionFacts(
        profile=profile,
        memory=min(part.memory_mib, _MOST_MIB),
        multiprocessors=min(made.multiprocessors, _MOST),
        gpu_slices=min(made.gpu_slices, _MOST),
        compute_slices=min(made.compute_slices, _MOST),
        copy=min(made.copy_engines, _MOST),
        decoder=min(made.decoders, _MOST),
        encoder=min(made.encoders, _MOST),
        jpeg=min(made.jpeg, _MOST),
        ofa=min(made.ofa, _MOST),
    )


def _sharing(config: NvidiaConfig) -> tuple[SharingFacts, ...]:
    return tuple(
        SharingFacts(
            resource=one.resource,
            strategy=one.strategy,  # type: ignore[arg-type]  # one of the two, as the file was checked
            replicas=one.replicas,
            renamed=one.served_as != one.resource,
        )
        for one in config.sharing[:MAX_PROFILES]
    )
