"""What a sample holds when calls fail, and what processes are said to compute. NVML on the stand-in library."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.gpu.errors import LostCardError
from shoal.gpu.nvml.samples import STEP, LoadRow, newest_loads
from shoal.gpu.protocol import PcieTraffic, Process, Sample
from tests.gpu.machines import ShimMachine
from tests.gpu.test_nvml import FUNCTIONS, LOST, NO_FUNCTION, NO_PERMISSION, UNKNOWN, UNSUPPORTED
from tests.soak import times
from tests.testbed.nvml.shim import Shim

GIB = 2**30
MACHINE = [{"model": "H100", "count": 2, "nvlink": 4}, "RTX3090", "V100", {"model": "A30", "mig": ["1g.6gb"]}]
MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
#: What each call is for: these readings, and no others, are missing when it fails.
CALLS: dict[str, tuple[str, ...]] = {
    "nvmlDeviceGetUtilizationRates": ("utilisation", "memory_utilisation"),
    "nvmlDeviceGetEncoderUtilization": ("encoder_utilisation",),
    "nvmlDeviceGetDecoderUtilization": ("decoder_utilisation",),
    "nvmlDeviceGetTemperature": ("temperature_c",),
    "nvmlDeviceGetPowerUsage": ("power_mw",),
    "nvmlDeviceGetFanSpeed": ("fan",),
    "nvmlDeviceGetClockInfo": ("sm_clock_mhz", "memory_clock_mhz"),
    "nvmlDeviceGetCurrentClocksEventReasons": ("clock_event_reasons",),
    "nvmlDeviceGetPcieReplayCounter": ("pcie_replays",),
    "nvmlDeviceGetRemappedRows": ("remapped",),
    "nvmlGpmSampleGet": ("profile",),
    "nvmlGpmMetricsGet": ("profile",),
}
FIELDS = (
    *("memory_temperature_c", "energy_mj", "nvlink", "ecc_corrected", "ecc_uncorrected", "ecc_corrected_lifetime"),
    *("ecc_uncorrected_lifetime", "retired_single_bit", "retired_double_bit", "retired_pending"),
)


@pytest.fixture
def made(shim: Shim) -> Iterator[Callable[[object], ShimMachine]]:
    """Makes a machine with cards."""
    machines: list[ShimMachine] = []

    def make(cards: object) -> ShimMachine:
        machines.append(ShimMachine(shim, cards))
        return machines[-1]

    yield make
    for machine in machines:
        machine.close()


def busy(machine: ShimMachine) -> None:
    """Have something to read on every card."""
    for number, uuid in enumerate(machine.truth.uuids()):
        machine.truth.add_process(uuid, 10 * number + 1, GIB, 20)
        machine.truth.add_process(uuid, 10 * number + 2, GIB, 30, mps=True)
    machine.truth.add_process(machine.truth.survey().cards[-1].mig_instances[0].uuid, 99, GIB, 5)


def step(machine: ShimMachine, *errors: tuple[str, int]) -> None:
    """Five seconds later."""
    machine.clock.now += 5
    machine.write(errors=errors)


def without(sample: Sample, function: str) -> Sample:
    """What a sample holds when a call fails."""
    nothing: dict[str, Any] = {}
    if function == "nvmlDeviceGetMemoryInfo_v2":
        nothing = dict.fromkeys(MEMORY)
        nothing["mig"] = tuple(replace(part, **nothing) for part in sample.mig)
    elif function == "nvmlDeviceGetFieldValues":
        nothing = dict.fromkeys(FIELDS, None) | {"violation_ns": {}}
    elif function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
        mps = "MPS" in function
        nothing = {"processes": tuple(p for p in sample.processes if p.mps != mps), "processes_known": False}
        nothing["mig"] = tuple(
            replace(part, processes=tuple(p for p in part.processes if p.mps != mps), processes_known=False)
            for part in sample.mig
        )
    elif function == "nvmlDeviceGetProcessUtilization":
        nothing = {"processes": tuple(replace(p, utilisation=None) for p in sample.processes)}
    elif function in CALLS:
        nothing = dict.fromkeys(CALLS[function], None)
    elif function in MIG:
        nothing = {"mig": ()}
    return replace(sample, **nothing)


#: Without these nothing is known of MIG instances.
MIG = (
    *("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetAttributes_v2"),
    *("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetUUID"),
)
#: Without this one it is not even known that there are any, and the card is asked like one that has none.
MODE = "nvmlDeviceGetMigMode"


@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN])
def test_a_call_that_fails_costs_its_own_reading(made: Callable[[object], ShimMachine], code: int) -> None:
    machine = made(MACHINE)
    machine.nvml.survey()
    busy(machine)
    concerned = set()
    for function in sorted(set(FUNCTIONS) - {"nvmlDeviceGetHandleByIndex_v2", MODE}):
        step(machine)
        for uuid in machine.truth.uuids():
            machine.nvml.sample(uuid)
        step(machine, (function, code))
        for card in machine.truth.survey().cards:
            truth, sample = machine.truth.sample(card.uuid), machine.nvml.sample(card.uuid)
            assert replace(sample, failed_calls=()) == without(truth, function), (function, card.model)
            assert {re.sub(r"_v\d$", "", call) for call in sample.failed_calls} <= {re.sub(r"_v\d$", "", function)}
            if without(truth, function) != truth:
                assert sample.failed_calls, function
                concerned.add(function)
    assert concerned == {
        *(*CALLS, *MIG, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetProcessUtilization"),
        *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    }


def test_the_bus_when_its_call_fails(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.nvml.survey()
    machine.write(errors=(("nvmlDeviceGetPcieThroughput", UNKNOWN),))
    assert machine.nvml.pcie_traffic(uuid) == PcieTraffic(None, None, ("nvmlDeviceGetPcieThroughput",) * 2)
    machine.write(errors=(("nvmlDeviceGetPcieThroughput", UNSUPPORTED),))
    assert machine.nvml.pcie_traffic(uuid) == PcieTraffic(None, None)
    machine.write(errors=(("nvmlDeviceGetPcieThroughput", LOST),))
    with pytest.raises(LostCardError):
        machine.nvml.pcie_traffic(uuid)


@pytest.mark.parametrize("code", [UNSUPPORTED, NO_FUNCTION])
def test_what_is_not_offered_is_no_failure(made: Callable[[object], ShimMachine], code: int) -> None:
    machine = made(MACHINE)
    machine.nvml.survey()
    for function in sorted(set(FUNCTIONS) - {"nvmlDeviceGetHandleByIndex_v2"}):
        step(machine, (function, code))
        for uuid in machine.truth.uuids():
            assert machine.nvml.sample(uuid).failed_calls == (), function


def test_older_drivers_count_what_they_keep_as_used(made: Callable[[object], ShimMachine]) -> None:
    machine = made("A30")
    (uuid,) = machine.truth.uuids()
    machine.write(errors=(("nvmlDeviceGetMemoryInfo_v2", NO_FUNCTION),))
    sample = machine.nvml.sample(uuid)
    assert (sample.memory_used_bytes, sample.memory_reserved_bytes) == (512 * 2**20, None)


def test_one_field_that_fails(made: Callable[[object], ShimMachine]) -> None:
    machine = made("A100")
    (uuid,) = machine.truth.uuids()
    truth = machine.truth.sample(uuid)
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(f"{lines}error field_82 {UNKNOWN}\nerror field_75 {UNSUPPORTED}\nerror field_83 2\n")
    sample = machine.nvml.sample(uuid)
    assert sample == replace(
        truth,
        memory_temperature_c=None,
        energy_mj=None,
        violation_ns={cause: time for cause, time in truth.violation_ns.items() if cause != "thermal"},
        failed_calls=("nvmlDeviceGetFieldValues",),
    )


def test_a_lost_card_begins_anew(made: Callable[[object], ShimMachine]) -> None:
    """Counters of a card that was away are not compared with those from before."""
    machine = made("H100")
    (uuid,) = machine.truth.uuids()
    machine.nvml.sample(uuid)
    step(machine)
    assert machine.nvml.sample(uuid).profile is not None
    machine.change(lambda cards: cards.lose(uuid))
    with pytest.raises(LostCardError):
        machine.nvml.sample(uuid)
    machine.change(lambda cards: cards.restore(uuid))
    step(machine)
    assert machine.nvml.sample(uuid).profile is None
    step(machine)
    assert machine.nvml.sample(uuid).profile is not None


@pytest.mark.parametrize(("metric", "value"), [(1, 100_000_001), (10, 2**63)])
def test_more_than_all_is_no_reading_of_gpm(made: Callable[[object], ShimMachine], metric: int, value: int) -> None:
    machine = made("H100")
    (uuid,) = machine.truth.uuids()
    machine.nvml.sample(uuid)
    step(machine)
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(re.sub(rf"^gpm_{metric} .*$", f"gpm_{metric} {value}", lines, flags=re.MULTILINE))
    profile = machine.nvml.sample(uuid).profile
    assert profile is not None
    assert (profile.graphics_active if metric == 1 else profile.dram_active) is None
    assert profile.sm_active == 0.0


# What processes compute


def loads(machine: ShimMachine) -> dict[int, int | None]:
    """The load of each process of the first card, by a new sample."""
    processes = machine.nvml.sample(machine.truth.uuids()[0]).processes
    return {process.pid: process.utilisation for process in processes}


def test_processes_that_do_not_compute_have_no_load_and_none_is_kept(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuid, 1, GIB, 30))
    machine.change(lambda cards: cards.add_process(uuid, 2, GIB, 0))
    assert loads(machine) == {1: None, 2: None}, "the first answer may be of long ago"
    step(machine)
    assert loads(machine) == {1: 30, 2: 0}
    assert loads(machine) == {1: 30, 2: 0}, "somebody else asks in the same second"
    machine.clock.now += 5  # nothing has computed since
    assert loads(machine) == {1: 0, 2: 0}
    step(machine)
    assert loads(machine) == {1: 30, 2: 0}
    machine.truth.remove_process(uuid, 1)
    step(machine)
    assert loads(machine) == {2: 0}, "NOT_FOUND says that nothing computed"


def test_a_client_of_mps_that_is_not_listed_may_compute(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuid, 1, GIB, 0, mps=True))
    loads(machine)
    step(machine)
    assert machine.nvml.sample(uuid).processes == (Process(1, GIB, None, mps=True),)


def test_more_than_all_is_no_reading(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuid, 1, GIB, 100))
    machine.change(lambda cards: cards.add_process(uuid, 2, GIB, 7))
    loads(machine)
    step(machine)
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(lines.replace(f"process 1 {GIB} 100", f"process 1 {GIB} 101"))
    assert loads(machine) == {1: None, 2: 7}


def test_the_drivers_clock_is_set_back(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuid, 1, GIB, 30))
    loads(machine)
    step(machine)
    assert loads(machine) == {1: 30}

    def an_hour_back() -> None:
        step(machine)
        lines = (machine.shim.directory / "nvml.txt").read_text()
        machine.shim.write(
            re.sub(r"^time (.*)$", lambda m: f"time {int(m[1]) - 3600 * 10**6}", lines, flags=re.MULTILINE)
        )

    an_hour_back()
    assert loads(machine) == {1: None}
    an_hour_back()
    assert loads(machine) == {1: 30}


programs = st.dictionaries(st.integers(1, 4), st.integers(0, 130), max_size=4)


@settings(max_examples=times(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(st.tuples(programs, st.sampled_from([0.0, 0.3, 5.0]), st.booleans()), max_size=8))
def test_whatever_processes_do(shim: Shim, story: list[tuple[dict[int, int], float, bool]]) -> None:
    """Programs come, go and change what they compute; the driver has news or not; samples follow each other closely."""
    machine = ShimMachine(shim, "T4")
    try:
        lines = (machine.shim.directory / "nvml.txt").read_text()
        driver_time, known, news, asked = 10**15, False, False, machine.clock.now

        def tell(running: dict[int, int]) -> None:
            text = re.sub(r"^time .*$", f"time {driver_time}", lines, flags=re.MULTILINE)
            machine.shim.write(text + "".join(f"process {pid} {GIB} {load} 0 0\n" for pid, load in running.items()))

        tell({99: 1})
        loads(machine)
        for others, wait, computed in story:
            running = {**others, 99: 1}  # by which the driver always tells what time it is
            machine.clock.now += wait
            driver_time += 10**6 if computed else 0
            tell(running)
            if machine.clock.now - asked >= STEP:
                # What is told from now on is what came since the question before this one.
                known, news, asked = True, computed, machine.clock.now
            else:
                news = news or computed
            found = loads(machine)
            assert set(found) == set(running)
            for pid, load in found.items():
                if not known:
                    assert load is None
                elif not news:
                    assert load == 0
                else:
                    assert load == (None if running[pid] > 100 else running[pid])
    finally:
        machine.close()


rows = st.lists(st.builds(LoadRow, st.integers(1, 5), st.integers(0, 20), st.integers(0, 300)), max_size=30)


@given(rows=rows, since=st.integers(0, 20))
def test_loads_are_the_newest_after_a_moment(rows: list[LoadRow], since: int) -> None:
    found = newest_loads(rows, since)
    assert set(found) == {row.pid for row in rows if row.time > since}
    for pid, load in found.items():
        last = max(row.time for row in rows if row.pid == pid)
        candidates = {row.load for row in rows if row.pid == pid and row.time == last}
        assert load in candidates if load is not None else max(candidates) > 100
        assert load is None or 0 <= load <= 100
