"""NVML alone: drivers that are missing, come late or answer badly. The library is the stand-in."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.gpu.errors import GpuError, LostCardError, NoDriverError, NoPermissionError, NotSupportedError
from shoal.gpu.inventory import gpus
from shoal.gpu.nvml import open_nvml
from shoal.gpu.nvml.driver import NvmlDriver
from shoal.gpu.protocol import Card, ComputeMode, Fabric, MemoryLimit, RemappedRows, Sample
from shoal.model.contract.shoal import decode_gpus, encode_gpus
from tests.gpu.machines import ShimMachine
from tests.soak import times
from tests.testbed.nvidia import SERIES, parts_or_skip
from tests.testbed.nvml.shim import SOURCE, Shim, declared

UNSUPPORTED, NO_PERMISSION, NO_FUNCTION, LOST, UNKNOWN = 3, 4, 13, 15, 999
FUNCTIONS = re.findall(r"^(?:nvmlReturn_t |READING\(|CHOSEN\(|PAIR\()(nvml\w+)", SOURCE.read_text(), re.MULTILINE)


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


def test_the_stand_in_has_what_is_called() -> None:
    assert len(FUNCTIONS) > 45
    calls = {
        call
        for path in (SOURCE.parents[3] / "src/shoal/gpu/nvml").glob("*.py")
        for call in re.findall(r"pynvml\.(nvml[A-Z]\w+)", path.read_text())
        if not call.startswith("nvmlEventType")
    }
    # nvidia-ml-py adds the version to some names, and the older forms of the two lists are for old drivers only.
    served = {re.sub(r"_v\d$", "", function) for function in FUNCTIONS}
    left = {call for call in calls if re.sub(r"_v\d$", "", call) not in served}
    assert left == {"nvmlLib", "nvmlMemory_v2"}  # no functions


def test_the_stand_in_has_every_call_of_the_header(shim: Shim) -> None:
    """What it knows nothing of answers FUNCTION_NOT_FOUND, so that programs of others can look up any name."""
    library = ctypes.CDLL(str(shim.library))
    names = declared()
    assert len(names) > 400
    assert set(FUNCTIONS) <= names, "no call of our own making"
    assert [name for name in sorted(names) if not hasattr(library, name)] == []
    looked_up = set(re.findall(r'FunctionPointer\("(nvml\w+)"', Path(pynvml.__file__).read_text()))
    assert len(looked_up) > 300
    assert looked_up <= names, "what nvidia-ml-py looks up, for one"
    assert library.nvmlDeviceGetVgpuMetadata(None, None, None) == NO_FUNCTION


def test_the_fabric_of_a_card_that_has_joined_one(shim: Shim) -> None:
    cluster = "53f1b1a0-29d4-4a2c-8b0e-0c1d2e3f4a5b"
    lines = ["driver 580.1", "cuda 13000", "card GPU-1", f"fabric 7 {cluster.replace('-', '')}", "card GPU-2"]
    shim.write("\n".join(lines))
    nvml = open_nvml(shim.library)
    try:
        first, second = nvml.survey().cards
    finally:
        nvml.close()
    assert (first.fabric, second.fabric) == (Fabric(cluster, 7), None)


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(NoDriverError, match="cannot be loaded"):
        open_nvml(tmp_path / "libnvidia-ml.so.1")
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    with pytest.raises(NoDriverError, match="cannot be loaded"):
        open_nvml(tmp_path / "libnvidia-ml.so.1")


@pytest.mark.kube
@pytest.mark.parametrize("series", SERIES)
def test_nvidias_library_without_a_driver(series: str) -> None:
    """NVIDIA's own has the calls that are made of it, and says that the kernel module is not there."""
    path = parts_or_skip(series).libraries / "libnvidia-ml.so.1"
    library = ctypes.CDLL(str(path))
    missing = {name for name in FUNCTIONS if not hasattr(library, name)}
    missing.discard("nvmlDeviceGetGpuFabricInfoV")  # came with R545; before it the older form is asked
    assert missing == {"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"}, "those came with R615"
    for _ in range(2):
        with pytest.raises(NoDriverError, match="is not loaded: load the kernel module nvidia"):
            open_nvml(path)


def test_the_loader_finds_the_library(shim: Shim) -> None:
    """In a process of its own, as the agent will: first there is none, then there is one."""
    shim.write("driver 1.2.3\ncard GPU-found\nmemory 1\nused 0\n")
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from shoal.gpu.errors import NoDriverError\n"
        "from shoal.gpu.nvml import open_nvml\n"
        "library = Path(sys.argv[1])\n"
        "try:\n    open_nvml()\nexcept NoDriverError as error:\n    print(error)\n"
        "library.with_suffix('.away').rename(library)\n"
        "print(open_nvml().survey().cards[0].uuid)\n"
    )
    shim.library.rename(shim.library.with_suffix(".away"))
    result = subprocess.run(
        [sys.executable, "-c", program, shim.library],
        env={**os.environ, "LD_LIBRARY_PATH": str(shim.directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = result.stdout.splitlines()
    assert first.endswith("install NVIDIA's driver, or mount it here")
    assert second == "GPU-found"


@pytest.mark.parametrize(
    ("code", "fix"), [(9, "load the kernel module"), (18, "restart this process"), (4, "needs root"), (999, "999")]
)
def test_a_driver_that_does_not_start_can_be_tried_again(shim: Shim, code: int, fix: str) -> None:
    shim.write(f"error nvmlInitWithFlags {code}\n")
    with pytest.raises(GpuError, match=fix):
        open_nvml(shim.library)
    shim.write("driver 1.2.3\n")
    nvml = open_nvml(shim.library)
    assert nvml.driver().version == "1.2.3"
    nvml.close()
    with pytest.raises(NoDriverError, match="open it again"):
        nvml.survey()


def test_one_at_a_time(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    with pytest.raises(GpuError, match="close it first"):
        open_nvml(machine.shim.library)
    assert len(machine.nvml.survey().cards) == 1


def test_both_backends_tell_the_same(made: Callable[[object], ShimMachine]) -> None:
    """All fields of cards and readings, against the simulation that the library's file was written from."""
    machine = made(
        [
            {"model": "A100-40G", "count": 3, "nvlink": 6, "numa": [0, 0, 70]},
            {"model": "A30", "mig": ["1g.6gb", "1g.6gb", "2g.12gb"]},
            {"model": "H100", "count": 2, "nvlink": "switch"},
            {"model": "RTX5090", "memory": "31Gi"},
        ]
    )
    uuids = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuids[0], 1, 2**30, 33))
    machine.change(lambda cards: cards.add_process(uuids[6], 4000000, 2**33, 100, mps=True))
    machine.change(lambda cards: cards.count_ecc(uuids[0], corrected=3))
    part = machine.truth.survey().cards[3].mig_instances[2].uuid
    machine.change(lambda cards: cards.add_process(part, 12, 2**30, 20))
    for uuid in uuids:
        machine.nvml.sample(uuid)
    machine.clock.now += 100
    machine.change(lambda _: None)
    assert machine.nvml.survey() == machine.truth.survey()
    for uuid in uuids:
        assert machine.nvml.sample(uuid) == machine.truth.sample(uuid)
        assert machine.nvml.pcie_traffic(uuid) == machine.truth.pcie_traffic(uuid)


def test_an_older_driver_lists_processes_too(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    (uuid,) = machine.truth.uuids()
    machine.change(lambda cards: cards.add_process(uuid, 1, 2**30, 33))
    machine.change(lambda cards: cards.add_process(uuid, 2, 2**30, 33, mps=True))
    newer = machine.nvml.sample(uuid).processes
    lists = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3")
    machine.write(errors=tuple((function, NO_FUNCTION) for function in lists))
    assert machine.nvml.sample(uuid).processes == newer
    assert len(newer) == 2


def test_rows_that_could_not_be_replaced(made: Callable[[object], ShimMachine]) -> None:
    machine = made("A100")
    (uuid,) = machine.truth.uuids()
    assert machine.nvml.sample(uuid).remapped == RemappedRows(0, 0, pending=False, failed=False)
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(lines.replace("remapped 0 0 0 0", "remapped 7 2 1 1"))
    assert machine.nvml.sample(uuid).remapped == RemappedRows(7, 2, pending=True, failed=True)


def test_mig_profiles_without_names(made: Callable[[object], ShimMachine]) -> None:
    """Older drivers do not name the profile: it follows from slices and memory."""
    machine = made([{"model": "A100-40G", "mig": ["1g.5gb", "2g.10gb", "4g.20gb"]}])
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(re.sub(r" NVIDIA \S+ MIG \S+$", " NVIDIA A100", lines, flags=re.MULTILINE))
    parts = machine.nvml.survey().cards[0].mig_instances
    assert [part.profile for part in parts] == ["1g.5gb", "2g.10gb", "4g.20gb"]


@pytest.mark.parametrize("code", [UNSUPPORTED, NO_PERMISSION, NO_FUNCTION, UNKNOWN])
def test_no_failing_reading_stops_the_others(made: Callable[[object], ShimMachine], code: int) -> None:
    machine = made([{"model": "A100-40G", "count": 2, "nvlink": 6, "numa": 1}])
    before = machine.nvml.survey()
    uuid = before.cards[0].uuid
    machine.change(lambda cards: cards.add_process(uuid, 1, 2**30, 33))
    machine.nvml.sample(uuid)
    machine.clock.now += 5
    machine.write()
    sample = machine.nvml.sample(uuid)
    needed = {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}
    lost_fields: set[str] = set()
    for function in set(FUNCTIONS) - needed:
        machine.write(errors=((function, code),))
        survey, now = machine.nvml.survey(), machine.nvml.sample(uuid)
        assert [card.uuid for card in survey.cards] == [card.uuid for card in before.cards]
        lost_fields |= _differing(before.cards[0], survey.cards[0]) | _differing(sample, now)
    assert {"power_mw", "fan", "temperature_c", "mig", "links", "processes", "numa", "cores", "pci"} - lost_fields == {
        "fan"
    }


def _differing(before: Card | Sample, after: Card | Sample) -> set[str]:
    """The names of the fields that differ; each is empty now."""
    names = {name for name in type(before).__slots__ if getattr(before, name) != getattr(after, name)}
    for name in names:
        value = getattr(after, name)
        # Without the newer call for memory the older one answers, which counts the reserved part as used.
        if name not in ("limits", "memory_used_bytes", "memory_free_bytes", "processes", "failed_calls"):
            assert value in (None, "", (), 0, {}), name
    return names


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize("code", [LOST, UNKNOWN])
def test_a_card_that_cannot_be_named(made: Callable[[object], ShimMachine], function: str, code: int) -> None:
    machine = made("2xT4")
    lines = (machine.shim.directory / "nvml.txt").read_text()
    first = lines.index("card ")
    end = lines.index("\n", first) + 1
    machine.shim.write(f"{lines[:end]}error {function} {code}\n{lines[end:]}")
    survey = machine.nvml.survey()
    assert [card.index for card in survey.cards] == [1]
    assert [unreadable.index for unreadable in survey.unreadable] == [0]
    machine.write()
    assert [card.index for card in machine.nvml.survey().cards] == [0, 1]


def test_a_lost_card_gives_way_when_indices_move(made: Callable[[object], ShimMachine]) -> None:
    machine = made("3xT4")
    first, second, third = machine.nvml.survey().cards
    lines = (machine.shim.directory / "nvml.txt").read_text()
    begin, end = (lines.index(f"card {card.uuid}") for card in (first, second))
    machine.shim.write(lines[:begin] + lines[end:])
    cards = machine.nvml.survey().cards
    assert [(card.uuid, card.index, card.lost) for card in cards] == [
        (second.uuid, 0, False),
        (third.uuid, 1, False),
        (first.uuid, 2, True),
    ]
    encode_gpus(gpus(machine.nvml.survey()))
    with pytest.raises(LostCardError):
        machine.nvml.sample(first.uuid)


@pytest.mark.parametrize(
    ("code", "error"), [(NO_PERMISSION, NoPermissionError), (UNSUPPORTED, NotSupportedError), (LOST, LostCardError)]
)
def test_orders_that_are_refused(made: Callable[[object], ShimMachine], tmp_path: Path, code: int, error: type) -> None:
    machine = made("T4")
    uuid = machine.nvml.survey().cards[0].uuid
    machine.write(errors=(("nvmlDeviceSetComputeMode", code), ("nvmlDeviceSetMemoryLimits_v1", code)))
    with pytest.raises(error):
        machine.nvml.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    with pytest.raises(error):
        machine.nvml.set_memory_limit(uuid, str(tmp_path), MemoryLimit(2**30))
    assert machine.shim.told() == []


def test_orders_reach_the_driver(made: Callable[[object], ShimMachine], tmp_path: Path) -> None:
    machine = made("2xT4")
    uuid = machine.nvml.survey().cards[1].uuid
    machine.nvml.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    machine.nvml.set_memory_limit(uuid, str(tmp_path), MemoryLimit(3 * 2**30, 2**20))
    machine.nvml.set_memory_limit(uuid, str(tmp_path), MemoryLimit())
    assert machine.shim.told() == [
        "compute_mode 1 3",
        f"memory_limit 1 1048576 3221225472 {tmp_path}",
        f"memory_limit 1 0 18446744073709551615 {tmp_path}",
    ]


def test_what_a_cgroup_uses(made: Callable[[object], ShimMachine], tmp_path: Path) -> None:
    machine = made("T4")
    uuid = machine.nvml.survey().cards[0].uuid
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(f"{lines}cgroup 123456789 {tmp_path}\n")
    assert machine.nvml.cgroup_memory(uuid, str(tmp_path)).used_bytes == 123456789


def test_a_card_that_reports_no_events_does_not_stop_the_others(made: Callable[[object], ShimMachine]) -> None:
    machine = made("2xT4")
    first, second = machine.truth.uuids()
    lines = (machine.shim.directory / "nvml.txt").read_text()
    machine.shim.write(lines.replace("name Tesla T4\n", "name Tesla T4\nerror nvmlDeviceRegisterEvents 3\n", 1))
    events = machine.nvml.watch()
    machine.change(lambda cards: cards.raise_xid(first, 31))
    machine.change(lambda cards: cards.raise_xid(second, 48))
    event = events.wait(60)
    assert event is not None
    assert (event.uuid, event.xid) == (second, 48)
    events.close()


def test_a_card_that_dies_of_its_error_is_still_named(made: Callable[[object], ShimMachine]) -> None:
    """An error without a name would be held against every card of the node."""
    machine = made("2xT4")
    first, _ = machine.truth.uuids()
    events = machine.nvml.watch()
    machine.truth.raise_xid(first, 79)
    machine.write(errors=(("nvmlDeviceGetUUID", LOST),))
    event = events.wait(60)
    assert event is not None
    assert (event.uuid, event.xid) == (first, 79)
    events.close()


def test_a_wait_that_fails_says_so(made: Callable[[object], ShimMachine]) -> None:
    machine = made("T4")
    events = machine.nvml.watch()
    machine.write(errors=(("nvmlEventSetWait_v2", UNKNOWN),))
    with pytest.raises(GpuError, match="999"):
        events.wait(60)
    events.close()


WORDS = (
    b"driver cuda error event name memory used reserved process link remapped mig mig_mode cgroup lost numa bus domain "
    b"device cc_major cc_minor load fan temperature ecc minor cores event_types "
    b"field_82 field_83 field_138 gpm_1 gpm_20 clock_events time"
)
words = st.sampled_from(WORDS.split())
numbers = (st.integers(-2, 2**65) | st.integers(0, 40)).map(lambda number: str(number).encode())
texts = st.sampled_from([b"GPU-1", b"MIG-1", b"/tmp", b"nvmlDeviceGetUUID 15", b"nvmlDeviceGetName 999", b"\xff\xfe"])
lines = st.builds(
    lambda word, rest: b" ".join([word, *rest]),
    words,
    st.lists(numbers | numbers | texts | st.binary(max_size=200), max_size=5),
)
uuids = st.sampled_from([b"GPU-1", b"GPU-2", b"GPU-3"]) | st.binary(max_size=120)
sections = st.builds(lambda uuid, rest: b"\n".join([b"card " + uuid, *rest]), uuids, st.lists(lines, max_size=25))
files = st.builds(
    lambda head, cards: b"\n".join([*head, *cards]), st.lists(lines, max_size=4), st.lists(sections, max_size=5)
)


@settings(max_examples=times(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=files | st.binary(max_size=500))
def test_whatever_the_driver_answers(shim: Shim, state: bytes) -> None:
    """Any answer is read, or is one of our errors; an inventory that comes of it can be published."""
    shim.write(b"")
    nvml: NvmlDriver = open_nvml(shim.library)
    try:
        shim.write(state)
        survey = nvml.survey()
        published = gpus(survey)
        assert decode_gpus(encode_gpus(published)) == published
        nvml.driver()
        for card in survey.cards:
            nvml.sample(card.uuid)
        nvml.watch().close()
    except GpuError:
        pass
    finally:
        shim.write(b"")
        nvml.close()
