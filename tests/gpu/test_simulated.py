"""What simulated cards do of their own: physics, memory, determinism."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu import physics
from shoal.gpu.describe import parse_cards
from shoal.gpu.errors import GpuError, LostCardError, OutOfMemoryError, UnknownCardError
from shoal.gpu.models import named
from shoal.gpu.protocol import CardEvent, ComputeMode, EventKind, MemoryLimit
from shoal.gpu.simulated import SimulatedNvml
from tests.gpu.machines import Clock

GIB = 2**30
A30 = named("A30")[0]


def simulated(cards: object, *, seed: str = "", clock: Clock | None = None) -> SimulatedNvml:
    return SimulatedNvml(parse_cards(cards), clock=clock or Clock(), seed=seed)


def test_the_same_seed_gives_the_same_cards_and_readings() -> None:
    def story(seed: str) -> list[object]:
        clock = Clock()
        nvml = simulated("2xA30,RTX4090", seed=seed, clock=clock)
        seen: list[object] = [nvml.survey()]
        for step, uuid in enumerate(nvml.uuids()):
            nvml.add_process(uuid, 1, GIB, 30 * step)
            clock.now += 17
            seen += [nvml.sample(each) for each in nvml.uuids()]
        return seen

    assert story("node-1") == story("node-1")
    first, second = simulated("2xA30", seed="node-1").uuids(), simulated("2xA30", seed="node-2").uuids()
    assert len({*first, *second}) == 4


@given(
    changes=st.lists(st.tuples(st.floats(0, 500), st.floats(0, 1)), max_size=6),
    looks=st.lists(st.floats(0, 3000), max_size=20),
)
def test_looking_changes_nothing(changes: list[tuple[float, float]], looks: list[float]) -> None:
    """Warmth and energy do not depend on how often somebody samples in between."""

    def end(steps: list[float]) -> physics.Heat:
        heat, now = physics.cold(0.0, A30), 0.0
        for wait, load in changes:
            for look in sorted(steps):
                if now < look < now + wait:
                    heat = physics.moved(heat, A30, look)
            now += wait
            heat = physics.loaded(heat, A30, now, load)
        return physics.moved(heat, A30, 3000.0)

    watched, unwatched = end(looks), end([])
    assert watched.temperature_c == pytest.approx(unwatched.temperature_c)
    assert watched.energy_j == pytest.approx(unwatched.energy_j)
    assert physics.AMBIENT_C <= watched.temperature_c <= A30.max_c


def test_a_busy_card_warms_up_and_cools_down() -> None:
    clock = Clock()
    nvml = simulated("RTX4090", clock=clock)
    (uuid,) = nvml.uuids()
    nvml.add_process(uuid, 1, GIB, 100)
    readings = []
    for _ in range(4):
        readings.append(nvml.sample(uuid))
        clock.now += 120
    temperatures = [reading.temperature_c or 0 for reading in readings]
    assert temperatures == sorted(set(temperatures))
    assert temperatures[-1] == pytest.approx(90, abs=2)
    fans = [reading.fan or 0 for reading in readings]
    assert (fans[0], fans == sorted(fans), fans[-1] > 90) == (30, True, True)
    nvml.remove_process(uuid, 1)
    clock.now += 1200
    cool = nvml.sample(uuid)
    assert cool.temperature_c == temperatures[0]
    assert (cool.sm_clock_mhz or 0) < (readings[0].sm_clock_mhz or 0)
    before = readings[-1].energy_mj or 0
    assert (cool.energy_mj or 0) == pytest.approx(before + 120 * 450_000 + 1200 * 20_000, rel=0.001)


def test_readings_carry_noise_within_a_second_the_same() -> None:
    clock = Clock()
    nvml = simulated("A30", clock=clock)
    (uuid,) = nvml.uuids()
    nvml.add_process(uuid, 1, 0, 50)
    powers = []
    for _ in range(50):
        assert nvml.sample(uuid).power_mw == nvml.sample(uuid).power_mw
        powers.append(nvml.sample(uuid).power_mw or 0)
        clock.now += 1
    assert len(set(powers)) > 40
    assert max(powers) / min(powers) < 1.05


def test_more_than_full_load_is_full_load() -> None:
    nvml = simulated("A30")
    (uuid,) = nvml.uuids()
    for pid in (1, 2, 3):
        nvml.add_process(uuid, pid, 0, 60)
    assert nvml.sample(uuid).utilisation == 100


def test_memory_runs_out() -> None:
    nvml = simulated("2xA30")
    uuid, other = nvml.uuids()
    nvml.add_process(uuid, 1, 20 * GIB, 0)
    with pytest.raises(OutOfMemoryError, match="are free"):
        nvml.add_process(uuid, 2, 4 * GIB, 0)
    nvml.add_process(uuid, 2, 24 * GIB - 20 * GIB - 512 * 2**20, 0)
    assert nvml.sample(uuid).memory_free_bytes == 0
    nvml.add_process(uuid, 1, GIB, 0)
    nvml.add_process(uuid, 2, 22 * GIB, 0)
    assert nvml.sample(other).memory_used_bytes == 0


def test_a_cgroup_runs_out_of_its_own() -> None:
    nvml = simulated("2xA30")
    uuid, other = nvml.uuids()
    nvml.set_memory_limit(uuid, "/pod", MemoryLimit(3 * GIB))
    nvml.add_process(uuid, 1, 2 * GIB, 0, cgroup="/pod")
    with pytest.raises(OutOfMemoryError, match="limit"):
        nvml.add_process(uuid, 2, GIB + 1, 0, cgroup="/pod")
    with pytest.raises(OutOfMemoryError, match="limit"):
        nvml.add_process(uuid, 1, 3 * GIB + 1, 0, cgroup="/pod")
    assert nvml.cgroup_memory(uuid, "/pod").used_bytes == 2 * GIB
    nvml.add_process(uuid, 1, 3 * GIB, 0, cgroup="/pod")
    nvml.add_process(uuid, 3, 10 * GIB, 0, cgroup="/other")
    nvml.add_process(other, 1, 10 * GIB, 0, cgroup="/pod")
    nvml.set_memory_limit(uuid, "/pod", MemoryLimit())
    nvml.add_process(uuid, 2, 5 * GIB, 0, cgroup="/pod")
    assert nvml.cgroup_memory(uuid, "/pod").used_bytes == 8 * GIB


def test_a_process_that_changes_its_cgroup_is_counted_once() -> None:
    nvml = simulated("A30")
    (uuid,) = nvml.uuids()
    nvml.set_memory_limit(uuid, "/b", MemoryLimit(2 * GIB))
    nvml.add_process(uuid, 9, GIB, 0, cgroup="/b")
    nvml.add_process(uuid, 1, 2 * GIB, 0, cgroup="/a")
    with pytest.raises(OutOfMemoryError):
        nvml.add_process(uuid, 1, 2 * GIB, 0, cgroup="/b")
    nvml.add_process(uuid, 1, GIB, 0, cgroup="/b")
    assert nvml.cgroup_memory(uuid, "/a").used_bytes == 0
    assert nvml.cgroup_memory(uuid, "/b").used_bytes == 2 * GIB


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.integers(0, 26 * GIB),
            st.sampled_from([None, "/a", "/b"]),
            st.booleans(),
        ),
        max_size=25,
    )
)
def test_no_wall_is_ever_passed(steps: list[tuple[int, int, str | None, bool]]) -> None:
    nvml = simulated("A30")
    (uuid,) = nvml.uuids()
    walls = {"/a": 5 * GIB, "/b": 0}
    for wall, size in walls.items():
        nvml.set_memory_limit(uuid, wall, MemoryLimit(size))
    for pid, memory, cgroup, goes in steps:
        before = nvml.sample(uuid).processes
        try:
            if goes:
                nvml.remove_process(uuid, pid)
            else:
                nvml.add_process(uuid, pid, memory, 10, cgroup=cgroup)
        except OutOfMemoryError:
            assert nvml.sample(uuid).processes == before
        sample = nvml.sample(uuid)
        assert (sample.memory_used_bytes or 0) <= 24 * GIB - 512 * 2**20
        assert sample.memory_used_bytes == sum(process.memory_bytes or 0 for process in sample.processes)
        assert all(nvml.cgroup_memory(uuid, wall).used_bytes <= size for wall, size in walls.items())


def test_compute_modes_keep_programs_out() -> None:
    nvml = simulated("A30")
    (uuid,) = nvml.uuids()
    nvml.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    nvml.add_process(uuid, 1, GIB, 0)
    with pytest.raises(GpuError, match="exclusive-process"):
        nvml.add_process(uuid, 2, GIB, 0)
    nvml.add_process(uuid, 1, 2 * GIB, 0)
    nvml.remove_process(uuid, 1)
    for pid in (3, 4):
        nvml.add_process(uuid, pid, GIB, 0, mps=True)
    nvml.set_compute_mode(uuid, ComputeMode.PROHIBITED)
    with pytest.raises(GpuError, match="prohibited"):
        nvml.add_process(uuid, 5, GIB, 0, mps=True)


@pytest.mark.parametrize(("pid", "memory", "load"), [(0, 1, 1), (1, -1, 1), (1, 1, 101), (1, 1, -1)])
def test_programs_that_cannot_be(pid: int, memory: int, load: int) -> None:
    nvml = simulated("A30")
    with pytest.raises(GpuError, match="cannot run"):
        nvml.add_process(nvml.uuids()[0], pid, memory, load)


def test_handles_of_the_simulation_know_their_cards() -> None:
    nvml = simulated("A30")
    (uuid,) = nvml.uuids()
    for call in (
        nvml.lose,
        nvml.restore,
        lambda card: nvml.raise_xid(card, 1),
        lambda card: nvml.remove_process(card, 1),
    ):
        with pytest.raises(UnknownCardError):
            call("GPU-none")
    nvml.lose(uuid)
    with pytest.raises(LostCardError):
        nvml.add_process(uuid, 1, 0, 0)


def test_a_card_described_as_broken_reports_it_to_every_watch() -> None:
    nvml = simulated(["A30", {"model": "T4", "xid": 79}])
    for _ in range(2):
        watch = nvml.watch()
        assert watch.wait(0) == CardEvent(EventKind.XID, nvml.uuids()[1], 79)
        assert watch.wait(0) is None


def test_index_gaps() -> None:
    nvml = simulated([{"model": "A30", "index": 2}, {"model": "T4", "index": 200}])
    assert [(card.index, card.minor) for card in nvml.survey().cards] == [(2, 2), (200, 200)]
