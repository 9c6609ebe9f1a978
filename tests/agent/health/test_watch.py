"""The thread that asks the driver, on both backends."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from shoal.agent.health.state import CardHealth, HealthRules
from shoal.agent.health.watch import THREAD, HealthWatch
from shoal.gpu.protocol import Survey
from shoal.gpu.simulated import SimulatedNvml
from tests.gpu.conftest import machine, nvml_library, shim  # noqa: F401 - fixtures
from tests.gpu.machines import Machine

QUICK = HealthRules(hold=0.2, longest_hold=0.2)


class Watched:
    """A machine, and what the watch makes of it."""

    def __init__(self, machine: Machine, rules: HealthRules) -> None:  # noqa: F811
        self.machine = machine
        self.health = CardHealth(rules)
        self.surveys: list[Survey] = []
        self._changed = asyncio.Event()
        survey = machine.nvml.survey()
        self.uuids = [card.uuid for card in survey.cards]
        loop = asyncio.get_running_loop()
        watch = HealthWatch(
            machine.nvml,
            self.health,
            survey,
            now=loop.time,
            changed=self._changed.set,
            surveyed=self.surveys.append,
            hold=rules.hold,
        )
        self.task = asyncio.create_task(watch.run())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Watch = Callable[..., Watched]


def threads() -> set[threading.Thread]:
    """The watches that ask a driver now."""
    return {thread for thread in threading.enumerate() if thread.name == THREAD}


@pytest.fixture
async def watch(machine: Callable[..., Machine]) -> AsyncIterator[Watch]:  # noqa: F811
    made: list[Watched] = []
    before = threads()  # an embedded cluster of other tests may be there for as long as this process

    def make(cards: object, rules: HealthRules = QUICK) -> Watched:
        made.append(Watched(machine(cards), rules))
        return made[-1]

    yield make
    for each in made:
        await each.stop()
    assert threads() - before == set()


async def test_error_and_recovery(watch: Watch) -> None:
    watched = watch("2xA30")
    await watched.until(lambda: bool(watched.surveys))
    second = watched.uuids[1]
    watched.machine.change(lambda cards: cards.raise_xid(second, 94))
    await watched.until(lambda: set(watched.health.faults) == {second})
    assert "XID 94" in watched.health.faults[second]
    await watched.until(lambda: watched.health.faults == {})


async def test_application_error_is_passed_over(watch: Watch) -> None:
    watched = watch("2xT4")
    await watched.until(lambda: bool(watched.surveys))
    first, second = watched.uuids

    def two(cards: SimulatedNvml) -> None:
        cards.raise_xid(first, 31)
        cards.raise_xid(second, 94)

    watched.machine.change(two)
    await watched.until(lambda: second in watched.health.faults)
    assert set(watched.health.faults) == {second}


async def test_lost_card_comes_back(watch: Watch) -> None:
    watched = watch("2xA30")
    await watched.until(lambda: bool(watched.surveys))
    card = watched.uuids[0]
    watched.machine.change(lambda cards: cards.lose(card))
    await watched.until(lambda: "lost from the bus" in watched.health.faults.get(card, ""))
    watched.machine.change(lambda cards: cards.restore(card))
    await watched.until(lambda: watched.health.faults == {})
    assert not any(one.lost for one in watched.surveys[-1].cards)


async def test_memory_errors(watch: Watch) -> None:
    watched = watch("1xT4")
    await watched.until(lambda: bool(watched.surveys))
    (card,) = watched.uuids
    watched.machine.change(lambda cards: cards.count_ecc(card, corrected=3))
    watched.machine.change(lambda cards: cards.count_ecc(card, uncorrected=1))
    await watched.until(lambda: "memory errors" in watched.health.faults.get(card, ""))


async def test_card_that_was_lost_from_the_start(watch: Watch) -> None:
    watched = watch([{"model": "T4"}, {"model": "T4", "lost": True}])
    await watched.until(lambda: bool(watched.surveys))
    assert len(watched.uuids) == 1
    lost = next(uuid for uuid in _all(watched.machine) if uuid not in watched.uuids)
    watched.machine.change(lambda cards: cards.restore(lost))
    # Nobody tells of a card that the driver never named: something else brings the next look.
    watched.machine.change(lambda cards: cards.raise_xid(watched.uuids[0], 94))
    await watched.until(lambda: len(watched.surveys[-1].cards) == 2)
    watched.machine.change(lambda cards: cards.raise_xid(lost, 94))
    await watched.until(lambda: lost in watched.health.faults)


def _all(machine: Machine) -> tuple[str, ...]:  # noqa: F811
    truth = getattr(machine, "truth", machine.nvml)
    assert isinstance(truth, SimulatedNvml)
    return truth.uuids()
