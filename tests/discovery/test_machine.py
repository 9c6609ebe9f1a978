"""What a worker reads of its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.discovery.errors import UnknownFactsError
from shoal.discovery.labels import gpu_labels
from shoal.discovery.machine import PciCard, facts_of, machine_name, read_bus, read_gpus, vgpus
from shoal.discovery.worker import merged
from shoal.gpu.describe import parse_cards
from shoal.gpu.nvml import open_nvml
from shoal.gpu.protocol import Driver, Survey, Unreadable
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.model.contract.discovery import NodeFacts, VgpuFacts, decode_facts, encode_facts
from shoal.model.contract.plugin_config import NvidiaConfig, parse
from tests.discovery.facts import gpus
from tests.discovery.machine import FakeSys, Hardware
from tests.gpu.conftest import nvml_library, shim
from tests.gpu.machines import ShimMachine
from tests.testbed.nvml.shim import Shim

__all__ = ["nvml_library", "shim"]

PLAIN = NvidiaConfig()


def simulated(cards: object) -> SimulatedNvml:
    return SimulatedNvml(parse_cards(cards), clock=lambda: 0.0)


def test_the_bus(tmp_path: Path) -> None:
    kernel = FakeSys(tmp_path / "sys")
    assert read_bus(kernel.root) == ()
    kernel.add("0000:3b:00.0")
    kernel.add("0000:3b:00.1", pci_class="0x040300")  # the sound of a card with a screen
    kernel.add("0000:af:00.0", pci_class="0x030000")
    assert [(card.address, card.pci_class) for card in read_bus(kernel.root)] == [
        ("0000:3b:00.0", "0302"),
        ("0000:af:00.0", "0300"),
    ]
    (kernel.devices / "0000:af:00.0" / "vendor").unlink()
    assert [card.address for card in read_bus(kernel.root)] == ["0000:3b:00.0"], "gone while it was looked at"
    assert machine_name(kernel.root) == "PowerEdge R750xa"


def test_a_bus_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(UnknownFactsError, match="mount it"):
        read_bus(tmp_path / "nowhere")
    (tmp_path / "sys/bus").mkdir(parents=True)
    assert read_bus(tmp_path / "sys") == (), "a machine without such a bus"
    assert machine_name(tmp_path) == ""


def test_cards_of_the_driver(tmp_path: Path) -> None:
    hardware = Hardware(tmp_path / "sys", [{"model": "A100-40G", "count": 2}, {"model": "T4"}])
    told = read_gpus(hardware.open, read_bus(hardware.sys.root), PLAIN, machine="m", since=7)
    assert [(card.model, card.count, card.memory, card.capability, card.mig, card.pci) for card in told.cards] == [
        ("NVIDIA A100-SXM4-40GB", 2, 40960, (8, 0), False, "0302"),
        ("Tesla T4", 1, 15360, (7, 5), None, "0302"),
    ]
    assert (told.driver, told.cuda, told.machine, told.since, told.vgpus) == ("615.71.05", (13, 4), "m", 7, None)
    assert decode_facts(encode_facts(NodeFacts(version=1, pci=("0302",), gpus=told))).gpus == told


def test_the_same_cards_give_the_same_facts_in_any_order(tmp_path: Path) -> None:
    survey = simulated([{"model": "A100-40G", "count": 2}, {"model": "T4"}]).survey()
    turned = Survey(tuple(reversed(survey.cards)))
    one, two = (facts_of(NEWEST, each, (), PLAIN, machine="", since=1) for each in (survey, turned))
    assert one == two


def test_partitions(shim: Shim) -> None:
    """Through NVML, on the stand-in library."""
    cards = [{"model": "A30", "mig": ["1g.6gb", "1g.6gb", "2g.12gb"]}]
    machine = ShimMachine(shim, cards)
    try:
        survey = machine.nvml.survey()
    finally:
        machine.close()
    config = parse("{version: v1, flags: {migStrategy: mixed}}")
    told = facts_of(NEWEST, survey, (), config, machine="", since=1)
    (card,) = told.cards
    assert [(part.profile, part.count, part.multiprocessors) for part in card.partitions] == [
        ("1g.6gb", 2, 14),
        ("2g.12gb", 1, 28),
    ]
    labels = gpu_labels(told)
    assert labels["nvidia.com/mig-1g.6gb.count"] == "2"
    assert labels["nvidia.com/mig-2g.12gb.engines.copy"] == "2"


def test_sharing_as_the_plugin_is_configured() -> None:
    config = parse(
        "{version: v1, sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 5}]}}}"
    )
    (one,) = facts_of(NEWEST, simulated("T4").survey(), (), config, machine="", since=1).sharing
    assert (one.resource, one.strategy, one.replicas, one.renamed) == ("nvidia.com/gpu", "time-slicing", 5, True)


@pytest.mark.parametrize(
    ("driver", "survey"),
    [
        (Driver("unknown", (13, 0)), simulated("T4").survey()),
        (Driver("550.1", None), simulated("T4").survey()),
        (NEWEST, Survey()),
        (NEWEST, Survey(simulated("T4").survey().cards, (Unreadable(1, "lost"),))),
    ],
    ids=["version", "cuda", "no card", "a card that does not answer"],
)
def test_half_of_the_truth_is_not_told(driver: Driver, survey: Survey) -> None:
    with pytest.raises(UnknownFactsError):
        facts_of(driver, survey, (), PLAIN, machine="", since=1)


def test_no_driver_and_no_configuration(tmp_path: Path) -> None:
    hardware = Hardware(tmp_path / "sys")
    with pytest.raises(UnknownFactsError, match="not known yet"):
        read_gpus(hardware.open, (), None, machine="", since=1)
    hardware.unload()
    with pytest.raises(UnknownFactsError, match="not loaded"):
        read_gpus(hardware.open, (), PLAIN, machine="", since=1)


def test_the_driver_is_let_go_after_each_reading(shim: Shim) -> None:
    """A second worker could open it, and so could whoever unloads it."""
    machine = ShimMachine(shim, "T4")
    machine.close()
    for _ in range(2):
        told = read_gpus(lambda: open_nvml(shim.library), (), PLAIN, machine="", since=1)
        assert told.cards[0].model == "Tesla T4"


def vgpu_configuration(version: bytes, branch: bytes) -> bytes:
    record = b"\x09\x00\x1d" + b"VF" + b"\x00\x16" + version.ljust(10, b"\0") + branch.ljust(10, b"\0")
    whole = bytearray(256)
    whole[6], whole[0x34], whole[0x40:0x42] = 0x10, 0x40, b"\x05\x60"
    whole[0x60 : 0x60 + len(record)] = record
    return bytes(whole)


def test_virtual_gpus() -> None:
    guest = PciCard("0000:00:05.0", "0302", vgpu_configuration(b"535.161.05", b"r535_00"))
    whole = PciCard("0000:00:06.0", "0302", bytes(256))
    assert vgpus([guest, whole]) == (VgpuFacts(host_version="535.161.05", host_branch="r535_00"),)
    assert vgpus([whole]) == ()
    assert vgpus([PciCard("0000:00:05.0", "0302", guest.configuration[:64])]) is None, "not root: not known"
    loop = bytearray(256)
    loop[6], loop[0x34], loop[0x40], loop[0x41] = 0x10, 0x40, 0x05, 0x40
    assert vgpus([PciCard("0000:00:05.0", "0302", bytes(loop))]) == (), "a list without end ends"
    odd = bytearray(guest.configuration)
    odd[0x67:0x71] = b"bad \n name"
    assert vgpus([PciCard("0000:00:05.0", "0302", bytes(odd))]) == (VgpuFacts(host_branch="r535_00"),)


def test_what_is_not_read_stays_as_it_was_known() -> None:
    known = NodeFacts(version=1, pci=("0302",), gpus=gpus())
    assert merged(None, None, None) is None
    assert merged(None, None, known) == known
    assert merged(("0302",), None, known) == known
    assert merged(("0302",), None, None) == NodeFacts(version=1, pci=("0302",))
    fresh = gpus(since=5)
    assert merged(("0302",), fresh, known) == NodeFacts(version=1, pci=("0302",), gpus=fresh)
    assert merged((), None, None) is None, "a machine that never had a card"
    assert merged((), None, known) == NodeFacts(version=1, pci=())
