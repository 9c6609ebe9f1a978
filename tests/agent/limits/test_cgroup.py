"""Limits on cgroups: the hook's program, compiled, and the socket it asks."""

import asyncio
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.errors import LimitError
from shoal.agent.limits import cgroup
from shoal.agent.limits.cgroup import decoded
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import Driver, MemoryLimit
from shoal.gpu.simulated import NEWEST, SimulatedNvml
from shoal.kubelet.cdi import Hook
from tests.agent.hook import ask, build, encoded

ROOT = Path("/sys/fs/cgroup")
GIB = 2**30


PID = 4321
PLACE = "/kubepods.slice/pod1.slice/cri-containerd-abc.scope"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook, built as the image builds it, but for the host's folder of processes."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not here to build shoal-limit: `make test` as root installs it")
    target = tmp_path_factory.mktemp("hook") / cgroup.PROGRAM
    proc = target.parent / "proc"
    (proc / str(PID)).mkdir(parents=True)
    (proc / str(PID) / "cgroup").write_text(f"4:memory:/elsewhere\n0::{PLACE}\n")
    return build(target, f'-DPROC="{proc}"')


@pytest.fixture(scope="session")
def impatient(program: Path) -> Path:
    """The hook that does not wait for an agent that is away."""
    return build(program.with_name("impatient"), f'-DPROC="{program.parent / "proc"}"', "-DAWAY_SECONDS=0")


@pytest.fixture(scope="session")
def patient(program: Path) -> Path:
    """The hook that waits for as long as a busy machine may need."""
    return build(program.with_name("patient"), f'-DPROC="{program.parent / "proc"}"', "-DAWAY_SECONDS=600")


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A socket with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="lim-"))
    yield folder / "run" / "limit.sock"
    shutil.rmtree(folder)


def machine(driver: Driver = NEWEST) -> SimulatedNvml:
    return SimulatedNvml(parse_cards("2xA30"), clock=lambda: 0.0, driver=driver)


@pytest.fixture
async def served(socket_path: Path) -> AsyncIterator[SimulatedNvml]:
    """Cards whose limits can be set through the socket."""
    nvml = machine()
    async with cgroup.serve(nvml, socket_path, ROOT):
        yield nvml


async def run(program: Path, state: object, *words: object) -> tuple[int, str]:
    """Run the hook as a runtime does."""
    process = await asyncio.create_subprocess_exec(
        program, *map(str, words), stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    text = state if isinstance(state, str) else json.dumps(state)
    _, errors = await process.communicate(text.encode())
    return process.returncode or 0, errors.decode()


async def test_hook_sets_the_limits_of_its_container(program: Path, socket_path: Path, served: SimulatedNvml) -> None:
    first, second = served.uuids()
    state = {
        "ociVersion": "1.2.0",
        "annotations": {"pid": "1", "note": 'a "pid": 1 in {text} \\'},
        "status": "created",
        "pid": PID,
        "bundle": "/b",
    }
    assert await run(program, state, socket_path, f"{first}={3 * GIB}", f"{second}={GIB}") == (0, "")
    place = f"/sys/fs/cgroup{PLACE}"
    assert served.cgroup_memory(first, place).limit == MemoryLimit(3 * GIB)
    assert served.cgroup_memory(second, place).limit == MemoryLimit(GIB)


async def test_hook_fails_when_the_limit_is_not_set(program: Path, socket_path: Path) -> None:
    nvml = machine(Driver("550.54", (12, 4)))
    async with cgroup.serve(nvml, socket_path, ROOT):
        status, errors = await run(program, {"pid": PID}, socket_path, f"{nvml.uuids()[0]}={GIB}")
    assert status == 1
    assert "the memory limit of 1024 MiB could not be set" in errors
    assert "R615" in errors


async def test_hook_waits_for_an_agent_that_comes_back(patient: Path, socket_path: Path) -> None:
    nvml = machine()
    card = nvml.uuids()[0]
    asking = asyncio.create_task(run(patient, {"pid": PID}, socket_path, f"{card}={GIB}"))
    await asyncio.sleep(0.3)
    assert not asking.done()
    async with cgroup.serve(nvml, socket_path, ROOT):
        assert await asking == (0, "")
    assert nvml.cgroup_memory(card, f"/sys/fs/cgroup{PLACE}").limit == MemoryLimit(GIB)


async def test_hook_fails_without_the_agent(impatient: Path, socket_path: Path) -> None:
    status, errors = await run(impatient, {"pid": PID}, socket_path, f"GPU-1={GIB}")
    assert status == 1
    assert "No such file" in errors


@pytest.mark.parametrize(
    "state", ["", "{}", "nonsense", '{"pid": 0}', '{"pid": "12"}', '{"a": {"pid": 12}}', '{"annotations": {"x": "']
)
async def test_hook_fails_without_a_container(program: Path, socket_path: Path, state: str) -> None:
    status, errors = await run(program, state, socket_path, f"GPU-1={GIB}")
    assert status == 1
    assert "has no pid" in errors


async def test_hook_fails_for_a_process_that_is_gone(program: Path, socket_path: Path) -> None:
    status, errors = await run(program, {"pid": PID + 1}, socket_path, f"GPU-1={GIB}")
    assert status == 1
    assert "the container's cgroup: cannot be read" in errors


async def test_hook_says_how_it_is_called(program: Path) -> None:
    assert await run(program, "{}", "/nowhere") == (1, "shoal-limit: usage: shoal-limit SOCKET UUID=BYTES...\n")


async def test_socket_is_roots_alone_and_replaces_an_old_one(socket_path: Path) -> None:
    for _ in range(2):
        async with cgroup.serve(machine(), socket_path, ROOT):
            assert _mode(socket_path) == 0o600
        assert _mode(socket_path) == 0o600


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_many_hooks_at_once(socket_path: Path, served: SimulatedNvml) -> None:
    card = served.uuids()[0]
    answers = await asyncio.gather(
        *(ask(socket_path, f"/kubepods/pod{number}/c", [f"{card}={number + 1}"]) for number in range(100))
    )
    assert answers == ["ok"] * 100
    for number in range(100):
        found = served.cgroup_memory(card, f"/sys/fs/cgroup/kubepods/pod{number}/c")
        assert found.limit == MemoryLimit(number + 1)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no request"),
        (b"limit 2\n/a\nGPU-1=1\n", "another version"),
        (b"limit 1\n/a\nGPU-1=1", "no request"),
        (b"limit 1\n/\nGPU-1=1\n", "not a container's cgroup"),
        (b"limit 1\n//\nGPU-1=1\n", "not a container's cgroup"),
        (b"limit 1\n/../../pod\nGPU-1=1\n", "run the hook on the host"),
        (b"limit 1\nkubepods\nGPU-1=1\n", "not a container's cgroup"),
        (b"limit 1\n/a\nGPU-1\n", "write UUID=BYTES"),
        (b"limit 1\n/a\nGPU-1=0\n", "write UUID=BYTES"),
        (b"limit 1\n/a\nGPU-1=-5\n", "write UUID=BYTES"),
        (b"limit 1\n/a\n" + b"GPU-1=1\n" * 10000, "no request"),
    ],
)
def test_what_is_no_request(raw: bytes, words: str) -> None:
    with pytest.raises(LimitError, match=words):
        decoded(raw)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    try:
        request = decoded(raw)
    except LimitError:
        return
    assert request.cgroup.strip("/")
    assert request.limits


@given(
    st.text("abcdef/-_.", min_size=1).filter(lambda text: text.strip("/") and ".." not in text.split("/")),
    st.dictionaries(st.from_regex(r"\AGPU-[a-f0-9]{1,8}\Z"), st.integers(1, 2**62), min_size=1, max_size=9),
)
def test_requests_come_through(path: str, limits: dict[str, int]) -> None:
    request = decoded(encoded(f"/{path}", [f"{uuid}={amount}" for uuid, amount in limits.items()]))
    assert (request.cgroup, request.limits) == (f"/{path}", limits)


ONE, TWO = "GPU-1", "GPU-2"


def vendors(*words: str, moment: str = "createRuntime") -> Hook:
    return Hook(moment, "/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", *words))


@pytest.mark.parametrize(
    ("hooks", "memory", "limit"),
    [
        ([vendors("apply-cuda-memory-limits", "--gpu-id=GPU-1")], {ONE: 3072}, "3072"),
        ([vendors("apply-cuda-memory-limits", "--gpu-id", "GPU-1")], {ONE: 3072}, "3072"),
        ([vendors("apply-cuda-memory-limits", f"--gpu-id={card}") for card in (ONE, TWO)], {ONE: 1, TWO: 1}, "1"),
        ([vendors("apply-cuda-memory-limits", f"--gpu-id={card}") for card in (ONE, TWO)], {ONE: 1, TWO: 2}, None),
        ([vendors("apply-cuda-memory-limits", "--gpu-id=GPU-1")], {ONE: 1, TWO: 1}, None),
        ([vendors("apply-cuda-memory-limits")], {ONE: 3072}, None),
        ([vendors("update-ldcache", "--gpu-id=GPU-1")], {ONE: 3072}, None),
        ([vendors("apply-cuda-memory-limits", "--gpu-id=GPU-1", moment="createContainer")], {ONE: 3072}, None),
        ([], {ONE: 3072}, None),
    ],
)
def test_nvidias_hook_is_trusted_only_where_it_limits_every_card(
    hooks: list[Hook], memory: dict[str, int], limit: str | None
) -> None:
    edits = cgroup.vendor_edits(hooks, memory)
    assert (edits is None) is (limit is None)
    if edits is not None:
        wanted = {"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": limit}
        assert edits.environment(dict.fromkeys(wanted, "9")) == wanted, "whatever the pod has written there"


def test_install(tmp_path: Path) -> None:
    source = tmp_path / "image" / "shoal-limit"
    source.parent.mkdir()
    source.write_bytes(b"\x7fELF")
    for _ in range(2):
        place = cgroup.install(source, tmp_path / "host")
        assert place.read_bytes() == b"\x7fELF"
        assert os.access(place, os.X_OK)
    assert [path.name for path in place.parent.iterdir()] == ["shoal-limit"]
    with pytest.raises(LimitError, match="cannot be put into"):
        cgroup.install(tmp_path / "nothing", tmp_path / "host")
