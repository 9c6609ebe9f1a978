"""What every backend must do. Each test runs on simulated cards, and on NVML with the stand-in library."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.gpu.errors import GpuError, LostCardError, NoCgroupError, NotSupportedError, UnknownCardError
from shoal.gpu.inventory import gpus
from shoal.gpu.protocol import (
    CardEvent,
    CardEvents,
    ComputeMode,
    Driver,
    EventKind,
    MemoryLimit,
    PcieTraffic,
    Process,
    limits_memory,
)
from shoal.model.contract.shoal import decode_gpus, encode_gpus
from tests.gpu.machines import Machine

GIB = 2**30
MIXED = [
    {"model": "A100-80G", "count": 2, "numa": [0, 1], "nvlink": 4},
    {"model": "A30", "mig": ["1g.6gb", "2g.12gb"], "numa": 1},
    {"model": "RTX3090"},
    {"model": "P100", "numa": 0},
]
Make = Callable[..., Machine]


def test_driver(machine: Make) -> None:
    assert machine("T4").nvml.driver() == Driver("615.71.05", (13, 4))


def test_no_cards(machine: Make) -> None:
    survey = machine([]).nvml.survey()
    assert (survey.cards, survey.unreadable) == ((), ())


def test_cards_are_what_was_described(machine: Make) -> None:
    first, second, cut, desktop, old = machine(MIXED).nvml.survey().cards
    assert (first.model, first.memory_bytes, first.numa, first.mig) == ("NVIDIA A100-SXM4-80GB", 80 * GIB, 0, False)
    assert [(link.peer, link.lanes) for link in first.links] == [(second.uuid, 4)]
    assert [(link.peer, link.lanes) for link in second.links] == [(first.uuid, 4)]
    assert cut.mig
    assert [part.profile for part in cut.mig_instances] == ["1g.6gb", "2g.12gb"]
    assert [(part.gpu_slices, part.multiprocessors) for part in cut.mig_attributes] == [(1, 14), (2, 28)]
    assert (desktop.family, desktop.mig, desktop.ecc, desktop.numa) == ("ampere", None, None, None)
    assert [card.max_mps_clients for card in (first, cut, desktop, old)] == [48, 0, 48, 16]
    assert len({card.pci for card in (first, second, cut, desktop, old)}) == 5


def test_cards_on_a_switch_reach_each_other_with_all_lanes(machine: Make) -> None:
    cards = machine([{"model": "H100", "count": 4, "nvlink": "switch"}]).nvml.survey().cards
    for card in cards:
        peers = {other.uuid for other in cards} - {card.uuid}
        assert {link.peer: link.lanes for link in card.links} == dict.fromkeys(peers, 18)


def test_inventory_can_be_published(machine: Make) -> None:
    nvml = machine(MIXED).nvml
    cards = gpus(nvml.survey())
    assert decode_gpus(encode_gpus(cards)) == cards
    assert [card.memory_mib for card in cards] == [81920, 81920, 24576, 24576, 16384]


def test_sample_of_an_idle_card(machine: Make) -> None:
    nvml = machine("A30").nvml
    sample = nvml.sample(nvml.survey().cards[0].uuid)
    assert sample.memory_total_bytes == 24 * GIB
    assert (sample.memory_used_bytes, sample.utilisation, sample.processes, sample.fan) == (0, 0, (), None)
    assert sample.memory_free_bytes == 24 * GIB - 512 * 2**20
    assert sample.memory_reserved_bytes == 512 * 2**20
    assert (sample.ecc_corrected, sample.ecc_uncorrected_lifetime, sample.retired_pending) == (0, 0, None)
    assert sample.clock_event_reasons == frozenset({"gpu_idle"})
    assert (sample.nvlink, sample.profile, sample.mig) == (None, None, ())
    assert (sample.processes_known, sample.failed_calls) == (True, ())
    assert nvml.pcie_traffic(nvml.survey().cards[0].uuid) == PcieTraffic(0, 0)


def test_processes_load_the_card(machine: Make) -> None:
    stage = machine("A30,RTX3090")
    busy, idle = (card.uuid for card in stage.nvml.survey().cards)
    stage.change(lambda cards: cards.add_process(busy, 4711, 3 * GIB, 40))
    stage.change(lambda cards: cards.add_process(busy, 12, 5 * GIB, 50, mps=True))
    stage.nvml.sample(busy)
    stage.clock.now += 600
    stage.change(lambda _: None)
    sample = stage.nvml.sample(busy)
    assert sample.processes == (Process(12, 5 * GIB, 50, mps=True), Process(4711, 3 * GIB, 40))
    assert (sample.memory_used_bytes, sample.utilisation) == (8 * GIB, 90)
    quiet = stage.nvml.sample(idle)
    assert quiet.processes == ()
    assert (sample.temperature_c or 0) > (quiet.temperature_c or 0) > 20
    assert 100_000 < (sample.power_mw or 0) <= 165_000
    assert 80_000_000 < (sample.energy_mj or 0) < 100_000_000
    stage.change(lambda cards: cards.remove_process(busy, 4711))
    assert [process.pid for process in stage.nvml.sample(busy).processes] == [12]


def test_why_clocks_are_held_down_and_for_how_long(machine: Make) -> None:
    stage = machine("A30")
    (uuid,) = (card.uuid for card in stage.nvml.survey().cards)
    stage.change(lambda cards: cards.add_process(uuid, 1, GIB, 100))
    stage.clock.now += 30
    stage.change(lambda cards: cards.add_process(uuid, 1, GIB, 60))
    stage.clock.now += 30
    stage.change(lambda _: None)
    sample = stage.nvml.sample(uuid)
    assert sample.clock_event_reasons == frozenset()
    assert sample.violation_ns["power"] == 30 * 10**9
    assert sorted(sample.violation_ns.values())[:-1] == [0] * 5


def test_what_passed_over_the_links(machine: Make) -> None:
    stage = machine([{"model": "A100", "count": 2, "nvlink": 4}, "T4"])
    first, second, alone = (card.uuid for card in stage.nvml.survey().cards)
    stage.change(lambda cards: cards.add_process(first, 1, GIB, 50))
    stage.clock.now += 10
    stage.change(lambda _: None)
    links = stage.nvml.sample(first).nvlink
    assert links is not None
    assert links.sent_bytes == pytest.approx(250 * 10**9, rel=1e-6)
    assert (links.crc_flit_errors, links.replay_errors) == (0, 0)
    idle = stage.nvml.sample(second).nvlink
    assert idle is not None
    assert idle.sent_bytes == 0
    assert stage.nvml.sample(alone).nvlink is None


def test_how_busy_the_parts_of_newer_cards_are(machine: Make) -> None:
    stage = machine("H100,A100")
    newer, older = (card.uuid for card in stage.nvml.survey().cards)
    stage.change(lambda cards: cards.add_process(newer, 1, GIB, 50))
    stage.nvml.sample(newer)
    stage.clock.now += 5
    profile = stage.nvml.sample(newer).profile
    assert profile is not None
    assert (profile.graphics_active, profile.tensor_active, profile.dram_active) == (0.5, 0.2, 0.3)
    assert profile.pcie_sent == pytest.approx(250_000_000, rel=0.01)
    assert profile.nvlink_sent is None
    assert stage.nvml.sample(newer).profile == profile, "somebody else asks in the same second"
    assert stage.nvml.sample(older).profile is None


def test_pages_retired_on_older_cards_and_rows_remapped_on_newer(machine: Make) -> None:
    stage = machine("V100,A100,RTX3090")
    older, newer, without = (stage.nvml.sample(card.uuid) for card in stage.nvml.survey().cards)
    assert (older.retired_single_bit, older.retired_double_bit, older.retired_pending) == (0, 0, False)
    assert older.remapped is None
    assert newer.remapped is not None
    assert newer.retired_single_bit is None
    assert (without.remapped, without.retired_pending, without.ecc_corrected_lifetime) == (None, None, None)


def test_mig_instances(machine: Make) -> None:
    """Their memory and processes are known; the load of the card, or of a process, is not."""
    stage = machine([{"model": "A30", "mig": ["1g.6gb", "2g.12gb"]}])
    card = stage.nvml.survey().cards[0]
    small, large = (part.uuid for part in card.mig_instances)
    stage.change(lambda cards: cards.add_process(small, 7, 2 * GIB, 40))
    stage.change(lambda cards: cards.add_process(large, 8, 3 * GIB, 40))
    stage.change(lambda cards: cards.add_process(large, 9, 4 * GIB, 40))
    stage.nvml.sample(card.uuid)
    stage.clock.now += 5
    stage.change(lambda _: None)
    sample = stage.nvml.sample(card.uuid)
    first, second = sample.mig
    assert (first.uuid, first.profile, first.gpu_instance) == (small, "1g.6gb", 1)
    assert (second.uuid, second.profile, second.gpu_instance) == (large, "2g.12gb", 2)
    assert (first.memory_used_bytes, second.memory_used_bytes) == (2 * GIB, 7 * GIB)
    assert first.memory_total_bytes == card.mig_instances[0].memory_mib * 2**20
    assert first.memory_free_bytes == first.memory_total_bytes - 2 * GIB
    assert first.processes == (Process(7, 2 * GIB),)
    assert [process.pid for process in second.processes] == [8, 9]
    assert sample.processes == (Process(7, 2 * GIB), Process(8, 3 * GIB), Process(9, 4 * GIB))
    assert (sample.utilisation, sample.encoder_utilisation, sample.profile) == (None, None, None)
    assert sample.memory_used_bytes == 9 * GIB
    stage.change(lambda cards: cards.remove_process(large, 8))
    assert [process.pid for process in stage.nvml.sample(card.uuid).mig[1].processes] == [9]


def test_many_threads_at_once(machine: Make) -> None:
    """Samplers, a watcher and a card that comes and goes: nobody sees anything but answers and lost cards."""
    stage = machine("2xA30")
    first, second = (card.uuid for card in stage.nvml.survey().cards)
    events = stage.nvml.watch()

    def look() -> int:
        lost = 0
        for _ in range(60):
            try:
                assert stage.nvml.sample(first).memory_total_bytes == 24 * GIB
            except LostCardError:
                lost += 1
            assert stage.nvml.sample(second).processes == ()
            assert len(stage.nvml.survey().cards) == 2
        return lost

    with ThreadPoolExecutor(4) as threads:
        looks = [threads.submit(look) for _ in range(3)]
        waiting = threads.submit(next_of, events, EventKind.LOST)
        stage.change(lambda cards: cards.lose(first))
        assert waiting.result() == CardEvent(EventKind.LOST, first)
        stage.change(lambda cards: cards.restore(first))
        assert all(look.result() <= 60 for look in looks)
    events.close()


def test_unknown_card(machine: Make) -> None:
    nvml = machine("T4").nvml
    for uuid in ("GPU-nobody", "", "\ud800"):
        with pytest.raises(UnknownCardError, match="survey the cards again"):
            nvml.sample(uuid)


def test_compute_mode(machine: Make) -> None:
    nvml = machine("2xT4").nvml
    first, second = (card.uuid for card in nvml.survey().cards)
    assert nvml.compute_mode(first) is ComputeMode.DEFAULT
    for mode in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED, ComputeMode.DEFAULT):
        nvml.set_compute_mode(first, mode)
        assert nvml.compute_mode(first) is mode
        assert nvml.compute_mode(second) is ComputeMode.DEFAULT


def test_memory_limits(machine: Make, tmp_path: Path) -> None:
    nvml = machine("2xL4").nvml
    cards = nvml.survey().cards
    assert all(limits_memory(nvml.driver(), card) for card in cards)
    first, second = (card.uuid for card in cards)
    cgroup = tmp_path / "pod a"
    cgroup.mkdir()
    assert nvml.cgroup_memory(first, str(cgroup)).limit == MemoryLimit()
    nvml.set_memory_limit(first, str(cgroup), MemoryLimit(hard_bytes=3 * GIB, soft_bytes=GIB))
    assert nvml.cgroup_memory(first, str(cgroup)).limit == MemoryLimit(3 * GIB, GIB)
    assert nvml.cgroup_memory(second, str(cgroup)).limit == MemoryLimit()
    nvml.set_memory_limit(first, str(cgroup), MemoryLimit(hard_bytes=0))
    assert nvml.cgroup_memory(first, str(cgroup)).limit == MemoryLimit(0)
    nvml.set_memory_limit(first, str(cgroup), MemoryLimit())
    assert nvml.cgroup_memory(first, str(cgroup)).limit == MemoryLimit()


def test_memory_limits_need_the_cgroup(machine: Make, tmp_path: Path) -> None:
    nvml = machine("L4").nvml
    uuid = nvml.survey().cards[0].uuid
    for path in (str(tmp_path / "gone"), "not/absolute", "/with\0nul", ""):
        with pytest.raises(NoCgroupError, match="full path"):
            nvml.set_memory_limit(uuid, path, MemoryLimit(GIB))
        with pytest.raises(NoCgroupError, match="full path"):
            nvml.cgroup_memory(uuid, path)


@pytest.mark.parametrize(("hard", "soft"), [(GIB, 2 * GIB), (-1, 0), (2**65, 0), (2**64 - 1, 0), (None, -1)])
def test_impossible_memory_limits(hard: int | None, soft: int) -> None:
    with pytest.raises(GpuError, match="cannot be"):
        MemoryLimit(hard, soft)


@pytest.mark.parametrize(
    ("cards", "driver"),
    [("L4", Driver("580.95.05", (13, 0))), ([{"model": "A30", "mig": []}], Driver("615.71.05", (13, 4)))],
)
def test_memory_limits_need_a_new_driver_and_no_mig(
    machine: Make, tmp_path: Path, cards: object, driver: Driver
) -> None:
    nvml = machine(cards, driver).nvml
    card = nvml.survey().cards[0]
    uuid = card.uuid
    assert not limits_memory(nvml.driver(), card)
    with pytest.raises(NotSupportedError, match="R615"):
        nvml.set_memory_limit(uuid, str(tmp_path), MemoryLimit(GIB))
    with pytest.raises(NotSupportedError, match="R615"):
        nvml.cgroup_memory(uuid, str(tmp_path))


def next_of(events: CardEvents, kind: EventKind) -> CardEvent:
    """The next event of a kind; others before it are dropped."""
    while True:
        event = events.wait(60)
        assert event is not None, f"no event {kind}"
        if event.kind is kind:
            return event


def test_events_come_in_order_and_once(machine: Make) -> None:
    stage = machine("2xT4")
    first, second = (card.uuid for card in stage.nvml.survey().cards)
    stage.change(lambda cards: cards.raise_xid(first, 13))
    events = stage.nvml.watch()
    stage.change(lambda cards: cards.raise_xid(second, 48))
    stage.change(lambda cards: cards.count_ecc(first, corrected=1, uncorrected=1))
    assert [events.wait(60) for _ in range(3)] == [
        CardEvent(EventKind.XID, second, 48),
        CardEvent(EventKind.ECC_CORRECTED, first),
        CardEvent(EventKind.ECC_UNCORRECTED, first),
    ]
    assert events.wait(0) is None
    assert stage.nvml.sample(first).ecc_uncorrected == 1
    events.close()


def test_two_watches_see_the_same(machine: Make) -> None:
    stage = machine("T4")
    uuid = stage.nvml.survey().cards[0].uuid
    watches = [stage.nvml.watch(), stage.nvml.watch()]
    stage.change(lambda cards: cards.raise_xid(uuid, 63))
    assert [watch.wait(60) for watch in watches] == [CardEvent(EventKind.XID, uuid, 63)] * 2
    for watch in watches:
        watch.close()


def test_a_closed_watch_ends_the_wait(machine: Make) -> None:
    events = machine("T4").nvml.watch()
    answers: list[CardEvent | None] = []
    waiting = threading.Thread(target=lambda: answers.append(events.wait(3600)), name="wait")
    waiting.start()
    events.close()
    waiting.join()
    assert answers == [None]


def test_a_card_is_lost_and_comes_back(machine: Make) -> None:
    stage = machine("2xA30")
    events = stage.nvml.watch()
    first, second = stage.nvml.survey().cards
    stage.change(lambda cards: cards.add_process(first.uuid, 7, GIB, 10))
    stage.change(lambda cards: cards.lose(first.uuid))
    assert next_of(events, EventKind.LOST) == CardEvent(EventKind.LOST, first.uuid)
    with pytest.raises(LostCardError, match="reset"):
        stage.nvml.sample(first.uuid)
    with pytest.raises(LostCardError):
        stage.nvml.set_compute_mode(first.uuid, ComputeMode.DEFAULT)
    assert stage.nvml.sample(second.uuid).memory_total_bytes == 24 * GIB
    lost, alive = gpus(stage.nvml.survey(), faults={second.uuid: "xid 48"})
    assert (lost.uuid, lost.index, lost.healthy, lost.memory_mib) == (first.uuid, 0, False, 24576)
    assert "lost" in lost.fault
    assert (alive.healthy, alive.fault) == (False, "xid 48")
    stage.change(lambda cards: cards.raise_xid(second.uuid, 48))
    assert next_of(events, EventKind.XID) == CardEvent(EventKind.XID, second.uuid, 48)
    stage.change(lambda cards: cards.restore(first.uuid))
    assert next_of(events, EventKind.BACK) == CardEvent(EventKind.BACK, first.uuid)
    assert stage.nvml.sample(first.uuid).processes == ()
    assert stage.nvml.survey().cards == (first, second)
    stage.change(lambda cards: cards.raise_xid(first.uuid, 31))
    assert next_of(events, EventKind.XID) == CardEvent(EventKind.XID, first.uuid, 31)
    events.close()


def test_a_card_lost_from_the_start_is_unreadable(machine: Make) -> None:
    stage = machine(["A30", {"model": "T4", "lost": True}, "L4"])
    survey = stage.nvml.survey()
    assert [(card.index, card.model) for card in survey.cards] == [(0, "NVIDIA A30"), (2, "NVIDIA L4")]
    assert [unreadable.index for unreadable in survey.unreadable] == [1]
    assert [gpu.index for gpu in gpus(survey)] == [0, 2]


def test_a_card_lost_before_the_watch_reports_only_its_return(machine: Make) -> None:
    stage = machine("T4")
    uuid = stage.nvml.survey().cards[0].uuid
    stage.change(lambda cards: cards.lose(uuid))
    events = stage.nvml.watch()
    assert events.wait(0) is None
    stage.change(lambda cards: cards.restore(uuid))
    assert events.wait(60) == CardEvent(EventKind.BACK, uuid)
    events.close()
