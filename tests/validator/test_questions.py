"""Questions to NVIDIA's libraries by processes of their own: answers, refusals, crashes, hangs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.validator.errors import CheckError
from shoal.validator.questions import AbsentError, DriverAnswer, DriverQuestions, plain
from tests.discovery.site import eventually
from tests.testbed import waiting
from tests.validator.conftest import NewRoot, compiled

PATIENCE = 300.0
HANGS = "#include <unistd.h>\nint nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }"
FOUND = DriverAnswer("615.71.05", 2)


@pytest.fixture
def ask() -> DriverQuestions:
    return DriverQuestions(PATIENCE)


@pytest.mark.parametrize(
    "folder",
    [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "lib64",
        "usr/lib/x86_64-linux-gnu/nvidia/current",
    ],
)
async def test_a_driver_is_found_where_systems_have_it(ask: DriverQuestions, new_root: NewRoot, folder: str) -> None:
    root = new_root("host")
    root.install(folder)
    assert await ask.nvml(str(root.path)) == FOUND


async def test_links_lead_where_they_do_on_the_node(ask: DriverQuestions, new_root: NewRoot) -> None:
    """Debian's packages have absolute links."""
    root = new_root("host")
    root.install("opt/driver")
    (root.path / "usr/lib64").mkdir(parents=True)
    (root.path / "usr/lib64/libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    (root.path / "etc/alternatives").mkdir(parents=True)
    (root.path / "etc/alternatives/nvml").symlink_to("/opt/driver/libnvidia-ml.so.1")
    assert await ask.nvml(str(root.path)) == FOUND


async def test_no_library_no_root(ask: DriverQuestions, new_root: NewRoot) -> None:
    root = new_root("host")
    for path in (root.path, root.path / "none"):
        with pytest.raises(AbsentError):
            await ask.nvml(str(path))


async def test_by_the_loaders_name(ask: DriverQuestions, new_root: NewRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AbsentError):
        await ask.nvml()
    root = new_root("host")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root.install("lib").directory))
    assert await ask.nvml() == FOUND


@pytest.mark.parametrize(
    ("errors", "why", "fix"),
    [
        ({"nvmlInitWithFlags": 9}, "kernel module is not loaded", "modprobe nvidia"),
        ({"nvmlInitWithFlags": 18}, "are of different versions", "reboot the node"),
        ({"nvmlInitWithFlags": 4}, "may not be opened", "privileged"),
        ({"nvmlInitWithFlags": 999}, "NVML error 999", "dmesg on the node says more"),
        ({"nvmlDeviceGetCount_v2": 15}, "does not answer", "a reset of the card"),
    ],
)
async def test_nvmls_errors_are_words(
    ask: DriverQuestions, new_root: NewRoot, errors: dict[str, int], why: str, fix: str
) -> None:
    root = new_root("host")
    root.install(errors=errors)
    with pytest.raises(CheckError, match=re.escape(why)) as raised:
        await ask.nvml(str(root.path))
    assert fix in raised.value.fix


async def test_a_driver_without_cards(ask: DriverQuestions, new_root: NewRoot) -> None:
    root = new_root("host")
    root.install(cards="")
    with pytest.raises(CheckError, match=re.escape("driver 615.71.05 sees no card")):
        await ask.nvml(str(root.path))


async def test_a_library_that_crashes(ask: DriverQuestions, tmp_path: Path) -> None:
    compiled(
        tmp_path / "usr/lib64",
        "libnvidia-ml.so.1",
        "int nvmlInitWithFlags(unsigned flags) { return *(volatile int *)0; }",
    )
    with pytest.raises(CheckError, match=re.escape("NVML crashed (SIGSEGV)")):
        await ask.nvml(str(tmp_path))
    with pytest.raises(CheckError, match="crashed"):
        await ask.nvml(str(tmp_path))


async def test_a_library_that_hangs(tmp_path: Path) -> None:
    compiled(tmp_path / "usr/lib64", "libnvidia-ml.so.1", HANGS)
    with pytest.raises(CheckError, match=re.escape("NVML did not answer within 1.5 s")):
        await DriverQuestions(1.5).nvml(str(tmp_path))
    assert children() == []


async def test_a_library_that_is_none(ask: DriverQuestions, tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").write_text("none")
    with pytest.raises(CheckError, match="cannot be loaded as NVIDIA's driver library"):
        await ask.nvml(str(tmp_path))


async def test_a_library_that_writes_everywhere(ask: DriverQuestions, tmp_path: Path) -> None:
    """What it says on the standard streams is no answer, and what it writes into the pipe cannot be read as one."""
    source = """#include <unistd.h>
    int nvmlInitWithFlags(unsigned flags) {
        for (int i = 0; i < 65536; i++) write(i, "{\\"version\\":\\"1\\",\\"count\\":1}", 25);
        return 9;
    }"""
    compiled(tmp_path / "usr/lib64", "libnvidia-ml.so.1", source)
    with pytest.raises(CheckError, match="cannot be read"):
        await ask.nvml(str(tmp_path))


CUDA = """
static int count = %d;
int cuInit(unsigned flags) { return flags ? 1 : %d; }
int cuDeviceGetCount(int *number) { *number = count; return 0; }
int cuGetErrorString(int code, const char **words) { *words = "no CUDA-capable device is detected"; return !code; }
"""


@pytest.mark.parametrize(
    ("cards", "code", "why"),
    [(2, 0, ""), (0, 0, "CUDA sees no card"), (2, 100, "cuInit failed: no CUDA-capable device is detected")],
)
async def test_cuda(
    ask: DriverQuestions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: int, code: int, why: str
) -> None:
    compiled(tmp_path, "libcuda.so.1", CUDA % (cards, code))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if why:
        with pytest.raises(CheckError, match=re.escape(why)):
            await ask.cuda()
    else:
        assert (await ask.cuda()).cards == cards


async def test_no_cuda(ask: DriverQuestions) -> None:
    with pytest.raises(AbsentError):
        await ask.cuda()


async def test_the_driver_is_let_go(ask: DriverQuestions, new_root: NewRoot) -> None:
    root = new_root("host")
    shim = root.install()
    await ask.nvml(str(root.path))
    assert children() == []
    assert str(shim.library) not in read(Path("/proc/self/maps"))


async def test_a_question_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    compiled(tmp_path / "usr/lib64", "libnvidia-ml.so.1", HANGS)
    task = asyncio.create_task(DriverQuestions(PATIENCE).nvml(str(tmp_path)))
    await eventually(children, "a process that asks")
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert children() == []


def test_a_child_dies_with_its_validator(tmp_path: Path) -> None:
    compiled(tmp_path / "usr/lib64", "libnvidia-ml.so.1", HANGS)
    script = f"""import asyncio
from shoal.validator.questions import DriverQuestions
asyncio.run(DriverQuestions(1000).nvml({str(tmp_path)!r}))"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        # Once it hangs in the library it has asked to die with its parent.
        waiting.wait_for(
            lambda: any("libnvidia-ml" in read(Path(f"/proc/{pid}/maps")) for pid in children(process.pid)), "asked", 60
        )
        (child,) = children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    waiting.wait_for(lambda: not alive(child), "gone")


def children(parent: int | None = None) -> list[int]:
    """The processes of questions that a process has asked."""
    path = Path(f"/proc/{parent or os.getpid()}/task/{parent or os.getpid()}/children")
    found = [int(pid) for pid in path.read_text().split()]
    return [pid for pid in found if "shoal.validator.child" in read(Path(f"/proc/{pid}/cmdline"))]


def alive(pid: int) -> bool:
    return "shoal.validator.child" in read(Path(f"/proc/{pid}/cmdline"))


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_words_are_plain() -> None:
    assert plain("a\nb\x1b[0m") == "a b [0m"
    assert len(plain("x" * 10_000)) == 512
