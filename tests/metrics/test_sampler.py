"""What the sampler tells of the cards, on simulated ones and on NVML with the stand-in library."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from shoal.gpu.protocol import CardEvent, EventKind
from shoal.gpu.simulated import SimulatedNvml
from shoal.metrics.sampler import HUNG, PCIE_FRESH, PCIE_SAMPLES, SURVEY_EVERY, WINDOW, SampledCard, Sampler
from tests.gpu.conftest import machine, nvml_library, shim  # noqa: F401 - fixtures
from tests.gpu.machines import Machine, ShimMachine
from tests.testbed.nvml.shim import Shim
from tests.testbed.waiting import wait_for

GIB = 2**30
Make = Callable[..., Machine]
MakeSampler = Callable[..., Sampler]


@pytest.fixture
def sampler() -> Iterator[MakeSampler]:
    """Makes samplers, which end with the test."""
    made: list[Sampler] = []

    def make(stage: Machine, patience: float = 60.0) -> Sampler:
        made.append(Sampler(stage.nvml, clock=stage.clock, patience=patience))
        return made[-1]

    yield make
    for each in made:
        each.close()


def shown(sampler: Sampler, place: int = 0) -> SampledCard:
    """One card of a new sample."""
    return sampler.sample().cards[place]


def test_all_cards_and_the_driver(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine(["A30", "2xRTX3090"])
    first = stage.nvml.survey().cards[0].uuid
    stage.change(lambda cards: cards.add_process(first, 12, 5 * GIB, 50))
    sampled = sampler(stage).sample()
    assert sampled.driver == stage.nvml.driver()
    assert [each.card for each in sampled.cards] == list(stage.nvml.survey().cards)
    assert [each.sample and each.sample.memory_used_bytes for each in sampled.cards] == [5 * GIB, 0, 0]
    assert sampled.failures == {}


def test_no_cards(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    assert sampler(machine([])).sample().cards == ()


def test_the_bus_is_measured_between_samples(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("4xA30")
    for card in stage.nvml.survey().cards:
        stage.change(partial(SimulatedNvml.add_process, uuid=card.uuid, pid=12, memory_bytes=GIB, utilisation=50))
    truth = [stage.nvml.pcie_traffic(card.uuid) for card in stage.nvml.survey().cards]
    asked = sampler(stage)
    assert [each.sample and each.sample.pcie_sent for each in asked.sample().cards] == [None] * 4
    for _ in range(PCIE_SAMPLES):
        asked.sample()
    wait_for(lambda: all(each.sample and each.sample.pcie_sent for each in asked.sample().cards), "measured")
    now = [each.sample for each in asked.sample().cards]
    assert [(one.pcie_sent, one.pcie_received) for one in now if one] == [(one.sent, one.received) for one in truth]


def test_what_was_measured_long_ago_is_not_shown(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("A30")
    stage.change(lambda cards: cards.add_process(cards.uuids()[0], 12, GIB, 50))
    asked = sampler(stage)
    wait_for(lambda: (sample := shown(asked).sample) is not None and bool(sample.pcie_sent), "measured")
    stage.change(lambda cards: cards.lose(cards.uuids()[0]))
    wait_for(lambda: shown(asked).card.lost, "lost")
    stage.clock.now += PCIE_FRESH + 1
    stage.change(lambda cards: cards.restore(cards.uuids()[0]))
    back = shown(asked)
    assert back.sample is not None
    assert not back.sample.pcie_sent, "nothing runs on it any more"


def test_xids_are_counted_by_card_and_window(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("2xT4")
    asked = sampler(stage)
    _, second = (each.card.uuid for each in asked.sample().cards)
    for xid in (31, 31, 48):
        stage.change(partial(SimulatedNvml.raise_xid, uuid=second, xid=xid))
    wait_for(lambda: shown(asked, 1).last_xid == 48, "heard")
    assert (shown(asked, 1).xids, shown(asked, 1).recent_xids) == ({31: 2, 48: 1}, {31: 2, 48: 1})
    assert (shown(asked, 0).xids, shown(asked, 0).last_xid) == ({}, None)
    stage.clock.now += WINDOW + 1
    later = shown(asked, 1)
    assert (later.xids, later.recent_xids, later.last_xid) == ({31: 2, 48: 1}, {}, 48)


def test_a_lost_card_costs_itself_and_comes_back(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("3xT4")
    asked = sampler(stage)
    middle = asked.sample().cards[1].card.uuid
    stage.change(lambda cards: cards.lose(middle))
    assert [each.sample is None for each in asked.sample().cards] == [False, True, False]
    wait_for(lambda: shown(asked, 1).card.lost, "seen to be lost")
    stage.change(lambda cards: cards.restore(middle))
    wait_for(lambda: (now := shown(asked, 1)).sample is not None and not now.card.lost, "back")
    assert asked.sample().failures == {}


def test_reports_of_a_card_that_came_back_are_heard(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("2xT4")
    asked = sampler(stage)
    first = shown(asked).card.uuid
    stage.change(lambda cards: cards.lose(first))
    wait_for(lambda: shown(asked).card.lost, "seen to be lost")
    stage.change(lambda cards: cards.restore(first))
    wait_for(lambda: not shown(asked).card.lost, "back")

    def heard() -> bool:
        stage.change(lambda cards: cards.raise_xid(first, 48))
        return shown(asked).xids.get(48, 0) > 0

    wait_for(heard, "heard")
    watch = stage.nvml.watch()
    stage.change(lambda cards: cards.raise_xid(first, 48))
    assert watch.wait(60) == CardEvent(EventKind.XID, first, 48)
    watch.close()


def test_cards_are_surveyed_seldom(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    """What changes without a word, such as MIG mode, is seen within a minute."""
    stage = machine("T4")
    asked = sampler(stage)
    first = asked.sample()
    assert asked.sample().cards[0].card is first.cards[0].card
    stage.clock.now += SURVEY_EVERY
    again = asked.sample().cards[0].card
    assert again == first.cards[0].card


# Cards that hang


@pytest.fixture
def hung(shim: Shim) -> Iterator[Callable[..., ShimMachine]]:  # noqa: F811
    """Makes a machine whose calls can hang; none does any more at the end."""
    made: list[ShimMachine] = []

    def make(cards: object) -> ShimMachine:
        made.append(ShimMachine(shim, cards))
        return made[-1]

    yield make
    for each in made:
        each.write()
        wait_for(lambda: not asking(), "done")
        each.close()


def asking() -> list[str]:
    """The threads that ask the driver."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpu-sample")]


def answered(sampler: Sampler) -> list[bool]:
    """Which cards have a sample."""
    return [each.sample is not None for each in sampler.sample().cards]


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperature", "nvmlDeviceGetProcessUtilization"])
def test_a_card_that_hangs_costs_itself(hung: Callable[..., ShimMachine], sampler: MakeSampler, function: str) -> None:
    stage = hung("4xT4")
    asked = sampler(stage, patience=0.5)
    wait_for(lambda: answered(asked) == [True] * 4, "answered")
    stage.write(hangs=((1, function), (2, function)))
    wait_for(lambda: answered(asked) == [True, False, False, True], "without the two that hang")
    before = asked.sample().failures[HUNG]
    for _ in range(30):
        wait_for(lambda: answered(asked) == [True, False, False, True], "as before")
    assert asked.sample().failures[HUNG] > before
    assert len(asking()) <= 2 * 4 + 1, "one for each question that is open: samples, buses, the survey"
    stage.change(lambda cards: cards.raise_xid(cards.uuids()[3], 48))
    stage.write(hangs=((1, function), (2, function)))
    wait_for(lambda: shown(asked, 3).xids == {48: 1}, "heard meanwhile")
    stage.write()
    wait_for(lambda: answered(asked) == [True] * 4, "back")


def test_every_card_hangs(hung: Callable[..., ShimMachine], sampler: MakeSampler) -> None:
    stage = hung("8xT4")
    asked = sampler(stage, patience=0.5)
    wait_for(lambda: answered(asked) == [True] * 8, "answered")
    stage.write(hangs=tuple((index, "nvmlDeviceGetTemperature") for index in range(8)))
    assert answered(asked) == [False] * 8
    stage.write()
    wait_for(lambda: answered(asked) == [True] * 8, "back")


def test_a_bus_that_hangs_costs_its_own_reading(hung: Callable[..., ShimMachine], sampler: MakeSampler) -> None:
    stage = hung("2xT4")
    stage.write(hangs=((0, "nvmlDeviceGetPcieThroughput"),))
    asked = sampler(stage)

    def measured() -> list[bool]:
        return [each.sample is not None and each.sample.pcie_sent is not None for each in asked.sample().cards]

    wait_for(lambda: measured() == [False, True], "measured")
    assert answered(asked) == [True, True]
    stage.write()
    wait_for(lambda: measured() == [True, True], "measured, both")


def test_a_survey_that_hangs_keeps_the_last_one(hung: Callable[..., ShimMachine], sampler: MakeSampler) -> None:
    stage = hung("2xT4")
    asked = sampler(stage, patience=0.5)
    wait_for(lambda: answered(asked) == [True, True], "answered")
    stage.write(hangs=((1, "nvmlDeviceGetNumGpuCores"),))
    stage.clock.now += SURVEY_EVERY
    wait_for(lambda: asked.sample().failures.get(HUNG, 0) > 0, "missed")
    wait_for(lambda: answered(asked) == [True, True], "answered")


def test_a_driver_that_does_not_answer(hung: Callable[..., ShimMachine], sampler: MakeSampler) -> None:
    stage = hung("T4")
    stage.write(errors=(("nvmlSystemGetDriverVersion", 999), ("nvmlEventSetCreate", 999)))
    asked = sampler(stage)
    first = asked.sample()
    assert (first.driver, first.cards) == (None, ())
    assert first.failures == {"survey": 1, "watch": 1}
    stage.write()
    wait_for(lambda: asked.sample().driver is not None, "answered")
    assert answered(asked) == [True]


def test_calls_that_fail_are_counted_by_name(hung: Callable[..., ShimMachine], sampler: MakeSampler) -> None:
    stage = hung("2xT4")
    asked = sampler(stage)
    asked.sample()
    stage.write(errors=(("nvmlDeviceGetPowerUsage", 999), ("nvmlDeviceGetMemoryInfo_v2", 4)))
    asked.sample()
    sampled = asked.sample()
    assert sampled.failures == {"nvmlDeviceGetPowerUsage": 4, "nvmlDeviceGetMemoryInfo": 4}
    samples = [each.sample for each in sampled.cards if each.sample]
    assert [(one.power_mw, one.memory_used_bytes, one.temperature_c is None) for one in samples] == [
        (None, None, False)
    ] * 2


def test_clock_events_are_counted_by_window(machine: Make, sampler: MakeSampler) -> None:  # noqa: F811
    stage = machine("T4")
    (uuid,) = (card.uuid for card in stage.nvml.survey().cards)
    asked = sampler(stage)
    asked.sample()
    stage.clock.now += 5
    assert shown(asked).recent_clock_events == {"gpu_idle": 2}
    stage.change(lambda cards: cards.add_process(uuid, 1, GIB, 100))
    stage.clock.now += WINDOW - 1
    assert shown(asked).recent_clock_events == {"gpu_idle": 1, "sw_power_cap": 1}
    stage.clock.now += WINDOW + 1
    stage.change(lambda cards: cards.add_process(uuid, 1, GIB, 50))
    assert shown(asked).recent_clock_events == {}
